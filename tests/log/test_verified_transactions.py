"""When a leader asks the coordinator before a producer's transaction begins, and until when the
answer holds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from odradek.log.partition.log import Log
from odradek.log.partition.verification import Verification, VerificationNeededError
from odradek.log.records import contents, records
from odradek.log.records.batch import Origin
from odradek.log.records.contents import Marker
from odradek.log.records.records import BatchOptions
from odradek.protocol.errors import ErrorCode, KafkaError
from tests.support.logs import START_MS, Partition

pytestmark = pytest.mark.usefixtures("without_fsync")

PRODUCER = 7


@pytest.fixture
def log(tmp_path: Path) -> Log:
    opened = Partition(tmp_path / "topic-0").open(clean=True)
    opened.producers.verifies = lambda: True
    return opened


def batch_of(sequence: int, epoch: int = 0, *, transactional: bool = True) -> bytes:
    options = BatchOptions(
        producer_id=PRODUCER,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    return records.make([(b"k", b"v")], START_MS, options)


def send(log: Log, sequence: int, *, epoch: int = 0, leader_epoch: int = 0) -> int:
    """Append a record as its producer sends it; return its offset."""
    data = batch_of(sequence, epoch)
    origin = Origin.TRANSACTIONAL_CLIENT
    return log.append_as_leader(data, leader_epoch, origin=origin).base_offset


def needed(append: Callable[[], object]) -> Verification:
    """Return what the append waits for."""
    with pytest.raises(VerificationNeededError) as error:
        append()
    return error.value.verification


def begin(log: Log, sequence: int) -> int:
    """Append the first record of a transaction, which the coordinator allows."""
    needed(lambda: send(log, sequence)).verified = True
    return send(log, sequence)


def mark(log: Log) -> None:
    data = contents.make_marker(PRODUCER, 0, Marker(5, True), START_MS)
    log.append_as_leader(data, 0, origin=Origin.COORDINATOR)


def test_only_the_first_batch_of_each_transaction_is_verified(log: Log) -> None:
    assert begin(log, 0) == 0
    assert send(log, 1) == 1
    mark(log)
    assert begin(log, 2) == 3
    assert send(log, 3) == 4


def test_nothing_is_written_before_it_is_verified(log: Log) -> None:
    needed(lambda: send(log, 0))
    assert log.log_end_offset == 0
    assert log.last_stable_offset(0) == 0


def test_batches_outside_of_transactions_are_never_verified(log: Log) -> None:
    data = batch_of(0, transactional=False)
    log.append_as_leader(data, 0, origin=Origin.TRANSACTIONAL_CLIENT)
    assert log.log_end_offset == 1


def test_nothing_is_verified_where_that_is_off(log: Log) -> None:
    log.producers.verifies = lambda: False
    assert send(log, 0) == 0


def test_offsets_of_groups_are_verified_too(log: Log) -> None:
    def commit() -> int:
        options = BatchOptions(producer_id=PRODUCER, producer_epoch=0, transactional=True)
        data = records.make([(b"k", b"v")], START_MS, options)
        return log.append_as_leader(data, 0, origin=Origin.COORDINATOR).base_offset

    needed(commit).verified = True
    assert [commit(), commit()] == [0, 1]


def test_marker_makes_the_answer_void(log: Log) -> None:
    begin(log, 0)
    mark(log)
    late = needed(lambda: send(log, 1))
    mark(log)
    assert late.ended
    late.verified = True
    assert needed(lambda: send(log, 1)) is not late


def test_new_leader_epoch_makes_the_answer_void(log: Log) -> None:
    before = needed(lambda: send(log, 0))
    before.verified = True
    after = needed(lambda: send(log, 0, leader_epoch=1))
    assert after is not before
    after.verified = True
    assert send(log, 0, leader_epoch=1) == 0


def test_truncation_makes_the_answer_void(log: Log) -> None:
    begin(log, 0)
    mark(log)
    before = needed(lambda: send(log, 1))
    before.verified = True
    log.truncate_to(1)
    assert send(log, 1) == 1  # the transaction is open again: its marker is gone
    log.truncate_to(0)
    assert needed(lambda: send(log, 0)) is not before


def test_marker_that_a_follower_copies_makes_the_answer_void(log: Log) -> None:
    late = needed(lambda: send(log, 0))
    late.verified = True
    data = bytearray(contents.make_marker(PRODUCER, 0, Marker(5, True), START_MS))
    log.append_as_follower(data)
    assert late.ended
    needed(lambda: send(log, 0))


def test_answer_holds_for_one_epoch_of_the_producer(log: Log) -> None:
    needed(lambda: send(log, 0)).verified = True
    needed(lambda: send(log, 0, epoch=1))
    assert send(log, 0) == 0


def test_what_is_refused_is_asked_again(log: Log) -> None:
    refused = needed(lambda: send(log, 0))
    refused.refused = True
    assert needed(lambda: send(log, 0)) is not refused


def test_repeat_of_a_written_batch_needs_no_verification(log: Log) -> None:
    begin(log, 0)
    mark(log)
    assert send(log, 0) == 0
    assert log.log_end_offset == 2


def test_sequences_are_checked_before_the_coordinator_is_asked(log: Log) -> None:
    begin(log, 0)
    mark(log)
    with pytest.raises(KafkaError) as refusal:
        send(log, 2)
    assert refusal.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_batch_that_overtakes_one_that_waits_is_out_of_order(log: Log) -> None:
    log.producers.forgetful = True  # so that a producer may begin anywhere
    needed(lambda: send(log, 5))
    needed(lambda: send(log, 4)).verified = True
    with pytest.raises(KafkaError) as refusal:
        send(log, 5)
    assert refusal.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert [send(log, 4), send(log, 5)] == [0, 1]


def test_new_leader_epoch_does_not_let_a_batch_overtake_another(log: Log) -> None:
    log.producers.forgetful = True
    needed(lambda: send(log, 4))
    with pytest.raises(KafkaError) as refusal:
        send(log, 5, leader_epoch=1)
    assert refusal.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_verifications_that_nobody_waits_for_are_forgotten(log: Log) -> None:
    before = needed(lambda: send(log, 0))
    log.expire_producers()
    assert needed(lambda: send(log, 0)) is before
    log.expire_producers()
    assert needed(lambda: send(log, 0)) is not before


def test_many_epochs_of_a_producer_are_forgotten(log: Log) -> None:
    before = needed(lambda: send(log, 0))
    for epoch in range(1, 5):
        needed(partial(send, log, 0, epoch=epoch))
    assert needed(lambda: send(log, 0)) is before
    newest = needed(lambda: send(log, 0, epoch=5))
    assert needed(lambda: send(log, 0, epoch=5)) is newest
    assert needed(lambda: send(log, 0)) is not before
