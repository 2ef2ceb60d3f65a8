"""Idempotent producers: each batch once, in order; the state survives restarts."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from odradek.log.partition import epochs, producers, topic_identity
from odradek.log.partition.appending import AppendInfo
from odradek.log.partition.log import Log
from odradek.log.records import batch as codec
from odradek.log.records.batch import Origin
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.topic_config import TopicConfig
from tests.support.logs import START_MS, Partition, batch, read_all

MAX = producers.MAX_SEQUENCE


def send(log: Log, sequence: int, count: int = 1, epoch: int = 0, pid: int = 5) -> AppendInfo:
    values = [b"%d" % (sequence + number) for number in range(count)]
    data = batch(*values, producer_id=pid, producer_epoch=epoch, base_sequence=sequence)
    return log.append_as_leader(data, 0)


def refused(log: Log, sequence: int, epoch: int = 0, count: int = 1) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        send(log, sequence, count, epoch)
    return caught.value.code


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return Partition(tmp_path / "topic-0", TopicConfig(segment_bytes=400))


@pytest.fixture
def log(partition: Partition) -> Log:
    return partition.open(clean=True)


@pytest.fixture
def forgetful(log: Log) -> Log:
    """A log whose first records, and with them who wrote them, are gone."""
    log.truncate_fully_and_start_at(10)
    return log


def test_a_repeat_of_the_last_five_batches_gets_its_first_offset_back(log: Log) -> None:
    first = [send(log, number * 3, 3) for number in range(6)]
    for number in range(1, 6):
        again = send(log, number * 3, 3)
        assert again.duplicate
        assert (again.base_offset, again.last_offset) == (
            first[number].base_offset,
            first[number].last_offset,
        )
    assert log.log_end_offset == 18
    assert refused(log, 0, count=3) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_gap_and_a_partial_repeat_are_out_of_order(log: Log) -> None:
    send(log, 0, 3)
    for sequence in (1, 2, 4, 100):
        assert refused(log, sequence) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, 3).base_offset == 3


def test_an_unknown_producer_may_start_anywhere_where_it_may_have_been_forgotten(
    forgetful: Log,
) -> None:
    assert send(forgetful, 777).base_offset == 10
    assert send(forgetful, 778).base_offset == 11


def test_a_batch_that_overtook_the_producers_first_is_refused(log: Log) -> None:
    assert refused(log, 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, 0).base_offset == 0
    assert send(log, 1).base_offset == 1


def test_a_batch_that_overtook_the_first_is_refused_after_a_restart_too(
    partition: Partition, log: Log
) -> None:
    send(log, 0, pid=6)
    partition.close(log)
    assert refused(partition.open(clean=True), 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_producer_of_a_former_topic_goes_on_where_it_was(log: Log) -> None:
    log.producers.go_on_from(
        producers.FormerProducers({5: (0, MAX - 1), 6: (2, 8)}, forgetful=False)
    )
    # Sequences wrap.
    assert refused(log, 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    send(log, MAX)
    send(log, 0)
    with pytest.raises(KafkaError):
        send(log, 9, epoch=3, pid=6)
    send(log, 7, epoch=2, pid=6)
    assert log.former_producers() == ({5: (0, 0), 6: (2, 7)}, False)


def test_a_producer_of_a_former_topic_goes_on_after_a_restart(
    partition: Partition, log: Log
) -> None:
    """What the last one in the former topic was, nobody knows any more."""
    topic_identity.mark_former(log.directory)
    send(log, 0, pid=6)
    partition.close(log)
    assert send(partition.open(clean=True), 777).base_offset == 1


def test_a_producer_of_a_former_topic_that_expired_since_may_start_anywhere(log: Log) -> None:
    log.producers.go_on_from(producers.FormerProducers({5: (0, 2)}, forgetful=False))
    send(log, 3)
    log.producers.expire(log.environment.now_ms() + 2 * log.producers.expiry_ms)
    assert send(log, 777).base_offset == 1


def test_former_producers_are_no_more_than_a_log_has() -> None:
    few = producers.ProducerStates(1000, most=2)
    few.go_on_from(producers.FormerProducers({5: (0, 2), 6: (0, 2), 7: (0, 2)}, forgetful=False))
    assert few.as_former() == ({}, True)


def test_a_new_epoch_starts_at_zero_and_fences_the_old(log: Log) -> None:
    send(log, 0)
    assert refused(log, 1, epoch=1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    send(log, 0, epoch=1)
    assert refused(log, 1, epoch=0) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_sequences_wrap_to_zero(forgetful: Log) -> None:
    send(forgetful, MAX)
    assert refused(forgetful, 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(forgetful, 0).base_offset == 11


def test_a_batch_may_span_the_wrap_and_be_repeated(forgetful: Log) -> None:
    first = send(forgetful, MAX - 1, 4)
    assert send(forgetful, MAX - 1, 4).duplicate
    assert send(forgetful, 2).base_offset == first.last_offset + 1


def test_followers_take_what_the_leader_took(log: Log, tmp_path: Path) -> None:
    for number in range(4):
        send(log, number)
    other = Partition(tmp_path / "other-0").open(clean=True)
    with log.reader.read(0, 1 << 20).region as region:  # type: ignore[union-attr]
        other.append_as_follower(region.read())
    assert send(other, 2).duplicate
    assert refused(other, 9) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    other.close()


@pytest.mark.parametrize("clean", [True, False])
def test_state_survives_a_restart(partition: Partition, log: Log, clean: bool) -> None:
    for number in range(20):
        send(log, number)
    assert len(log.segments) > 2
    if clean:
        partition.close(log)
    else:
        partition.crash(log)
    log = partition.open(clean=clean)
    assert send(log, 19).duplicate
    assert refused(log, 21) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, 20).base_offset == 20


def test_damaged_snapshots_cost_nothing_but_a_scan(partition: Partition, log: Log) -> None:
    for number in range(20):
        send(log, number)
    partition.close(log)
    snapshots = sorted(partition.folder.glob("*.snapshot"))
    assert len(snapshots) > 2
    for number, path in enumerate(snapshots):
        path.write_bytes([b"", b"\0" * 56, path.read_bytes()[:-1], b"garbage" * 9][number % 4])
    log = partition.open(clean=True)
    assert refused(log, 30) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, 20).base_offset == 20


def test_a_snapshot_with_a_name_that_no_broker_gives_is_left_alone(
    partition: Partition, log: Log
) -> None:
    for number in range(20):
        send(log, number)
    partition.close(log)
    for path in partition.folder.glob("*.snapshot"):
        path.unlink()
    stranger = partition.folder / "19.snapshot"
    stranger.write_bytes(b"")
    log = partition.open(clean=True)
    assert send(log, 19).duplicate
    assert send(log, 20).base_offset == 20
    assert stranger.exists()


def test_truncation_forgets_what_was_cut(partition: Partition, log: Log) -> None:
    for number in range(20):
        send(log, number)
    log.truncate_to(7)
    assert refused(log, 8) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, 7).base_offset == 7
    assert [one.value for one in read_all(log)] == [b"%d" % number for number in range(8)]


def test_silent_producers_expire(partition: Partition, log: Log) -> None:
    send(log, 0)
    partition.clock.advance(7 * 24 * 3_600_000)
    log.expire_producers()
    assert len(log.producers) == 0
    assert send(log, 50).base_offset == 1


def test_coordinators_are_checked_for_epochs_only(log: Log) -> None:
    data = batch(b"a", producer_id=5, producer_epoch=3, base_sequence=-1)
    log.append_as_leader(data, 0, origin=Origin.COORDINATOR)
    log.append_as_leader(data, 0, origin=Origin.COORDINATOR)
    assert log.log_end_offset == 2
    old = batch(b"a", producer_id=5, producer_epoch=2, base_sequence=-1)
    with pytest.raises(KafkaError) as caught:
        log.append_as_leader(old, 0, origin=Origin.COORDINATOR)
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_snapshot_bytes_are_kafkas() -> None:
    """Bytes of a snapshot as Kafka 2.8.2's ProducerStateManager reads them (PidSnapshot,
    version 1).
    """
    states = producers.ProducerStates(1000)
    from odradek.log.records import batch as codec

    data = batch(b"a", b"b", producer_id=7, producer_epoch=2, base_sequence=10)
    states.update(codec.parse(data))
    encoded = states.encode()
    assert encoded[:2] == b"\x00\x01"
    assert encoded[6:10] == b"\x00\x00\x00\x01"
    assert encoded[10:].hex() == (
        "0000000000000007" "0002" "0000000b" "0000000000000001" "00000001"
        + START_MS.to_bytes(8, "big").hex() + "ffffffff" "ffffffffffffffff"
    )  # fmt: skip
    assert producers.decode(encoded)[0].last_sequence == 11


def test_follower_without_descriptors_knows_the_producers_of_what_it_wrote(
    log: Log, partition: Partition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = Partition(tmp_path / "leader-0").open(clean=True)
    send(leader, 0, 2)
    leader.append_as_leader(batch(b"2", producer_id=5, producer_epoch=0, base_sequence=2), 7)
    copied = b"".join(segment.read(0, segment.size) for segment in leader.segments)

    def no_descriptor(path: str, *_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "no descriptor is left", path)

    with monkeypatch.context() as patched:
        patched.setattr(epochs, "write_in_place", no_descriptor)
        patched.setattr(epochs, "write_atomically", no_descriptor)
        with pytest.raises(KafkaError):
            log.append_as_follower(copied)
    assert (log.log_end_offset, log.producers.end_offset) == (3, 3)
    assert log.epochs.entries == leader.epochs.entries == [(0, 0), (7, 2)]
    # This replica becomes leader, and the producer tries again.
    assert send(log, 0, 2).duplicate
    assert send(log, 2).duplicate
    assert log.log_end_offset == 3
    # The next flush writes the file that could not be written.
    log.flush()
    again = epochs.EpochCache(log.directory)
    assert again.load()
    assert again.entries == [(0, 0), (7, 2)]
    partition.close(log)


def test_epoch_that_cannot_be_written_is_not_assigned(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptor(path: str, *_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "no descriptor is left", path)

    send(log, 0)
    with monkeypatch.context() as patched:
        patched.setattr(epochs, "write_in_place", no_descriptor)
        patched.setattr(epochs, "write_atomically", no_descriptor)
        with pytest.raises(KafkaError):
            log.assign_epoch(4)
    assert log.epochs.entries == [(0, 0)]
    log.assign_epoch(4)
    again = epochs.EpochCache(log.directory)
    assert again.load()
    assert again.entries == [(0, 0), (4, 1)]


def by_producer(number: int, sequence: int = 0) -> bytes:
    return batch(b"v", producer_id=number, producer_epoch=0, base_sequence=sequence)


def test_of_too_many_producers_those_that_wrote_longest_ago_are_forgotten(tmp_path: Path) -> None:
    partition = Partition(tmp_path / "topic-0")
    partition.most_producers = 20
    log = partition.open(clean=True)
    for number in range(20):
        log.append_as_leader(by_producer(number), 0)
    log.append_as_leader(by_producer(0, 1), 0)  # so it wrote last
    log.append_as_leader(by_producer(20), 0)
    assert len(log.producers) == 19
    assert [number for number in range(21) if log.producers.get(number) is None] == [1, 2]
    # One that was forgotten goes on, as after its expiry.
    assert log.append_as_leader(by_producer(1, 1), 0).base_offset == 22
    assert log.append_as_leader(by_producer(0, 1), 0).duplicate
    for number in range(100, 400):
        log.append_as_leader(by_producer(number), 0)
        assert len(log.producers) <= 20
    # After a restart too: the snapshot does not tell whom it lacks.
    for clean in (True, False):
        partition.close(log) if clean else partition.crash(log)
        log = partition.open(clean=clean)
        assert 0 < len(log.producers) <= 20
        assert log.producers.get(399) is not None
        assert not log.append_as_leader(by_producer(3 + clean, 1), 0).duplicate


def test_a_snapshot_of_more_producers_is_cut_to_the_bound() -> None:
    many = producers.ProducerStates(10**12, most=100)
    for number in range(100):
        many.update(codec.parse(by_producer(number))._replace(base_offset=number))
    few = producers.ProducerStates(10**12, most=10)
    few.load(many.encode(), 100, START_MS)
    assert [number for number in range(100) if few.get(number)] == list(range(91, 100))
    assert few.forgetful


def test_open_transactions_are_never_forgotten() -> None:
    states = producers.ProducerStates(10**12, most=10)
    for number in range(30):
        header = codec.parse(by_producer(number))._replace(base_offset=number)
        attributes = codec.TRANSACTIONAL if number < 5 else 0
        states.update(header._replace(attributes=attributes))
    assert all(states.get(number) for number in range(5))
    assert len(states) <= 10


def test_forgotten_producers_are_told_in_the_log_of_the_broker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    partition = Partition(tmp_path / "topic-0")
    partition.most_producers = 10
    log = partition.open(clean=True)
    for number in range(11):
        log.append_as_leader(by_producer(number), 0)
    for _ in range(2):
        log.expire_producers()
    [line] = [one for one in caplog.messages if "producer ids" in one]
    assert line.startswith("topic-0: forgot 1 producer ids of more than 10")


def test_batch_that_was_written_but_not_noted_is_known_after_one_of_no_producer(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(producers.ProducerStates, "note", fail)
        with pytest.raises(MemoryError):
            send(log, 0)
    assert log.log_end_offset == 1
    log.append_as_leader(batch(b"of no producer"), 0)
    assert send(log, 0).duplicate
    assert not send(log, 1).duplicate
