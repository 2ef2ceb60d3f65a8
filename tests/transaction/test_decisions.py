"""What each request and timer does in each state of a transactional id, as Kafka 2.8.2."""

from __future__ import annotations

from dataclasses import replace

import pytest

from odradek.protocol.api import ApiKey
from odradek.protocol.errors import ErrorCode
from odradek.transaction import decisions
from odradek.transaction.decisions import LAST_EPOCH, Answer, ProducerIdNeeded, Write
from odradek.transaction.states import IDLE, PREPARED, TransactionState
from odradek.transaction.transaction import ProducerIdAndEpoch, Transaction, TransactionEntry
from odradek.values import TopicPartition

S = TransactionState
E = ErrorCode
NOW_MS = 1_000_000
TIMEOUT_MS = 60_000
NEW_TIMEOUT_MS = 30_000
ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
PRODUCER = ProducerIdAndEpoch(1000, 3)
SPARE_ID = 2000

STATES = (*sorted(IDLE), S.ONGOING, *sorted(PREPARED))
WRONG_PRODUCERS = {
    "another id": (ProducerIdAndEpoch(1001, 3), E.INVALID_PRODUCER_ID_MAPPING),
    "another id, newer epoch": (ProducerIdAndEpoch(1001, 4), E.INVALID_PRODUCER_ID_MAPPING),
    "older epoch": (ProducerIdAndEpoch(1000, 2), E.PRODUCER_FENCED),
    "newer epoch": (ProducerIdAndEpoch(1000, 4), E.PRODUCER_FENCED),
}


def transaction(state: TransactionState, epoch: int = PRODUCER.epoch) -> Transaction:
    """Return an id in that state; with one partition, where there is a transaction."""
    return Transaction(
        "id",
        PRODUCER.producer_id,
        epoch,
        TIMEOUT_MS,
        state,
        frozenset() if state in IDLE else frozenset({ONE}),
        -1 if state is S.EMPTY else NOW_MS - 500,
        NOW_MS - 100,
    )


def entry_in(state: TransactionState, epoch: int = PRODUCER.epoch) -> TransactionEntry:
    """Return an entry without a pending transition."""
    return TransactionEntry("id", transaction(state, epoch))


def pending_entry() -> TransactionEntry:
    """Return an entry whose first partition is being written."""
    entry = entry_in(S.EMPTY)
    entry.begin(replace(transaction(S.ONGOING), updated_ms=NOW_MS))
    return entry


def initialize(
    entry: TransactionEntry,
    named: ProducerIdAndEpoch | None = None,
    spare_producer_id: int | None = None,
) -> Answer | Write | ProducerIdNeeded:
    return decisions.initialize(entry, NEW_TIMEOUT_MS, named, spare_producer_id, NOW_MS)


def settled(entry: TransactionEntry, decision: Answer | Write | ProducerIdNeeded | None) -> Answer:
    """Make the decided state current, and return the answer."""
    assert isinstance(decision, Write)
    entry.begin(decision.following)
    entry.settle()
    return decision.answer


def empty_of(
    producer: ProducerIdAndEpoch, last: ProducerIdAndEpoch | None, name: str = "id"
) -> Write:
    """Return the write that gives the id to that producer."""
    following = Transaction(
        name, *producer, NEW_TIMEOUT_MS, S.EMPTY, frozenset(), -1, NOW_MS, last=last
    )
    return Write(following, Answer(E.NONE, producer))


FENCED = Answer(E.PRODUCER_FENCED)
CONCURRENT = Answer(E.CONCURRENT_TRANSACTIONS)
INVALID = Answer(E.INVALID_TXN_STATE)
DONE = Answer(E.NONE)


