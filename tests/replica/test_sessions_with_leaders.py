"""A follower names to its leader only what changed, as long as the leader has its session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

import pytest

from odradek.log.partition.log import Log
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import (
    FetchablePartitionResponse,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)
from odradek.protocol.messages.offsets import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from odradek.replica.fetcher import SourceFetcher
from odradek.replica.leader_session import LeaderSession
from odradek.values import TopicPartition
from tests.support import logs
from tests.support.replicas import KEY, Replicas

OTHER = TopicPartition("other", 0)
LEADER = 2


@pytest.fixture
async def follower(tmp_path: Path) -> AsyncIterator[Replicas]:
    async with Replicas(tmp_path) as replicas:
        for key in (KEY, OTHER):
            await replicas.take(leader=LEADER, replicas=(1, LEADER), isr=(LEADER,), topic=key.topic)
        yield replicas


class Leader:
    """Broker 2, which answers each Fetch with what the test put into `answers` for it."""

    def __init__(self) -> None:
        self.requests: list[FetchRequest] = []
        self.answers: asyncio.Queue[FetchResponse | Exception] = asyncio.Queue()
        self.closed = 0

    async def call(
        self, request: FetchRequest | OffsetForLeaderEpochRequest, version: int, timeout_ms: int
    ) -> FetchResponse | OffsetForLeaderEpochResponse:
        assert isinstance(request, FetchRequest), "empty logs have no epoch to ask for"
        self.requests.append(request)
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        self.closed += 1

    async def asked(self, count: int) -> FetchRequest:
        """Return the request of this number, when it is there and waits for its answer."""
        async with asyncio.timeout(60):
            while len(self.requests) < count:
                await asyncio.sleep(0)
        return self.requests[-1]


def answer(session_id: int, *parts: tuple[TopicPartition, bytes | ErrorCode]) -> FetchResponse:
    return FetchResponse(
        session_id=session_id,
        responses=[
            FetchableTopicResponse(
                topic=key.topic,
                partition_responses=[
                    FetchablePartitionResponse(
                        partition=key.partition,
                        error_code=found if isinstance(found, ErrorCode) else 0,
                        high_watermark=0,
                        log_start_offset=0,
                        record_set=found if isinstance(found, bytes) else b"",
                    )
                ],
            )
            for key, found in parts
        ],
    )


def named(request: FetchRequest) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.topic, part.partition): part.fetch_offset
        for topic in request.topics
        for part in topic.partitions
    }


def forgotten(request: FetchRequest) -> set[TopicPartition]:
    return {
        TopicPartition(topic.topic, index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    }


def session_of(request: FetchRequest) -> tuple[int, int]:
    return request.session_id, request.session_epoch


@pytest.fixture
async def running(follower: Replicas) -> AsyncIterator[tuple[SourceFetcher, Leader]]:
    leader = Leader()
    fetcher = follower.fetcher_from(LEADER, leader)
    fetcher.add(follower.manager.partitions[OTHER])
    task = asyncio.create_task(fetcher.run())
    yield fetcher, leader
    task.cancel()
    await asyncio.wait((task,))


Running = tuple[SourceFetcher, Leader]
BOTH = ((KEY, b""), (OTHER, b""))


async def test_only_what_changed_is_named(running: Running) -> None:
    _, leader = running
    first = await leader.asked(1)
    assert session_of(first) == (0, 0)
    assert named(first) == {KEY: 0, OTHER: 0}
    leader.answers.put_nowait(answer(7, *BOTH))
    second = await leader.asked(2)
    assert session_of(second) == (7, 1)
    assert (named(second), forgotten(second)) == ({}, set())
    leader.answers.put_nowait(answer(7, (OTHER, logs.batch(b"value"))))
    third = await leader.asked(3)
    assert session_of(third) == (7, 2)
    assert named(third) == {OTHER: 1}


async def test_a_round_at_rest_looks_at_no_partition(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetcher, leader = running
    await leader.asked(1)
    leader.answers.put_nowait(answer(7, *BOTH))
    await leader.asked(2)
    for one in fetcher._followed.by_key.values():
        one.caught_up = True
    leader.answers.put_nowait(answer(7))
    await leader.asked(3)
    looked: list[object] = []
    monkeypatch.setattr(SourceFetcher, "_is_held_back", lambda self, one: looked.append(one))
    for count in (4, 5):
        leader.answers.put_nowait(answer(7))
        assert named(await leader.asked(count)) == {}
    assert not looked


async def test_a_leader_without_sessions_is_asked_for_everything(running: Running) -> None:
    _, leader = running
    for count in range(1, 4):
        request = await leader.asked(count)
        assert session_of(request) == (0, 0)
        assert named(request) == {KEY: 0, OTHER: 0}
        leader.answers.put_nowait(answer(0, *BOTH))


@pytest.mark.parametrize(
    "code", [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH]
)
async def test_a_lost_session_is_replaced_at_once(running: Running, code: ErrorCode) -> None:
    _, leader = running
    await leader.asked(1)
    leader.answers.put_nowait(answer(7, *BOTH))
    await leader.asked(2)
    leader.answers.put_nowait(FetchResponse(error_code=code, responses=[]))
    third = await leader.asked(3)
    assert session_of(third) == (7, 0), "which ends it, if there is one"
    assert named(third) == {KEY: 0, OTHER: 0}
    leader.answers.put_nowait(answer(8, *BOTH))
    assert session_of(await leader.asked(4)) == (8, 1)


async def test_a_new_connection_has_a_new_session(follower: Replicas, running: Running) -> None:
    _, leader = running
    await leader.asked(1)
    leader.answers.put_nowait(answer(7, *BOTH))
    await leader.asked(2)
    leader.answers.put_nowait(ConnectionError("gone"))
    async with asyncio.timeout(60):
        while not leader.closed:
            await asyncio.sleep(0)
    follower.clock.now += follower.config.replica_fetch_backoff_ms
    third = await leader.asked(3)
    assert session_of(third) == (7, 0)
    assert named(third) == {KEY: 0, OTHER: 0}


async def test_what_is_removed_is_forgotten_and_what_is_added_is_named(
    follower: Replicas, running: Running
) -> None:
    fetcher, leader = running
    await leader.asked(1)
    leader.answers.put_nowait(answer(7, *BOTH))
    await leader.asked(2)
    fetcher.remove(OTHER)
    leader.answers.put_nowait(answer(7))
    third = await leader.asked(3)
    assert (named(third), forgotten(third)) == ({}, {OTHER})
    fetcher.add(follower.manager.partitions[OTHER])
    leader.answers.put_nowait(answer(7))
    fourth = await leader.asked(4)
    assert (named(fourth), forgotten(fourth)) == ({OTHER: 0}, set())


async def test_what_is_removed_while_a_request_is_prepared_is_not_named(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the leader would count on a follower that follows no more."""
    fetcher, leader = running
    await leader.asked(1)
    leader.answers.put_nowait(answer(7, *BOTH))
    await leader.asked(2)

    async def flush(self: SourceFetcher, some: list[Any]) -> list[Any]:
        self.remove(OTHER)
        return some

    monkeypatch.setattr(SourceFetcher, "_flush_where_owed", flush)
    leader.answers.put_nowait(answer(7, (OTHER, logs.batch(b"value"))))
    third = await leader.asked(3)
    assert (named(third), forgotten(third)) == ({}, {OTHER})
    assert OTHER not in fetcher._session._named


