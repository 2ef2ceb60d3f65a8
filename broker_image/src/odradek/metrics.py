"""The Prometheus metrics of the broker.

The hot paths add to plain integers here. Roles, offsets, sizes and connections are read from the
broker at each scrape. `BrokerMetrics.collect` makes series of both, in a thread of the HTTP server,
which answers the kubelet's probes too (`health`). The number of series is bounded: traffic of
topics beyond the first thousand is counted under one name; partitions and groups beyond the bounds
have no series of their own.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Protocol
from wsgiref.types import WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from odradek.clock import wall_ms
from odradek.health import Health
from odradek.http_server import HttpAnswer, HttpRequest, HttpServer, plain
from odradek.quarantine import Quarantines

if TYPE_CHECKING:
    from odradek.group.coordinator import GroupCoordinator
    from odradek.net.connection_quotas import ConnectionQuotas
    from odradek.quotas.client_quotas import ClientQuotas
    from odradek.replica.manager import ReplicaManager
    from odradek.security.authorizer import Authorizer
    from odradek.transaction.coordinator import TransactionCoordinator

MOST_TOPICS = 1000
MOST_PARTITIONS = 10_000
MOST_GROUPS = 1000
MOST_GROUP_OFFSETS = 10_000
OTHER_TOPICS = "_other"
LATE_TRANSACTION_BUFFER_MS = 5 * 60 * 1000
"""How much longer than the longest time-out a late transaction is open, as in Kafka."""
BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class _Traffic:
    __slots__ = (
        "bytes_in",
        "bytes_out",
        "bytes_replicated",
        "fetch_conversions",
        "messages_in",
        "produce_conversions",
    )

    def __init__(self) -> None:
        self.bytes_in = 0
        self.messages_in = 0
        self.bytes_out = 0
        self.bytes_replicated = 0
        self.produce_conversions = 0
        self.fetch_conversions = 0


class _Latency:
    """The histogram of one API: request counts by duration."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.total_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one request."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.total_s += seconds

    def cumulated(self) -> list[tuple[str, float]]:
        """Return (upper bound, requests up to it) for Prometheus."""
        total = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*BUCKETS_S, float("inf")), self.counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), total))
        return buckets


def _shown(app: WSGIApplication, request: HttpRequest) -> HttpAnswer:
    """Return what Prometheus's own application answers."""
    shown: list[tuple[str, list[tuple[str, str]]]] = []

    def start(status: str, headers: list[tuple[str, str]], *_: object) -> Callable[[bytes], object]:
        shown.append((status, headers))
        return lambda _: None

    environ: WSGIEnvironment = {
        "REQUEST_METHOD": request.method,
        "PATH_INFO": request.path,
        "QUERY_STRING": request.query,
        "HTTP_ACCEPT": request.headers.get("accept"),
        "HTTP_ACCEPT_ENCODING": request.headers.get("accept-encoding"),
    }
    body = b"".join(app(environ, start))
    status, headers = shown[-1]
    return HttpAnswer(status, dict(headers), body)


class HasFailures(Protocol):
    """Counts peers that did not get in, by listener and cause."""

    def failed_handshakes(self) -> Mapping[str, Mapping[str, int]]:
        """Return the TLS handshakes that failed."""

    def failed_authentications(self) -> Mapping[str, Mapping[str, int]]:
        """Return the SASL authentications that failed."""

    def certificates(self) -> Mapping[str, float]:
        """Return when certificates expire, in seconds since 1970, by listener."""

    def token_keys(self) -> Mapping[str, tuple[float, int]]:
        """Return age in seconds and failed fetches of the keys that sign tokens, by listener."""


class HasConnections(Protocol):
    """A listener, as far as metrics need it."""

    @property
    def connection_count(self) -> int:
        """Return the number of open connections."""


class IsController(Protocol):
    """The controller candidate, as far as metrics need it."""

    @property
    def active(self) -> bool:
        """Return whether this broker is the controller."""