class TestInitProducerId:
    def test_new_id_needs_a_producer_id_and_starts_at_epoch_0(self) -> None:
        entry = TransactionEntry("id")
        assert initialize(entry) == ProducerIdNeeded()
        assert initialize(entry, None, SPARE_ID) == empty_of(ProducerIdAndEpoch(SPARE_ID, 0), None)

    def test_new_id_takes_any_named_producer(self) -> None:
        # Its id has expired meanwhile.
        entry = TransactionEntry("id")
        assert initialize(entry, PRODUCER) == ProducerIdNeeded()
        write = initialize(entry, PRODUCER, SPARE_ID)
        assert write == empty_of(ProducerIdAndEpoch(SPARE_ID, 0), PRODUCER)
        first = settled(entry, write)
        assert settled(entry, initialize(entry, PRODUCER)) == first

    @pytest.mark.parametrize("state", sorted(IDLE))
    def test_epoch_rises_without_a_transaction(self, state: S) -> None:
        write = initialize(entry_in(state))
        assert write == empty_of(ProducerIdAndEpoch(1000, 4), None)

    def test_spare_producer_id_is_not_taken_where_the_epoch_rises(self) -> None:
        write = initialize(entry_in(S.EMPTY), None, SPARE_ID)
        assert write == empty_of(ProducerIdAndEpoch(1000, 4), None)

    @pytest.mark.parametrize("named", [None, PRODUCER])
    def test_ongoing_transaction_is_aborted_with_an_epoch_that_nobody_gets(
        self, named: ProducerIdAndEpoch | None
    ) -> None:
        entry = entry_in(S.ONGOING)
        assert initialize(entry, named) == Write(
            replace(transaction(S.ONGOING, 4), state=S.PREPARE_ABORT, updated_ms=NOW_MS),
            CONCURRENT,
        )
        settled(entry, initialize(entry))
        assert initialize(entry) == CONCURRENT
        settled(entry, decisions.complete(entry, NOW_MS))
        assert settled(entry, initialize(entry)) == Answer(E.NONE, ProducerIdAndEpoch(1000, 5))

    def test_producer_that_has_its_own_transaction_aborted_so_is_fenced(self) -> None:
        # It has to end the transaction first, as Kafka's clients do.
        entry = entry_in(S.ONGOING)
        settled(entry, initialize(entry, PRODUCER))
        assert initialize(entry, PRODUCER) == FENCED

    @pytest.mark.parametrize("named", [None, PRODUCER])
    @pytest.mark.parametrize("state", sorted(PREPARED))
    def test_ending_transaction_makes_it_wait(
        self, state: S, named: ProducerIdAndEpoch | None
    ) -> None:
        assert initialize(entry_in(state), named) == CONCURRENT

    @pytest.mark.parametrize("named", [None, PRODUCER, ProducerIdAndEpoch(1000, 2)])
    def test_pending_transition_makes_it_wait(self, named: ProducerIdAndEpoch | None) -> None:
        assert initialize(pending_entry(), named) == CONCURRENT

    def test_pending_first_record_makes_it_wait(self) -> None:
        entry = TransactionEntry("id")
        entry.begin(replace(transaction(S.EMPTY), epoch=0))
        assert initialize(entry, None, SPARE_ID) == CONCURRENT

    @pytest.mark.parametrize("state", sorted(IDLE))
    def test_named_current_producer_gets_the_next_epoch(self, state: S) -> None:
        write = initialize(entry_in(state), PRODUCER)
        assert write == empty_of(ProducerIdAndEpoch(1000, 4), PRODUCER)

    def test_named_last_producer_gets_the_same_answer_again_and_again(self) -> None:
        entry = entry_in(S.EMPTY)
        first = settled(entry, initialize(entry, PRODUCER))
        assert first == Answer(E.NONE, ProducerIdAndEpoch(1000, 4))
        for _ in range(3):
            assert settled(entry, initialize(entry, PRODUCER)) == first

    def test_named_last_producer_is_fenced_once_another_has_come(self) -> None:
        entry = entry_in(S.EMPTY)
        settled(entry, initialize(entry, PRODUCER))
        settled(entry, initialize(entry))
        assert initialize(entry, PRODUCER) == FENCED

    def test_named_last_producer_is_fenced_once_it_has_used_its_new_epoch(self) -> None:
        # A late repetition: Kafka's coordinator would abort its own transaction.
        entry = entry_in(S.EMPTY)
        producer = settled(entry, initialize(entry, PRODUCER)).producer
        settled(entry, decisions.add_partitions(entry, producer, {ONE}, NOW_MS))
        assert initialize(entry, PRODUCER) == FENCED

    @pytest.mark.parametrize("state", STATES)
    @pytest.mark.parametrize("named", [producer for producer, _ in WRONG_PRODUCERS.values()])
    def test_named_former_producer_is_fenced_and_changes_nothing(
        self, named: ProducerIdAndEpoch, state: S
    ) -> None:
        assert initialize(entry_in(state), named, SPARE_ID) == FENCED

    @pytest.mark.parametrize("epoch", [LAST_EPOCH, LAST_EPOCH + 1])
    @pytest.mark.parametrize("state", sorted(IDLE))
    def test_last_epoch_needs_a_new_producer_id(self, state: S, epoch: int) -> None:
        entry = entry_in(state, epoch)
        assert initialize(entry) == ProducerIdNeeded()
        assert initialize(entry, None, SPARE_ID) == empty_of(ProducerIdAndEpoch(SPARE_ID, 0), None)

    def test_epoch_below_the_last_is_followed_by_the_last(self) -> None:
        entry = entry_in(S.EMPTY, LAST_EPOCH - 1)
        assert settled(entry, initialize(entry)).producer == ProducerIdAndEpoch(1000, LAST_EPOCH)

    def test_named_producer_with_the_last_epoch_may_ask_again_for_its_new_id(self) -> None:
        entry, last = entry_in(S.EMPTY, LAST_EPOCH), ProducerIdAndEpoch(1000, LAST_EPOCH)
        assert initialize(entry, last) == ProducerIdNeeded()
        first = settled(entry, initialize(entry, last, SPARE_ID))
        assert first == Answer(E.NONE, ProducerIdAndEpoch(SPARE_ID, 0))
        for _ in range(3):
            assert settled(entry, initialize(entry, last)) == first
        settled(entry, initialize(entry))
        assert initialize(entry, last) == FENCED

    def test_named_producer_that_got_the_last_epoch_may_ask_again(self) -> None:
        entry, former = entry_in(S.EMPTY, LAST_EPOCH - 1), ProducerIdAndEpoch(1000, LAST_EPOCH - 1)
        first = settled(entry, initialize(entry, former))
        assert settled(entry, initialize(entry, former)) == first

    def test_producer_with_the_last_epoch_can_be_fenced(self) -> None:
        entry = entry_in(S.ONGOING, LAST_EPOCH)
        assert settled(entry, initialize(entry)) == CONCURRENT
        assert entry.current is not None
        assert entry.current.epoch == LAST_EPOCH + 1
        settled(entry, decisions.complete(entry, NOW_MS))
        assert settled(entry, initialize(entry, None, SPARE_ID)).producer == (SPARE_ID, 0)

    def test_transaction_above_the_last_epoch_can_be_aborted(self) -> None:
        # No producer gets there; what a log says must not block the id.
        entry = entry_in(S.ONGOING, LAST_EPOCH + 1)
        settled(entry, initialize(entry))
        settled(entry, decisions.complete(entry, NOW_MS))
        assert settled(entry, initialize(entry, None, SPARE_ID)).producer == (SPARE_ID, 0)


