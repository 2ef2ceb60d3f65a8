"""The driver's HTTP server: /metrics for Prometheus, /status for the operator, and /healthz.

All three show one `Status` value that is replaced as a whole, so a scrape never sees half a
measurement. Each scrape builds the series from it: every existing partition has its series, and a
deleted one has none. The names are those of kafka_exporter, which lag dashboards know.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from odradek.clock import wall_ms
from odradek.http_server import HttpAnswer, HttpRequest, HttpServer, plain
from odradek_spark.config import REFRESH_INTERVAL_S
from odradek_spark.lag import Measurement, PartitionLag

STARTING, RUNNING, STOPPING, COMPLETED, FAILED = (
    "Starting",
    "Running",
    "Stopping",
    "Completed",
    "Failed",
)

# A measurement is current while at most two measurements in a row failed after it.
_MEASUREMENT_CURRENT_MS = int(3 * REFRESH_INTERVAL_S * 1000)


@dataclass(frozen=True, slots=True)
class Status:
    """The driver's state. `batch_id` None: no batch yet; `measured` None: no measurement yet.

    `executors_wanted` is the number that the job follows; None if Spark chooses it.
    `epoch` is this start's number; None: the driver has not joined its group yet.
    `batch_running_s` is the time that the present batch has taken so far; None: none is running.
    `committed_ms` is when the last batch was committed, and `table_rows` how many rows the table
    had after it, or soon after; None: not known.
    `keeps_state` is whether the checkpoint has state; None: the query has not started yet.
    `waits_for` is what keeps it from starting, in a sentence; None: nothing that it knows of.
    """

    state: str = STARTING
    batch_id: int | None = None
    batch_seconds: float = 0.0
    executors: int = 0
    measured: Measurement | None = None
    batch_running_s: float | None = None
    executors_wanted: int | None = None
    epoch: int | None = None
    committed_ms: int | None = None
    table_rows: int | None = None
    keeps_state: bool | None = None
    waits_for: str | None = None


def status_document(status: Status, now_ms: int) -> dict[str, object]:
    """Return the body of /status; numbers that are unknown or outdated are null.

    /metrics keeps an old measurement and shows its age.
    """
    measured = status.measured
    # The member count stays: it does not come from the brokers.
    fresh = None
    if measured is not None and now_ms - measured.at_ms <= _MEASUREMENT_CURRENT_MS:
        fresh = measured
    age_s = None if fresh is None else fresh.max_seconds
    running_s = status.batch_running_s
    return {
        "state": status.state,
        "waitsFor": status.waits_for,
        "checkpointEpoch": status.epoch,
        "keepsState": status.keeps_state,
        "lastBatchId": status.batch_id,
        "lastCommitTime": None if status.committed_ms is None else _stamp(status.committed_ms),
        "tableRows": status.table_rows,
        "totalLag": None if fresh is None else fresh.total,
        "maxLagSeconds": None if age_s is None else round(age_s),
        "executors": status.executors,
        "executorsWanted": status.executors_wanted,
        "batchRunningSeconds": None if running_s is None else round(running_s),
        "members": None if measured is None else measured.members,
        "worstPartitions": [] if fresh is None else [_placed(one) for one in fresh.worst()],
    }


def _stamp(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _placed(part: PartitionLag) -> dict[str, object]:
    topic, number = part.partition
    found: dict[str, object] = {"topic": topic, "partition": number, "lag": part.lag}
    if part.seconds is not None:
        found["lagSeconds"] = round(part.seconds, 3)
    return found


def families(group: str, status: Status) -> Iterator[Metric]:
    """Yield every metric family of the driver."""
    yield from _lag_families(group, status.measured or Measurement())
    for name, text, value in (
        (
            "odradek_job_last_batch_id",
            "Last micro-batch whose offsets are committed.",
            status.batch_id,
        ),
        (
            "odradek_job_batch_duration_seconds",
            "Duration of the last micro-batch.",
            status.batch_seconds,
        ),
        ("odradek_job_executors", "Executors registered with the driver.", status.executors),
    ):
        gauge = GaugeMetricFamily(name, text, labels=["consumergroup"])
        if value is not None:
            gauge.add_metric([group], value)
        yield gauge


def _lag_families(group: str, measured: Measurement) -> Iterator[Metric]:
    labels = ["consumergroup", "topic", "partition"]
    lag = GaugeMetricFamily(
        "kafka_consumergroup_lag",
        "Records of the partition that the group has not read.",
        labels=labels,
    )
    current = GaugeMetricFamily(
        "kafka_consumergroup_current_offset", "Committed offset of the group.", labels=labels
    )
    seconds = GaugeMetricFamily(
        "kafka_consumergroup_lag_seconds",
        "Age of the oldest unread record.",
        labels=labels,
    )
    without = GaugeMetricFamily(
        "odradek_consumergroup_no_commit",
        "1 if the group has no committed offset in the partition, else 0.",
        labels=labels,
    )
    end = GaugeMetricFamily(
        "kafka_topic_partition_current_offset",
        "End offset of the partition.",
        labels=["topic", "partition"],
    )
    for part in measured.partitions:
        place = [part.partition.topic, str(part.partition.partition)]
        if part.end is not None:
            end.add_metric(place, part.end)
        without.add_metric([group, *place], 1 if part.committed is None else 0)
        for gauge, value in (
            (lag, part.lag),
            (current, part.committed),
            (seconds, part.seconds),
        ):
            if value is not None:
                gauge.add_metric([group, *place], value)
    total = GaugeMetricFamily(
        "kafka_consumergroup_lag_sum",
        "Records behind, over all partitions of the topic.",
        labels=["consumergroup", "topic"],
    )
    for topic, value in measured.by_topic().items():
        total.add_metric([group, topic], value)
    members = GaugeMetricFamily(
        "kafka_consumergroup_members", "Registered members of the group.", labels=["consumergroup"]
    )
    read_at = GaugeMetricFamily(
        "odradek_consumergroup_lag_read_timestamp_seconds",
        "Time of the last measurement; an old one means that brokers or ZooKeeper do not answer.",
        labels=["consumergroup"],
    )
    if measured.at_ms:
        members.add_metric([group], measured.members)
        read_at.add_metric([group], measured.at_ms / 1000)
    yield from (lag, total, current, end, seconds, without, members, read_at)


class _DriverCollector(Collector):
    def __init__(self, group: str, status: Callable[[], Status]) -> None:
        self._group = group
        self._status = status

    def collect(self) -> Iterator[Metric]:
        return families(self._group, self._status())


@dataclass(slots=True)
class MetricsEndpoint:
    """The HTTP server on `port` (0: any free port, which `port` then names) of `host` ("": all)."""

    group: str
    port: int
    status: Callable[[], Status]
    healthy: Callable[[], bool]
    now_ms: Callable[[], int] = wall_ms
    host: str = ""
    _server: HttpServer | None = field(default=None, init=False)
    _registry: CollectorRegistry = field(default_factory=CollectorRegistry, init=False)

    def start(self) -> None:
        """Serve from a thread of its own. Raises OSError if the port is in use."""
        self._registry.register(_DriverCollector(self.group, self.status))
        self._server = HttpServer(self.port, self._probe, self._answer, self.host)
        self.port = self._server.port

    def stop(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.stop()

    def _probe(self, request: HttpRequest) -> HttpAnswer | None:
        if request.path != "/healthz":
            return None
        if self.healthy():
            return plain(HTTPStatus.OK, "ok")
        return plain(HTTPStatus.SERVICE_UNAVAILABLE, "the batch loop hangs")

    def _answer(self, request: HttpRequest) -> HttpAnswer:
        match request.path:
            case "/metrics":
                return _ok(CONTENT_TYPE_LATEST, generate_latest(self._registry))
            case "/status":
                document = status_document(self.status(), self.now_ms())
                return _ok("application/json", json.dumps(document).encode())
        return plain(HTTPStatus.NOT_FOUND, "/metrics /status /healthz")


def _ok(kind: str, body: bytes) -> HttpAnswer:
    return HttpAnswer("200 OK", {"Content-Type": kind}, body)
