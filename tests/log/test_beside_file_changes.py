"""What other threads do with a log whose files are closed, while its files change."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import pytest

from odradek.log.partition import truncation
from odradek.log.partition.log import Log
from odradek.log.segment import segment as segments
from odradek.log.segment.files import FileRetiredError
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.topic_config import TopicConfig
from tests.support import steps
from tests.support.logs import Partition, batch, read_all

pytestmark = pytest.mark.usefixtures("without_fsync")

CONFIG = TopicConfig(segment_bytes=300, retention_ms=1000, file_delete_delay_ms=0)


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return Partition(tmp_path / "topic-0", CONFIG)


@pytest.fixture
def log(partition: Partition) -> Log:
    """Several segments with records, and no file open."""
    log = partition.open(clean=True)
    for number in range(10):
        log.append_as_leader(batch(b"%d" % number * 50), 0)
    assert len(log.segments) > 3
    for one in log.segments:
        one.close_files()
    return log


def truncate(log: Log, offset: int) -> None:
    if offset:
        log.truncate_to(offset)
    else:
        log.truncate_fully_and_start_at(100)


@pytest.mark.parametrize("offset", [0, 3])
def test_readers_are_served_at_every_step_of_a_truncation(
    partition: Partition, log: Log, offset: int
) -> None:
    told: set[ErrorCode] = set()

    def read() -> None:
        try:
            read_all(log, 1)
        except KafkaError as error:
            told.add(error.code)

    assert steps.between_lines(truncation, read, lambda: truncate(log, offset)) > 10
    assert told <= {ErrorCode.OFFSET_OUT_OF_RANGE}
    assert log.log_end_offset == (offset or 100)
    assert not partition.failures


@pytest.mark.parametrize("offset", [0, 3])
def test_retention_beside_a_truncation_takes_no_disk_for_failed(
    partition: Partition, log: Log, offset: int
) -> None:
    """An empty log that is just being made has no file whose age it could ask."""
    partition.clock.advance(10)

    def retain() -> None:
        with contextlib.suppress(FileRetiredError):
            log.apply_retention()

    assert steps.between_lines(truncation, retain, lambda: truncate(log, offset)) > 10
    assert not partition.failures
    assert log.append_as_leader(batch(b"next"), 0).base_offset == (offset or 100)


def test_file_that_opens_while_it_is_renamed_is_the_same_one(log: Log) -> None:
    """The former name would make an empty file, which a start would take for the segment."""
    one = log.segments[0]
    before, names = one.read(0, one.size), sorted(os.listdir(log.directory))

    def use() -> None:
        assert one.read(0, one.size) == before
        one.log.modified_ns()
        one.index.file.acquire()
        one.index.file.release()
        one.close_files()

    assert steps.between_lines(segments, use, lambda: one.rename_suffix(".swap")) > 3
    assert sorted(name.removesuffix(".swap") for name in os.listdir(log.directory)) == names
    one.rename_suffix("")
    assert sorted(os.listdir(log.directory)) == names
    use()


def test_files_of_old_segments_go_though_there_is_no_descriptor(
    partition: Partition, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.high_watermark = log.log_end_offset
    log.assign_epoch(7)
    partition.clock.advance(5000)
    kept = len(log.segments) - 1

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr("odradek.log.partition.epochs.write_in_place", refuse)
        patched.setattr("odradek.log.partition.epochs.write_atomically", refuse)
        with pytest.raises(KafkaError):
            log.apply_retention()
    assert len(log.segments) <= kept
    log.delete_due()
    left = {path.name for path in partition.folder.glob("*.log*")}
    assert left == {os.path.basename(one.log.path) for one in log.segments}
    assert not partition.failures
