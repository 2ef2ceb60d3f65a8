"""Requests that name thousands of partitions, and what counts the turns of the loop beside them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable, Coroutine
from typing import Any

from odradek import slices
from odradek.handlers.context import Broker, RequestContext
from odradek.handlers.dispatch import ELEMENTS_AT_ONCE, Dispatcher
from odradek.net.client_info import ClientInfo
from odradek.protocol import codec, headers
from odradek.protocol.api import APIS
from odradek.protocol.messages import group_offsets as group_messages
from odradek.protocol.messages.admin import (
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    ReassignableTopic,
    TopicPartitions,
)
from odradek.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from odradek.protocol.messages.control import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from odradek.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
)
from odradek.protocol.messages.groups import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from odradek.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
)
from odradek.protocol.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
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
)
from odradek.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

TOPIC = "wide"
PARTITIONS = 4000


class Turns:
    """Counts the turns of the event loop, and looks at something in each."""

    def __init__(self, look: Callable[[], object] = lambda: None) -> None:
        self.count = 0
        self.seen: list[object] = []
        self._look = look

    async def _run(self) -> None:
        while True:
            self.seen.append(self._look())
            await asyncio.sleep(0)
            self.count += 1

    async def during(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run the work; count the turns until it is done."""
        counting = asyncio.create_task(self._run())
        try:
            return await work
        finally:
            counting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await counting


def frame(request: object, version: int) -> memoryview:
    key = next(api.key for api in APIS.values() if api.request is type(request))
    header = headers.encode_request_header(headers.RequestHeader(key, version, 1, "c"))
    return memoryview(header + codec.encode(request, version))


async def ask(broker: Broker, request: object, version: int) -> bytes:
    """Return the body of the answer, as a client gets it."""
    api = next(api for api in APIS.values() if api.request is type(request))
    dispatcher = Dispatcher(broker, "PLAINTEXT")
    parts = await dispatcher.dispatch(frame(request, version), ClientInfo("h", 1, 1))
    assert isinstance(parts, list)
    joined = b"".join(part for part in parts if isinstance(part, bytes))
    _, position = headers.decode_response_header(api, version, joined)
    return joined[position:]


def update(leader_epoch: int = 1, partitions: int = PARTITIONS) -> UpdateMetadataRequest:
    states = [
        UpdateMetadataPartitionState(
            partition_index=index,
            controller_epoch=1,
            leader=1,
            leader_epoch=leader_epoch,
            isr=[1],
            zk_version=1,
            replicas=[1],
        )
        for index in range(partitions)
    ]
    topic = UpdateMetadataTopicState(topic_name=TOPIC, partition_states=states)
    return UpdateMetadataRequest(
        controller_id=1,
        controller_epoch=1,
        broker_epoch=100,
        topic_states=[topic],
        live_brokers=[],
    )


async def collector_on() -> None:
    """Wait until what is large is freed, upon which the collector goes on."""
    async with asyncio.timeout(slices.LONGEST_PAUSE_S / 2):
        while not gc.isenabled():
            await asyncio.sleep(0)


def roles() -> LeaderAndIsrRequest:
    """Roles of other brokers' replicas: what is for nobody here takes time too."""
    states = [
        LeaderAndIsrPartitionState(
            partition_index=index,
            controller_epoch=1,
            leader=2,
            leader_epoch=1,
            isr=[2],
            zk_version=1,
            replicas=[2],
        )
        for index in range(PARTITIONS)
    ]
    topic = LeaderAndIsrTopicState(topic_name=TOPIC, partition_states=states)
    return LeaderAndIsrRequest(
        controller_id=1, controller_epoch=1, broker_epoch=100, topic_states=[topic], live_leaders=[]
    )


LIST_OFFSETS = ListOffsetsRequest(
    replica_id=-1,
    topics=[
        ListOffsetsTopic(
            name=TOPIC,
            partitions=[
                ListOffsetsPartition(partition_index=index, timestamp=-1)
                for index in range(PARTITIONS)
            ],
        )
    ],
)
EPOCH_ENDS = OffsetForLeaderEpochRequest(
    replica_id=-1,
    topics=[
        OffsetForLeaderTopic(
            topic=TOPIC,
            partitions=[
                OffsetForLeaderPartition(partition=index, leader_epoch=1)
                for index in range(PARTITIONS)
            ],
        )
    ],
)
# Only its decoding and its answer take as many turns as those of others.
PRODUCE = ProduceRequest(
    acks=1,
    timeout_ms=0,
    topic_data=[
        TopicProduceData(
            name=TOPIC,
            partition_data=[
                PartitionProduceData(index=index, records=bytes(40)) for index in range(PARTITIONS)
            ],
        )
    ],
)
FETCH = FetchRequest(
    replica_id=-1,
    max_wait_ms=0,
    min_bytes=1,
    topics=[
        FetchTopic(
            topic=TOPIC,
            partitions=[
                FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1)
                for index in range(PARTITIONS)
            ],
        )
    ],
)
NAMES = [f"{number:020}" for number in range(PARTITIONS)]


