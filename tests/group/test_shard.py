"""Loading a partition of `__consumer_offsets`."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from odradek import slices
from odradek.group import offsets as schemas
from odradek.group.group import Group
from odradek.group.offsets import CommittedOffset
from odradek.group.shard import Shard
from odradek.log.records import batch, records
from odradek.log.records.batch import CorruptBatchError
from odradek.values import TopicPartition


def shard() -> Shard:
    return Shard(SimpleNamespace(leadership_generation=0, key=SimpleNamespace(partition=0)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "bad",
    [
        (b"\x00\x09garbage", b"\x00\x03"),
        (b"\x00", b""),
        (b"\x00\x01\x00\xff", b"\x00\x03"),
        (schemas.encode_offset("g", "t", 0, None)[0], b"\x00\x03\x00"),
        (schemas.group_key("g"), b"\x00\x03\x00\x02"),
    ],
)
def test_bad_record_does_not_affect_the_others(bad: tuple[bytes, bytes]) -> None:
    good = [
        schemas.encode_offset("g", "t", partition, CommittedOffset(partition, "", 1))
        for partition in (1, 2)
    ]
    read = shard()
    assert read._take_batches(records.make([good[0], bad, good[1]], 1), {}, 0) == 3
    assert {partition: commit.offset for partition, commit in read.offsets["g"].items()} == {
        ("t", 1): 1,
        ("t", 2): 2,
    }


@pytest.mark.parametrize("codec", [0, 1], ids=["plain", "gzip"])
def test_a_batch_that_nobody_can_read_does_not_affect_the_others(codec: int) -> None:
    read = shard()
    assert read._take_batches(commit(1) + unreadable(codec), {}, 0) == 1
    assert read._take_batches(commit(2), {}, 1) == 1
    assert read.offsets["g"][TopicPartition("t", 0)].offset == 2


def test_a_batch_that_changed_on_disk_stops_the_load() -> None:
    damaged = bytearray(unreadable(0))
    damaged[-1] ^= 1
    with pytest.raises(CorruptBatchError):
        shard()._take_batches(bytes(damaged), {}, 0)


PRODUCER = 7
COMMIT, ABORT = b"\0\0\0\1", b"\0\0\0\0"


def commit(offset: int, *, transactional: bool = False) -> bytes:
    """Return a batch that commits an offset, always of the same partition."""
    key, value = schemas.encode_offset("g", "t", 0, CommittedOffset(offset, "", 1))
    options = records.BatchOptions(
        producer_id=PRODUCER if transactional else -1, transactional=transactional
    )
    return records.encode([records.Record(0, 1, key, value)], options)


def unreadable(codec: int) -> bytes:
    """Return a batch with a right checksum, and a record whose length lies or that is no gzip."""
    header = batch.parse(commit(1))
    return batch.seal(header._replace(attributes=codec), b"\x7ecut")


def marker(kind: bytes) -> bytes:
    options = records.BatchOptions(producer_id=PRODUCER, transactional=True, control=True)
    return records.encode([records.Record(0, 1, kind, b"\0" * 6)], options)


@pytest.mark.parametrize(
    ("written", "offset"),
    [
        ([commit(1), commit(2, transactional=True), marker(COMMIT)], 2),
        ([commit(1), commit(2, transactional=True), marker(ABORT)], 1),
        ([commit(1), commit(2, transactional=True)], 1),
        ([commit(2, transactional=True), commit(1), marker(COMMIT)], 1),
        ([commit(2, transactional=True), marker(ABORT), marker(COMMIT), commit(1)], 1),
    ],
    ids=["committed", "aborted", "left open", "overtaken", "decided once"],
)
def test_commits_of_kafkas_transactions_count_once_they_are_committed(
    written: list[bytes], offset: int
) -> None:
    read = shard()
    for number, data in enumerate(written):
        read._take_batches(number.to_bytes(8, "big") + data[8:], {}, number)
    assert read.offsets["g"][TopicPartition("t", 0)].offset == offset


class LoadingLog:
    """A log whose records the test has given to the shard already: it ends where it starts."""

    log_start_offset = log_end_offset = 0


def new_group(group_id: str) -> Group:
    return Group(group_id, lambda *_: None)


async def test_others_run_while_many_groups_are_loaded_and_see_none_before_the_end() -> None:
    loading = shard()
    count = 10 * slices.STEPS_PER_SLICE
    for number in range(count):
        loading._set(f"g{number}", TopicPartition("t", 0), CommittedOffset(1, "", 0))
    load = asyncio.create_task(loading.load(LoadingLog(), 1, new_group, lambda: 0))  # type: ignore[arg-type]
    seen = []
    while not load.done():
        seen.append((loading.loaded, len(loading.groups)))
        await asyncio.sleep(0)
    assert set(seen) == {(False, 0)}
    assert len(seen) >= count // slices.STEPS_PER_SLICE
    assert (loading.loaded, len(loading.groups)) == (True, count)


async def test_a_leadership_that_is_lost_while_groups_are_loaded_leaves_none() -> None:
    loading = shard()
    for number in range(10 * slices.STEPS_PER_SLICE):
        loading._set(f"g{number}", TopicPartition("t", 0), CommittedOffset(1, "", 0))
    load = asyncio.create_task(loading.load(LoadingLog(), 1, new_group, lambda: 0))  # type: ignore[arg-type]
    for _ in range(3):
        await asyncio.sleep(0)
    loading.retire()
    await load
    assert (loading.loaded, loading.groups, loading.offsets) == (False, {}, {})
