"""What a broker answers that was stopped for longer than its session, before it knows of that.

Its partitions were given to others meanwhile and moved on. What waits in its sockets is answered in
the moment in which it goes on: no answer may send a client back to where the broker stood.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from odradek.net.client import PeerClient
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.protocol.messages.group_offsets import OffsetFetchRequest
from odradek.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from odradek.zk import znodes
from tests.support.broker import Cluster, wait_until
from tests.support.clients import QUIET, make_topic, produce_all

TOPIC = "moved"
GROUP = "readers"
SETTINGS = {
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    "auto.leader.rebalance.enable": "false",
}
BEFORE, AFTER = 5, 10
ANSWER_MS = 60_000


def commit(bootstrap: str, offset: int) -> None:
    offsets = [TopicPartition(TOPIC, 0, offset)]
    as_group(bootstrap, lambda one: one.commit(offsets=offsets, asynchronous=False))


def as_group(bootstrap: str, call: Callable[[confluent_kafka.Consumer], object]) -> None:
    """Do something as a member's client would, again while the coordinator is not to be found."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": GROUP, **QUIET}
    )

    def done() -> bool:
        try:
            call(consumer)
        except confluent_kafka.KafkaException:
            return False
        return True

    wait_until(done, "the coordinator answers")
    consumer.close()


def state_of(cluster: Cluster, topic: str) -> znodes.PartitionState:
    path = znodes.state_path(topic, 0)
    with cluster.zookeeper.client() as client:
        return znodes.decode_state(path, client.get(path)[0])


def coordinator(cluster: Cluster) -> int:
    """The leader of the groups' one partition, which asking for offsets creates."""
    as_group(cluster.bootstrap, lambda one: one.committed([TopicPartition(TOPIC, 0)], 10))
    return state_of(cluster, "__consumer_offsets").leader


async def position_error(client: PeerClient) -> int:
    """Fetch from where a consumer of the successor stands."""
    part = FetchPartition(partition=0, fetch_offset=AFTER, partition_max_bytes=1 << 20)
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        topics=[FetchTopic(topic=TOPIC, partitions=[part])],
    )
    answer = await client.call(request, 10, ANSWER_MS)
    return answer.responses[0].partition_responses[0].error_code


async def end_error(client: PeerClient) -> int:
    """Ask for the end of the partition, as Spark does before each batch."""
    part = ListOffsetsPartition(partition_index=0, timestamp=-1)
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=TOPIC, partitions=[part])]
    )
    answer = await client.call(request, 5, ANSWER_MS)
    return answer.topics[0].partitions[0].error_code


async def epoch_error(client: PeerClient, epoch: int) -> int:
    """Ask where an epoch of the successor ends, as a consumer does that checks its position."""
    part = OffsetForLeaderPartition(partition=0, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[OffsetForLeaderTopic(topic=TOPIC, partitions=[part])]
    )
    answer = await client.call(request, 3, ANSWER_MS)
    return answer.topics[0].partitions[0].error_code


async def offsets_error(client: PeerClient) -> int:
    """Ask for the group's offsets."""
    return (await client.call(OffsetFetchRequest(group_id=GROUP), 5, ANSWER_MS)).error_code


async def test_broker_that_goes_on_after_its_session_ended_misleads_nobody(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=3, settings=SETTINGS) as cluster:
        victim = coordinator(cluster)
        others = [one for one in cluster.brokers if one != victim]
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
        wanted = NewTopic(TOPIC, num_partitions=1, replica_assignment=[[victim, *others]])
        make_topic(admin, wanted)
        produce_all(cluster.bootstrap, TOPIC, [b"before"] * BEFORE)
        commit(cluster.bootstrap, BEFORE)

        cluster.brokers[victim].signal(signal.SIGSTOP)
        wait_until(lambda: state_of(cluster, TOPIC).leader in others, "a successor")
        bootstrap = ",".join(cluster.brokers[one].address for one in others)
        produce_all(bootstrap, TOPIC, [b"after"] * (AFTER - BEFORE))
        commit(bootstrap, AFTER)
        epoch = state_of(cluster, TOPIC).leader_epoch

        questions: list[Callable[[PeerClient], Coroutine[Any, Any, int]]] = [
            position_error,
            end_error,
            lambda client: epoch_error(client, epoch),
            offsets_error,
        ]
        port = cluster.brokers[victim].port
        clients = [PeerClient("127.0.0.1", port, "onlooker") for _ in questions]
        asked = [
            asyncio.create_task(question(client))
            for question, client in zip(questions, clients, strict=True)
        ]
        await asyncio.sleep(0.5)  # the questions are in the sockets of the stopped process
        cluster.brokers[victim].signal(signal.SIGCONT)
        *partition_errors, group_error = await asyncio.gather(*asked)
        for client in clients:
            await client.close()
        assert partition_errors == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3
        assert group_error in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