def context(version: int) -> RequestContext:
    return RequestContext(version, "c", "PLAINTEXT", "h", 1)


GROUP = "readers"
COMMITS = group_messages.OffsetCommitRequest(
    group_id=GROUP,
    topics=[
        group_messages.OffsetCommitRequestTopic(
            name=TOPIC,
            partitions=[
                group_messages.OffsetCommitRequestPartition(
                    partition_index=index, committed_offset=5, committed_metadata=""
                )
                for index in range(PARTITIONS)
            ],
        )
    ],
)
COMMITS_IN_TRANSACTION = TxnOffsetCommitRequest(
    transactional_id="t",
    group_id=GROUP,
    producer_id=7,
    producer_epoch=0,
    topics=[
        TxnOffsetCommitRequestTopic(
            name=TOPIC,
            partitions=[
                TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=6)
                for index in range(PARTITIONS)
            ],
        )
    ],
)
ADDED = AddPartitionsToTxnRequest(
    transactional_id="t",
    producer_id=7,
    producer_epoch=0,
    topics=[AddPartitionsToTxnTopic(name=TOPIC, partitions=[*range(PARTITIONS)])],
)


def markers(count: int, topics: list[WritableTxnMarkerTopic]) -> WriteTxnMarkersRequest:
    """Return the markers of several transactions with the same partitions."""
    return WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=number,
                producer_epoch=0,
                transaction_result=True,
                topics=topics,
                coordinator_epoch=0,
            )
            for number in range(count)
        ]
    )


MARKERS = markers(1, [WritableTxnMarkerTopic(name=TOPIC, partition_indexes=[*range(PARTITIONS)])])
OFFSETS_OF_ALL = group_messages.OffsetFetchRequest(group_id=GROUP, topics=None)
OFFSET_DELETIONS = group_messages.OffsetDeleteRequest(
    group_id=GROUP,
    topics=[
        group_messages.OffsetDeleteRequestTopic(
            name=TOPIC,
            partitions=[
                group_messages.OffsetDeleteRequestPartition(partition_index=index)
                for index in range(PARTITIONS)
            ],
        )
    ],
)
ALTER = AlterConfigsRequest(
    resources=[
        AlterConfigsResource(resource_type=2, resource_name=name, configs=[]) for name in NAMES
    ],
    validate_only=True,
)
ALTER_INCREMENTALLY = IncrementalAlterConfigsRequest(
    resources=[
        IncrementalAlterConfigsResource(resource_type=2, resource_name=name, configs=[])
        for name in NAMES
    ],
    validate_only=True,
)
MANY = ELEMENTS_AT_ONCE + 1
MANY_NAMES = [f"none-{number}" for number in range(MANY)]
MANY_INDEXES = list(range(MANY))


def empty(topic: Callable[..., Any], name: str = "name", array: str = "partitions") -> list[Any]:
    """Return topics without partitions, which take time too."""
    return [topic(**{name: one, array: []}) for one in MANY_NAMES]


