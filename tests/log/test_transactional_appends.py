"""What a leader takes of transactions: batches of producers, and markers of their coordinator."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from odradek.log.partition.log import Log
from odradek.log.partition.producers import ProducerStates
from odradek.log.records import contents, records
from odradek.log.records.batch import Origin
from odradek.log.records.contents import Marker
from odradek.log.records.records import BatchOptions
from odradek.protocol.errors import ErrorCode, KafkaError
from tests.support.logs import START_MS, Partition

pytestmark = pytest.mark.usefixtures("without_fsync")


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return Partition(tmp_path / "topic-0")


@pytest.fixture
def log(partition: Partition) -> Log:
    return partition.open(clean=True)


def send(
    log: Log,
    sequence: int,
    *,
    epoch: int = 0,
    transactional: bool = True,
    producer_id: int = 7,
    origin: Origin = Origin.TRANSACTIONAL_CLIENT,
) -> int:
    """Append a record as its producer sends it; return its offset."""
    options = BatchOptions(
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    data = records.make([(b"k", b"v")], START_MS, options)
    return log.append_as_leader(data, 0, origin=origin).base_offset


def mark(log: Log, *, commits: bool, epoch: int = 0, coordinator_epoch: int = 5) -> int:
    """Append a marker as a coordinator has it written; return its offset."""
    data = contents.make_marker(7, epoch, Marker(coordinator_epoch, commits), START_MS)
    return log.append_as_leader(data, 0, origin=Origin.COORDINATOR).base_offset


def stable(log: Log) -> int:
    log.high_watermark = log.log_end_offset
    return log.last_stable_offset(log.high_watermark)


def refusal(of: Callable[[], object]) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        of()
    return refused.value.code


def test_batch_whose_append_broke_off_does_not_hold_committed_records_back(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(ProducerStates, "note", broken)
        with pytest.raises(MemoryError):
            send(log, 0, transactional=False)
    plain = records.make([(b"k", b"v")], START_MS)
    log.append_as_leader(plain, 0, origin=Origin.CLIENT)
    assert stable(log) == 2


def test_transaction_is_open_until_its_marker(log: Log) -> None:
    assert send(log, 0) == 0
    send(log, 1)
    assert stable(log) == 0
    assert mark(log, commits=True) == 2
    assert stable(log) == 3
    assert not [*log.segments.active.aborted.since(0)]


def test_aborted_transaction_is_noted_in_the_index(log: Log) -> None:
    send(log, 0)
    mark(log, commits=False)
    [aborted] = log.segments.active.aborted.since(0)
    assert aborted[:3] == (7, 0, 1)


def test_sequences_go_on_over_transactions(log: Log) -> None:
    send(log, 0)
    mark(log, commits=True)
    assert refusal(lambda: send(log, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, 1) == 2


def test_repeat_within_a_transaction_is_written_once(log: Log) -> None:
    send(log, 0)
    assert send(log, 0) == 0
    assert log.log_end_offset == 1


def test_marker_of_a_newer_epoch_fences_the_producer(log: Log) -> None:
    send(log, 0)
    mark(log, commits=False, epoch=1)
    assert refusal(lambda: send(log, 1)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(lambda: send(log, 1, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, 0, epoch=1) == 2


def test_marker_of_an_older_epoch_is_refused(log: Log) -> None:
    send(log, 0, epoch=2)
    assert refusal(lambda: mark(log, commits=True, epoch=1)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert stable(log) == 0


def test_marker_of_a_former_coordinator_is_refused(log: Log) -> None:
    send(log, 0)
    mark(log, commits=True, coordinator_epoch=5)
    send(log, 1)
    old = refusal(lambda: mark(log, commits=False, coordinator_epoch=4))
    assert old is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert stable(log) == 2
    mark(log, commits=True, coordinator_epoch=5)
    assert stable(log) == log.log_end_offset


@pytest.mark.parametrize("clean", [True, False])
def test_former_coordinators_are_known_after_a_restart(partition: Partition, clean: bool) -> None:
    log = partition.open(clean=True)
    send(log, 0)
    mark(log, commits=True, coordinator_epoch=5)
    (partition.close if clean else partition.crash)(log)
    log = partition.open(clean=clean)
    old = refusal(lambda: mark(log, commits=False, coordinator_epoch=4))
    assert old is ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_marker_without_records_is_written(log: Log) -> None:
    assert mark(log, commits=False) == 0
    assert stable(log) == 1
    assert not [*log.segments.active.aborted.since(0)]


def test_control_batch_without_a_marker_is_refused(log: Log) -> None:
    options = BatchOptions(producer_id=7, producer_epoch=0, transactional=True, control=True)
    data = records.make([(b"\0\0\0\1", b"")], START_MS, options)
    code = refusal(lambda: log.append_as_leader(data, 0, origin=Origin.COORDINATOR))
    assert code is ErrorCode.INVALID_RECORD


def test_plain_batch_inside_a_transaction_is_refused(log: Log) -> None:
    send(log, 0)
    assert refusal(lambda: send(log, 1, transactional=False)) is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize(
    ("origin", "producer_id", "code"),
    [
        (Origin.CLIENT, 7, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (Origin.TRANSACTIONAL_CLIENT, -1, ErrorCode.INVALID_RECORD),
    ],
)
def test_transactional_batches_need_a_transactional_id_and_a_producer_id(
    log: Log, origin: Origin, producer_id: int, code: ErrorCode
) -> None:
    assert refusal(lambda: send(log, 0, producer_id=producer_id, origin=origin)) is code
    assert log.log_end_offset == 0


def test_clients_write_no_markers(log: Log) -> None:
    data = contents.make_marker(7, 0, Marker(5, True), START_MS)
    for origin in (Origin.CLIENT, Origin.TRANSACTIONAL_CLIENT):
        code = refusal(partial(log.append_as_leader, data, 0, origin=origin))
        assert code is ErrorCode.INVALID_RECORD


def test_made_up_producers_open_no_more_transactions_than_there_is_room_for(
    partition: Partition,
) -> None:
    partition.most_producers = 3
    log = partition.open(clean=True)
    for made_up in range(3):
        send(log, 0, producer_id=made_up)
    assert refusal(lambda: send(log, 0, producer_id=9)) is ErrorCode.INVALID_TXN_STATE
    send(log, 1, producer_id=2)
    data = contents.make_marker(2, 0, Marker(5, True), START_MS)
    log.append_as_leader(data, 0, origin=Origin.COORDINATOR)
    send(log, 0, producer_id=9)
