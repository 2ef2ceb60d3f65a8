"""The coordinator of transactions: records, markers and answers, when everything goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from odradek import slices
from odradek.protocol.errors import ErrorCode
from odradek.quarantine import Work
from odradek.transaction.states import TransactionState
from odradek.transaction.transaction import ProducerIdAndEpoch
from tests.support.replicas import Replicas
from tests.support.transaction_coordinators import (
    EMPTY,
    ID,
    OTHER,
    STATE,
    T0,
    T1,
    TIMEOUT_MS,
    Coordinating,
    Leader,
    series,
    until,
)

ONGOING = replace(
    EMPTY,
    state=TransactionState.ONGOING,
    partitions=frozenset({T0, T1}),
    start_ms=2,
    updated_ms=2,
)
PREPARED = replace(ONGOING, state=TransactionState.PREPARE_COMMIT)
EPOCH = 5


@pytest.fixture
async def on(tmp_path: Path) -> AsyncIterator[Coordinating]:
    """A coordinator of an empty partition."""
    async with Replicas(tmp_path) as replicas:
        await replicas.lead(topic=STATE.topic, epoch=EPOCH)
        coordinating = Coordinating(replicas)
        yield coordinating
        await coordinating.coordinator.close()


async def test_transaction_is_committed_by_markers_in_all_its_partitions(on: Coordinating) -> None:
    producer = await on.init()
    assert producer == ProducerIdAndEpoch(100, 0)
    assert await on.add(producer) is ErrorCode.NONE
    assert await on.end(producer, commits=True) is ErrorCode.NONE
    await on.state_is(TransactionState.COMPLETE_COMMIT)
    assert sorted(on.leader.marked) == [(T0, 0, True, EPOCH), (T1, 0, True, EPOCH)]
    assert on.leader.requests == 1


async def test_the_next_producer_of_an_id_fences_the_one_before_and_aborts_what_it_left(
    on: Coordinating,
) -> None:
    former = await on.init()
    await on.add(former, [T0])
    producer = await on.init()
    assert producer == ProducerIdAndEpoch(100, 2)
    assert on.leader.marked == [(T0, 1, False, EPOCH)]
    for code in (
        await on.add(former),
        await on.end(former, commits=True),
        (await on.coordinator.init_producer_id(ID, TIMEOUT_MS, former)).error,
    ):
        assert code is ErrorCode.PRODUCER_FENCED
    assert await on.add(producer) is ErrorCode.NONE


async def test_unknown_producers_are_refused(on: Coordinating) -> None:
    await on.init()
    stranger = ProducerIdAndEpoch(5, 0)
    assert await on.add(stranger) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert await on.end(stranger, commits=True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    of_nobody = await on.coordinator.add_partitions("nobody", stranger, {T0})
    assert of_nobody is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert on.state("nobody") is None


async def test_partitions_are_verified_while_their_transaction_goes_on(on: Coordinating) -> None:
    def verified() -> list[ErrorCode]:
        return [*on.coordinator.verify_partitions(ID, producer, {T0}).values()]

    producer = await on.init()
    assert verified() == [ErrorCode.INVALID_TXN_STATE]
    await on.add(producer, [T0])
    assert verified() == [ErrorCode.NONE]
    on.end_offset_confirmed = False
    assert verified() == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    on.end_offset_confirmed = True
    await on.end(producer, commits=True)
    await on.state_is(TransactionState.COMPLETE_COMMIT)
    assert verified() == [ErrorCode.INVALID_TXN_STATE]


async def test_nothing_is_verified_before_the_ids_are_read(on: Coordinating) -> None:
    await until(lambda: on.coordinator._shards.all()[0].loaded)
    producer = await on.init()
    await on.add(producer, [T0])
    await on.restart()
    found = on.coordinator.verify_partitions(ID, producer, {T0})
    assert found == {T0: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    await on.state_is(TransactionState.ONGOING)
    assert on.coordinator.verify_partitions(ID, producer, {T0}) == {T0: ErrorCode.NONE}
    refused = on.coordinator.verify_partitions("", producer, {T0})
    assert refused == {T0: ErrorCode.INVALID_REQUEST}


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
async def test_what_was_not_written_did_not_happen(
    on: Coordinating, refusal: ErrorCode, code: ErrorCode
) -> None:
    producer = await on.init()
    await on.add(producer)
    on.replicas.refused = [refusal]
    assert await on.coordinator.end(ID, producer, commits=True) is code
    assert on.state() is TransactionState.ONGOING
    assert await on.end(producer, commits=False) is ErrorCode.NONE
    await on.state_is(TransactionState.COMPLETE_ABORT)


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
async def test_a_former_coordinator_gives_no_answer_from_memory(
    on: Coordinating, refusal: ErrorCode, code: ErrorCode
) -> None:
    producer = await on.init()
    await on.add(producer)
    on.end_offset_confirmed = False
    fenced = ProducerIdAndEpoch(producer.producer_id, producer.epoch + 1)
    for asked in (
        partial(on.coordinator.add_partitions, ID, producer, {T0}),
        partial(on.coordinator.end, ID, fenced, commits=True),
    ):
        on.replicas.refused = [refusal]
        assert await asked() is code
        assert await asked() is not code
    await on.end(producer, commits=True)
    await on.state_is(TransactionState.COMPLETE_COMMIT)
    on.replicas.refused = [refusal]
    assert await on.coordinator.end(ID, producer, commits=True) is code
    assert await on.coordinator.end(ID, producer, commits=True) is ErrorCode.NONE


async def test_only_repeats_are_confirmed_by_a_record_while_other_replicas_follow(
    on: Coordinating,
) -> None:
    producer = await on.init()
    log = on.real.manager.partitions[STATE].log
    before = log.log_end_offset
    stranger = ProducerIdAndEpoch(producer.producer_id + 1, 0)
    later = ProducerIdAndEpoch(producer.producer_id, producer.epoch + 1)
    for asked in (
        on.coordinator.add_partitions("nobody", producer, {T0}),
        on.coordinator.add_partitions(ID, stranger, {T0}),
        on.coordinator.end(ID, later, commits=True),
        on.coordinator.end(ID, producer, commits=True),
    ):
        assert await asked is not ErrorCode.NONE
    refused = await on.coordinator.init_producer_id(ID, TIMEOUT_MS, later)
    assert refused.error is ErrorCode.PRODUCER_FENCED
    assert log.log_end_offset == before
    await on.add(producer)
    assert log.log_end_offset == before + 1
    on.replicas.refused = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert await on.coordinator.add_partitions(ID, producer, {T0}) is ErrorCode.NOT_COORDINATOR
    assert await on.coordinator.add_partitions(ID, producer, {T0}) is ErrorCode.NONE
    assert log.log_end_offset == before + 2


async def test_an_id_whose_first_record_was_not_written_stays_unknown(on: Coordinating) -> None:
    await until(lambda: on.coordinator._shards.all()[0].loaded)
    on.replicas.refused = [ErrorCode.NOT_ENOUGH_REPLICAS]
    answer = await on.coordinator.init_producer_id(ID, TIMEOUT_MS, None)
    assert answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    [shard] = on.coordinator._shards.loaded()
    assert not shard.entries
    assert await on.init() == ProducerIdAndEpoch(101, 0)


@pytest.mark.parametrize(
    "outcome",
    [
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
)
async def test_what_may_be_written_is_read_again(on: Coordinating, outcome: ErrorCode) -> None:
    producer = await on.init()
    await on.add(producer)
    on.replicas.lost = [outcome]
    code = await on.coordinator.end(ID, producer, commits=True)
    assert code in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)
    # It was written, so it counts, and its client is told when it asks again.
    await on.state_is(TransactionState.COMPLETE_COMMIT)
    assert await on.end(producer, commits=True) is ErrorCode.NONE
    assert await on.end(producer, commits=False) is ErrorCode.INVALID_TXN_STATE
    assert {commits for _, _, commits, _ in on.leader.marked} == {True}


async def test_nothing_that_was_read_is_acted_upon_before_it_is_committed(
    on: Coordinating,
) -> None:
    await on.write(PREPARED)
    on.replicas.refused = [ErrorCode.NOT_ENOUGH_REPLICAS] * 3
    on.coordinator.notice_roles()
    await until(lambda: any(one.loaded for one in on.coordinator._shards.all()))
    code = await on.coordinator.end(ID, EMPTY.producer, commits=True)
    assert code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert on.refusal(lambda: next(on.coordinator.all_current())) is code
    assert on.refusal(lambda: on.coordinator.describe(ID)) is code
    assert not on.leader.marked
    await on.state_is(TransactionState.COMPLETE_COMMIT)
    assert not on.replicas.refused
    assert len(on.leader.marked) == 2


async def test_ids_that_a_former_coordinator_left_are_listed_and_described(
    on: Coordinating, monkeypatch: pytest.MonkeyPatch
) -> None:
    await on.write(ONGOING, replace(EMPTY, transactional_id="other"))
    on.coordinator.notice_roles()
    await on.state_is(TransactionState.ONGOING)
    assert on.coordinator.describe(ID) == ONGOING
    found = await slices.run(on.coordinator.all_current())
    assert {one.transactional_id for one in found} == {ID, "other"}
    monkeypatch.setattr(slices, "KEYS_AT_ONCE", 1)
    assert len([*on.coordinator.all_current()]) == 2, "one slice per id"
    unknown = on.refusal(lambda: on.coordinator.describe("unknown"))
    assert unknown is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


async def test_partitions_that_have_their_marker_are_described_no_more(on: Coordinating) -> None:
    producer = await on.init()
    await on.add(producer)
    on.cluster.lose_leader(T1)
    assert await on.end(producer, commits=True) is ErrorCode.NONE
    await until(lambda: on.coordinator.describe(ID).partitions == {T1})
    assert on.coordinator.describe(ID).state is TransactionState.PREPARE_COMMIT
    on.cluster.leaders[T1] = OTHER
    await on.state_is(TransactionState.COMPLETE_COMMIT)
    assert not on.coordinator.describe(ID).partitions
    await on.add(producer)
    assert on.coordinator.describe(ID).partitions == {T0, T1}


@pytest.mark.parametrize("commits", [True, False])
async def test_another_coordinator_goes_on_with_what_was_decided(
    on: Coordinating, commits: bool
) -> None:
    producer = await on.init()
    await on.add(producer)
    on.cluster.lose_leader(T1)
    assert await on.end(producer, commits=commits) is ErrorCode.NONE
    await until(lambda: on.leader.marked)
    await on.restart()
    on.cluster.leaders[T1] = 3
    complete = TransactionState.COMPLETE_COMMIT if commits else TransactionState.COMPLETE_ABORT
    on.coordinator.notice_roles()
    await on.state_is(complete)
    assert {(key, said) for key, _, said, _ in on.leader.marked} == {(T0, commits), (T1, commits)}


async def test_what_ends_while_many_ids_are_taken_over_is_marked_once(on: Coordinating) -> None:
    await on.write(*(replace(EMPTY, transactional_id=f"id-{number}") for number in range(4000)))
    await on.write(ONGOING)
    on.leader.held = asyncio.Event()
    on.coordinator.notice_roles()
    async with asyncio.timeout(60):
        while await on.coordinator.end(ID, EMPTY.producer, commits=True) is not ErrorCode.NONE:
            await asyncio.sleep(0)
    for _ in range(100):  # until all ids have been looked at
        await asyncio.sleep(0)
    on.leader.held.set()
    await on.state_is(TransactionState.COMPLETE_COMMIT)
    assert sorted(key for key, *_ in on.leader.marked) == [T0, T1]


async def test_requests_wait_while_markers_are_written(on: Coordinating) -> None:
    producer = await on.init()
    await on.add(producer)
    on.cluster.lose_leader(T0)
    await on.end(producer, commits=True)
    coordinator = on.coordinator
    for code in (
        await coordinator.add_partitions(ID, producer, {T0}),
        await coordinator.end(ID, producer, commits=True),
        (await coordinator.init_producer_id(ID, TIMEOUT_MS, None)).error,
    ):
        assert code is ErrorCode.CONCURRENT_TRANSACTIONS
    assert await coordinator.end(ID, producer, commits=False) is ErrorCode.INVALID_TXN_STATE
    on.cluster.leaders[T0] = 2
    assert await on.add(producer) is ErrorCode.NONE


async def test_one_request_at_a_time_changes_an_id(on: Coordinating) -> None:
    producer = await on.init()
    on.replicas.held = asyncio.Event()
    first = asyncio.create_task(on.coordinator.add_partitions(ID, producer, {T0}))
    await until(lambda: on.coordinator._shards.loaded()[0].entries[ID].pending)
    second = await on.coordinator.add_partitions(ID, producer, {T1})
    assert second is ErrorCode.CONCURRENT_TRANSACTIONS
    on.replicas.held.set()
    assert await first is ErrorCode.NONE


async def test_a_client_that_goes_leaves_no_transition_pending(on: Coordinating) -> None:
    producer = await on.init()
    await on.add(producer)
    on.replicas.held = asyncio.Event()
    ending = asyncio.create_task(on.coordinator.end(ID, producer, commits=True))
    await until(lambda: on.coordinator._shards.loaded()[0].entries[ID].pending)
    ending.cancel()
    await asyncio.gather(ending, return_exceptions=True)
    on.replicas.held.set()
    await on.state_is(TransactionState.COMPLETE_COMMIT)


async def test_what_a_former_leadership_decided_is_not_written(on: Coordinating) -> None:
    producer = await on.init()
    shards = on.coordinator._shards
    adding = asyncio.create_task(on.coordinator.add_partitions(ID, producer, {T0}))
    await asyncio.sleep(0)  # it is decided
    shards.reload(shards.all()[0])
    assert await adding is ErrorCode.NOT_COORDINATOR
    await until(lambda: on.state() is not None)
    assert on.state() is TransactionState.EMPTY


async def test_clients_that_wait_are_answered_when_the_broker_stops(on: Coordinating) -> None:
    producer = await on.init()
    on.replicas.held = asyncio.Event()
    adding = asyncio.create_task(on.coordinator.add_partitions(ID, producer, {T0}))
    await until(lambda: on.coordinator._shards.loaded()[0].entries[ID].pending)
    await on.coordinator.close()
    async with asyncio.timeout(60):
        assert await adding is ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize(
    "trouble",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        999,
        ConnectionError,
        TimeoutError,
    ],
)
async def test_markers_are_sent_until_they_are_written(
    on: Coordinating, trouble: int | type[Exception]
) -> None:
    producer = await on.init()
    await on.add(producer)
    on.leader.codes = [trouble] * 2
    await on.end(producer, commits=True)
    await on.state_is(TransactionState.COMPLETE_COMMIT)
    assert on.leader.requests == 3
    assert on.leader.closed == (2 if isinstance(trouble, type) else 0)


async def test_a_broker_that_hangs_delays_the_markers_of_no_other(on: Coordinating) -> None:
    producer = await on.init()
    await on.add(producer)
    hanging = on.others[3] = Leader(held=asyncio.Event())
    on.cluster.leaders[T0] = 3
    on.leader.codes = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    await on.end(producer, commits=True)
    await until(lambda: on.leader.marked)
    await until(lambda: len(on.leader.marked) == 2)
    assert on.state() is TransactionState.PREPARE_COMMIT
    assert hanging.held is not None
    hanging.held.set()
    await on.state_is(TransactionState.COMPLETE_COMMIT)
    assert [key for key, *_ in on.leader.marked] == [T1, T1]
    assert [key for key, *_ in hanging.marked] == [T0]
    assert hanging.requests == 1


async def test_markers_follow_the_leadership_away_from_a_broker_that_hangs(
    on: Coordinating,
) -> None:
    producer = await on.init()
    await on.add(producer)
    hanging = on.others[3] = Leader(held=asyncio.Event())
    on.cluster.leaders = {T0: 3, T1: 3}
    await on.end(producer, commits=True)
    await until(lambda: hanging.requests)
    on.cluster.leaders[T0] = OTHER
    await until(lambda: on.leader.marked)
    assert on.state() is TransactionState.PREPARE_COMMIT
    on.cluster.leaders[T1] = OTHER
    await on.state_is(TransactionState.COMPLETE_COMMIT)
    assert [key for key, *_ in on.leader.marked] == [T0, T1]
    assert (hanging.requests, hanging.marked) == (1, [])


async def test_a_transaction_is_not_over_while_another_marker_of_it_is_under_way(
    on: Coordinating,
) -> None:
    """The new leader would take that for the end of the producer's next transaction."""
    producer = await on.init()
    await on.add(producer, [T0])
    former = on.others[3] = Leader(held=asyncio.Event())
    leader = on.others[4] = Leader(held=asyncio.Event())
    on.cluster.leaders[T0] = 3
    await on.end(producer, commits=True)
    await until(lambda: former.requests)
    on.cluster.leaders[T0] = 4
    await until(lambda: leader.requests)
    assert former.held is not None
    assert leader.held is not None
    former.held.set()
    await until(lambda: former.marked)
    for _ in range(100):
        await asyncio.sleep(0)
        assert on.state() is TransactionState.PREPARE_COMMIT
    leader.held.set()
    await on.state_is(TransactionState.COMPLETE_COMMIT)