def add(
    entry: TransactionEntry, *partitions: TopicPartition, by: ProducerIdAndEpoch = PRODUCER
) -> Answer | Write:
    return decisions.add_partitions(entry, by, set(partitions), NOW_MS)


class TestVerification:
    def test_partitions_of_the_ongoing_transaction_are_in_it(self) -> None:
        assert decisions.verify(entry_in(S.ONGOING), PRODUCER, {ONE, OTHER}) == {
            ONE: E.NONE,
            OTHER: E.INVALID_TXN_STATE,
        }

    @pytest.mark.parametrize("state", sorted(IDLE))
    def test_nothing_is_in_a_transaction_before_it_begins_and_after_it_ended(
        self, state: S
    ) -> None:
        assert decisions.verify(entry_in(state), PRODUCER, {ONE}) == {ONE: E.INVALID_TXN_STATE}

    @pytest.mark.parametrize("state", sorted(PREPARED))
    def test_ending_transaction_makes_it_wait(self, state: S) -> None:
        verified = decisions.verify(entry_in(state), PRODUCER, {ONE, OTHER})
        assert verified == dict.fromkeys((ONE, OTHER), E.CONCURRENT_TRANSACTIONS)

    def test_partition_that_is_being_added_is_not_in_it_yet(self) -> None:
        assert decisions.verify(pending_entry(), PRODUCER, {ONE}) == {ONE: E.INVALID_TXN_STATE}

    def test_partition_is_in_it_while_the_end_is_being_written(self) -> None:
        entry = entry_in(S.ONGOING)
        ended = decisions.end(entry, PRODUCER, True, NOW_MS)
        assert isinstance(ended, Write)
        entry.begin(ended.following)
        assert decisions.verify(entry, PRODUCER, {ONE}) == {ONE: E.NONE}

    def test_unknown_id_has_no_producer(self) -> None:
        verified = decisions.verify(TransactionEntry("id"), PRODUCER, {ONE})
        assert verified == {ONE: E.INVALID_PRODUCER_ID_MAPPING}

    @pytest.mark.parametrize("state", STATES)
    @pytest.mark.parametrize(("producer", "error"), WRONG_PRODUCERS.values(), ids=WRONG_PRODUCERS)
    def test_wrong_producer_is_refused_in_each_state(
        self, producer: ProducerIdAndEpoch, error: ErrorCode, state: S
    ) -> None:
        assert decisions.verify(entry_in(state), producer, {ONE}) == {ONE: error}

    def test_epoch_of_a_fence_is_no_producers(self) -> None:
        entry = entry_in(S.ONGOING, LAST_EPOCH + 1)
        fence = ProducerIdAndEpoch(PRODUCER.producer_id, LAST_EPOCH + 1)
        assert decisions.verify(entry, fence, {ONE}) == {ONE: E.PRODUCER_FENCED}


