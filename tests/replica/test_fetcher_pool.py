"""How the partitions of this broker are divided among fetchers, while their number changes."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from odradek.config import MOST_THREADS
from odradek.replica.truncation import Truncation
from odradek.values import NO_LEADER
from tests.support.replicas import KEY, Replicas
from tests.support.slow_disk import SlowDisk

TOPICS = [f"t{number}" for number in range(12)]


def copied(broker: Replicas) -> dict[str, list[int]]:
    """Return the fetchers of each topic's partition."""
    found: dict[str, list[int]] = {topic: [] for topic in TOPICS}
    for (_, number), fetcher in broker.manager._fetchers._fetchers.items():
        for partition in fetcher.partitions():
            found[partition.key.topic].append(number)
    return found


async def test_every_partition_has_one_fetcher_after_their_number_changed(tmp_path: Path) -> None:
    async with Replicas(tmp_path) as broker:
        for topic in TOPICS:
            await broker.take(leader=2, isr=(1, 2), replicas=(1, 2), topic=topic)
        assert copied(broker) == {topic: [0] for topic in TOPICS}
        for count in (4, 2, 2, 1):
            broker.manager.resize_fetchers(count)
            places = copied(broker)
            for key in broker.manager.partitions:
                assert places[key.topic] == [hash(key) % count]
        assert Counter(map(tuple, copied(broker).values())) == {(0,): len(TOPICS)}


async def test_any_number_of_fetchers_is_harmless(tmp_path: Path) -> None:
    huge = 2**31 - 1
    async with Replicas(tmp_path, num_replica_fetchers=str(huge)) as broker:
        for topic in TOPICS:
            await broker.take(leader=2, isr=(1, 2), replicas=(1, 2), topic=topic)
        for count in (huge, huge - 1):
            broker.manager.resize_fetchers(count)
            places = copied(broker)
            for key in broker.manager.partitions:
                assert places[key.topic] == [hash(key) % MOST_THREADS]


async def test_a_slow_truncation_does_not_hold_up_a_change_of_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Replicas(tmp_path) as broker:
        await broker.take(leader=2, isr=(1, 2), replicas=(1, 2))
        pool = broker.manager._fetchers
        [former] = pool._fetchers.values()
        count = next(number for number in range(2, 100) if hash(KEY) % number)
        disk = SlowDisk(monkeypatch, "truncate_to")
        cut = former._agreement.cut(former._followed.by_key[KEY], Truncation(0, complete=True))
        cutting = asyncio.create_task(cut)
        await disk.reached()
        broker.manager.resize_fetchers(count)
        assert list(pool._fetchers.values()) == [former], "it truncates still"
        disk.go_on.set()
        await cutting
        assert list(pool._fetchers) == [(2, hash(KEY) % count)]
        assert not len(former)
        async with asyncio.timeout(30):
            await former.run()  # it ends


async def test_fetchers_that_have_nothing_left_to_fetch_end(tmp_path: Path) -> None:
    async with Replicas(tmp_path) as broker:
        pool = broker.manager._fetchers
        running = asyncio.create_task(pool.run())
        await broker.take(leader=2, isr=(1, 2), replicas=(1, 2))
        [former] = pool._fetchers.values()
        await broker.take(leader=3, isr=(1, 3), replicas=(1, 3), epoch=1)
        assert [source for source, _ in pool._fetchers] == [3]
        async with asyncio.timeout(30):
            await former.run()
        await broker.lead(isr=(1, 3), replicas=(1, 3), epoch=2)
        assert not pool._fetchers
        await broker.take(leader=3, isr=(1, 3), replicas=(1, 3), epoch=3)
        assert [source for source, _ in pool._fetchers] == [3]
        running.cancel()
        await asyncio.wait((running,))


async def test_a_partition_without_a_leader_is_copied_from_nobody_until_it_has_one(
    tmp_path: Path,
) -> None:
    async with Replicas(tmp_path) as broker:
        await broker.take(leader=2, isr=(2,), replicas=(1, 2))
        await broker.take(leader=NO_LEADER, isr=(2,), replicas=(1, 2), epoch=1)
        assert not broker.manager._fetchers._fetchers
        assert broker.manager.partitions[KEY].leader_epoch == 1
        await broker.take(leader=2, isr=(2,), replicas=(1, 2), epoch=2)
        [(source, _)] = broker.manager._fetchers._fetchers
        assert source == 2
