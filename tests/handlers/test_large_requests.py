"""Requests that name thousands of partitions: others run in between, none sees half of one."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from odradek import slices
from odradek.group.coordinator import GroupCoordinator
from odradek.group.offsets import CommittedOffset
from odradek.group.partitioning import OFFSETS_TOPIC
from odradek.handlers import alter_configs, fetch, group_offsets, metadata, offsets, produce
from odradek.handlers.context import Broker, RequestContext
from odradek.handlers.dispatch import LARGE_FRAME_BYTES, Dispatcher
from odradek.log.records.batch import Origin
from odradek.log.segment.files import Region
from odradek.net.connection import ClientInfo
from odradek.protocol import codec, headers
from odradek.protocol.api import APIS
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages import group_offsets as group_messages
from odradek.protocol.messages.admin import DescribeLogDirsRequest, DescribeLogDirsResponse
from odradek.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from odradek.protocol.messages.control import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
    UpdateMetadataTopicState,
)
from odradek.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from odradek.protocol.messages.metadata import MetadataRequest, MetadataResponse
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
    ProduceResponse,
    TopicProduceData,
)
from odradek.protocol.messages.topics import DeleteTopicsRequest
from odradek.values import TopicPartition
from tests.support import logs
from tests.support.replicas import KEY, Replicas

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
    assert parts is not None
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


@pytest.fixture
async def wide(broker: Broker) -> AsyncIterator[Broker]:
    """A broker that knows a topic with many partitions."""
    broker.metadata.update(update())
    yield broker
    assert gc.isenabled()


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


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (update(2), 5),
        (roles(), 2),
        (MetadataRequest(topics=None), 9),
        (LIST_OFFSETS, 5),
        (EPOCH_ENDS, 3),
        (PRODUCE, 9),
        (FETCH, 4),
        (FETCH, 11),
        (DeleteTopicsRequest(topic_names=NAMES, timeout_ms=0), 5),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, int) else "",
)
async def test_others_run_while_a_large_request_is_served(
    wide: Broker, request_: object, version: int
) -> None:
    turns = Turns()
    await turns.during(ask(wide, request_, version))
    assert turns.count > PARTITIONS // slices.STEPS_PER_SLICE


class OnePartition:
    """`__consumer_offsets` has one partition."""

    def __call__(self) -> int:
        return 1

    async def learn(self) -> None:
        """Do nothing: the number is known."""


@pytest.fixture
async def coordinating(wide: Broker, replicas: Replicas) -> AsyncIterator[Broker]:
    """The broker with a coordinator, where a group has committed the offset 5 everywhere."""
    coordinator = GroupCoordinator(
        replicas.config,
        replicas.manager,
        OnePartition(),  # type: ignore[arg-type]
        lambda _: True,
    )
    await replicas.lead(topic=OFFSETS_TOPIC)
    coordinator.notice_roles()
    while coordinator.find(GROUP)[0] is not ErrorCode.NONE:
        await asyncio.sleep(0)
    serving = dataclasses.replace(wide, groups=coordinator)
    await group_offsets.offset_commit(serving, COMMITS, context(8))
    yield serving
    coordinator.close()


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
OFFSETS_OF_ALL = group_messages.OffsetFetchRequest(group_id=GROUP, topics=None)
OFFSET_DELETIONS = group_messages.OffsetDeleteRequest(
    group_id=GROUP,
    topics=[
        group_messages.OffsetDeleteRequestTopic(
            name="other",
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


@pytest.mark.parametrize(
    ("serve", "request_", "version"),
    [
        (offsets.list_offsets, LIST_OFFSETS, 5),
        (group_offsets.offset_commit, COMMITS, 8),
        (group_offsets.offset_fetch, OFFSETS_OF_ALL, 7),
        (group_offsets.offset_delete, OFFSET_DELETIONS, 0),
        (alter_configs.alter_configs, ALTER, 1),
        (alter_configs.incremental_alter_configs, ALTER_INCREMENTALLY, 1),
        (produce.produce, PRODUCE, 9),
        (fetch.fetch, FETCH, 11),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_a_handler_gives_the_loop_back_between_slices(
    coordinating: Broker,
    serve: Callable[[Broker, object, RequestContext], Coroutine[Any, Any, Any]],
    request_: object,
    version: int,
) -> None:
    """Beside the turns for decoding and encoding."""
    turns = Turns()
    await turns.during(serve(coordinating, request_, context(version)))
    # The last of the pauses may be where the work ends.
    assert turns.count >= PARTITIONS // slices.STEPS_PER_SLICE - 1


async def test_every_offset_of_a_large_commit_counts(coordinating: Broker) -> None:
    answer = await group_offsets.offset_fetch(coordinating, OFFSETS_OF_ALL, context(7))
    [topic] = answer.topics
    assert [one.partition_index for one in topic.partitions] == list(range(PARTITIONS))
    assert {one.committed_offset for one in topic.partitions} == {5}


async def test_a_large_answer_has_the_offsets_of_one_moment(coordinating: Broker) -> None:
    asked = asyncio.create_task(
        group_offsets.offset_fetch(coordinating, OFFSETS_OF_ALL, context(7))
    )
    for _ in range(3):
        await asyncio.sleep(0)
    last = TopicPartition(TOPIC, PARTITIONS - 1)
    commit = {last: CommittedOffset(6, "", 0)}
    await coordinating.groups.commits.commit(GROUP, ("", None, -1), commit)
    assert not asked.done()
    [topic] = (await asked).topics
    assert {one.committed_offset for one in topic.partitions} == {5}


async def test_a_group_that_gets_a_member_while_its_commit_is_encoded_refuses_it(
    coordinating: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The member is checked when nothing else can come before the append."""
    commits = coordinating.groups.commits

    def refuse(*arguments: object) -> None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)

    committing = asyncio.create_task(group_offsets.offset_commit(coordinating, COMMITS, context(8)))
    for _ in range(3):
        await asyncio.sleep(0)
    monkeypatch.setattr(commits, "_check_member", refuse)
    [topic] = (await committing).topics
    assert {one.error_code for one in topic.partitions} == {ErrorCode.UNKNOWN_MEMBER_ID}