class BrokerMetrics(Collector):
    """The counters and series of one broker. Only the event loop may count."""

    def __init__(self, quarantines: Quarantines | None = None) -> None:
        self._quarantines = quarantines or Quarantines()
        self._traffic: dict[str, _Traffic] = {}
        self._latencies: dict[str, _Latency] = {}
        self._info: Mapping[str, str] = {}
        self._replicas: ReplicaManager | None = None
        self._controller: IsController | None = None
        self._groups: GroupCoordinator | None = None
        self._transactions: TransactionCoordinator | None = None
        self._listeners: Mapping[str, HasConnections] = {}
        self._quotas: ConnectionQuotas | None = None
        self._authorizer: Authorizer | None = None
        self._client_quotas: ClientQuotas | None = None
        self._security: HasFailures | None = None

    def watch_security(self, security: HasFailures) -> None:
        """Show failed handshakes and authentications."""
        self._security = security

    def watch(
        self,
        info: Mapping[str, str],
        replicas: ReplicaManager,
        controller: IsController,
        groups: GroupCoordinator,
        transactions: TransactionCoordinator | None,
        listeners: Mapping[str, HasConnections],
        quotas: ConnectionQuotas | None = None,
        authorizer: Authorizer | None = None,
        client_quotas: ClientQuotas | None = None,
    ) -> None:
        """Set the parts whose state is read at each scrape."""
        self._info = info
        self._replicas = replicas
        self._controller = controller
        self._groups = groups
        self._transactions = transactions
        self._listeners = listeners
        self._quotas = quotas
        self._authorizer = authorizer
        self._client_quotas = client_quotas

    def serve(self, port: int, health: Health, host: str = "") -> Callable[[], None]:
        """Serve Prometheus and probes on a port, in a thread; return a function that stops it.

        An empty `host` is every address. Raises OSError.
        """
        registry = CollectorRegistry()
        registry.register(self)
        app = make_wsgi_app(registry)

        def probe(request: HttpRequest) -> HttpAnswer | None:
            answer = health.answer(request.path)
            return None if answer is None else plain(*answer)

        return HttpServer(port, probe, lambda request: _shown(app, request), host).stop

    # --- counting -----------------------------------------------------------------------------

    def _of(self, topic: str) -> _Traffic:
        traffic = self._traffic.get(topic)
        if traffic is None:
            if len(self._traffic) >= MOST_TOPICS:
                topic = OTHER_TOPICS
            traffic = self._traffic.setdefault(topic, _Traffic())
        return traffic

    def bytes_in(self, topic: str, size: int, records: int) -> None:
        """Count records that producers appended."""
        traffic = self._traffic.get(topic) or self._of(topic)
        traffic.bytes_in += size
        traffic.messages_in += records

    def produce_converted(self, topic: str) -> None:
        """Count produced records of a partition in a format before 0.11."""
        self._of(topic).produce_conversions += 1

    def fetch_converted(self, topic: str) -> None:
        """Count fetched records of a partition that were converted to an older format."""
        self._of(topic).fetch_conversions += 1

    def bytes_out(self, topic: str, size: int) -> None:
        """Count bytes that consumers fetched."""
        self._of(topic).bytes_out += size

    def bytes_replicated(self, topic: str, size: int) -> None:
        """Count bytes that followers fetched."""
        self._of(topic).bytes_replicated += size

    def request_observers(self, names: Mapping[int, str]) -> Mapping[int, Callable[[float], None]]:
        """Return per API key the function that records a request's duration in seconds."""
        return {
            key: self._latencies.setdefault(name, _Latency()).observe for key, name in names.items()
        }

    # --- showing ------------------------------------------------------------------------------

    def collect(self) -> Iterable[Metric]:
        """Yield every metric with its present values."""
        info = GaugeMetricFamily(
            "odradek_broker_info", "Identity of this broker", labels=list(self._info)
        )
        if self._info:
            info.add_metric(list(self._info.values()), 1)
        yield info
        yield from self._traffic_series()
        yield from self._request_series()
        yield from self._role_series()
        yield from self._disk_series()
        yield from self._partition_series()
        yield from self._stable_offset_series()
        yield from self._group_series()
        yield from self._transaction_series()
        yield from self._quarantine_series()
        connections = GaugeMetricFamily(
            "odradek_connections", "Open connections", labels=["listener"]
        )
        for name, listener in self._listeners.items():
            connections.add_metric([name], listener.connection_count)
        yield connections
        yield from self._quota_series()
        yield from self._security_series()
        yield from self._authorizer_series()
        yield from self._client_quota_series()

    def _authorizer_series(self) -> Iterator[Metric]:
        authorizer = self._authorizer
        if authorizer is None:
            return
        yield CounterMetricFamily(
            "odradek_authorizer_denials",
            "Times that the authorizer refused something that a client asked for",
            value=authorizer.denials,
        )
        yield GaugeMetricFamily(
            "odradek_acl_age_seconds",
            "Time for which changed ACLs may have gone unseen; infinite before they are loaded",
            value=authorizer.watcher.age_s,
        )

    def _quota_series(self) -> Iterator[Metric]:
        quotas = self._quotas
        if quotas is None:
            return
        for name, help_text, counts in (
            ("odradek_connections_refused", "Connections closed at once", quotas.refused),
            ("odradek_connections_delayed", "Connections that had to wait", quotas.delayed),
            ("odradek_connections_closed", "Connections closed by the broker", quotas.closed),
        ):
            family = CounterMetricFamily(name, help_text, labels=["reason"])
            for reason, count in list(counts.items()):
                family.add_metric([reason], count)
            yield family
        yield GaugeMetricFamily(
            "odradek_unsent_response_bytes",
            "Memory of responses that clients have not read yet",
            value=quotas.answers.total,
        )

    def _client_quota_series(self) -> Iterator[Metric]:
        if self._quotas is None or self._client_quotas is None:
            return
        yield GaugeMetricFamily(
            "odradek_connections_throttled",
            "Connections that are not read for now because a client quota is exceeded",
            value=self._quotas.muted,
        )
        labels = ["quota"]
        requests = CounterMetricFamily(
            "odradek_throttled_requests", "Requests beyond a client quota", labels=labels
        )
        seconds = CounterMetricFamily(
            "odradek_throttle_seconds",
            "Throttle time that clients were told, in all",
            labels=labels,
        )
        for key, throttled in self._client_quotas.throttled.items():
            requests.add_metric([key.value], throttled.count)
            seconds.add_metric([key.value], throttled.total_ms / 1000)
        yield from (requests, seconds)

    def _security_series(self) -> Iterator[Metric]:
        security = self._security
        if security is None:
            return
        for name, help_text, label, counts in (
            (
                "odradek_tls_handshakes_failed",
                "TLS handshakes that failed",
                "cause",
                security.failed_handshakes(),
            ),
            (
                "odradek_authentications_failed",
                "SASL authentications that failed",
                "mechanism",
                security.failed_authentications(),
            ),
        ):
            family = CounterMetricFamily(name, help_text, labels=["listener", label])
            for listener, of_cause in counts.items():
                for cause, count in list(of_cause.items()):
                    family.add_metric([listener, cause], count)
            yield family
        expiry = GaugeMetricFamily(
            "odradek_certificate_not_after_timestamp_seconds",
            "When the certificate of a listener expires",
            labels=["listener"],
        )
        for listener, not_after_s in security.certificates().items():
            expiry.add_metric([listener], not_after_s)
        yield expiry
        age = GaugeMetricFamily(
            "odradek_jwks_age_seconds",
            "Age of the keys that sign tokens; infinite before they are fetched",
            labels=["listener"],
        )
        failures = CounterMetricFamily(
            "odradek_jwks_fetches_failed",
            "Fetches of the keys that sign tokens without success",
            labels=["listener"],
        )
        for listener, (age_s, failed) in security.token_keys().items():
            age.add_metric([listener], age_s)
            failures.add_metric([listener], failed)
        yield from (age, failures)

    def _traffic_series(self) -> Iterator[Metric]:
        for name, help_text, field in (
            ("odradek_topic_bytes_in", "Bytes appended by producers", "bytes_in"),
            ("odradek_topic_messages_in", "Records appended by producers", "messages_in"),
            ("odradek_topic_bytes_out", "Bytes fetched by consumers", "bytes_out"),
            (
                "odradek_topic_produce_conversions",
                "Message sets in formats before 0.11 from producers",
                "produce_conversions",
            ),
            (
                "odradek_topic_fetch_conversions",
                "Fetch responses converted to an older message format",
                "fetch_conversions",
            ),
            (
                "odradek_topic_replication_bytes_out",
                "Bytes fetched by followers",
                "bytes_replicated",
            ),
        ):
            family = CounterMetricFamily(name, help_text, labels=["topic"])
            for topic, traffic in list(self._traffic.items()):
                family.add_metric([topic], getattr(traffic, field))
            yield family

    def _request_series(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(
            "odradek_request_duration_seconds",
            "Time from the arrival of a request to its response, delays included",
            labels=["api"],
        )
        for name, latency in self._latencies.items():
            family.add_metric([name], buckets=latency.cumulated(), sum_value=latency.total_s)
        yield family

    def _role_series(self) -> Iterator[Metric]:
        replicas = self._replicas
        if replicas is None or self._controller is None:
            return
        partitions = list(replicas.partitions.values())
        led = [one for one in partitions if one.is_leader]
        for name, help_text, value in (
            ("odradek_partition_count", "Replicas on this broker", len(partitions)),
            ("odradek_leader_count", "Partitions that this broker leads", len(led)),
            (
                "odradek_under_replicated_partitions",
                "Partitions that this broker leads whose ISR lacks a replica",
                sum(len(one.isr.committed) < len(one.replicas) for one in led),
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
                int(self._controller.active),
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

    def _disk_series(self) -> Iterator[Metric]:
        """Yield size and free space of the file systems with log directories that work."""
        if self._replicas is None:
            return
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
        for path in self._replicas.online_directories:
            with contextlib.suppress(OSError):  # whoever reads or writes there finds out
                found = os.statvfs(path)
                size.add_metric([path], found.f_frsize * found.f_blocks)
                free.add_metric([path], found.f_frsize * found.f_bavail)
        yield from (size, free)

    def _quarantine_series(self) -> Iterator[Metric]:
        total = CounterMetricFamily(
            "odradek_quarantines",
            "Unexpected exceptions in background work, each confined to what it was about",
            labels=["kind"],
        )
        for kind, count in self._quarantines.totals().items():
            total.add_metric([kind], count)
        held = GaugeMetricFamily(
            "odradek_quarantined",
            "Partitions, groups and others that such an exception keeps out of that work now",
            labels=["kind"],
        )
        for kind, count in self._quarantines.held().items():
            held.add_metric([kind], count)
        yield from (total, held)

    def _partition_series(self) -> Iterator[Metric]:
        if self._replicas is None:
            return
        labels = ["topic", "partition"]
        size = GaugeMetricFamily("odradek_log_size_bytes", "Bytes on disk", labels=labels)
        start = GaugeMetricFamily(
            "odradek_log_start_offset", "Offset of the first record", labels=labels
        )
        end = GaugeMetricFamily(
            "odradek_log_end_offset", "Offset of the next record", labels=labels
        )
        mark = GaugeMetricFamily(
            "odradek_high_watermark", "Offset below which all records are committed", labels=labels
        )
        for key, partition in list(self._replicas.partitions.items())[:MOST_PARTITIONS]:
            values = [key.topic, str(key.partition)]
            size.add_metric(values, partition.log.segments.size)
            start.add_metric(values, partition.log.log_start_offset)
            end.add_metric(values, partition.log.log_end_offset)
            mark.add_metric(values, partition.high_watermark)
        yield from (size, start, end, mark)

    def _stable_offset_series(self) -> Iterator[Metric]:
        """Yield what holds up readers of committed records in the partitions that are led here."""
        replicas = self._replicas
        if replicas is None:
            return
        lag = GaugeMetricFamily(
            "odradek_last_stable_offset_lag",
            "Committed records behind the first undecided transaction; no series where there are "
            "none",
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

    def _transaction_series(self) -> Iterator[Metric]:
        """Yield metrics of the transactional ids coordinated here."""
        if self._transactions is None:
            return
        by_state = GaugeMetricFamily(
            "odradek_transactional_ids",
            "Transactional ids coordinated by this broker",
            labels=["state"],
        )
        for state, count in sorted(self._transactions.count_by_state().items()):
            by_state.add_metric([str(state)], count)
        yield by_state
        yield CounterMetricFamily(
            "odradek_transactions_timed_out",
            "Transactions aborted because they took longer than their producers' timeout",
            value=self._transactions.timed_out,
        )
        yield CounterMetricFamily(
            "odradek_transactional_ids_refused",
            "InitProducerIds of new transactional ids refused because of "
            "odradek.max.transactional.ids",
            value=self._transactions.refused,
        )

    def _group_series(self) -> Iterator[Metric]:
        """Yield metrics of the groups coordinated here, with kafka_exporter's names."""
        if self._groups is None:
            return
        summaries = self._groups.summaries()
        states = Counter(one.state.value for one in summaries)
        by_state = GaugeMetricFamily(
            "odradek_groups", "Groups coordinated by this broker", labels=["state"]
        )
        for state, count in sorted(states.items()):
            by_state.add_metric([state], count)
        members = GaugeMetricFamily(
            "kafka_consumergroup_members", "Members of the group", labels=["consumergroup"]
        )
        generation = GaugeMetricFamily(
            "odradek_group_generation", "Rebalances of the group", labels=["consumergroup"]
        )
        for one in summaries[:MOST_GROUPS]:
            members.add_metric([one.group_id], one.members)
            generation.add_metric([one.group_id], one.generation)
        offset = GaugeMetricFamily(
            "kafka_consumergroup_current_offset",
            "Committed offset of the group",
            labels=["consumergroup", "topic", "partition"],
        )
        committed = (
            ([one.group_id, topic, str(partition)], commit.offset)
            for one in summaries
            for (topic, partition), commit in one.offsets
        )
        for labels, value in islice(committed, MOST_GROUP_OFFSETS):
            offset.add_metric(labels, value)
        yield from (by_state, members, generation, offset)
        yield CounterMetricFamily(
            "odradek_groups_refused",
            "Joins and commits of new groups refused because of odradek.max.groups",
            value=self._groups.refused,
        )
        commits = self._groups.commits
        yield CounterMetricFamily(
            "odradek_offset_commits", "Offsets committed by groups", value=commits.stored
        )
        yield CounterMetricFamily(
            "odradek_offsets_expired", "Committed offsets that expired", value=commits.expired
        )
