"""The driver's HTTP server: /metrics for Prometheus, /status for the operator, and /healthz.

All three are views of one `Status` value that is replaced as a whole, so a scrape never sees half a
reading. The series are made from it at every scrape: a partition that exists has its series,
whether or not anything moves, and one that is gone leaves none behind. The names are those of
kafka_exporter, which lag dashboards know.
"""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from odradek.clock import wall_ms
from odradek_spark.config import REFRESH_INTERVAL_S
from odradek_spark.lag import Measurement

STARTING, RUNNING, STOPPING, COMPLETED, FAILED = (
    "Starting",
    "Running",
    "Stopping",
    "Completed",
    "Failed",
)

# What was read is the state of things while at most two readings in a row have failed since.
_READING_LASTS_MS = int(3 * REFRESH_INTERVAL_S * 1000)


@dataclass(frozen=True, slots=True)
class Status:
    """The driver at one moment. `batch_id` None: no batch done; `measured` None: no reading."""

    state: str = STARTING
    batch_id: int | None = None
    batch_seconds: float = 0.0
    executors: int = 0
    measured: Measurement | None = None


def status_document(status: Status, now_ms: int) -> dict[str, object]:
    """Return what /status answers; numbers that are not known, or no more, are null.

    /metrics keeps an old reading: there its time stamp tells its age.
    """
    measured = status.measured
    # Members stay: that the driver itself is one does not depend on the brokers.
    fresh = None
    if measured is not None and now_ms - measured.at_ms <= _READING_LASTS_MS:
        fresh = measured
    age_s = None if fresh is None else fresh.max_seconds
    return {
        "state": status.state,
        "lastBatchId": status.batch_id,
        "totalLag": None if fresh is None else fresh.total,
        "maxLagSeconds": None if age_s is None else round(age_s),
        "executors": status.executors,
        "members": None if measured is None else measured.members,
    }


def families(group: str, status: Status) -> Iterator[Metric]:
    """Yield every metric family of the driver."""
    yield from _lag_families(group, status.measured or Measurement())
    for name, text, value in (
        ("odradek_job_last_batch_id", "Last batch whose offsets are committed.", status.batch_id),
        ("odradek_job_batch_duration_seconds", "Time the last batch took.", status.batch_seconds),
        ("odradek_job_executors", "Executors that the driver knows.", status.executors),
    ):
        gauge = GaugeMetricFamily(name, text, labels=["consumergroup"])
        if value is not None:
            gauge.add_metric([group], value)
        yield gauge


def _lag_families(group: str, measured: Measurement) -> Iterator[Metric]:
    labels = ["consumergroup", "topic", "partition"]
    lag = GaugeMetricFamily(
        "kafka_consumergroup_lag", "Records after the committed offset.", labels=labels
    )
    current = GaugeMetricFamily(
        "kafka_consumergroup_current_offset", "Committed offset of the group.", labels=labels
    )
    seconds = GaugeMetricFamily(
        "odradek_consumergroup_lag_seconds",
        "Age of the oldest record that is not committed.",
        labels=labels,
    )
    without = GaugeMetricFamily(
        "odradek_consumergroup_no_commit",
        "1 where the group has no committed offset.",
        labels=labels,
    )
    end = GaugeMetricFamily(
        "kafka_topic_partition_current_offset", "End of the log.", labels=["topic", "partition"]
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
        "Records behind, over the topic's partitions.",
        labels=["consumergroup", "topic"],
    )
    for topic, value in measured.by_topic().items():
        total.add_metric([group, topic], value)
    members = GaugeMetricFamily(
        "kafka_consumergroup_members", "Registered members.", labels=["consumergroup"]
    )
    read_at = GaugeMetricFamily(
        "odradek_consumergroup_lag_read_timestamp_seconds",
        "When the lag was read; an old value means that brokers or ZooKeeper do not answer.",
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
    """The HTTP server on `port` of all addresses (0: a free one, which `port` then tells)."""

    group: str
    port: int
    status: Callable[[], Status]
    healthy: Callable[[], bool]
    now_ms: Callable[[], int] = wall_ms
    _server: ThreadingHTTPServer | None = field(default=None, init=False)

    def start(self) -> None:
        """Serve from a thread of its own. Raises OSError where the port is taken."""
        registry = CollectorRegistry()
        registry.register(_DriverCollector(self.group, self.status))
        self._server = ThreadingHTTPServer(("", self.port), _handler(self, registry))
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="endpoint", daemon=True).start()

    def stop(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


def _handler(
    endpoint: MetricsEndpoint, registry: CollectorRegistry
) -> type[BaseHTTPRequestHandler]:
    class MetricsRequestHandler(BaseHTTPRequestHandler):
        timeout = 10  # seconds that a silent client may hold a thread

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, CONTENT_TYPE_LATEST, generate_latest(registry))
            elif self.path == "/status":
                body = json.dumps(status_document(endpoint.status(), endpoint.now_ms())).encode()
                self._answer(200, "application/json", body)
            elif self.path == "/healthz":
                healthy = endpoint.healthy()
                text = b"ok\n" if healthy else b"the query is not running\n"
                self._answer(200 if healthy else 503, "text/plain", text)
            else:
                self._answer(404, "text/plain", b"/metrics /status /healthz\n")

        def _answer(self, code: int, kind: str, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: a scrape every few seconds is no event."""

    return MetricsRequestHandler
