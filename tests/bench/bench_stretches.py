"""The longest uninterrupted stretch of the event loop, for requests that name 20 000 partitions,
and for some with nearly as many elements as are allowed.

    python -m tests.bench.bench_stretches

Each request is decoded, handled and answered through the dispatcher, on real logs where it needs
some, while another task runs once in each turn of the event loop. What it prints is the processor
time between two of that task's turns, garbage collection included, and the whole of it, so a busy
machine changes little. The goal is that no stretch is over 50 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace

from odradek import slices
from odradek.controller import requests
from odradek.controller.events import Leadership, PartitionMetadata, UpdateMetadata
from odradek.group import offsets as group_offsets_records
from odradek.group.coordinator import GroupCoordinator
from odradek.handlers.context import Broker
from odradek.handlers.dispatch import Dispatcher
from odradek.log.records import records
from odradek.log.records.batch import Origin
from odradek.metrics.counters import BrokerCounters
from odradek.net.client_info import ClientInfo
from odradek.protocol import codec, headers, primitives
from odradek.protocol.api import APIS
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages import group_offsets
from odradek.protocol.messages.admin import DescribeLogDirsRequest
from odradek.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from odradek.protocol.messages.control import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from odradek.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.protocol.messages.metadata import MetadataRequest
from odradek.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from odradek.protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from odradek.replica.metadata import LEADER_DURING_DELETE
from odradek.values import OFFSETS_TOPIC, BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from odradek.zk.producer_ids import ProducerIdManager
from odradek.zk.znodes import PartitionState
from tests.support.one_partition import OnePartition
from tests.support.replicas import Replicas

PARTITIONS_PER_TOPIC = 10
TOPICS = 2000
# Partitions with a log here: each has three files.
HOSTED_TOPICS = 400
LARGE_CLUSTER_TOPICS = 30_000
DELETED = 10_000
ALTERED = 50_000
MOST = primitives.MAX_ELEMENTS - 10


class Registered:
    """The registration of a broker that is there."""

    epoch = 100

    async def admits_request(self) -> bool:
        return True


async def measured(what: str, work: Callable[[], Awaitable[object]]) -> None:
    """Print the longest stretch of some work, and its whole processor time."""
    # What the measurement needs: the collector of a broker has none of it.
    gc.collect()
    gc.freeze()
    longest = 0.0
    last = began = time.thread_time()

    async def tick() -> None:
        nonlocal longest, last
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest, last = max(longest, now - last), now

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    last = began = time.thread_time()
    await work()
    await asyncio.sleep(0)
    while not gc.isenabled():  # what is large is freed in the background
        await asyncio.sleep(0)
    total = time.thread_time() - began
    ticking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await ticking
    print(f"{what:44} {longest * 1000:8.1f} ms of {total * 1000:8.1f} ms")


def frame(request: object, version: int) -> memoryview:
    key = next(api.key for api in APIS.values() if api.request is type(request))
    header = headers.encode_request_header(headers.RequestHeader(key, version, 1, "bench"))
    return memoryview(header + codec.encode(request, version))


def topic(number: int) -> str:
    return f"topic-{number}"


def update_metadata(topics: int = TOPICS, leader: int = 1) -> UpdateMetadataRequest:
    # More elements than one request may have, with three replicas of each in a large cluster.
    replicas = [1, 2, 3] if topics == TOPICS else [1]
    return UpdateMetadataRequest(
        controller_id=1,
        controller_epoch=1,
        broker_epoch=100,
        topic_states=[
            UpdateMetadataTopicState(
                topic_name=topic(number),
                partition_states=[
                    UpdateMetadataPartitionState(
                        partition_index=index,
                        controller_epoch=1,
                        leader=leader,
                        leader_epoch=1,
                        isr=replicas,
                        zk_version=1,
                        replicas=replicas,
                    )
                    for index in range(PARTITIONS_PER_TOPIC)
                ],
            )
            for number in range(topics)
        ],
        live_brokers=[
            UpdateMetadataBroker(
                id=one,
                endpoints=[
                    UpdateMetadataEndpoint(
                        port=9092, host="h", listener="PLAINTEXT", security_protocol=0
                    )
                ],
            )
            for one in (1, 2, 3)
        ],
    )


def roles(epoch: int) -> LeaderAndIsrRequest:
    return LeaderAndIsrRequest(
        controller_id=1,
        controller_epoch=1,
        broker_epoch=100,
        topic_states=[
            LeaderAndIsrTopicState(
                topic_name=topic(number),
                partition_states=[
                    LeaderAndIsrPartitionState(
                        partition_index=index,
                        controller_epoch=1,
                        leader=1,
                        leader_epoch=epoch,
                        isr=[1, 2, 3],
                        zk_version=1,
                        # The others are on other brokers.
                        replicas=[1, 2, 3] if number < HOSTED_TOPICS else [2, 3],
                        is_new=True,
                    )
                    for index in range(PARTITIONS_PER_TOPIC)
                ],
            )
            for number in range(TOPICS)
        ],
        live_leaders=[],
    )


def list_offsets() -> ListOffsetsRequest:
    return ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsTopic(
                name=topic(number),
                partitions=[
                    ListOffsetsPartition(partition_index=index, timestamp=-2)
                    for index in range(PARTITIONS_PER_TOPIC)
                ],
            )
            for number in range(TOPICS)
        ],
    )


def epoch_ends() -> OffsetForLeaderEpochRequest:
    return OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=[
            OffsetForLeaderTopic(
                topic=topic(number),
                partitions=[
                    OffsetForLeaderPartition(partition=index, leader_epoch=1)
                    for index in range(PARTITIONS_PER_TOPIC)
                ],
            )
            for number in range(TOPICS)
        ],
    )


def describe_configs() -> DescribeConfigsRequest:
    resources = [
        DescribeConfigsResource(
            resource_type=2, resource_name=topic(number), configuration_keys=None
        )
        for number in range(TOPICS)
    ]
    return DescribeConfigsRequest(resources=resources, include_synonyms=True)


def produce() -> ProduceRequest:
    return ProduceRequest(
        acks=1,
        timeout_ms=0,
        topic_data=[
            TopicProduceData(
                name=f"none-{number}",
                partition_data=[
                    PartitionProduceData(index=index, records=b"")
                    for index in range(PARTITIONS_PER_TOPIC)
                ],
            )
            for number in range(TOPICS)
        ],
    )


def fetch(prefix: str) -> FetchRequest:
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        topics=[
            FetchTopic(
                topic=f"{prefix}-{number}",
                partitions=[
                    FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1)
                    for index in range(PARTITIONS_PER_TOPIC)
                ],
            )
            for number in range(TOPICS)
        ],
        forgotten_topics_data=[],
    )


def commits() -> group_offsets.OffsetCommitRequest:
    return group_offsets.OffsetCommitRequest(
        group_id="readers",
        topics=[
            group_offsets.OffsetCommitRequestTopic(
                name=topic(number),
                partitions=[
                    group_offsets.OffsetCommitRequestPartition(
                        partition_index=index, committed_offset=5, committed_metadata=""
                    )
                    for index in range(PARTITIONS_PER_TOPIC)
                ],
            )
            for number in range(TOPICS)
        ],
    )


def committed() -> group_offsets.OffsetFetchRequest:
    return group_offsets.OffsetFetchRequest(
        group_id="readers",
        topics=[
            group_offsets.OffsetFetchRequestTopic(
                name=topic(number), partition_indexes=list(range(PARTITIONS_PER_TOPIC))
            )
            for number in range(TOPICS)
        ],
    )


def alter_configs() -> AlterConfigsRequest:
    resources = [
        AlterConfigsResource(
            resource_type=2,
            resource_name=f"none-{number}",
            configs=[AlterableConfig(name="retention.ms", value="1000")],
        )
        for number in range(ALTERED)
    ]
    return AlterConfigsRequest(resources=resources, validate_only=True)


def to_tell() -> UpdateMetadata:
    """What the controller tells a broker that comes."""
    leadership = Leadership(
        PartitionState(BrokerId(1), LeaderEpoch(1), (BrokerId(1),), ControllerEpoch(1)), 1
    )
    return UpdateMetadata(
        (BrokerId(1),),
        (),
        tuple(
            PartitionMetadata(
                TopicPartition(topic(number), index),
                leadership,
                (BrokerId(1), BrokerId(2), BrokerId(3)),
                (),
            )
            for number in range(TOPICS)
            for index in range(PARTITIONS_PER_TOPIC)
        ),
    )


async def tell() -> None:
    """Build and encode an UpdateMetadata as the controller's outbox does."""
    sender = requests.Sender(1, 1, "PLAINTEXT", 1000)
    request, version = await slices.run(requests.build_in_slices(TO_TELL, sender, 1))
    await slices.run(codec.encode_parts_in_slices(request, version))


