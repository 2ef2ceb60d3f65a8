"""Fetch sessions (KIP-227) over sockets: of consumers, and of followers in a cluster of three."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from odradek.net.client import PeerClient
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import (
    FetchablePartitionResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from odradek.protocol.regions import part_length
from tests.support.broker import STEADY, Broker, Cluster, wait_until
from tests.support.clients import QUIET, consume_all, create_topic, produce_all
from tests.support.with_metrics import WithMetrics

TOPIC = "quiet"
PARTITIONS = 3
VERSION = 11


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("sessions"), settings=STEADY) as running:
        yield running


class Consumer:
    """A consumer of all partitions of a topic, on one connection at a time."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.session_id = 0
        self.epoch = 0

    async def ask(
        self,
        broker: Broker,
        *offsets: int | None,
        forgotten: tuple[int, ...] = (),
        wait_ms: int = 0,
    ) -> FetchResponse:
        """Send the next fetch of the session on a new connection; it may continue on any."""
        named = [
            FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
            for index, offset in enumerate(offsets)
            if offset is not None
        ]
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=wait_ms,
            min_bytes=1,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=[FetchTopic(topic=self.topic, partitions=named)] if named else [],
            forgotten_topics_data=[ForgottenTopic(topic=self.topic, partitions=list(forgotten))]
            if forgotten
            else [],
        )
        client = PeerClient("127.0.0.1", broker.port, "sessions")
        try:
            answer = await client.call(request, VERSION, 60_000)
        finally:
            await client.close()
        if answer.error_code == ErrorCode.NONE:
            self.session_id, self.epoch = answer.session_id, self.epoch + 1
        return answer


def parts(answer: FetchResponse) -> dict[int, FetchablePartitionResponse]:
    assert answer.error_code == ErrorCode.NONE
    return {one.partition: one for topic in answer.responses for one in topic.partition_responses}


async def test_a_consumer_is_told_of_changes_only_until_its_leader_restarts(
    cluster: Cluster,
) -> None:
    broker = cluster.brokers[1]
    create_topic(cluster.bootstrap, TOPIC, PARTITIONS)
    consumer = Consumer(TOPIC)
    assert set(parts(await consumer.ask(broker, 0, 0, 0))) == {0, 1, 2}
    assert consumer.session_id > 0
    assert parts(await consumer.ask(broker)) == {}
    produce_all(cluster.bootstrap, TOPIC, [b"value"])
    found = parts(await consumer.ask(broker, wait_ms=60_000))
    assert {index: part_length(one.record_set or b"") > 0 for index, one in found.items()} == {
        0: True
    }
    assert parts(await consumer.ask(broker, 1, forgotten=(2,))) == {}
    produce_all(cluster.bootstrap, TOPIC, [b"value"] * PARTITIONS, PARTITIONS)
    assert set(parts(await consumer.ask(broker))) == {0, 1}
    broker.terminate()
    broker.start()
    answer = await consumer.ask(broker)
    assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    consumer.session_id = consumer.epoch = 0
    assert set(parts(await consumer.ask(broker, 0, 0, 0))) == {0, 1, 2}


async def test_a_topic_made_anew_within_a_session_is_another(cluster: Cluster) -> None:
    broker = cluster.brokers[1]
    create_topic(cluster.bootstrap, "anew", 1)
    produce_all(cluster.bootstrap, "anew", [b"former"])
    consumer = Consumer("anew")
    await consumer.ask(broker, 1)
    assert parts(await consumer.ask(broker)) == {}
    cluster.delete_topic("anew")
    while not (found := parts(await consumer.ask(broker, wait_ms=60_000))):
        pass
    assert found[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    create_topic(cluster.bootstrap, "anew", 1)
    found = parts(await consumer.ask(broker))
    assert found[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    produce_all(cluster.bootstrap, "anew", [b"present"])
    found = parts(await consumer.ask(broker, 0))
    records = found[0].record_set
    assert isinstance(records, bytes | memoryview)
    assert b"present" in bytes(records)


def test_followers_have_sessions_and_begin_new_ones_when_their_leader_comes_back(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, brokers=3, settings=STEADY, kind=WithMetrics) as cluster:
        create_topic(cluster.bootstrap, "replicated", 6, 3)
        brokers = list(cluster.brokers.values())

        def cached(broker: Broker) -> tuple[float, float]:
            assert isinstance(broker, WithMetrics)
            return (
                broker.metric("odradek_incremental_fetch_sessions"),
                broker.metric("odradek_incremental_fetch_partitions_cached"),
            )

        def in_session() -> bool:
            """Two followers, each of all partitions that a broker leads."""
            return [cached(one) for one in brokers] == [(2.0, 4.0)] * 3

        wait_until(in_session, "each broker has a session of each follower")
        values = [b"%d" % number for number in range(60)]
        produce_all(cluster.bootstrap, "replicated", values, 6)
        cluster.crash(1)
        produce_all(cluster.bootstrap, "replicated", values, 6)
        brokers[0].start()
        assert sorted(consume_all(cluster.bootstrap, "replicated", 6, 120)) == sorted(2 * values)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})

        def in_sync() -> bool:
            found = admin.list_topics("replicated", timeout=60).topics["replicated"].partitions
            return all(len(one.isrs) == 3 for one in found.values())

        wait_until(in_sync, "the followers of all partitions are in sync again")
        assert sum(cached(one)[1] for one in brokers) >= 12
