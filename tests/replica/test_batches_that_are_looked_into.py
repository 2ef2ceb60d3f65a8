"""Topics whose batches must be unpacked before they are stored: off the event loop, one outcome an
entry."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from odradek.log.records import compression, contents
from odradek.log.records.batch import Origin
from odradek.log.records.records import BatchOptions, Record, encode
from odradek.protocol.errors import ErrorCode
from tests.support.replicas import KEY, Replicas

LARGE = 100_000


def batch(*keys: bytes | None, codec: int = compression.NONE, size: int = 10) -> bytes:
    found = [Record(number, 1, key, b"v" * size) for number, key in enumerate(keys)]
    return encode(found, BatchOptions(codec=codec))


@pytest.fixture
def lookers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads in which keys were looked for."""
    threads: list[int] = []
    check = contents.check_records

    def noting(*arguments: Any) -> None:
        threads.append(threading.get_ident())
        check(*arguments)

    monkeypatch.setattr(contents, "check_records", noting)
    return threads


@pytest.mark.parametrize(
    ("records", "elsewhere"),
    [
        (batch(b"k"), False),
        (batch(b"k", codec=compression.GZIP), True),
        (batch(b"k", size=LARGE), True),
    ],
    ids=["few and plain", "compressed", "large"],
)
async def test_records_are_unpacked_in_a_thread_where_that_can_take_long(
    tmp_path: Path, lookers: list[int], records: bytes, elsewhere: bool
) -> None:
    async with Replicas(tmp_path, **{"log.cleanup.policy": "compact"}) as broker:
        await broker.lead()
        outcomes = await broker.manager.append([(KEY, records)], -1, 0, Origin.CLIENT)
        assert [outcome.error for outcome in outcomes] == [ErrorCode.NONE]
        assert [thread != threading.get_ident() for thread in lookers] == [elsewhere]


async def test_a_refusal_from_the_thread_is_the_outcome_of_its_entry_alone(tmp_path: Path) -> None:
    async with Replicas(tmp_path, **{"log.cleanup.policy": "compact"}) as broker:
        await broker.lead()
        keyless, sound = (batch(key, codec=compression.GZIP, size=LARGE) for key in (None, b"k"))
        outcomes = await broker.manager.append([(KEY, keyless), (KEY, sound)], -1, 0, Origin.CLIENT)
        assert [outcome.error for outcome in outcomes] == [ErrorCode.INVALID_RECORD, ErrorCode.NONE]
        assert broker.manager.partitions[KEY].log.log_end_offset == 1


async def test_batches_are_written_in_their_order_also_around_one_that_is_unpacked(
    tmp_path: Path, lookers: list[int]
) -> None:
    async with Replicas(tmp_path, **{"log.cleanup.policy": "compact"}) as broker:
        await broker.lead()
        few, many = batch(b"k"), batch(b"k", b"k", codec=compression.GZIP)
        entries = [(KEY, few), (KEY, many), (KEY, few)]
        outcomes = await broker.manager.append(entries, -1, 0, Origin.CLIENT)
        assert [(one.error, one.base_offset) for one in outcomes] == [
            (ErrorCode.NONE, base_offset) for base_offset in (0, 1, 3)
        ]
        here = threading.get_ident()
        assert [thread == here for thread in lookers] == [True, False, True]


async def test_what_is_written_is_committed_though_the_request_ends_in_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"log.cleanup.policy": "compact", "log.flush.interval.messages": "1"}
    async with Replicas(tmp_path, **settings) as broker:
        await broker.lead()
        here = threading.get_ident()

        def fail_elsewhere(*_: object) -> None:
            if threading.get_ident() != here:
                raise MemoryError

        monkeypatch.setattr(contents, "check_records", fail_elsewhere)
        entries = [(KEY, batch(b"k")), (KEY, batch(b"k", codec=compression.GZIP))]
        with pytest.raises(MemoryError):
            await broker.manager.append(entries, 1, 0, Origin.CLIENT)
        partition = broker.manager.partitions[KEY]
        assert (partition.log.recovery_point, partition.high_watermark) == (1, 1)


async def test_what_this_broker_does_not_lead_is_refused_unseen(
    tmp_path: Path, lookers: list[int]
) -> None:
    async with Replicas(tmp_path, **{"log.cleanup.policy": "compact"}) as broker:
        await broker.take(leader=2, isr=(1, 2), replicas=(1, 2))
        records = batch(b"k", codec=compression.GZIP)
        (outcome,) = await broker.manager.append([(KEY, records)], -1, 0, Origin.CLIENT)
        assert outcome.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert lookers == []
