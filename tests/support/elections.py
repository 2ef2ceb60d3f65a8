"""A topic whose brokers are killed and return, and what ZooKeeper holds of it."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from odradek.values import TopicPartition
from odradek.zk import znodes
from odradek.zk.znodes import PartitionState
from tests.support.broker import Cluster, wait_until
from tests.support.clients import make_topic


class ElectedTopic:
    """A new topic; `replicas` are those of each partition, preferred first."""

    def __init__(self, cluster: Cluster, name: str, replicas: Sequence[list[int]]) -> None:
        self.partitions = [TopicPartition(name, number) for number in range(len(replicas))]
        self._cluster = cluster
        self._preferred = [one[0] for one in replicas]
        client = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        make_topic(client, NewTopic(name, len(replicas), replica_assignment=list(replicas)))

    def preferred_by(self, broker_id: int) -> int:
        """Return how many partitions prefer a broker."""
        return self._preferred.count(broker_id)

    def states(self, client: KazooClient) -> list[PartitionState]:
        """Return the states in their znodes, read in one pipeline."""
        paths = [znodes.state_path(*one) for one in self.partitions]
        asked = [(path, client.get_async(path)) for path in paths]
        return [znodes.decode_state(path, one.get(60)[0]) for path, one in asked]

    def has_preferred_leaders(self, client: KazooClient) -> bool:
        """Return whether the preferred replica leads every partition."""
        return [state.leader for state in self.states(client)] == self._preferred

    def kill_and_return(self, client: KazooClient, broker_id: int) -> None:
        """Kill and restart a broker; return at the moment when the znodes have it in sync."""
        self._cluster.crash(broker_id)
        wait_until(
            lambda: not any(broker_id in state.isr for state in self.states(client)),
            f"broker {broker_id} is out of sync",
        )
        self._cluster.brokers[broker_id].start()
        wait_until(
            lambda: all(broker_id in state.isr for state in self.states(client)),
            f"broker {broker_id} is in sync again",
        )
        assert not self.has_preferred_leaders(client)
