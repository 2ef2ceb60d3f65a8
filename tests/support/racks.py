"""Brokers in racks of their own, whose metrics tell what they gave to consumers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.support.broker import Cluster
from tests.support.with_metrics import WithMetrics


class BrokerInRack(WithMetrics):
    """Broker N, in rack-N."""

    def __init__(
        self, directory: Path, broker_id: int, connect: str, settings: Mapping[str, str]
    ) -> None:
        located = {**settings, "broker.rack": f"rack-{broker_id}"}
        super().__init__(directory, broker_id, connect, located)

    def bytes_out(self, topic: str) -> float:
        """Return how many bytes of a topic it gave to consumers since it started."""
        try:
            return self.metric(f'odradek_topic_bytes_out_total{{topic="{topic}"}}')
        except StopIteration:
            return 0


def in_rack(cluster: Cluster, broker_id: int) -> BrokerInRack:
    """Return a broker of a cluster of these."""
    found = cluster.brokers[broker_id]
    assert isinstance(found, BrokerInRack)
    return found
