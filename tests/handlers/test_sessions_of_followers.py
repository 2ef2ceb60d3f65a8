"""What a leader knows of a follower that names only changes: the same as of one that names all."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from odradek.handlers.context import Broker
from odradek.log.partition.epochs import EpochCache
from odradek.log.records.batch import Origin
from odradek.protocol.errors import ErrorCode
from odradek.replica import isr as rules
from odradek.replica.fetch_specs import FetchSpec
from odradek.replica.partition import Partition
from odradek.replica.reads import FetchReader
from odradek.values import TopicPartition
from tests.support import logs
from tests.support.replicas import KEY, Replicas
from tests.support.session_client import SessionClient, parts

OTHER = TopicPartition("other", 0)
FOLLOWER = 2
IN_SYNC = (1, FOLLOWER)


async def produce(replicas: Replicas, key: TopicPartition = KEY) -> None:
    [outcome] = await replicas.manager.append([(key, logs.batch(b"value"))], 1, 0, Origin.CLIENT)
    assert outcome.error is ErrorCode.NONE


def partition_of(replicas: Replicas, key: TopicPartition = KEY) -> Partition:
    return replicas.manager.partitions[key]


def lagging(replicas: Replicas, key: TopicPartition = KEY) -> frozenset[int]:
    partition = partition_of(replicas, key)
    return rules.lagging(
        partition.isr.committed,
        1,
        partition.followers,
        partition.log.log_end_offset,
        replicas.clock.now,
        replicas.config.replica_lag_time_max_ms,
    )


async def quiet_session(broker: Broker, replicas: Replicas) -> SessionClient:
    """Return a follower of two partitions of which nothing is left to be said."""
    for key in (KEY, OTHER):
        await replicas.lead(topic=key.topic, replicas=IN_SYNC, isr=IN_SYNC)
    follower = SessionClient(broker, FOLLOWER)
    await follower.fetch((KEY, 0), (OTHER, 0))
    assert await follower.fetch() == {}
    assert not follower.session.marked
    return follower


async def test_a_quiet_partition_does_not_lag_after_its_first_append(
    broker: Broker, replicas: Replicas
) -> None:
    follower = await quiet_session(broker, replicas)
    lag_ms = replicas.config.replica_lag_time_max_ms
    for _ in range(5):
        replicas.clock.now += lag_ms
        await follower.fetch()
    await produce(replicas)
    assert not lagging(replicas)
    replicas.clock.now += lag_ms
    assert not lagging(replicas)
    replicas.clock.now += 1
    assert lagging(replicas) == {FOLLOWER}, "it does not follow any more"


async def test_a_follower_that_stopped_lags_after_the_first_append_at_once(
    broker: Broker, replicas: Replicas
) -> None:
    await quiet_session(broker, replicas)
    replicas.clock.now += replicas.config.replica_lag_time_max_ms + 1
    assert not lagging(replicas), "it has everything"
    await produce(replicas)
    assert lagging(replicas) == {FOLLOWER}


async def test_a_follower_is_given_what_an_append_wrote_that_broke_off(
    broker: Broker, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = await quiet_session(broker, replicas)
    replicas.clock.now += replicas.config.replica_lag_time_max_ms + 1
    await follower.fetch()

    def note_batch(*_: object) -> None:
        raise KeyError("unforeseen")

    with monkeypatch.context() as patched:
        patched.setattr(EpochCache, "note_batch", note_batch)
        with pytest.raises(KeyError):
            await produce(replicas)
    assert partition_of(replicas).log.log_end_offset == 1
    assert not lagging(replicas)
    assert set(await follower.fetch()) == {KEY}


async def test_fetches_that_forgot_a_partition_are_none_of_it(
    broker: Broker, replicas: Replicas
) -> None:
    follower = await quiet_session(broker, replicas)
    replicas.clock.now += replicas.config.replica_lag_time_max_ms + 1
    await follower.fetch(forgotten=[KEY])
    await follower.fetch()
    for key in (KEY, OTHER):
        await produce(replicas, key)
    assert lagging(replicas) == {FOLLOWER}
    assert not lagging(replicas, OTHER)


async def test_a_fetch_with_a_wrong_epoch_is_none(broker: Broker, replicas: Replicas) -> None:
    follower = await quiet_session(broker, replicas)
    replicas.clock.now += replicas.config.replica_lag_time_max_ms + 1
    follower.epoch += 1
    await follower.answer(follower.request())
    await produce(replicas)
    assert lagging(replicas) == {FOLLOWER}


async def test_a_follower_that_begins_anew_is_not_taken_for_its_former_session(
    broker: Broker, replicas: Replicas
) -> None:
    former = await quiet_session(broker, replicas)
    present = SessionClient(broker, FOLLOWER)
    await present.fetch((KEY, 0), (OTHER, 0))
    await present.fetch()
    lag_ms = replicas.config.replica_lag_time_max_ms
    replicas.clock.now += lag_ms + 1
    await present.fetch()
    broker.replicas.fetch_sessions.close(former.session)
    await produce(replicas)
    assert not lagging(replicas)
    replicas.clock.now += lag_ms + 1
    assert lagging(replicas) == {FOLLOWER}


async def test_each_fetch_of_a_session_vouches_for_the_leadership(
    broker: Broker, replicas: Replicas
) -> None:
    follower = await quiet_session(broker, replicas)
    partition = partition_of(replicas)
    began = replicas.clock.now
    assert not partition.is_followed(began)
    for _ in range(3):
        replicas.clock.now += rules.BACKLOG_MS
        await follower.fetch()
    assert partition.is_followed(replicas.clock.now - rules.BACKLOG_MS)
    assert not partition.is_followed(replicas.clock.now)
    seen = rules.vouched_ms(partition.followers[FOLLOWER])
    await produce(replicas)
    assert partition.followers[FOLLOWER].vouched_ms == seen, "also once it is recorded"


async def test_a_follower_of_a_quiet_partition_joins_the_in_sync_set(
    broker: Broker, replicas: Replicas
) -> None:
    await replicas.lead(replicas=IN_SYNC)
    follower = SessionClient(broker, FOLLOWER)
    for named in [[(KEY, 0)], [], [], []]:
        await follower.fetch(*named)
        await asyncio.sleep(0)
    assert partition_of(replicas).isr.pending == IN_SYNC


async def test_one_that_left_the_in_sync_set_may_join_again_without_being_named(
    broker: Broker, replicas: Replicas
) -> None:
    follower = await quiet_session(broker, replicas)
    partition = partition_of(replicas)
    change = partition.propose_removal(FOLLOWER)
    assert change is not None
    replicas.manager.isr_writer._finish(change, 7)
    assert partition.isr.committed == (1,)
    for _ in range(4):
        await follower.fetch()
        await asyncio.sleep(0)
    assert partition.isr.pending == IN_SYNC


async def test_a_new_leader_epoch_fences_what_a_session_says_until_it_names_the_epoch(
    broker: Broker, replicas: Replicas
) -> None:
    await replicas.lead(replicas=IN_SYNC, isr=IN_SYNC)
    follower = SessionClient(broker, FOLLOWER)
    await follower.fetch((KEY, 0), leader_epoch=0)
    await follower.fetch()
    await replicas.lead(replicas=IN_SYNC, isr=IN_SYNC, epoch=1)
    await produce(replicas)
    found = await follower.fetch()
    assert found[KEY].error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert partition_of(replicas).followers[FOLLOWER].end_offset == rules.UNKNOWN_OFFSET
    found = await follower.fetch((KEY, 0), leader_epoch=1)
    assert found[KEY].record_set
    assert partition_of(replicas).followers[FOLLOWER].end_offset == 0


async def test_a_high_watermark_that_waits_for_another_follower_is_looked_at_again(
    broker: Broker, replicas: Replicas
) -> None:
    """One that was in sync lately and is no more holds the mark back, until its time is over."""
    await replicas.lead(replicas=(1, 2, 3), isr=(1, 2, 3))
    partition = partition_of(replicas)
    follower = SessionClient(broker, FOLLOWER)
    await follower.fetch((KEY, 0))
    await produce(replicas)
    await follower.fetch((KEY, 1))
    change = partition.propose_removal(3)
    assert change is not None
    replicas.manager.isr_writer._finish(change, 7)
    await follower.fetch()
    assert partition.high_watermark == 0
    replicas.clock.now += replicas.config.replica_lag_time_max_ms + 1
    found = await follower.fetch()
    assert partition.high_watermark == found[KEY].high_watermark == 1


async def test_a_session_is_told_of_the_same_follower_what_full_fetches_tell(
    broker: Broker, replicas: Replicas
) -> None:
    """Two partitions each see the same appends and the same fetches, one of them in a session."""
    random = Random(227)
    keys = [TopicPartition(f"topic-{number}", 0) for number in range(4)]
    for key in keys:
        await replicas.lead(topic=key.topic, replicas=IN_SYNC, isr=IN_SYNC)
    full_topics = {key: TopicPartition(f"full-{key.topic}", 0) for key in keys}
    for key in full_topics.values():
        await replicas.lead(topic=key.topic, replicas=IN_SYNC, isr=IN_SYNC)
    in_session, full = SessionClient(broker, FOLLOWER), SessionClient(broker, FOLLOWER)
    has = dict.fromkeys(keys, 0)
    told: dict[TopicPartition, int] = {}
    for _ in range(600):
        replicas.clock.now += random.choice([0, 1, 100, 300, 500, 500, 500, 4000, 11_000])
        if random.random() < 0.2:
            key = random.choice(keys)
            await produce(replicas, key)
            await produce(replicas, full_topics[key])
        if random.random() < 0.7:
            if random.random() < 0.05:
                in_session.epoch, told = 0, {}
            changed = [(key, offset) for key, offset in has.items() if told.get(key) != offset]
            await in_session.fetch(*changed)
            told = dict(has)
            full.epoch = -1
            await full.fetch(*((full_topics[key], offset) for key, offset in has.items()))
            for key in keys:
                if random.random() < 0.8:
                    has[key] = partition_of(replicas, key).log.log_end_offset
        for key, twin in full_topics.items():
            ours, theirs = (partition_of(replicas, one) for one in (key, twin))
            assert ours.high_watermark == theirs.high_watermark
            assert lagging(replicas, key) == lagging(replicas, twin)
            mine, other = ours.followers[FOLLOWER], theirs.followers[FOLLOWER]
            assert mine.end_offset == other.end_offset
            if mine.clock is None:
                assert mine.last_caught_up_ms == other.last_caught_up_ms
                assert mine.last_fetch_ms == other.last_fetch_ms
            # Each is the time of a fetch, and a later one surely was sent after it. Which ones are
            # noted depends on where one began to count.
            vouched = rules.vouched_ms(mine)
            assert abs(vouched - other.vouched_ms) < rules.BACKLOG_MS
            assert vouched <= max(other.last_fetch_ms - rules.BACKLOG_MS, rules.NEVER_MS)
    assert len(broker.replicas.fetch_sessions) == 1


@pytest.mark.parametrize("waits", [False, True])
async def test_a_fetch_that_waits_is_woken_by_what_a_leader_appends(
    broker: Broker, replicas: Replicas, waits: bool
) -> None:
    follower = await quiet_session(broker, replicas)
    task = asyncio.create_task(follower.fetch(wait_ms=600_000))
    if waits:
        while follower.session.watch is None:
            await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await produce(replicas, OTHER)
        assert set(await task) == {OTHER}
    assert partition_of(replicas, KEY).followers[FOLLOWER].clock is not None
    assert partition_of(replicas, OTHER).followers[FOLLOWER].clock is None


async def test_a_fetch_at_the_log_end_is_planned_once_when_its_wait_is_over(
    broker: Broker, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = await quiet_session(broker, replicas)
    await produce(replicas)
    assert set(await follower.fetch()) == {KEY}
    planned: list[list[TopicPartition]] = []
    plan = FetchReader._plan

    def counted(reader: FetchReader, specs: list[FetchSpec], *rest: Any) -> None:
        planned.append([spec.key for spec in specs])
        plan(reader, specs, *rest)

    monkeypatch.setattr(FetchReader, "_plan", counted)
    task = asyncio.create_task(follower.fetch((KEY, 1), wait_ms=600_000))
    async with asyncio.timeout(60):
        while follower.session.watch is None:
            await asyncio.sleep(0)
        assert planned == [], "there is nothing to read"
        assert partition_of(replicas).high_watermark == 1, "its position counts"
        await produce(replicas)
        assert set(await task) == {KEY}
    assert planned == [[KEY]]


@pytest.mark.parametrize("limit", ["max_wait_ms", "min_bytes"])
async def test_a_fetch_at_the_log_end_that_wants_no_wait_is_told_what_is_news(
    broker: Broker, replicas: Replicas, limit: str
) -> None:
    follower = await quiet_session(broker, replicas)
    await produce(replicas)
    assert set(await follower.fetch()) == {KEY}
    request = follower.request([(KEY, 1)], wait_ms=600_000)
    setattr(request, limit, 0)
    async with asyncio.timeout(60):
        found = parts(await follower.answer(request))
    assert {key: part.high_watermark for key, part in found.items()} == {KEY: 1}


async def test_a_fetch_that_waits_at_the_log_end_leaves_its_news_to_one_that_overtakes_it(
    broker: Broker, replicas: Replicas
) -> None:
    follower = await quiet_session(broker, replicas)
    await produce(replicas)
    assert set(await follower.fetch()) == {KEY}
    overtaken = asyncio.create_task(follower.answer(follower.request([(KEY, 1)], wait_ms=600_000)))
    async with asyncio.timeout(60):
        while follower.session.watch is None:
            await asyncio.sleep(0)
        follower.epoch += 1
        found = await follower.fetch()
        assert {key: part.high_watermark for key, part in found.items()} == {KEY: 1}
        assert (await overtaken).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


async def test_a_new_leader_epoch_is_told_everything_again(
    broker: Broker, replicas: Replicas
) -> None:
    """The follower drops an answer to a fetch of the former epoch that comes after its new role."""
    await replicas.lead(replicas=IN_SYNC, isr=IN_SYNC)
    follower = SessionClient(broker, FOLLOWER)
    await follower.fetch((KEY, 0), leader_epoch=0)
    await produce(replicas)
    await follower.fetch(leader_epoch=0)
    dropped = await follower.fetch((KEY, 1), leader_epoch=0)
    assert dropped[KEY].high_watermark == 1
    await replicas.lead(replicas=IN_SYNC, isr=IN_SYNC, epoch=1)
    found = await follower.fetch((KEY, 1), leader_epoch=1)
    assert found[KEY].high_watermark == 1
    assert await follower.fetch() == {}