class TestAddPartitionsToTxn:
    @pytest.mark.parametrize("state", sorted(IDLE))
    def test_first_partitions_start_a_transaction(self, state: S) -> None:
        assert add(entry_in(state), ONE, OTHER) == Write(
            replace(
                transaction(state),
                state=S.ONGOING,
                partitions=frozenset({ONE, OTHER}),
                start_ms=NOW_MS,
                updated_ms=NOW_MS,
            ),
            DONE,
        )

    def test_further_partitions_do_not_start_it_again(self) -> None:
        before = transaction(S.ONGOING)
        assert add(entry_in(S.ONGOING), OTHER) == Write(
            replace(before, partitions=frozenset({ONE, OTHER}), updated_ms=NOW_MS), DONE
        )

    def test_partitions_that_are_in_already_are_not_written_again(self) -> None:
        assert add(entry_in(S.ONGOING), ONE) == DONE
        assert add(entry_in(S.ONGOING)) == DONE

    def test_partition_of_the_former_transaction_is_written_again(self) -> None:
        entry = entry_in(S.PREPARE_COMMIT)
        settled(entry, decisions.complete(entry, NOW_MS))
        assert isinstance(add(entry, ONE), Write)

    @pytest.mark.parametrize("state", sorted(PREPARED))
    def test_ending_transaction_makes_it_wait(self, state: S) -> None:
        assert add(entry_in(state), ONE) == CONCURRENT

    def test_pending_transition_makes_it_wait(self) -> None:
        assert add(pending_entry(), ONE) == CONCURRENT

    def test_unknown_id_has_no_producer(self) -> None:
        entry = TransactionEntry("id")
        assert add(entry, ONE) == Answer(E.INVALID_PRODUCER_ID_MAPPING)
        entry.begin(replace(transaction(S.EMPTY), epoch=0))
        assert add(entry, ONE, by=ProducerIdAndEpoch(1000, 0)) == Answer(
            E.INVALID_PRODUCER_ID_MAPPING
        )

    @pytest.mark.parametrize("state", STATES)
    @pytest.mark.parametrize(("producer", "error"), WRONG_PRODUCERS.values(), ids=WRONG_PRODUCERS)
    def test_wrong_producer_is_refused_in_each_state(
        self, producer: ProducerIdAndEpoch, error: ErrorCode, state: S
    ) -> None:
        assert add(entry_in(state), ONE, by=producer) == Answer(error)

    @pytest.mark.parametrize(("producer", "error"), WRONG_PRODUCERS.values(), ids=WRONG_PRODUCERS)
    def test_wrong_producer_is_refused_while_a_transition_is_pending(
        self, producer: ProducerIdAndEpoch, error: ErrorCode
    ) -> None:
        assert add(pending_entry(), ONE, by=producer) == Answer(error)

    def test_epoch_of_a_fence_is_no_producers(self) -> None:
        top = ProducerIdAndEpoch(1000, LAST_EPOCH + 1)
        assert add(entry_in(S.COMPLETE_ABORT, top.epoch), ONE, by=top) == FENCED