async def test_decoding_and_encoding_give_the_loop_back_too(wide: Broker) -> None:
    """Beside the handler's own turns."""
    assert len(frame(update(), 5)) > LARGE_FRAME_BYTES
    turns = Turns()
    await turns.during(slices.run(wide.metadata.update_in_slices(update())))
    applied = turns.count
    turns = Turns()
    await turns.during(ask(wide, update(), 5))
    assert turns.count > applied + PARTITIONS // slices.STEPS_PER_SLICE


async def test_an_update_takes_effect_at_once(wide: Broker) -> None:
    def epochs() -> frozenset[int]:
        return frozenset(one.leader_epoch for one in wide.metadata.topics[TOPIC].values())

    turns = Turns(epochs)
    await turns.during(ask(wide, update(leader_epoch=2), 5))
    assert set(turns.seen) == {frozenset({1}), frozenset({2})}


async def test_updates_are_applied_one_after_the_other(wide: Broker) -> None:
    """A later one may be small: it must not be overwritten by what began before it."""
    few = update(leader_epoch=3, partitions=10)
    first = asyncio.create_task(ask(wide, update(leader_epoch=2), 5))
    while not wide.metadata.updating.locked():
        await asyncio.sleep(0)
    await ask(wide, few, 5)
    await first
    known = wide.metadata.topics[TOPIC]
    assert {known[index].leader_epoch for index in range(10)} == {3}
    assert known[PARTITIONS - 1].leader_epoch == 2


async def test_an_answer_is_of_one_view(wide: Broker) -> None:
    asked = asyncio.create_task(ask(wide, MetadataRequest(topics=None), 9))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not asked.done()
    wide.metadata.update(update(leader_epoch=2))
    for answer, epoch in ((await asked, 1), (await ask(wide, MetadataRequest(topics=None), 9), 2)):
        decoded, _ = codec.decode(MetadataResponse, 9, answer)
        assert {one.leader_epoch for one in decoded.topics[0].partitions} == {epoch}


