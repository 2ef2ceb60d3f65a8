"""A truncation that runs out of descriptors or memory is finished later, and costs no directory."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from odradek.log.partition.log import Log
from odradek.log.records import records
from odradek.log.records.records import BatchOptions
from odradek.log.segment import files
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.values import TopicPartition
from tests.log.conftest import COMPACTED, Make
from tests.support.logs import START_MS, batch, new_log, read_all

pytestmark = pytest.mark.usefixtures("without_fsync")

KEY = TopicPartition("orders", 0)
SENT = BatchOptions(producer_id=7, producer_epoch=0, base_sequence=0)


class Shortage:
    """The n-th opening or truncation of a file, and each further one, fails while there are none
    left.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, allowed: int) -> None:
        self.left: int | None = None
        self._allowed = allowed
        self.was_felt = False
        monkeypatch.setattr(files, "open_file", self._bounded(files.open_file))
        monkeypatch.setattr(os, "ftruncate", self._bounded(os.ftruncate))
        monkeypatch.setattr(os, "unlink", self._bounded(os.unlink))
        monkeypatch.setattr(os, "listdir", self._bounded(os.listdir))

    def _bounded(self, real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            if self.left is not None:
                self.left -= 1
                if self.left < 0:
                    self.was_felt = True
                    raise OSError(errno.EMFILE, "Too many open files")
            return real(*arguments)

        return call

    def begin(self) -> None:
        self.left = self._allowed

    def end(self) -> None:
        self.left = None


def filled(make: Make, place: str) -> Log:
    log = new_log(make(dirs=(place,)), *KEY, COMPACTED)
    log.assign_epoch(1)
    log.append_as_leader(batch(b"0"), 1)
    log.append_as_leader(batch(b"1"), 1)
    for number in range(2, 20):
        if number == 5:
            log.assign_epoch(2)
        log.append_as_leader(batch(b"%d" % number), 1 if number < 5 else 2)
    log.append_as_leader(records.make([(b"key", b"last")], START_MS, SENT), 2)
    assert len(log.segments) > 3
    return log


def error_of(work: Callable[..., object], *arguments: object) -> ErrorCode:
    try:
        work(*arguments)
    except KafkaError as refusal:
        return refusal.code
    return ErrorCode.NONE


def truncate(log: Log, offset: int) -> None:
    if offset:
        log.truncate_to(offset)
    else:
        log.truncate_fully_and_start_at(100)


@pytest.mark.parametrize("offset", [0, 3])
def test_it_is_finished_wherever_the_shortage_began(
    make: Make, failures: list[str], offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = offset or 100
    felt = 0
    for allowed in range(60):
        with monkeypatch.context() as patched:
            log = filled(make, f"d{allowed}")
            shortage = Shortage(patched, allowed)
            shortage.begin()
            code = error_of(truncate, log, offset)
            if code is not ErrorCode.NONE and log.log_end_offset == end:
                felt += 1
                assert error_of(log.append_as_leader, batch(b"too early"), 3) is code
                assert error_of(log.truncate_to, end) is code
            shortage.end()
            if code is not ErrorCode.NONE:
                assert code is ErrorCode.KAFKA_STORAGE_ERROR
                truncate(log, offset)
        assert log.log_end_offset == end
        assert log.epochs.entries == ([(1, 0)] if offset else [])
        again = log.append_as_leader(records.make([(b"key", b"last")], START_MS, SENT), 3)
        assert (again.base_offset, again.duplicate) == (end, False), "its first batch is gone"
        assert [one.value for one in read_all(log)][-1] == b"last"
        if not shortage.was_felt:
            break
    assert not shortage.was_felt
    assert felt > 5
    assert failures == []


def test_housekeeping_finishes_it(
    make: Make, failures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make()
    log = new_log(manager, *KEY, COMPACTED)
    for number in range(20):
        log.append_as_leader(batch(b"%d" % number), 0)
    with monkeypatch.context() as patched:
        shortage = Shortage(patched, 0)
        log.reader.read(3, 100).region.close()  # type: ignore[union-attr]
        shortage.begin()
        with pytest.raises(KafkaError):
            log.truncate_to(3)
        shortage.end()
    assert log.log_end_offset == 3
    manager.housekeep()
    log.append_as_leader(batch(b"3"), 0)
    assert [one.value for one in read_all(log)] == [b"0", b"1", b"2", b"3"]
    assert failures == []


def test_a_start_after_a_crash_finds_a_log(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was half truncated; what is left is a prefix of what was there."""
    manager = make()
    log = new_log(manager, *KEY, COMPACTED)
    for number in range(20):
        log.append_as_leader(batch(b"%d" % number), 0)
    with monkeypatch.context() as patched:
        shortage = Shortage(patched, 4)
        shortage.begin()
        with pytest.raises(KafkaError):
            log.truncate_to(3)
        shortage.end()
    manager.close()
    again = make().get(*KEY)
    assert again is not None
    assert again.log_end_offset >= 3
    found = [one.value for one in read_all(again)]
    assert found == [b"%d" % number for number in range(again.log_end_offset)]
