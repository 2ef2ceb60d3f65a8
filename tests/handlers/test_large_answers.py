"""Answers over thousands of partitions: each is complete, in order, and of one moment."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from odradek import slices
from odradek.group.offsets import CommittedOffset
from odradek.handlers import (
    fetch,
    group_offsets,
    metadata,
)
from odradek.handlers.context import Broker
from odradek.handlers.dispatch import ELEMENTS_AT_ONCE
from odradek.log.records.batch import Origin
from odradek.log.segment.files import Region
from odradek.protocol import codec
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.admin import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from odradek.protocol.messages.control import (
    UpdateMetadataResponse,
)
from odradek.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from odradek.protocol.messages.groups import (
    LeaveGroupRequest,
    LeaveGroupResponse,
)
from odradek.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
)
from odradek.protocol.messages.produce import (
    ProduceResponse,
)
from odradek.replica import reads
from odradek.values import TopicPartition
from tests.handlers.large_requests import (
    COMMITS,
    FETCH,
    GROUP,
    OFFSETS_OF_ALL,
    PARTITIONS,
    PRODUCE,
    TOPIC,
    Turns,
    ask,
    context,
    update,
)
from tests.support import logs
from tests.support.replicas import KEY, Replicas


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
    many = 2 * ELEMENTS_AT_ONCE
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


async def test_the_error_of_a_group_is_the_answer_though_nobody_leaves(wide: Broker) -> None:
    def leave(group_id: str, leaving: Sequence[object]) -> tuple[ErrorCode, list[ErrorCode]]:
        return ErrorCode.NOT_COORDINATOR, []

    groups = SimpleNamespace(leave=leave)
    elsewhere = dataclasses.replace(wide, groups=groups)  # type: ignore[arg-type]
    answer, _ = codec.decode(
        LeaveGroupResponse, 4, await ask(elsewhere, LeaveGroupRequest(group_id="g"), 4)
    )
    assert (answer.error_code, answer.members) == (ErrorCode.NOT_COORDINATOR, [])


async def test_the_long_answer_to_a_short_fetch_of_a_session_is_made_in_slices(
    wide: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a change of all roles: the request names nothing, and each partition has news."""
    many = reads.PARTITIONS_AT_ONCE + 1
    named = [
        FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1)
        for index in range(many)
    ]

    async def fetched(session_id: int, epoch: int, topics: list[FetchTopic]) -> FetchResponse:
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=1,
            session_id=session_id,
            session_epoch=epoch,
            topics=topics,
        )
        answer, _ = codec.decode(FetchResponse, 11, await ask(wide, request, 11))
        return answer

    first = await fetched(0, 0, [FetchTopic(topic=TOPIC, partitions=named)])
    monkeypatch.delattr("odradek.protocol.headers.encode_response")
    second = await fetched(first.session_id, 1, [])
    [topic] = second.responses
    assert len(topic.partition_responses) == many
    assert {one.error_code for one in topic.partition_responses} == {
        ErrorCode.NOT_LEADER_OR_FOLLOWER
    }