async def test_markers_are_sent_after_an_exception_that_nobody_foresaw(
    on: Coordinating, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await on.init()
    await on.add(producer)

    def unforeseen(_: object) -> int:
        raise KeyError

    with monkeypatch.context() as patched:
        patched.setattr(on.cluster, "leader_of", unforeseen)
        await on.end(producer, commits=True)
        await until(lambda: on.quarantines.held()[Work.TRANSACTION.kind])
        assert on.state() is TransactionState.PREPARE_COMMIT
    await on.state_is(TransactionState.COMPLETE_COMMIT)
    assert not on.quarantines.held()[Work.TRANSACTION.kind]


async def test_partitions_of_a_deleted_topic_need_no_marker(on: Coordinating) -> None:
    producer = await on.init()
    await on.add(producer)
    on.cluster.leaders.clear()
    on.cluster.silent = 1
    await on.end(producer, commits=True)
    await until(lambda: not on.cluster.silent)
    assert on.state() is TransactionState.PREPARE_COMMIT  # the metadata may be old
    on.cluster.partitions = 0
    await on.state_is(TransactionState.COMPLETE_COMMIT)
    assert not on.leader.marked


async def test_partitions_that_a_new_topic_of_that_name_lacks_need_no_marker(
    on: Coordinating,
) -> None:
    producer = await on.init()
    await on.add(producer)
    del on.cluster.leaders[T1]
    on.cluster.partitions = 1
    await on.end(producer, commits=True)
    await on.state_is(TransactionState.COMPLETE_COMMIT)
    assert [key for key, *_ in on.leader.marked] == [T0]


async def test_a_former_coordinator_completes_nothing(
    on: Coordinating, caplog: pytest.LogCaptureFixture
) -> None:
    producer = await on.init()
    await on.add(producer)
    on.leader.codes = [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
    await on.end(producer, commits=True)
    await until(lambda: "another coordinator ends its transaction" in caplog.text)
    assert on.state() is TransactionState.PREPARE_COMMIT
    assert on.leader.requests == 1


async def test_a_made_up_epoch_in_one_partition_does_not_hold_up_the_id(
    on: Coordinating, caplog: pytest.LogCaptureFixture
) -> None:
    producer = await on.init()
    await on.add(producer)
    on.leader.codes = [ErrorCode.INVALID_PRODUCER_EPOCH]
    await on.end(producer, commits=True)
    await on.state_is(TransactionState.COMPLETE_COMMIT)
    assert "t-0 has no marker, but a newer epoch of 100" in caplog.text


async def test_a_complete_record_that_is_refused_is_written_again(on: Coordinating) -> None:
    producer = await on.init()
    await on.add(producer)
    on.cluster.lose_leader(T0)
    await on.end(producer, commits=True)
    on.replicas.refused = [ErrorCode.NOT_ENOUGH_REPLICAS]
    on.cluster.leaders[T0] = 2
    await on.state_is(TransactionState.COMPLETE_COMMIT)
    assert not on.replicas.refused


async def test_a_complete_record_that_may_be_lost_has_the_markers_sent_again_at_most(
    on: Coordinating,
) -> None:
    producer = await on.init()
    await on.add(producer)
    on.cluster.lose_leader(T0)
    await on.end(producer, commits=False)
    on.replicas.lost = [ErrorCode.REQUEST_TIMED_OUT]
    on.cluster.leaders[T0] = 2
    await until(lambda: not on.replicas.lost)
    await on.state_is(TransactionState.COMPLETE_ABORT)


async def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced(
    on: Coordinating,
) -> None:
    producer = await on.init()
    await on.add(producer)
    async with on.running():
        on.now_ms += TIMEOUT_MS + 1
        assert on.state() is TransactionState.ONGOING
        on.clock_ms += on.real.config.transaction_abort_timed_out_interval_ms
        await on.state_is(TransactionState.COMPLETE_ABORT)
    assert {epoch for _, epoch, _, _ in on.leader.marked} == {1}
    assert series(on, "odradek_transactions_timed_out_total") == 1
    assert series(on, "odradek_transactional_ids", state="CompleteAbort") == 1
    assert await on.end(producer, commits=True) is ErrorCode.PRODUCER_FENCED
    answer = await on.coordinator.init_producer_id(ID, TIMEOUT_MS, producer)
    assert answer.error is ErrorCode.PRODUCER_FENCED
    assert await on.init() == ProducerIdAndEpoch(100, 2)


async def test_ids_that_nobody_uses_are_forgotten(on: Coordinating) -> None:
    await on.init()
    async with on.running():
        on.now_ms += on.real.config.transactional_id_expiration_ms
        on.clock_ms += on.real.config.transaction_remove_expired_interval_ms
        await until(lambda: on.state() is None)
    await on.restart()
    assert await on.init() == ProducerIdAndEpoch(100, 0)  # the restarted one counts from 100 again


async def test_timed_out_transactions_do_not_wait_for_tombstones_of_ids(on: Coordinating) -> None:
    other = replace(EMPTY, transactional_id="expired", updated_ms=on.now_ms)
    await on.write(other)
    on.coordinator.notice_roles()
    await until(lambda: on.state("expired") is not None)
    on.now_ms += on.real.config.transactional_id_expiration_ms
    await on.add(await on.init())
    on.replicas.held = asyncio.Event()
    async with on.running():
        on.clock_ms += on.real.config.transaction_remove_expired_interval_ms
        entries = on.coordinator._shards.loaded()[0].entries
        await until(lambda: entries["expired"].pending)
        on.now_ms += TIMEOUT_MS + 1
        on.clock_ms += on.real.config.transaction_abort_timed_out_interval_ms
        await until(lambda: on.coordinator.timed_out)
        on.replicas.held.set()
        await on.state_is(TransactionState.COMPLETE_ABORT)
        await until(lambda: on.state("expired") is None)


async def test_nothing_is_done_after_the_leadership_is_lost(on: Coordinating) -> None:
    producer = await on.init()
    await on.add(producer)
    on.replicas.held = asyncio.Event()
    ending = asyncio.create_task(on.coordinator.end(ID, producer, commits=True))
    await until(lambda: on.coordinator._shards.loaded()[0].entries[ID].pending)
    await on.real.take(leader=2, topic=STATE.topic, epoch=EPOCH + 1, isr=[1, 2], replicas=[1, 2])
    on.coordinator._shards.all()
    on.replicas.held.set()
    assert await ending is ErrorCode.NOT_COORDINATOR
    assert not on.leader.marked
