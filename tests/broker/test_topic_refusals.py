"""Codes with which requests for topics are refused, as clients read them off the wire."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.net.client import PeerClient
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.metadata import MetadataRequest
from odradek.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from odradek.protocol.schema import Request, ResponseT
from odradek.values import BrokerId
from odradek.zk import admin, znodes
from odradek.zk.operations import commit
from odradek.zk.znodes import TopicAssignment
from tests.support.broker import STEADY, Broker, Cluster
from tests.support.clients import create_topic

TIMEOUT_MS = 60_000
TOPIC = "grown"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two brokers, one of which is controller, and a topic of one partition with one replica."""
    with Cluster(tmp_path_factory.mktemp("refusals"), brokers=2, settings=STEADY) as running:
        create_topic(running.bootstrap, TOPIC)
        yield running


async def ask(broker: Broker, request: Request[ResponseT], version: int) -> ResponseT:
    client = PeerClient("127.0.0.1", broker.port, "asker")
    try:
        return await client.call(request, version, TIMEOUT_MS)
    finally:
        await client.close()


async def controller_and_other(cluster: Cluster) -> tuple[Broker, Broker]:
    told = await ask(cluster.brokers[1], MetadataRequest(topics=[]), 1)
    other = 3 - told.controller_id
    return cluster.brokers[told.controller_id], cluster.brokers[other]


def new_topic(name: str) -> CreatableTopic:
    return CreatableTopic(
        name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )


async def create(broker: Broker, *names: str) -> list[int]:
    request = CreateTopicsRequest(topics=[new_topic(name) for name in names], timeout_ms=TIMEOUT_MS)
    return [one.error_code for one in (await ask(broker, request, 5)).topics]


async def grow(broker: Broker, count: int, *places: list[int]) -> int:
    return (await grow_result(broker, count, *places)).error_code


async def grow_result(
    broker: Broker, count: int, *places: list[int]
) -> CreatePartitionsTopicResult:
    assignments = [CreatePartitionsAssignment(broker_ids=brokers) for brokers in places]
    topic = CreatePartitionsTopic(name=TOPIC, count=count, assignments=assignments or None)
    request = CreatePartitionsRequest(topics=[topic], timeout_ms=TIMEOUT_MS, validate_only=False)
    [result] = (await ask(broker, request, 1)).results
    return result


async def delete(broker: Broker, name: str, version: int = 3, timeout_ms: int = TIMEOUT_MS) -> int:
    request = DeleteTopicsRequest(topic_names=[name], timeout_ms=timeout_ms)
    [result] = (await ask(broker, request, version)).responses
    return result.error_code


async def test_only_the_controller_changes_topics(cluster: Cluster) -> None:
    _, other = await controller_and_other(cluster)
    assert await create(other, "elsewhere") == [ErrorCode.NOT_CONTROLLER]
    assert await grow(other, 2) == ErrorCode.NOT_CONTROLLER
    assert await delete(other, TOPIC) == ErrorCode.NOT_CONTROLLER
    assert await delete(other, "unknown") == ErrorCode.NOT_CONTROLLER


@pytest.mark.parametrize(
    "places",
    [[[1]], [[1], [2], [1]], [[1, 2], [2, 1]], [[1], [9]], [[1], []]],
    ids=["too few", "too many", "other replication factor", "unknown broker", "no broker"],
)
async def test_places_of_new_partitions_must_make_sense(
    cluster: Cluster, places: list[list[int]]
) -> None:
    controller, _ = await controller_and_other(cluster)
    assert await grow(controller, 3, *places) == ErrorCode.INVALID_REPLICA_ASSIGNMENT


async def test_number_of_partitions_must_grow(cluster: Cluster) -> None:
    controller, _ = await controller_and_other(cluster)
    assert await grow(controller, 1) == ErrorCode.INVALID_PARTITIONS
    assert await grow(controller, 0) == ErrorCode.INVALID_PARTITIONS


async def test_refusals_to_grow_have_the_words_of_kafka(cluster: Cluster) -> None:
    controller, _ = await controller_and_other(cluster)
    same, fewer = [(await grow_result(controller, count)).error_message for count in (1, 0)]
    assert same == "Topic already has 1 partitions."
    assert fewer == "Topic currently has 1 partitions, which is higher than the requested 0."


async def test_names_that_collide_are_refused(cluster: Cluster) -> None:
    controller, _ = await controller_and_other(cluster)
    assert await create(controller, "a.b", "a_b") == [
        ErrorCode.NONE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]
    assert await create(controller, "a_b", "a.b") == [
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.TOPIC_ALREADY_EXISTS,
    ]


async def test_topic_that_nobody_ever_led_can_be_deleted(cluster: Cluster) -> None:
    controller, _ = await controller_and_other(cluster)
    nowhere = TopicAssignment({0: (BrokerId(9),)})
    with cluster.zookeeper.client() as client:
        commit(client, admin.create_topic("nowhere", nowhere, {}))
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        async with asyncio.timeout(120):
            while code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                await asyncio.sleep(0.05)  # until the controller has read of it
                code = ErrorCode(await delete(controller, "nowhere"))
        assert code == ErrorCode.NONE
        assert not client.exists(znodes.topic_path("nowhere"))


async def test_name_of_a_deleted_topic_is_free_at_once(cluster: Cluster) -> None:
    controller, other = await controller_and_other(cluster)
    topic = CreatableTopic(
        name="anew",
        assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[other.broker_id])],
        num_partitions=-1,
        replication_factor=-1,
        configs=[],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)
    assert [one.error_code for one in (await ask(controller, request, 5)).topics] == [0]
    other.signal(signal.SIGSTOP)
    try:
        # Brokers forget the topic at once, but its replica is there.
        assert await delete(controller, "anew", timeout_ms=500) == ErrorCode.REQUEST_TIMED_OUT
    finally:
        other.signal(signal.SIGCONT)
    done = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert await delete(controller, "anew") in done
    assert await create(controller, "anew") == [ErrorCode.NONE]


async def test_deletion_can_be_switched_off(tmp_path: Path) -> None:
    settings = {**STEADY, "delete.topic.enable": "false"}
    with Cluster(tmp_path, settings=settings) as running:
        broker = running.brokers[1]
        create_topic(running.bootstrap, TOPIC)
        assert await delete(broker, TOPIC) == ErrorCode.TOPIC_DELETION_DISABLED
        assert await delete(broker, TOPIC, version=2) == ErrorCode.INVALID_REQUEST
