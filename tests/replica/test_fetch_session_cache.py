"""Which sessions a broker keeps: Kafka's rules of eviction, and a bound of memory."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from odradek import slices
from odradek.replica.fetch_sessions import (
    MIN_EVICTION_MS,
    PARTITIONS_PER_SLOT,
    FetchSession,
    FetchSessions,
    SessionWatchers,
)
from odradek.replica.fetch_specs import FetchSpec
from odradek.values import TopicPartition
from tests.support.replicas import Clock

CONSUMER, FOLLOWER = -1, 2


class Cache:
    """Two slots, and a clock that only the test moves."""

    def __init__(self, slots: int = 2) -> None:
        self.clock = Clock()
        self.followers = 0
        self.sessions = FetchSessions(
            slots, SessionWatchers(), self.clock, Random(1), lambda: self.followers
        )

    def begin(self, size: int, replica_id: int = CONSUMER) -> FetchSession | None:
        session = FetchSession(replica_id)
        privileged = session.is_privileged
        for number in range(size):
            self.sessions.add(session, FetchSpec(TopicPartition("t", number), 0, 1))
        has_room = self.sessions.has_room(size, privileged=privileged)
        inserted = self.sessions.insert(session)
        assert inserted == has_room
        if not inserted:
            self.sessions.close(session)
        return session if inserted else None

    def begun(self, size: int, replica_id: int = CONSUMER) -> FetchSession:
        session = self.begin(size, replica_id)
        assert session is not None
        return session

    def older(self, by_ms: int = MIN_EVICTION_MS + 1) -> None:
        self.clock.now += by_ms


def test_a_young_session_that_is_in_use_keeps_its_slot() -> None:
    cache = Cache()
    for _ in range(2):
        cache.begun(1)
    cache.older(MIN_EVICTION_MS)
    assert cache.begin(9) is None
    assert cache.sessions.evictions == 0


def test_one_that_was_idle_for_longest_goes_first_however_large_it_is() -> None:
    cache = Cache()
    first, second = cache.begun(9), cache.begun(1)
    cache.older(1000)
    cache.sessions.touch(second)
    cache.older(MIN_EVICTION_MS)
    cache.begun(1)
    assert (first.is_open, second.is_open) == (False, True)
    assert cache.sessions.evictions == 1


@pytest.mark.parametrize(("size", "evicted"), [(1, False), (2, True), (3, True)])
def test_an_old_session_goes_for_one_at_least_as_large(size: int, evicted: bool) -> None:
    cache = Cache()
    small, large = cache.begun(2), cache.begun(5)
    cache.older()
    for one in (small, large):
        cache.sessions.touch(one)
    assert (cache.begin(size) is not None) == evicted
    assert (small.is_open, large.is_open) == (not evicted, True)
    assert cache.sessions.evictions == evicted


def test_a_follower_takes_the_slot_of_any_consumer_and_no_consumer_that_of_a_follower() -> None:
    cache = Cache()
    consumer = cache.begun(9)
    cache.begun(1, FOLLOWER)
    second = cache.begun(1, FOLLOWER)
    assert not consumer.is_open
    assert cache.begin(1, FOLLOWER) is None
    cache.older()
    for one in cache.sessions:
        cache.sessions.touch(one)
    assert cache.begin(9) is None
    assert second.is_open
    assert cache.begin(1, FOLLOWER) is not None


def test_without_slots_there_are_no_sessions() -> None:
    assert Cache(0).begin(1) is None
    assert Cache(0).begin(1, FOLLOWER) is None


def test_the_partitions_of_consumers_are_bounded() -> None:
    cache = Cache()
    most = 2 * PARTITIONS_PER_SLOT
    assert cache.begin(most + 1) is None
    session = cache.begun(most - 1)
    assert cache.begin(2) is None
    assert cache.begin(1) is not None
    assert cache.sessions.cached_partitions == most
    cache.sessions.add(session, FetchSpec(TopicPartition("more", 0), 0, 1))
    assert not cache.sessions.touch(session)
    assert not session.is_open
    assert cache.sessions.cached_partitions == 1


def test_followers_have_room_beside_consumers_for_twice_the_replicas_that_there_are() -> None:
    cache = Cache(slots=3)
    most = 3 * PARTITIONS_PER_SLOT
    cache.begun(most)
    assert cache.begin(most + 1, FOLLOWER) is None
    cache.followers = most
    session = cache.begun(2 * most, FOLLOWER)
    assert cache.begin(1, FOLLOWER) is None
    cache.sessions.forget(session, TopicPartition("t", 0))
    assert cache.sessions.touch(session)
    assert cache.begin(1, FOLLOWER) is not None


def test_consumers_that_died_keep_the_room_of_none_that_come_later() -> None:
    cache = Cache(slots=3)
    dead = cache.begun(2 * PARTITIONS_PER_SLOT)
    living = cache.begun(PARTITIONS_PER_SLOT)
    assert cache.begin(1) is None
    cache.older()
    cache.sessions.touch(living)
    cache.sessions.add(living, FetchSpec(TopicPartition("more", 0), 0, 1))
    assert cache.sessions.touch(living), "it has room to grow"
    assert not dead.is_open
    cache.older()
    assert cache.begin(3 * PARTITIONS_PER_SLOT) is not None
    assert not living.is_open
    assert cache.sessions.evictions == 2


def test_the_former_sessions_of_a_follower_that_restarts_often_are_marked_no_more() -> None:
    cache = Cache(slots=100)
    for _ in range(10):
        cache.begun(1, FOLLOWER)
        cache.older()
    assert len(cache.sessions) == 1
    assert cache.sessions.cached_partitions == 1


def test_ids_are_positive_and_different_and_epochs_go_round() -> None:
    cache = Cache(101)
    found = {cache.begun(0).session_id for _ in range(100)}
    assert len(found) == 100
    assert min(found) > 0
    session = cache.begun(1)
    assert [session.epoch, session.begin_fetch(), session.epoch] == [1, 2, 2]
    session.epoch = (1 << 31) - 1
    assert session.begin_fetch() == 1


async def test_a_large_session_ends_at_once_and_is_emptied_in_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slices, "KEYS_AT_ONCE", 1)
    monkeypatch.setattr(slices, "STEPS_PER_SLICE", 1)
    cache = Cache()
    session = cache.begun(3)
    cache.sessions.close(session)
    assert not session.is_open
    assert (len(cache.sessions), cache.sessions.cached_partitions) == (0, 0)
    assert len(session.partitions) == 3
    async with asyncio.timeout(60):
        while session.partitions:
            await asyncio.sleep(0)
    assert not session.marked