def end(entry: TransactionEntry, commit: bool, by: ProducerIdAndEpoch = PRODUCER) -> Answer | Write:
    return decisions.end(entry, by, commit, NOW_MS)


OUTCOMES = pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])


class TestEndTxn:
    @pytest.mark.parametrize(
        ("commit", "prepared"), [(True, S.PREPARE_COMMIT), (False, S.PREPARE_ABORT)]
    )
    def test_outcome_is_written_with_all_partitions(self, commit: bool, prepared: S) -> None:
        assert end(entry_in(S.ONGOING), commit) == Write(
            replace(transaction(S.ONGOING), state=prepared, updated_ms=NOW_MS), DONE
        )

    @pytest.mark.parametrize(
        ("state", "to_commit", "to_abort"),
        [
            (S.EMPTY, INVALID, INVALID),
            (S.PREPARE_COMMIT, CONCURRENT, INVALID),
            (S.PREPARE_ABORT, INVALID, CONCURRENT),
            (S.COMPLETE_COMMIT, DONE, INVALID),
            (S.COMPLETE_ABORT, INVALID, DONE),
        ],
    )
    def test_repetition_is_answered_by_its_outcome(
        self, state: S, to_commit: Answer, to_abort: Answer
    ) -> None:
        assert end(entry_in(state), True) == to_commit
        assert end(entry_in(state), False) == to_abort

    @OUTCOMES
    def test_pending_transition_makes_it_wait(self, commit: bool) -> None:
        assert end(pending_entry(), commit) == CONCURRENT

    @OUTCOMES
    def test_unknown_id_has_no_producer(self, commit: bool) -> None:
        assert end(TransactionEntry("id"), commit) == Answer(E.INVALID_PRODUCER_ID_MAPPING)

    @OUTCOMES
    @pytest.mark.parametrize("state", STATES)
    @pytest.mark.parametrize(("producer", "error"), WRONG_PRODUCERS.values(), ids=WRONG_PRODUCERS)
    def test_wrong_producer_is_refused_in_each_state(
        self, producer: ProducerIdAndEpoch, error: ErrorCode, state: S, commit: bool
    ) -> None:
        assert end(entry_in(state), commit, producer) == Answer(error)

    @OUTCOMES
    def test_fenced_producer_waits_until_its_abort_is_durable(self, commit: bool) -> None:
        entry = entry_in(S.ONGOING)
        fence = decisions.time_out(entry, NOW_MS + TIMEOUT_MS)
        assert fence is not None
        entry.begin(fence.following)
        assert end(entry, commit) == CONCURRENT
        entry.settle()
        assert end(entry, commit) == FENCED

    def test_producer_goes_on_if_the_abort_that_fences_it_fails(self) -> None:
        entry = entry_in(S.ONGOING)
        fence = decisions.time_out(entry, NOW_MS + TIMEOUT_MS)
        assert fence is not None
        entry.begin(fence.following)
        entry.give_up()
        assert isinstance(end(entry, True), Write)
        # Nor is an epoch lost: the next fence has the same one.
        assert decisions.time_out(entry, NOW_MS + TIMEOUT_MS) == fence


class TestMarkers:
    @pytest.mark.parametrize(
        ("prepared", "complete"),
        [(S.PREPARE_COMMIT, S.COMPLETE_COMMIT), (S.PREPARE_ABORT, S.COMPLETE_ABORT)],
    )
    def test_transaction_is_complete_when_all_are_written(self, prepared: S, complete: S) -> None:
        assert decisions.complete(entry_in(prepared), NOW_MS) == Write(
            replace(
                transaction(prepared), state=complete, partitions=frozenset(), updated_ms=NOW_MS
            ),
            DONE,
        )

    def test_transaction_without_partitions_is_complete_too(self) -> None:
        # AddPartitionsToTxn without topics starts one.
        entry = entry_in(S.EMPTY)
        settled(entry, add(entry))
        settled(entry, end(entry, True))
        settled(entry, decisions.complete(entry, NOW_MS))
        assert end(entry, True) == DONE