TO_TELL = to_tell()


def stop_all() -> StopReplicaRequest:
    return StopReplicaRequest(
        controller_id=1,
        controller_epoch=1,
        broker_epoch=100,
        topic_states=[
            StopReplicaTopicState(
                topic_name=topic(number),
                partition_states=[
                    StopReplicaPartitionState(
                        partition_index=index, leader_epoch=-2, delete_partition=True
                    )
                    for index in range(PARTITIONS_PER_TOPIC)
                ],
            )
            for number in range(HOSTED_TOPICS)
        ],
    )


async def fill_logs(replicas: Replicas) -> None:
    """Append a batch to each log."""
    data = records.make([(b"key", b"value")], 1)
    for number in range(HOSTED_TOPICS):
        keys = [TopicPartition(topic(number), index) for index in range(PARTITIONS_PER_TOPIC)]
        await replicas.manager.append([(key, data) for key in keys], 1, 0, Origin.CLIENT)


async def commit_everywhere(groups: GroupCoordinator) -> None:
    """Commit an offset of every partition of the large cluster, long ago."""
    keys = (
        TopicPartition(topic(number), index)
        for number in range(LARGE_CLUSTER_TOPICS)
        for index in range(PARTITIONS_PER_TOPIC)
    )
    committed = group_offsets_records.CommittedOffset(5, "", 0)
    for few in slices.cut(keys, slices.KEYS_AT_ONCE):
        errors = await groups.commits.commit(
            "readers", ("", None, -1), dict.fromkeys(few, committed)
        )
        assert {*errors.values()} == {ErrorCode.NONE}


