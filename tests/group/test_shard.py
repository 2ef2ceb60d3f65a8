"""Loading a partition of `__consumer_offsets`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from odradek.group import offsets as schemas
from odradek.group.offsets import CommittedOffset
from odradek.group.shard import Shard
from odradek.log.records import records
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


PRODUCER = 7
COMMIT, ABORT = b"\0\0\0\1", b"\0\0\0\0"


def commit(offset: int, *, transactional: bool = False) -> bytes:
    """Return a batch that commits an offset, always of the same partition."""
    key, value = schemas.encode_offset("g", "t", 0, CommittedOffset(offset, "", 1))
    options = records.BatchOptions(
        producer_id=PRODUCER if transactional else -1, transactional=transactional
    )
    return records.encode([records.Record(0, 1, key, value)], options)


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
        read._take_batches(data, {}, number)
    assert read.offsets["g"][TopicPartition("t", 0)].offset == offset
