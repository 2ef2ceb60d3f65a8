"""Fetch sessions (KIP-227) as clients see them: what they name, what they are told, and errors."""

from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace

import pytest

from odradek import slices
from odradek.handlers.context import Broker
from odradek.log.records.batch import Origin
from odradek.protocol.errors import ErrorCode
from odradek.protocol.regions import part_length
from odradek.replica.fetch_sessions import MIN_EVICTION_MS
from odradek.security.acls import AclOperation, ResourceType
from odradek.values import Principal, TopicPartition
from tests.support import logs
from tests.support.replicas import KEY, Replicas
from tests.support.session_client import SessionClient

OTHER = TopicPartition("other", 0)
LONG_MS = 600_000


async def produce(replicas: Replicas, key: TopicPartition = KEY, value: bytes = b"value") -> None:
    [outcome] = await replicas.manager.append([(key, logs.batch(value))], 1, 0, Origin.CLIENT)
    assert outcome.error is ErrorCode.NONE


async def two_partitions(replicas: Replicas) -> None:
    for key in (KEY, OTHER):
        await replicas.lead(topic=key.topic)


async def until_waiting(client: SessionClient, task: asyncio.Task[object]) -> None:
    async with asyncio.timeout(60):
        while not client.session.waits:
            assert not task.done()
            await asyncio.sleep(0)


async def test_only_what_changed_is_answered(broker: Broker, replicas: Replicas) -> None:
    await two_partitions(replicas)
    client = SessionClient(broker)
    assert set(await client.fetch((KEY, 0), (OTHER, 0))) == {KEY, OTHER}
    assert client.session_id > 0
    assert await client.fetch() == {}
    await produce(replicas, OTHER)
    found = await client.fetch()
    assert set(found) == {OTHER}
    assert part_length(found[OTHER].record_set or b"") > 0
    assert set(await client.fetch()) == {OTHER}, "it did not say that it has the records"
    assert await client.fetch((OTHER, 1)) == {}
    assert not client.session.marked, "nothing is left to look at"