async def forgotten(groups: GroupCoordinator) -> None:
    """Wait until the offsets of deleted partitions are deleted."""
    while (await groups.commits.committed("readers"))[1]:
        await asyncio.sleep(0)


def largest() -> Iterator[tuple[str, object, int]]:
    """Yield requests with as many elements as are allowed, and their versions."""
    parts = [PartitionProduceData(index=index, records=b"") for index in range(MOST)]
    topic_data = [TopicProduceData(name="none", partition_data=parts)]
    yield "Produce", ProduceRequest(acks=1, timeout_ms=0, topic_data=topic_data), 8
    del parts, topic_data
    wanted = [
        FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1)
        for index in range(MOST)
    ]
    topics = [FetchTopic(topic="none", partitions=wanted)]
    yield "Fetch", FetchRequest(replica_id=-1, max_wait_ms=0, min_bytes=0, topics=topics), 3
    del wanted, topics
    indexes = [group_offsets.OffsetFetchRequestTopic(name="none", partition_indexes=[*range(MOST)])]
    yield "OffsetFetch", group_offsets.OffsetFetchRequest(group_id="readers", topics=indexes), 7
    empty = [ListOffsetsTopic(name=f"none-{number}", partitions=[]) for number in range(MOST)]
    yield "ListOffsets, empty topics", ListOffsetsRequest(replica_id=-1, topics=empty), 5
    del empty
    entries = [AlterableConfig(name=f"none-{number}", value="") for number in range(MOST)]
    resource = AlterConfigsResource(resource_type=2, resource_name=topic(0), configs=entries)
    yield "AlterConfigs, one topic", AlterConfigsRequest(resources=[resource]), 1
    del entries, resource
    yield (
        "DeleteTopics",
        DeleteTopicsRequest(topic_names=[f"none-{n}" for n in range(MOST)], timeout_ms=1000),
        5,
    )
    created = [
        CreatableTopic(
            name=f"none-{number}",
            num_partitions=1,
            replication_factor=1,
            assignments=[],
            configs=[],
        )
        for number in range(MOST)
    ]
    yield "CreateTopics", CreateTopicsRequest(topics=created), 6
    del created
    grown = [CreatePartitionsTopic(name=f"none-{n}", count=2) for n in range(MOST)]
    yield "CreatePartitions", CreatePartitionsRequest(topics=grown, timeout_ms=1000), 3


