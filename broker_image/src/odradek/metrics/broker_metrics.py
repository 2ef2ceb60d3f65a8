"""Every metric of the broker, made at each scrape in a thread of the HTTP server.

The hot paths add to plain integers (`counters`). Roles, offsets, sizes and connections are read
from the parts of the broker. The number of series is bounded: partitions and groups beyond the
bounds have no series of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from odradek.metrics import connection_series, coordinator_series, replica_series
from odradek.metrics.connection_series import HasConnections, HasFailures
from odradek.metrics.counters import BrokerCounters
from odradek.metrics.replica_series import IsController
from odradek.quarantine import Quarantines

if TYPE_CHECKING:
    from odradek.group.coordinator import GroupCoordinator
    from odradek.net.connection_quotas import ConnectionQuotas
    from odradek.quotas.client_quotas import ClientQuotas
    from odradek.replica.manager import ReplicaManager
    from odradek.security.authorizer import Authorizer
    from odradek.transaction.coordinator import TransactionCoordinator


class BrokerMetrics(Collector):
    """The series of one broker, and what it counts."""

    def __init__(self, quarantines: Quarantines | None = None) -> None:
        self._quarantines = quarantines or Quarantines()
        self.counters = BrokerCounters()
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

    def collect(self) -> Iterable[Metric]:
        """Yield every metric with its present values."""
        yield self._broker_info()
        yield from self.counters.series()
        if self._replicas is not None:
            yield from self._replica_series(self._replicas)
        if self._groups is not None:
            yield from coordinator_series.groups(self._groups)
        if self._transactions is not None:
            yield from coordinator_series.transactions(self._transactions)
        yield from _quarantine_series(self._quarantines)
        yield connection_series.connections(self._listeners)
        if self._quotas is not None:
            yield from connection_series.connection_quotas(self._quotas)
        if self._security is not None:
            yield from connection_series.security(self._security)
        if self._authorizer is not None:
            yield from connection_series.authorizer(self._authorizer)
        if self._quotas is not None and self._client_quotas is not None:
            yield from connection_series.client_quotas(self._quotas, self._client_quotas)

    def _broker_info(self) -> Metric:
        info = GaugeMetricFamily(
            "odradek_broker_info", "Identity of this broker", labels=list(self._info)
        )
        if self._info:
            info.add_metric(list(self._info.values()), 1)
        return info

    def _replica_series(self, replicas: ReplicaManager) -> Iterator[Metric]:
        if self._controller is not None:
            yield from replica_series.roles(replicas, self._controller)
        yield from replica_series.disks(replicas.online_directories)
        yield from replica_series.partitions(replicas)
        yield from replica_series.stable_offsets(replicas)


def _quarantine_series(quarantines: Quarantines) -> Iterator[Metric]:
    """Yield unexpected exceptions, and what they keep out of work."""
    total = CounterMetricFamily(
        "odradek_quarantines",
        "Unexpected exceptions in background work, each confined to what it was about",
        labels=["kind"],
    )
    for kind, count in quarantines.totals().items():
        total.add_metric([kind], count)
    held = GaugeMetricFamily(
        "odradek_quarantined",
        "Partitions, groups and others that such an exception keeps out of that work now",
        labels=["kind"],
    )
    for kind, count in quarantines.held().items():
        held.add_metric([kind], count)
    yield from (total, held)