async def test_an_answer_without_news_looks_at_no_partition(
    broker: Broker, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    await two_partitions(replicas)
    client = SessionClient(broker)
    await client.fetch((KEY, 0), (OTHER, 0))
    await client.fetch()
    monkeypatch.delattr("odradek.replica.reads.FetchReader._read")
    assert await client.fetch() == {}


async def test_a_wait_ends_with_records_of_a_partition_that_no_request_names(
    broker: Broker, replicas: Replicas
) -> None:
    await two_partitions(replicas)
    client = SessionClient(broker)
    await client.fetch((KEY, 0), (OTHER, 0))
    task = asyncio.create_task(client.fetch(wait_ms=LONG_MS))
    await until_waiting(client, task)
    async with asyncio.timeout(60):
        await produce(replicas, OTHER)
        assert set(await task) == {OTHER}


@pytest.mark.parametrize("begins", ["during the wait", "after the wait"])
async def test_a_session_whose_fetch_waits_long_is_not_idle(
    broker: Broker, replicas: Replicas, begins: str
) -> None:
    await two_partitions(replicas)
    client, other = SessionClient(broker), SessionClient(broker)
    await client.fetch((KEY, 0), (OTHER, 0))
    task = asyncio.create_task(client.fetch(wait_ms=LONG_MS))
    await until_waiting(client, task)
    replicas.clock.now += MIN_EVICTION_MS + 1
    if begins == "during the wait":
        await other.fetch((KEY, 0))
    await produce(replicas, OTHER)
    async with asyncio.timeout(60):
        assert set(await task) == {OTHER}
    if begins == "after the wait":
        await other.fetch((KEY, 0))
    assert await client.fetch((OTHER, 1)) == {}
    assert broker.replicas.fetch_sessions.evictions == 0


async def test_a_session_that_nobody_fetches_after_a_long_wait_is_idle(
    broker: Broker, replicas: Replicas
) -> None:
    await two_partitions(replicas)
    client = SessionClient(broker)
    await client.fetch((KEY, 0), (OTHER, 0))
    task = asyncio.create_task(client.fetch(wait_ms=LONG_MS))
    await until_waiting(client, task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    replicas.clock.now += MIN_EVICTION_MS + 1
    await SessionClient(broker).fetch((KEY, 0))
    assert broker.replicas.fetch_sessions.evictions == 1


async def test_a_large_session_whose_fetch_did_not_wait_is_idle(
    broker: Broker, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odradek.replica.reads.PARTITIONS_AT_ONCE", 1)
    await two_partitions(replicas)
    client = SessionClient(broker)
    await client.fetch((KEY, 0), (OTHER, 0))
    await produce(replicas, OTHER)
    assert set(await client.fetch(wait_ms=LONG_MS)) == {OTHER}
    replicas.clock.now += MIN_EVICTION_MS + 1
    await SessionClient(broker).fetch((KEY, 0))
    assert broker.replicas.fetch_sessions.evictions == 1


async def test_a_raised_log_start_and_a_high_watermark_are_news(
    broker: Broker, replicas: Replicas
) -> None:
    await two_partitions(replicas)
    await produce(replicas)
    client = SessionClient(broker)
    await client.fetch((KEY, 1), (OTHER, 0))
    assert await client.fetch() == {}
    await asyncio.to_thread(replicas.manager.partitions[KEY].log.advance_log_start, 1)
    await asyncio.sleep(0)
    found = await client.fetch()
    assert {key: part.log_start_offset for key, part in found.items()} == {KEY: 1}
    assert await client.fetch() == {}


async def test_retention_is_news(broker: Broker, replicas: Replicas) -> None:
    await two_partitions(replicas)
    await produce(replicas)
    client = SessionClient(broker)
    await client.fetch((KEY, 1), (OTHER, 0))
    await client.fetch()
    log = replicas.manager.partitions[KEY].log
    log.config = dataclasses.replace(log.config, retention_ms=1)
    assert await asyncio.to_thread(log.apply_retention) == 1
    await asyncio.sleep(0)
    assert (await client.fetch())[KEY].log_start_offset == 1


async def test_forgotten_partitions_are_fetched_no_more_and_an_empty_session_ends(
    broker: Broker, replicas: Replicas
) -> None:
    await two_partitions(replicas)
    client = SessionClient(broker)
    await client.fetch((KEY, 0), (OTHER, 0))
    sessions = broker.replicas.fetch_sessions
    assert sessions.cached_partitions == 2
    assert await client.fetch(forgotten=[KEY]) == {}
    assert sessions.cached_partitions == 1
    await produce(replicas)
    assert await client.fetch() == {}
    assert await client.fetch(forgotten=[OTHER]) == {}
    assert client.session_id == 0
    assert (len(sessions), sessions.cached_partitions) == (0, 0)
    watchers = replicas.manager._hosted.sessions
    assert not watchers._consumers
    assert not watchers._followers


async def test_a_session_that_ends_while_a_large_fetch_names_partitions_takes_no_more_of_them(
    broker: Broker, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odradek.slices.STEPS_PER_SLICE", 1)
    monkeypatch.setattr(slices.cut_members, "__defaults__", (1,))
    await two_partitions(replicas)
    client = SessionClient(broker)
    await client.fetch((KEY, 0))
    session = client.session
    others = [(TopicPartition(f"topic-{number}", 0), 0) for number in range(9)]
    task = asyncio.create_task(client.answer(client.request(others)))
    async with asyncio.timeout(60):
        while len(session.partitions) < 3:
            await asyncio.sleep(0)
        broker.replicas.fetch_sessions.close(session)
        assert (await task).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert not session.partitions
    assert not replicas.manager._hosted.sessions._consumers


async def test_a_session_keeps_no_names_that_no_topic_can_have(
    broker: Broker, replicas: Replicas
) -> None:
    await two_partitions(replicas)
    too_long = TopicPartition("t" * 250, 0)
    client = SessionClient(broker)
    assert set(await client.fetch((KEY, 0), (too_long, 0))) == {KEY, too_long}
    assert client.session_id == 0
    for named in ([(too_long, 0)], [(OTHER, 0), (too_long, 0)]):
        client.session_id = client.epoch = 0
        await client.fetch((KEY, 0))
        answer = await client.answer(client.request(named))
        assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert not len(broker.replicas.fetch_sessions)
    assert not replicas.manager._hosted.sessions._consumers


async def test_an_epoch_out_of_turn_gets_error_71_and_an_unknown_session_70(
    broker: Broker, replicas: Replicas
) -> None:
    await two_partitions(replicas)
    client = SessionClient(broker)
    await client.fetch((KEY, 0))
    client.epoch += 1
    answer = await client.answer(client.request())
    assert answer.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert (answer.session_id, answer.responses) == (0, [])
    turn, client.epoch = client.epoch - 1, -2
    answer = await client.answer(client.request(((KEY, 0),)))
    assert answer.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH, "it is no full fetch"
    client.epoch = turn
    assert await client.fetch() == {}, "the session is as it was"
    client.session_id += 1
    answer = await client.answer(client.request())
    assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("who", ["another replica", "another principal"])
async def test_a_session_of_somebody_else_is_unknown(
    broker: Broker, replicas: Replicas, who: str
) -> None:
    await two_partitions(replicas)
    client = SessionClient(broker)
    await client.fetch((KEY, 0))
    other = SessionClient(broker, replica_id=2 if who == "another replica" else -1)
    if who == "another principal":
        other.context = other.context._replace(principal=Principal("User", "eve"))
    other.session_id, other.epoch = client.session_id, client.epoch
    answer = await other.answer(other.request())
    assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    other.epoch = -1
    await other.answer(other.request(((KEY, 0),)))
    assert await client.fetch() == {}, "nor can others end it"


@pytest.mark.parametrize("epoch", [0, -1])
async def test_a_full_fetch_ends_the_session_that_it_names(
    broker: Broker, replicas: Replicas, epoch: int
) -> None:
    await two_partitions(replicas)
    client = SessionClient(broker)
    await client.fetch((KEY, 0))
    first = client.session_id
    client.epoch = epoch
    assert set(await client.fetch((KEY, 0))) == {KEY}
    assert len(broker.replicas.fetch_sessions) == epoch + 1
    assert (client.session_id not in (0, first)) == (epoch == 0)


async def test_who_asks_for_no_session_gets_none(broker: Broker, replicas: Replicas) -> None:
    await two_partitions(replicas)
    for client in (SessionClient(broker), SessionClient(broker, replica_id=-2)):
        client.epoch = -1 if client.replica_id == -1 else 0
        await client.fetch((KEY, 0))
        assert client.session_id == 0
    assert not len(broker.replicas.fetch_sessions)


async def test_a_fetch_that_another_overtook_gets_error_71_and_loses_no_news(
    broker: Broker, replicas: Replicas
) -> None:
    await two_partitions(replicas)
    client = SessionClient(broker)
    await client.fetch((KEY, 0), (OTHER, 0))
    first = asyncio.create_task(client.answer(client.request(wait_ms=LONG_MS)))
    await until_waiting(client, first)
    client.epoch += 1
    await produce(replicas)
    async with asyncio.timeout(60):
        assert set(await client.fetch()) == {KEY}
        overtaken = await first
    assert overtaken.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


async def test_a_fetch_waits_not_for_what_one_has_in_hand_that_it_overtook(
    broker: Broker, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odradek.replica.reads.PARTITIONS_AT_ONCE", 0)
    monkeypatch.setattr("odradek.slices.STEPS_PER_SLICE", 1)
    monkeypatch.setattr(slices.cut_members, "__defaults__", (1,))
    await two_partitions(replicas)
    await produce(replicas)
    client = SessionClient(broker)
    await client.fetch((KEY, 0), (OTHER, 0))
    first = dataclasses.replace(client.request(wait_ms=LONG_MS), min_bytes=1000)
    overtaken = asyncio.create_task(client.answer(first))
    await until_waiting(client, overtaken)
    client.epoch += 1
    others = [(TopicPartition(f"topic-{number}", 0), 0) for number in range(2)]
    await replicas.lead(topic="topic-0")
    await replicas.lead(topic="topic-1")
    async with asyncio.timeout(60):
        found = await client.fetch(*others, wait_ms=LONG_MS)
        assert (await overtaken).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert KEY in found


async def test_partitions_take_turns_where_an_answer_has_no_room_for_all(
    broker: Broker, replicas: Replicas
) -> None:
    await two_partitions(replicas)
    for key in (KEY, OTHER):
        for _ in range(4):
            await produce(replicas, key)
    client = SessionClient(broker)
    await client.fetch((KEY, 0), (OTHER, 0), max_bytes=1)
    offsets = {KEY: 0, OTHER: 0}
    served: list[TopicPartition] = []
    for _ in range(4):
        found = await client.fetch(*offsets.items(), max_bytes=1)
        [key] = [key for key, part in found.items() if part.record_set]
        offsets[key] += 1
        served.append(key)
    assert served == [KEY, OTHER, KEY, OTHER]


async def test_an_error_is_told_again_until_it_is_over(broker: Broker, replicas: Replicas) -> None:
    await two_partitions(replicas)
    client = SessionClient(broker)
    await client.fetch((KEY, 0), (OTHER, 0))
    await client.fetch()
    await replicas.take(leader=-1, replicas=(1, 2), epoch=1)
    for _ in range(2):
        found = await client.fetch()
        assert {key: part.error_code for key, part in found.items()} == {
            KEY: ErrorCode.NOT_LEADER_OR_FOLLOWER
        }
    await replicas.lead(replicas=(1, 2), epoch=2)
    found = await client.fetch()
    assert {key: part.error_code for key, part in found.items()} == {KEY: ErrorCode.NONE}
    assert await client.fetch() == {}


async def test_a_partition_that_is_deleted_and_made_anew_is_read_anew(
    broker: Broker, replicas: Replicas
) -> None:
    await two_partitions(replicas)
    await produce(replicas)
    client = SessionClient(broker)
    await client.fetch((KEY, 1), (OTHER, 0))
    assert await client.fetch() == {}
    await replicas.delete()
    found = await client.fetch()
    assert found[KEY].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await replicas.lead(epoch=0)
    found = await client.fetch()
    assert found[KEY].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    await produce(replicas, value=b"new")
    found = await client.fetch((KEY, 0))
    assert found[KEY].error_code == ErrorCode.NONE
    assert part_length(found[KEY].record_set or b"") > 0


async def test_a_revoked_right_shows_in_the_next_fetch_and_a_granted_one_too(
    broker: Broker, replicas: Replicas
) -> None:
    await two_partitions(replicas)
    denied: set[str] = set()

    def allow(
        principal: Principal,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
        *,
        log: bool = True,
    ) -> bool:
        return name not in denied

    ruled = dataclasses.replace(
        broker,
        authorizer=SimpleNamespace(allow=allow),  # type: ignore[arg-type]
    )
    client = SessionClient(ruled)
    await client.fetch((KEY, 0), (OTHER, 0))
    assert await client.fetch() == {}
    denied.add(KEY.topic)
    await produce(replicas)
    for _ in range(2):
        found = await client.fetch()
        assert {key: part.error_code for key, part in found.items()} == {
            KEY: ErrorCode.TOPIC_AUTHORIZATION_FAILED
        }
        assert not found[KEY].record_set
    denied.clear()
    assert (await client.fetch())[KEY].record_set
    denied.add(OTHER.topic)
    await client.fetch((KEY, 1))
    task = asyncio.create_task(client.fetch(wait_ms=LONG_MS))
    await until_waiting(client, task)
    await produce(replicas, OTHER)
    await produce(replicas)
    async with asyncio.timeout(60):
        found = await task
    assert found[KEY].record_set
    assert found[OTHER].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert not found[OTHER].record_set
    denied.add(KEY.topic)
    assert set(await client.fetch(wait_ms=LONG_MS)) == {KEY, OTHER}, "there is nothing to wait for"
    denied.discard(KEY.topic)
    fresh = SessionClient(ruled)
    assert (await fresh.fetch((KEY, 0), (OTHER, 0)))[OTHER].error_code
    assert fresh.session_id == 0, "what is refused is not in a session"


async def test_a_follower_without_the_right_has_no_session_any_more(
    broker: Broker, replicas: Replicas
) -> None:
    await replicas.lead(replicas=(1, 2))
    may = [True]
    ruled = dataclasses.replace(
        broker,
        authorizer=SimpleNamespace(allow=lambda *_, **__: may[0]),  # type: ignore[arg-type]
    )
    follower = SessionClient(ruled, replica_id=2)
    await follower.fetch((KEY, 0))
    assert follower.session_id
    may[0] = False
    answer = await follower.answer(follower.request())
    assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    follower.epoch = 0
    found = await follower.fetch((KEY, 0))
    assert found[KEY].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert follower.session_id == 0


async def test_a_follower_is_told_the_high_watermark_that_its_fetch_raised_and_then_nothing(
    broker: Broker, replicas: Replicas
) -> None:
    await replicas.lead(replicas=(1, 2), isr=(1, 2))
    await produce(replicas)
    follower = SessionClient(broker, replica_id=2)
    found = await follower.fetch((KEY, 0))
    assert found[KEY].high_watermark == 0
    found = await follower.fetch((KEY, 1))
    assert found[KEY].high_watermark == 1
    assert not follower.session.marked
    assert await follower.fetch() == {}


async def test_large_sessions_are_begun_and_served_in_slices(
    broker: Broker, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odradek.replica.reads.PARTITIONS_AT_ONCE", 1)
    monkeypatch.setattr("odradek.slices.STEPS_PER_SLICE", 1)
    await two_partitions(replicas)
    client = SessionClient(broker)
    assert set(await client.fetch((KEY, 0), (OTHER, 0))) == {KEY, OTHER}
    task = asyncio.create_task(client.fetch(wait_ms=LONG_MS))
    await until_waiting(client, task)
    await produce(replicas)
    async with asyncio.timeout(60):
        assert set(await task) == {KEY}
    assert await client.fetch((KEY, 1), forgotten=[OTHER]) == {}


async def test_a_stopping_broker_ends_waits_and_begins_no_session(
    broker: Broker, replicas: Replicas
) -> None:
    await two_partitions(replicas)
    client = SessionClient(broker)
    await client.fetch((KEY, 0))
    task = asyncio.create_task(client.fetch(wait_ms=LONG_MS))
    await until_waiting(client, task)
    replicas.manager.close()
    async with asyncio.timeout(60):
        assert await task == {}
    late = SessionClient(broker)
    await late.fetch((KEY, 0))
    assert late.session_id == 0
