"""A log is truncated, as after an election, while a batch before the cut cannot be read."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from odradek.log.partition import epochs, replay
from odradek.log.partition.producers import ProducerStates
from odradek.log.records import records
from odradek.log.records.records import BatchOptions
from odradek.log.segment.files import fsync_path
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.topic_config import TopicConfig
from tests.support.logs import START_MS, Partition, batch, flip

MAGIC_AT = 16


def test_producers_are_forgotten_where_their_batches_cannot_be_read(tmp_path: Path) -> None:
    partition = Partition(tmp_path / "topic-0", TopicConfig(index_interval_bytes=50))
    log = partition.open(clean=True)
    sent = BatchOptions(producer_id=7, producer_epoch=0, base_sequence=1)
    log.producers.forgetful = True
    log.append_as_leader(records.make([(None, b"first")], START_MS, sent), 0)
    for number in range(5):
        log.append_as_leader(batch(b"%d" % number), 0)
    flip(Path(log.segments.active.log.path), MAGIC_AT * 8)
    assert log.truncate_to(4)
    assert log.log_end_offset == 4
    assert log.failure is None
    again = log.append_as_leader(records.make([(None, b"first")], START_MS, sent), 1)
    assert again.base_offset == 4, "nothing is known of the producer"


@pytest.mark.parametrize("offset", [0, 3])
def test_a_truncation_that_fails_halfway_takes_the_log_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    log = Partition(tmp_path / "topic-0", TopicConfig()).open(clean=True)
    for number in range(5):
        log.append_as_leader(batch(b"%d" % number), 0)

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(ProducerStates, "clear", refused)
    monkeypatch.setattr(replay, "rebuild", refused)
    with pytest.raises(KafkaError) as caught:
        log.truncate_to(offset)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.failure is not None


def test_a_flush_of_epochs_that_are_cleared_meanwhile_does_not_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = epochs.EpochCache(str(tmp_path))
    cache.note(3, 0)

    def cleared_first(path: str) -> None:
        if path == cache.path:
            cache.clear()
        fsync_path(path)

    monkeypatch.setattr(epochs, "fsync_path", cleared_first)
    cache.flush()
    assert not cache.entries