async def test_a_new_epoch_of_a_partition_is_named_and_the_answer_before_it_is_dropped(
    follower: Replicas, running: Running
) -> None:
    fetcher, leader = running
    await leader.asked(1)
    leader.answers.put_nowait(answer(7, *BOTH))
    await leader.asked(2)
    await follower.take(
        leader=LEADER, replicas=(1, LEADER), isr=(LEADER,), topic=OTHER.topic, epoch=1
    )
    fetcher.add(follower.manager.partitions[OTHER])
    leader.answers.put_nowait(answer(7, (OTHER, logs.batch(b"value"))))
    third = await leader.asked(3)
    assert named(third) == {OTHER: 0}
    [topic] = third.topics
    assert topic.partitions[0].current_leader_epoch == 1


async def test_a_partition_with_an_error_is_forgotten_until_its_delay_is_over(
    follower: Replicas, running: Running
) -> None:
    _, leader = running
    await leader.asked(1)
    leader.answers.put_nowait(answer(7, *BOTH))
    await leader.asked(2)
    leader.answers.put_nowait(answer(7, (OTHER, ErrorCode.KAFKA_STORAGE_ERROR)))
    third = await leader.asked(3)
    assert (named(third), forgotten(third)) == ({}, {OTHER})
    follower.clock.now += follower.config.replica_fetch_backoff_ms
    leader.answers.put_nowait(answer(7))
    assert named(await leader.asked(4)) == {OTHER: 0}