async def main() -> None:
    """Measure one request after the other, on one broker."""
    with tempfile.TemporaryDirectory() as folder:
        async with Replicas(Path(folder)) as replicas:
            groups = GroupCoordinator(
                replicas.config,
                replicas.manager,
                OnePartition(),  # type: ignore[arg-type]
                lambda _: True,
            )
            broker = Broker(
                config=replicas.config,
                cluster_id="the-cluster",
                replicas=replicas.manager,
                metadata=replicas.metadata,
                session=replicas.session,  # type: ignore[arg-type]
                controller=SimpleNamespace(  # type: ignore[arg-type]
                    active=True, knows=lambda name: False
                ),
                registration=Registered(),
                producer_ids=ProducerIdManager(replicas.session, 1),  # type: ignore[arg-type]
                groups=groups,
                transactions=None,  # type: ignore[arg-type]
                verifier=None,  # type: ignore[arg-type]
                metrics=BrokerCounters(),
                random=Random(1),
            )
            dispatcher = Dispatcher(broker, "PLAINTEXT")
            client = ClientInfo("h", 1, 1)

            async def ask(what: str, request: object, version: int) -> None:
                data = frame(request, version)
                await measured(what, lambda: dispatcher.dispatch(data, client))

            await ask("UpdateMetadata, 20 000 new partitions", update_metadata(), 5)
            await ask("UpdateMetadata, 20 000 known partitions", update_metadata(), 6)
            await measured("UpdateMetadata, made by the controller", tell)
            await ask("LeaderAndIsr, 20 000 roles, 4000 new logs", roles(1), 2)
            await ask("LeaderAndIsr, 20 000 roles, 4000 known logs", roles(2), 4)
            await ask("Metadata, all 2000 topics", MetadataRequest(topics=None), 9)
            await ask("ListOffsets, 20 000 partitions", list_offsets(), 5)
            await ask("OffsetForLeaderEpoch, 20 000 partitions", epoch_ends(), 3)
            await ask("DescribeConfigs, 2000 topics", describe_configs(), 4)
            await ask("DescribeLogDirs, 4000 logs", DescribeLogDirsRequest(topics=None), 2)
            await ask("Produce, 20 000 unknown partitions", produce(), 8)
            await ask("Fetch, 20 000 unknown partitions", fetch("none"), 11)
            await ask("Fetch, 4000 of 20 000 partitions", fetch("topic"), 11)
            await ask("AlterConfigs, 50 000 unknown topics", alter_configs(), 1)
            await replicas.lead(topic=OFFSETS_TOPIC)
            groups.notice_roles()
            while groups.find("readers")[0] is not ErrorCode.NONE:
                await asyncio.sleep(0)
            await ask("OffsetCommit, 20 000 partitions", commits(), 8)
            await ask("OffsetFetch, 20 000 partitions", committed(), 7)
            names = [f"none-{number}" for number in range(DELETED)]
            gone = DeleteTopicsRequest(topic_names=names, timeout_ms=1000)
            await ask("DeleteTopics, 10 000 unknown topics", gone, 5)
            await fill_logs(replicas)
            await ask("Fetch of an old client, 4000 logs", fetch("topic"), 3)
            await ask("StopReplica, deletes 4000 logs", stop_all(), 3)
            large = LARGE_CLUSTER_TOPICS
            await ask("UpdateMetadata, 300 000 new partitions", update_metadata(large), 6)
            await ask("UpdateMetadata, 300 000 known partitions", update_metadata(large), 6)
            await commit_everywhere(groups)
            await measured("Expiry of 300 000 offsets", groups.expiry.expire)
            await commit_everywhere(groups)
            data = frame(update_metadata(large, LEADER_DURING_DELETE), 6)

            async def delete_all() -> None:
                await dispatcher.dispatch(data, client)
                await forgotten(groups)

            await measured("UpdateMetadata, deletes 300 000 partitions", delete_all)
            # Not with the objects that they were made of.
            frames = ((what, frame(request, version)) for what, request, version in largest())
            for what, framed in frames:
                await measured(
                    f"{what}, a million elements", partial(dispatcher.dispatch, framed, client)
                )


if __name__ == "__main__":
    # As the broker does at its start.
    gc.collect()
    gc.freeze()
    asyncio.run(main())