class TestTimeOut:
    def test_transaction_is_aborted_and_its_producer_fenced_after_its_timeout(self) -> None:
        entry = entry_in(S.ONGOING)
        deadline_ms = transaction(S.ONGOING).start_ms + TIMEOUT_MS
        assert decisions.time_out(entry, deadline_ms) is None
        late = deadline_ms + 1
        assert decisions.time_out(entry, late) == Write(
            replace(transaction(S.ONGOING, 4), state=S.PREPARE_ABORT, updated_ms=late), DONE
        )

    @pytest.mark.parametrize("state", sorted({*STATES} - {S.ONGOING}))
    def test_nothing_else_times_out(self, state: S) -> None:
        assert decisions.time_out(entry_in(state), NOW_MS * 1000) is None

    def test_unknown_id_does_not_time_out(self) -> None:
        assert decisions.time_out(TransactionEntry("id"), NOW_MS) is None

    def test_pending_transition_is_awaited(self) -> None:
        entry = entry_in(S.ONGOING)
        write = end(entry, True)
        assert isinstance(write, Write)
        entry.begin(write.following)
        assert decisions.time_out(entry, NOW_MS * 1000) is None

    def test_former_producer_neither_writes_nor_comes_back(self) -> None:
        entry = entry_in(S.ONGOING)
        settled(entry, decisions.time_out(entry, NOW_MS + TIMEOUT_MS))
        for _ in range(2):
            assert add(entry, ONE) == FENCED
            assert end(entry, True) == FENCED
            assert end(entry, False) == FENCED
            assert initialize(entry, PRODUCER) == FENCED
            if entry.current is not None and entry.current.state in PREPARED:
                settled(entry, decisions.complete(entry, NOW_MS))
        assert settled(entry, initialize(entry)).producer == ProducerIdAndEpoch(1000, 5)


class TestExpiration:
    @pytest.mark.parametrize("state", sorted(IDLE))
    def test_unused_id_is_deleted(self, state: S) -> None:
        entry = entry_in(state)
        assert decisions.expire(entry, 101, NOW_MS) is None
        write = decisions.expire(entry, 100, NOW_MS)
        assert write is not None
        assert write.following == replace(transaction(state), state=S.DEAD)
        settled(entry, write)
        assert entry.current is None
        assert add(entry, ONE) == Answer(E.INVALID_PRODUCER_ID_MAPPING)
        assert initialize(entry) == ProducerIdNeeded()

    @pytest.mark.parametrize("state", [S.ONGOING, *sorted(PREPARED)])
    def test_id_with_a_transaction_stays(self, state: S) -> None:
        assert decisions.expire(entry_in(state), 0, NOW_MS * 1000) is None

    def test_id_whose_producer_may_ask_again_is_deleted_too(self) -> None:
        entry = entry_in(S.EMPTY)
        settled(entry, initialize(entry, PRODUCER))
        settled(entry, decisions.expire(entry, 0, NOW_MS))
        assert entry.current is None

    def test_pending_transition_is_awaited(self) -> None:
        assert decisions.expire(pending_entry(), 0, NOW_MS * 1000) is None

    def test_requests_wait_while_the_tombstone_is_pending(self) -> None:
        entry = entry_in(S.COMPLETE_COMMIT)
        write = decisions.expire(entry, 0, NOW_MS)
        assert write is not None
        entry.begin(write.following)
        assert initialize(entry) == add(entry, ONE) == end(entry, True) == CONCURRENT

    def test_unknown_id_has_nothing_to_delete(self) -> None:
        assert decisions.expire(TransactionEntry("id"), 0, NOW_MS) is None


@pytest.mark.parametrize(
    ("key", "since"),
    [
        (ApiKey.INIT_PRODUCER_ID, 4),
        (ApiKey.ADD_PARTITIONS_TO_TXN, 2),
        (ApiKey.ADD_OFFSETS_TO_TXN, 2),
        (ApiKey.END_TXN, 2),
    ],
)
def test_clients_before_kip_588_hear_of_an_invalid_epoch(key: ApiKey, since: int) -> None:
    for version in range(5):
        told = decisions.error_for(E.PRODUCER_FENCED, key, version)
        assert told is (E.PRODUCER_FENCED if version >= since else E.INVALID_PRODUCER_EPOCH)
        assert decisions.error_for(E.INVALID_TXN_STATE, key, version) is E.INVALID_TXN_STATE