def large_requests() -> list[tuple[object, int]]:
    """Return requests that name many things, with their versions."""
    return [
        (MetadataRequest(topics=[MetadataRequestTopic(name=one) for one in MANY_NAMES],
            allow_auto_topic_creation=False), 9),
        (ListOffsetsRequest(replica_id=-1, topics=empty(ListOffsetsTopic)), 5),
        (OffsetForLeaderEpochRequest(topics=empty(OffsetForLeaderTopic, "topic")), 3),
        (DeleteRecordsRequest(timeout_ms=0, topics=empty(DeleteRecordsTopic)), 1),
        (DeleteRecordsRequest(timeout_ms=0, topics=[DeleteRecordsTopic(name=TOPIC, partitions=[
            DeleteRecordsPartition(partition_index=one, offset=0) for one in MANY_INDEXES])]), 1),
        (ProduceRequest(acks=1, timeout_ms=0,
            topic_data=empty(TopicProduceData, array="partition_data")), 8),
        (ProduceRequest(acks=7, timeout_ms=0, topic_data=[TopicProduceData(
            name=TOPIC, partition_data=[
                PartitionProduceData(index=one, records=b"") for one in MANY_INDEXES])]), 8),
        (FetchRequest(replica_id=-1, max_wait_ms=0, min_bytes=0,
            topics=empty(FetchTopic, "topic")), 11),
        (FetchRequest(replica_id=-1, max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic=TOPIC,
            partitions=[FetchPartition(partition=one, fetch_offset=0, partition_max_bytes=1)
                for one in MANY_INDEXES])]), 3),
        (group_messages.OffsetCommitRequest(group_id=GROUP,
            topics=empty(group_messages.OffsetCommitRequestTopic)), 8),
        (TxnOffsetCommitRequest(transactional_id="t", group_id=GROUP, producer_id=7,
            producer_epoch=0, topics=empty(TxnOffsetCommitRequestTopic)), 3),
        (group_messages.OffsetFetchRequest(group_id=GROUP, topics=[
            group_messages.OffsetFetchRequestTopic(
                name=TOPIC, partition_indexes=MANY_INDEXES)]), 0),
        (group_messages.OffsetFetchRequest(group_id=GROUP, topics=empty(
            group_messages.OffsetFetchRequestTopic, array="partition_indexes")), 7),
        (group_messages.OffsetDeleteRequest(group_id=GROUP,
            topics=empty(group_messages.OffsetDeleteRequestTopic)), 0),
        (DescribeConfigsRequest(resources=[DescribeConfigsResource(
            resource_type=2, resource_name=TOPIC, configuration_keys=MANY_NAMES)]), 4),
        (StopReplicaRequest(controller_id=1, controller_epoch=1, broker_epoch=100,
            topic_states=[StopReplicaTopicState(topic_name="other", partition_states=[
                StopReplicaPartitionState(partition_index=one, delete_partition=True)
                for one in MANY_INDEXES])]), 3),
        (CreateTopicsRequest(topics=[CreatableTopic(name=TOPIC, num_partitions=1,
            replication_factor=1, assignments=[], configs=[])] * MANY), 6),
        (CreatePartitionsRequest(timeout_ms=0, topics=[CreatePartitionsTopic(
            name=TOPIC, count=1, assignments=None)] * MANY), 3),
        (ElectLeadersRequest(election_type=7, topic_partitions=[
            TopicPartitions(topic=TOPIC, partition_id=MANY_INDEXES)]), 2),
        (ElectLeadersRequest(topic_partitions=empty(TopicPartitions, "topic", "partition_id")), 2),
        (AlterPartitionReassignmentsRequest(topics=empty(ReassignableTopic)), 0),
        (ListPartitionReassignmentsRequest(topics=[ListPartitionReassignmentsTopics(
            name=TOPIC, partition_indexes=MANY_INDEXES)]), 0),
        (AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path="/none", topics=empty(
            AlterReplicaLogDirTopic))]), 2),
        (DescribeLogDirsRequest(topics=[DescribableLogDirTopic(
            topic=TOPIC, partition_index=MANY_INDEXES)]), 2),
        (JoinGroupRequest(group_id=GROUP, session_timeout_ms=6000, member_id="nobody",
            protocol_type="consumer", protocols=[
                JoinGroupRequestProtocol(name=one, metadata=b"") for one in MANY_NAMES]), 7),
        (SyncGroupRequest(group_id=GROUP, generation_id=1, member_id="nobody",
            protocol_type="consumer", protocol_name="range", assignments=[
                SyncGroupRequestAssignment(member_id=one, assignment=b"")
                for one in MANY_NAMES]), 5),
        (LeaveGroupRequest(group_id=GROUP,
            members=[MemberIdentity(member_id=one) for one in MANY_NAMES]), 4),
        (ListGroupsRequest(states_filter=MANY_NAMES), 4),
        (AddPartitionsToTxnRequest(transactional_id="t", producer_id=7, producer_epoch=0,
            topics=empty(AddPartitionsToTxnTopic)), 3),
        (AddPartitionsToTxnRequest(transactional_id="t", producer_id=7, producer_epoch=0, topics=[
            AddPartitionsToTxnTopic(name=TOPIC, partitions=MANY_INDEXES)]), 3),
        (markers(MANY, []), 1),
        (markers(MANY, [WritableTxnMarkerTopic(name="none", partition_indexes=[0])]), 1),
        (markers(1, empty(WritableTxnMarkerTopic, array="partition_indexes")), 1),
        (markers(1, [WritableTxnMarkerTopic(name=TOPIC, partition_indexes=MANY_INDEXES)]), 1),
    ]  # fmt: skip
