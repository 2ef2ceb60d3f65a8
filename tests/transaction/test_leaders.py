"""Which partitions need no marker any more, as a real ZooKeeper tells."""

from __future__ import annotations

from pathlib import Path

from odradek.replica.metadata import MetadataCache
from odradek.transaction.markers import ClusterLeaders
from odradek.values import BrokerId
from odradek.zk import znodes
from odradek.zk.session import Session
from odradek.zk.znodes import TopicAssignment
from tests.support import zookeeper


def topic(partitions: int) -> bytes:
    replicas = {number: (BrokerId(1),) for number in range(partitions)}
    return znodes.encode_topic(TopicAssignment(replicas))


async def test_partitions_are_there_until_their_deletion_is_requested(tmp_path: Path) -> None:
    with zookeeper.Server(tmp_path) as server:
        session = Session(server.connect, 20_000)
        await session.start()
        leaders = ClusterLeaders(MetadataCache(), session)
        assert not await leaders.partitions_of("t")
        await session.create(znodes.topic_path("t"), topic(2), make_parents=True)
        assert {*await leaders.partitions_of("t")} == {0, 1}
        await session.create(znodes.delete_topic_path("t"), b"", make_parents=True)
        assert not await leaders.partitions_of("t")
        for name in ("..", "", "a/b"):
            assert not await leaders.partitions_of(name), "which ZooKeeper's client may refuse"
        await session.close()