async def test_a_session_without_partitions_rests(running: Running) -> None:
    fetcher, leader = running
    await leader.asked(1)
    leader.answers.put_nowait(answer(7, *BOTH))
    await leader.asked(2)
    for key in (KEY, OTHER):
        fetcher.remove(key)
    leader.answers.put_nowait(answer(7))
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(leader.requests) == 2


async def test_another_log_of_a_partition_is_looked_at(
    follower: Replicas, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in another directory may have another log start on the disk."""
    fetcher, leader = running
    await leader.asked(1)
    leader.answers.put_nowait(answer(7, *BOTH))
    await leader.asked(2)
    monkeypatch.setattr(
        type(follower.manager.partitions[KEY].log), "durable_log_start", property(lambda log: -1)
    )
    fetcher.look_at(KEY)
    leader.answers.put_nowait(answer(7))
    assert KEY in named(await leader.asked(3))


async def test_a_log_start_that_was_not_made_durable_at_first_is_named_once_it_is(
    follower: Replicas, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader tells of it once, and a deletion there waits for it."""
    fetcher, leader = running
    log = follower.manager.partitions[KEY].log
    await leader.asked(1)
    leader.answers.put_nowait(answer(7, (KEY, logs.batch(b"value")), (OTHER, b"")))
    checkpoint = fetcher._checkpoint_starts
    tries: list[object] = []

    async def fails_once(some: Collection[Log]) -> None:
        tries.append(some)
        if len(tries) > 1:
            await checkpoint(some)

    monkeypatch.setattr(fetcher, "_checkpoint_starts", fails_once)
    await leader.asked(2)
    raised = answer(7, (KEY, b""))
    part = raised.responses[0].partition_responses[0]
    part.high_watermark = part.log_start_offset = 1
    leader.answers.put_nowait(raised)
    await leader.asked(3)
    assert log.log_start_offset == 1
    assert len(tries) == 1
    follower.clock.now += follower.config.replica_fetch_backoff_ms
    leader.answers.put_nowait(answer(7))
    fourth = await leader.asked(4)
    assert len(tries) == 2
    [topic] = fourth.topics
    assert topic.partitions[0].log_start_offset == 1


def partition(offset: int = 0) -> FetchPartition:
    return FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1)


def test_a_session_names_forgets_and_names_again() -> None:
    session = LeaderSession()
    assert session.request({KEY: partition(), OTHER: partition()})[:2] == (0, 0)
    session.answered(7)
    assert session.request({KEY: partition()}) == (7, 1, [], [])
    session.answered(7)
    session.leave(KEY)
    session.leave(TopicPartition("never", 0))
    assert session.request({OTHER: partition(1)}) == (7, 2, [(OTHER, partition(1))], [KEY])
    session.answered(7)
    session.leave(OTHER)
    assert not session.fetches_unnamed
    assert session.request({OTHER: partition(1)}) == (7, 3, [], []), "it came back unchanged"
    session.answered(7)
    assert session.request({KEY: partition()}) == (7, 4, [(KEY, partition())], [])


def test_a_session_that_the_leader_ended_begins_anew() -> None:
    session = LeaderSession()
    session.request({KEY: partition()})
    session.answered(7)
    session.request({})
    session.answered(0)
    assert not session.is_open
    assert session.request({KEY: partition()}) == (0, 0, [(KEY, partition())], [])
    session.answered(7)
    session.answered(8)
    assert not session.is_open, "another session than the one that was asked"
