"""Every Prometheus series of the operator, declared once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from odradek.values import TopicPartition

REGISTRY: Final = CollectorRegistry()

RECONCILE_SECONDS: Final = Histogram(
    "odradek_operator_reconcile_seconds",
    "Seconds per reconciliation.",
    ["kind"],
    registry=REGISTRY,
    buckets=(0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0),
)
ERRORS: Final = Counter(
    "odradek_operator_reconcile_errors",
    "Reconciliations that failed and are retried.",
    ["kind"],
    registry=REGISTRY,
)
LAST_SUCCESS: Final = Gauge(
    "odradek_operator_last_success_timestamp_seconds",
    "Unix time of the last successful reconciliation per kind.",
    ["kind"],
    registry=REGISTRY,
)
WRITES: Final = Counter(
    "odradek_operator_writes",
    "Write requests to ZooKeeper and to the API server.",
    ["target"],
    registry=REGISTRY,
)
READS: Final = Counter(
    "odradek_operator_zookeeper_reads",
    "Znodes read from ZooKeeper.",
    registry=REGISTRY,
)
QUEUED: Final = Gauge(
    "odradek_operator_queued_resources",
    "Resources due for reconciliation.",
    ["namespace", "cluster"],
    registry=REGISTRY,
)
SESSION_AGE: Final = Gauge(
    "odradek_operator_zookeeper_session_age_seconds",
    "Age of the ZooKeeper session; 0 without one.",
    ["connect"],
    registry=REGISTRY,
)
LEADER: Final = Gauge(
    "odradek_operator_leader",
    "1 while this process holds the Lease.",
    registry=REGISTRY,
)


@dataclass(frozen=True, slots=True)
class GroupLag:
    """Lag of an observed group by partition: records, and seconds where they are known.

    `read_at` is the wall clock when all of it was read, None if not all of it was.
    """

    namespace: str
    cluster: str
    group: str
    records: Mapping[TopicPartition, int]
    seconds: Mapping[TopicPartition, int]
    read_at: float | None


class GroupLags(Collector):
    """Lags of the groups without a job, with the metric names that jobs use.

    A group that is not observed any more has no series. One whose lag is not known has none of its
    lag instead of an old one, and goes on to tell when it was read last.
    """

    def __init__(self) -> None:
        self._known: dict[str, GroupLag] = {}

    def put(self, uid: str, lag: GroupLag) -> None:
        """Export the lag of a resource from now on."""
        known = self._known.get(uid)
        if known is not None and lag.read_at is None:
            lag = replace(lag, read_at=known.read_at)
        self._known[uid] = lag

    def drop(self, uid: str) -> None:
        """Forget the lag of a resource."""
        self._known.pop(uid, None)

    def keep(self, uids: Collection[str]) -> None:
        """Forget all other resources."""
        for gone in set(self._known) - set(uids):
            self._known.pop(gone, None)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the series as they are now."""
        of_group = ["namespace", "cluster", "consumergroup"]
        labels = [*of_group, "topic", "partition"]
        records = GaugeMetricFamily(
            "kafka_consumergroup_lag", "Records after the committed offset.", labels=labels
        )
        seconds = GaugeMetricFamily(
            "kafka_consumergroup_lag_seconds",
            "Seconds since the next record to be read was appended.",
            labels=labels,
        )
        read_at = GaugeMetricFamily(
            "odradek_consumergroup_lag_read_timestamp_seconds",
            "Unix time of the last read; an old one means that brokers or ZooKeeper do not answer.",
            labels=of_group,
        )
        for one in list(self._known.values()):
            group = [one.namespace, one.cluster, one.group]
            for family, values in ((records, one.records), (seconds, one.seconds)):
                for partition, value in values.items():
                    family.add_metric([*group, partition.topic, str(partition.partition)], value)
            if one.read_at is not None:
                read_at.add_metric(group, one.read_at)
        return records, seconds, read_at


GROUP_LAGS: Final = GroupLags()
REGISTRY.register(GROUP_LAGS)
