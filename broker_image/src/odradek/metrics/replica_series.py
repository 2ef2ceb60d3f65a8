"""Metrics of the replicas on this broker: their roles, offsets and sizes, and their disks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from odradek.clock import wall_ms

if TYPE_CHECKING:
    from odradek.replica.manager import ReplicaManager

MOST_PARTITIONS = 10_000
LATE_TRANSACTION_BUFFER_MS = 5 * 60 * 1000
"""How much longer than the longest time-out a late transaction is open, as in Kafka."""


class IsController(Protocol):
    """The controller candidate, as far as metrics need it."""

    @property
    def active(self) -> bool:
        """Return whether this broker is the controller."""


def roles(replicas: ReplicaManager, controller: IsController) -> Iterator[Metric]:
    """Yield metrics of the replicas on this broker, and of their roles."""
    partitions = list(replicas.partitions.values())
    led = [one for one in partitions if one.is_leader]
    for name, help_text, value in (
        ("odradek_partition_count", "Replicas on this broker", len(partitions)),
        ("odradek_leader_count", "Partitions that this broker leads", len(led)),
        (
            "odradek_under_replicated_partitions",
            "Partitions that this broker leads whose ISR lacks a replica, other than those that a "
            "reassignment adds",
            sum(one.is_under_replicated for one in led),
        ),
        (
            "odradek_under_min_isr_partitions",
            "Partitions that this broker leads whose ISR is below min.insync.replicas",
            sum(not one.has_enough_replicas(one.log.config.min_insync_replicas) for one in led),
        ),
        (
            "odradek_offline_partitions",
            "Partitions of the cluster without a leader, in this broker's metadata",
            replicas.metadata.leaderless(),
        ),
        (
            "odradek_offline_replicas",
            "Replicas on this broker whose log directory failed",
            sum(one.offline for one in partitions),
        ),
        (
            "odradek_active_controller",
            "1 if this broker is the controller, else 0",
            int(controller.active),
        ),
    ):
        yield GaugeMetricFamily(name, help_text, value=value)
    yield CounterMetricFamily(
        "odradek_isr_shrinks",
        "Times that a replica left an ISR",
        value=replicas.isr_writer.shrinks,
    )
    yield CounterMetricFamily(
        "odradek_damaged_reads",
        "Fetches answered with CORRUPT_MESSAGE because the data is damaged",
        value=replicas.damaged_reads,
    )
    yield CounterMetricFamily(
        "odradek_refused_replicas",
        "New replicas refused because their log could not be created",
        value=replicas.refused_replicas,
    )
    sessions = replicas.fetch_sessions
    yield GaugeMetricFamily(
        "odradek_incremental_fetch_sessions",
        "Fetch sessions of clients and followers",
        value=len(sessions),
    )
    yield GaugeMetricFamily(
        "odradek_incremental_fetch_partitions_cached",
        "Partitions of all fetch sessions",
        value=sessions.cached_partitions,
    )
    yield CounterMetricFamily(
        "odradek_incremental_fetch_session_evictions",
        "Fetch sessions that others ended: for their slot, or unused for two minutes",
        value=sessions.evictions,
    )
    yield CounterMetricFamily(
        "odradek_isr_expands",
        "Times that a replica joined an ISR",
        value=replicas.isr_writer.expands,
    )


def disks(directories: Iterable[str]) -> Iterator[Metric]:
    """Yield size and free space of the file systems with log directories that work."""
    labels = ["directory"]
    size = GaugeMetricFamily(
        "odradek_log_directory_size_bytes",
        "Size of the file system with this log directory",
        labels=labels,
    )
    free = GaugeMetricFamily(
        "odradek_log_directory_available_bytes",
        "Space that this broker can still take on it",
        labels=labels,
    )
    for path in directories:
        with contextlib.suppress(OSError):  # whoever reads or writes there finds out
            found = os.statvfs(path)
            size.add_metric([path], found.f_frsize * found.f_blocks)
            free.add_metric([path], found.f_frsize * found.f_bavail)
    yield from (size, free)


def partitions(replicas: ReplicaManager) -> Iterator[Metric]:
    """Yield size and offsets of the logs of partitions."""
    labels = ["topic", "partition"]
    size = GaugeMetricFamily("odradek_log_size_bytes", "Bytes on disk", labels=labels)
    start = GaugeMetricFamily(
        "odradek_log_start_offset", "Offset of the first record", labels=labels
    )
    end = GaugeMetricFamily("odradek_log_end_offset", "Offset of the next record", labels=labels)
    mark = GaugeMetricFamily(
        "odradek_high_watermark", "Offset below which all records are committed", labels=labels
    )
    for key, partition in list(replicas.partitions.items())[:MOST_PARTITIONS]:
        values = [key.topic, str(key.partition)]
        size.add_metric(values, partition.log.segments.size)
        start.add_metric(values, partition.log.log_start_offset)
        end.add_metric(values, partition.log.log_end_offset)
        mark.add_metric(values, partition.high_watermark)
    yield from (size, start, end, mark)


def stable_offsets(replicas: ReplicaManager) -> Iterator[Metric]:
    """Yield what holds up readers of committed records in the partitions that are led here."""
    lag = GaugeMetricFamily(
        "odradek_last_stable_offset_lag",
        "Committed records behind the first undecided transaction; no series where there are none",
        labels=["topic", "partition"],
    )
    late_before_ms = (
        wall_ms() - replicas.config.transaction_max_timeout_ms - LATE_TRANSACTION_BUFFER_MS
    )
    late = held_up = 0
    for key, partition in list(replicas.partitions.items()):
        log = partition.log
        if not partition.is_leader or not log.producers.transactions.are_undecided:
            continue
        late += 0 < log.producers.oldest_transaction_ms < late_before_ms
        high_watermark = partition.high_watermark
        records = high_watermark - log.last_stable_offset(high_watermark)
        if records > 0 and held_up < MOST_PARTITIONS:
            held_up += 1
            lag.add_metric([key.topic, str(key.partition)], records)
    yield lag
    yield GaugeMetricFamily(
        "odradek_partitions_with_late_transactions",
        "Partitions led here whose first open transaction is older than "
        "transaction.max.timeout.ms and five minutes: it may hang",
        value=late,
    )