async def test_who_asks_the_same_at_the_same_time_gets_the_same_answer(
    wide: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, encoded = metadata._encoded, []

    async def counting(*arguments: Any) -> bytes:
        encoded.append(arguments)
        return await encode(*arguments)

    monkeypatch.setattr(metadata, "_encoded", counting)
    everything = MetadataRequest(topics=None)
    askers = [asyncio.create_task(ask(wide, everything, 9)) for _ in range(5)]
    for _ in range(3):
        await asyncio.sleep(0)
    askers[0].cancel()  # the one that the others wait for
    answers = await asyncio.gather(*askers[1:])
    assert len(set(answers)) == 1
    assert len(encoded) == 2
    await ask(wide, everything, 9)
    assert len(encoded) == 2, "it is kept"


async def test_a_topic_in_several_slices_is_described_once(
    wide: Broker, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in ("a", "b", "c"):
        await replicas.lead(topic=topic)
    (contents,) = replicas.manager.log_directories().values()
    assert contents is not None
    path = str(replicas.config.log_dirs[0])
    monkeypatch.setattr(
        replicas.manager, "log_directories", lambda: {path: contents * slices.STEPS_PER_SLICE}
    )
    turns = Turns()
    data = await turns.during(ask(wide, DescribeLogDirsRequest(topics=None), 2))
    answer, _ = codec.decode(DescribeLogDirsResponse, 2, data)
    [result] = answer.results
    assert [(one.name, len(one.partitions)) for one in result.topics] == [
        (topic, slices.STEPS_PER_SLICE) for topic in ("a", "b", "c")
    ]
    assert turns.count >= len(contents)


async def test_every_partition_of_a_large_produce_is_answered_in_order(wide: Broker) -> None:
    turns = Turns()
    answer, _ = codec.decode(ProduceResponse, 9, await turns.during(ask(wide, PRODUCE, 9)))
    [topic] = answer.responses
    assert [one.index for one in topic.partition_responses] == list(range(PARTITIONS))
    assert {one.error_code for one in topic.partition_responses} == {
        ErrorCode.NOT_LEADER_OR_FOLLOWER
    }


async def test_an_update_that_waited_while_a_later_controller_came_is_refused(wide: Broker) -> None:
    async with wide.metadata.updating:
        waiting = asyncio.create_task(ask(wide, update(leader_epoch=2), 5))
        while not wide.metadata.updating._waiters:
            await asyncio.sleep(0)
        assert wide.replicas.accept_controller(2)
    answer, _ = codec.decode(UpdateMetadataResponse, 5, await waiting)
    assert answer.error_code == ErrorCode.STALE_CONTROLLER_EPOCH
    assert wide.metadata.topics[TOPIC][0].leader_epoch == 1


async def test_a_large_fetch_whose_client_leaves_holds_no_file(
    wide: Broker, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    await replicas.lead()
    await replicas.manager.append([(KEY, logs.batch(b"value"))], 1, 0, Origin.CLIENT)
    held: list[Region] = []
    handler = fetch._response

    def noted(*arguments: Any) -> FetchResponse:
        answer = handler(*arguments)
        for topic in answer.responses:
            for part in topic.partition_responses:
                if isinstance(part.record_set, Region):
                    held.append(part.record_set)
        return answer

    monkeypatch.setattr(fetch, "_response", noted)
    many = LARGE_FRAME_BYTES // 16
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        topics=[
            FetchTopic(
                topic=KEY.topic,
                partitions=[
                    FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20)
                    for index in range(KEY.partition, many)
                ],
            )
        ],
    )
    asked = asyncio.create_task(ask(wide, request, 4))
    while not held:
        await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert [region._file for region in held] == [None], "it is closed"


async def test_pauses_of_the_collector_end_however_long_work_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slices, "LONGEST_PAUSE_S", 0.01)
    async with asyncio.timeout(60):
        with slices.collector_paused():
            assert not gc.isenabled()
            while not gc.isenabled():
                with slices.collector_paused():
                    await asyncio.sleep(0)
            with slices.collector_paused():
                assert gc.isenabled(), "no new pause before the first has ended"
        with slices.collector_paused():
            assert not gc.isenabled()
    assert gc.isenabled()


async def test_every_partition_of_a_large_fetch_is_answered_once_in_order(wide: Broker) -> None:
    [topic] = FETCH.topics
    other = FetchTopic(topic="other", partitions=topic.partitions[:3])
    request = dataclasses.replace(FETCH, topics=[topic, other, topic])
    answer, _ = codec.decode(FetchResponse, 11, await ask(wide, request, 11))
    assert [one.topic for one in answer.responses] == [TOPIC, "other"]
    found = [[part.partition for part in one.partition_responses] for one in answer.responses]
    assert found == [list(range(PARTITIONS)), [0, 1, 2]]
    first, second = ({part.error_code for part in one.partition_responses}
        for one in answer.responses)  # fmt: skip
    assert first == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert second == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_a_large_answer_is_joined_piece_by_piece() -> None:
    """To join a million pieces at once takes some fifty milliseconds."""
    message = update(partitions=20_000)
    *_, whole = codec.encode_parts(message, 5)
    work = codec.encode_parts_in_slices(message, 5)
    while True:
        try:
            next(work)
        except StopIteration as end:
            parts = end.value
            break
    assert b"".join(parts) == whole
    assert max(map(len, parts)) < len(whole) / 4
