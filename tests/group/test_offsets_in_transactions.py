"""Offsets that a group commits in a transaction count once it is committed, in the log's order."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from odradek import slices
from odradek.group.shard import Shard
from odradek.log.records import batch
from odradek.protocol.errors import ErrorCode
from odradek.values import TopicPartition
from tests.support.offsets_in_transactions import KEY, Coordinating, codes
from tests.support.replicas import Replicas

PRODUCER, OTHER = 7, 8
DAY_MS = 24 * 3600 * 1000


async def begun(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Begin work, and return when it waits for the outcome of its append."""
    task = asyncio.create_task(work)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not task.done()
    return task


# --- one transaction ------------------------------------------------------------------------------


@pytest.mark.parametrize(("commit", "offset"), [(True, 2), (False, 1)])
async def test_offset_counts_only_once_its_transaction_is_committed(
    coordinating: Coordinating, commit: bool, offset: int
) -> None:
    assert await coordinating.commit_in_transaction(PRODUCER, {0: 2}) == codes(0)
    assert (await coordinating.committed(), coordinating.unstable()) == ({0: 1}, {0})
    await coordinating.end(PRODUCER, commit=commit)
    assert (await coordinating.committed(), coordinating.unstable()) == ({0: offset}, set())
    assert coordinating.state() == await coordinating.state_in_log()


async def test_commits_of_a_transaction_are_one_transactional_batch(
    coordinating: Coordinating, replicas: Replicas
) -> None:
    log = replicas.manager.partitions[KEY].log
    position = log.log_end_offset
    await coordinating.commit_in_transaction(PRODUCER, {0: 2, 1: 3}, epoch=4)
    piece = log.reader.read(position, 1 << 20)
    assert piece.region is not None
    with piece.region as region:
        [(_, header)] = batch.scan(region.read())
    assert (header.is_transactional, header.is_control) == (True, False)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (PRODUCER, 4, -1)
    assert header.record_count == 2
    assert log.producers.transactions.open_producers == (PRODUCER,)


async def test_later_commit_of_a_transaction_replaces_an_earlier_one(
    coordinating: Coordinating,
) -> None:
    await coordinating.commit_in_transaction(PRODUCER, {0: 2, 1: 5})
    await coordinating.commit_in_transaction(PRODUCER, {0: 3})
    await coordinating.end(PRODUCER, commit=True)
    assert await coordinating.committed() == {0: 3, 1: 5}


async def test_plain_commit_behind_one_in_a_transaction_counts(coordinating: Coordinating) -> None:
    await coordinating.commit_in_transaction(PRODUCER, {0: 2})
    await coordinating.commit({0: 9})
    assert coordinating.unstable() == set()
    await coordinating.end(PRODUCER, commit=True)
    assert await coordinating.committed() == {0: 9}


@pytest.mark.parametrize("first", [PRODUCER, OTHER])
async def test_of_two_transactions_the_later_offset_counts_whichever_ends_first(
    coordinating: Coordinating, first: int
) -> None:
    await coordinating.commit_in_transaction(PRODUCER, {0: 2})
    await coordinating.commit_in_transaction(OTHER, {0: 3})
    await coordinating.end(first, commit=True)
    await coordinating.end(PRODUCER + OTHER - first, commit=True)
    assert await coordinating.committed() == {0: 3}
    assert coordinating.state() == await coordinating.state_in_log()


async def test_offset_of_the_transaction_that_is_aborted_leaves_the_other(
    coordinating: Coordinating,
) -> None:
    await coordinating.commit_in_transaction(PRODUCER, {0: 2})
    await coordinating.commit_in_transaction(OTHER, {0: 3})
    await coordinating.end(OTHER, commit=False)
    assert coordinating.unstable() == {0}
    await coordinating.end(PRODUCER, commit=True)
    assert await coordinating.committed() == {0: 2}


async def test_marker_for_a_partition_that_another_broker_leads_is_ignored(
    coordinating: Coordinating,
) -> None:
    await coordinating.coordinator.commits.complete_transaction(3, PRODUCER, 5, commits=True)
    assert await coordinating.committed() == {0: 1}


# --- new coordinators -----------------------------------------------------------------------------


@pytest.mark.parametrize(("commit", "offset"), [(True, 2), (False, 1)])
@pytest.mark.parametrize("change", ["before the marker", "before it is told", "afterwards"])
async def test_new_coordinator_goes_on_where_the_last_one_was(
    coordinating: Coordinating, commit: bool, offset: int, change: str
) -> None:
    await coordinating.commit_in_transaction(PRODUCER, {0: 2})
    if change == "before the marker":
        await coordinating.change_leader()
        assert (await coordinating.committed(), coordinating.unstable()) == ({0: 1}, {0})
    position = await coordinating.append_marker(PRODUCER, commit=commit)
    if change == "before it is told":
        await coordinating.change_leader()
    await coordinating.tell(PRODUCER, position, commit=commit)
    if change == "afterwards":
        await coordinating.change_leader()
    assert (await coordinating.committed(), coordinating.unstable()) == ({0: offset}, set())


async def test_marker_that_comes_while_groups_are_loaded_counts(
    coordinating: Coordinating, replicas: Replicas
) -> None:
    await coordinating.commit_in_transaction(PRODUCER, {0: 2})
    log = replicas.manager.partitions[KEY].log
    end = log.log_end_offset
    position = await coordinating.append_marker(PRODUCER, commit=True)
    # A load that began before the marker was written.
    shard = Shard(replicas.manager.partitions[KEY])

    class Shorter:
        log_start_offset, log_end_offset, reader = 0, end, log.reader

    load = asyncio.create_task(
        shard.load(Shorter(), 70, coordinating.coordinator._new_group, lambda: 0)  # type: ignore[arg-type]
    )
    await asyncio.sleep(0)
    await shard.end_transaction(PRODUCER, position, commits=True)
    assert not shard.loaded
    await load
    assert shard.offsets["g"][TopicPartition("t", 0)].offset == 2
    assert not shard.is_unstable("g", TopicPartition("t", 0))


async def test_group_that_has_only_pending_offsets_is_there_after_a_change_of_leaders(
    coordinating: Coordinating,
) -> None:
    await coordinating.commit_in_transaction(PRODUCER, {0: 2}, group="h")
    await coordinating.change_leader()
    assert coordinating.listed() == {"g", "h"}
    await coordinating.end(PRODUCER, commit=True)
    assert await coordinating.committed("h") == {0: 2}


async def test_append_of_a_lost_leadership_leaves_nothing_in_the_next_one(
    coordinating: Coordinating,
) -> None:
    coordinating.appends.held = True
    late = await begun(coordinating.commit_in_transaction(PRODUCER, {0: 2}))
    await coordinating.change_leader()
    await coordinating.end(PRODUCER, commit=True)
    coordinating.appends.waiting.pop().set_result(None)
    assert await late == codes(0)
    assert (await coordinating.committed(), coordinating.unstable()) == ({0: 2}, set())


# --- orders ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("commit", "offset"), [(True, 2), (False, 1)])
async def test_marker_that_is_told_before_the_append_it_ends(
    coordinating: Coordinating, commit: bool, offset: int
) -> None:
    coordinating.appends.held = True
    late = await begun(coordinating.commit_in_transaction(PRODUCER, {0: 2}))
    await coordinating.end(PRODUCER, commit=commit)
    assert coordinating.unstable() == {0}
    coordinating.appends.waiting.pop().set_result(None)
    await late
    assert (await coordinating.committed(), coordinating.unstable()) == ({0: offset}, set())
    assert coordinating.state() == await coordinating.state_in_log()


async def test_marker_ends_nothing_that_is_behind_it_in_the_log(coordinating: Coordinating) -> None:
    position = await coordinating.append_marker(PRODUCER, commit=True)
    await coordinating.commit_in_transaction(PRODUCER, {0: 2})
    await coordinating.tell(PRODUCER, position, commit=True)
    assert (await coordinating.committed(), coordinating.unstable()) == ({0: 1}, {0})
    assert coordinating.state() == await coordinating.state_in_log()


async def test_append_behind_a_marker_waits_for_the_next_one(coordinating: Coordinating) -> None:
    coordinating.appends.held = True
    position = await coordinating.append_marker(PRODUCER, commit=True)
    late = await begun(coordinating.commit_in_transaction(PRODUCER, {0: 2}))
    await coordinating.tell(PRODUCER, position, commit=True)
    coordinating.appends.waiting.pop().set_result(None)
    await late
    assert coordinating.unstable() == {0}
    await coordinating.end(PRODUCER, commit=False)
    assert await coordinating.committed() == {0: 1}


async def test_first_marker_behind_an_append_ends_it(coordinating: Coordinating) -> None:
    coordinating.appends.held = True
    late = await begun(coordinating.commit_in_transaction(PRODUCER, {0: 2}))
    for commit in (False, True):
        await coordinating.end(PRODUCER, commit=commit)
    coordinating.appends.waiting.pop().set_result(None)
    await late
    assert (await coordinating.committed(), coordinating.unstable()) == ({0: 1}, set())
    assert coordinating.state() == await coordinating.state_in_log()


@pytest.mark.parametrize("plain_first", [True, False], ids=["plain first", "plain last"])
@pytest.mark.parametrize("settled_first", [0, 1])
@pytest.mark.parametrize("told", ["between", "afterwards"])
async def test_commits_in_and_outside_of_a_transaction_count_in_the_order_of_the_log(
    coordinating: Coordinating, plain_first: bool, settled_first: int, told: str
) -> None:
    coordinating.appends.held = True
    writes = [coordinating.commit({0: 5}), coordinating.commit_in_transaction(PRODUCER, {0: 6})]
    if not plain_first:
        writes.reverse()
    tasks = [await begun(write) for write in writes]
    position = await coordinating.append_marker(PRODUCER, commit=True)
    for number, settled in enumerate((settled_first, 1 - settled_first)):
        if number == 1 and told == "between":
            await coordinating.tell(PRODUCER, position, commit=True)
        coordinating.appends.waiting[settled].set_result(None)
        await tasks[settled]
    if told == "afterwards":
        await coordinating.tell(PRODUCER, position, commit=True)
    assert await coordinating.committed() == {0: 6 if plain_first else 5}
    assert coordinating.state() == await coordinating.state_in_log()


async def test_many_offsets_of_a_transaction_are_taken_while_others_run(
    coordinating: Coordinating,
) -> None:
    many = dict.fromkeys(range(2 * slices.KEYS_AT_ONCE), 9)
    assert await coordinating.commit_in_transaction(PRODUCER, many) == codes(*many)
    ending = asyncio.create_task(coordinating.end(PRODUCER, commit=True))
    turns = 0
    while not ending.done():
        committed, unstable = await coordinating.committed(), coordinating.unstable()
        assert all(committed[one] == 9 for one in many if one not in unstable)
        await asyncio.sleep(0)
        turns += 1
    assert turns > len(many) / slices.KEYS_AT_ONCE
    assert (await coordinating.committed(), coordinating.unstable()) == (many, set())


async def test_plain_commit_while_many_offsets_of_a_transaction_are_taken_counts(
    coordinating: Coordinating,
) -> None:
    many = dict.fromkeys(range(2 * slices.KEYS_AT_ONCE), 9)
    await coordinating.commit_in_transaction(PRODUCER, many)
    last = max(many)
    ending = asyncio.create_task(coordinating.end(PRODUCER, commit=True))
    while last - 1 in coordinating.unstable() and 0 in coordinating.unstable():
        await asyncio.sleep(0)
    await coordinating.commit({last: 10})
    assert not ending.done()
    await ending
    assert await coordinating.committed() == many | {last: 10}


@pytest.mark.parametrize("stage", ["append", "marker"])
async def test_many_offsets_are_taken_even_if_the_sender_goes(
    coordinating: Coordinating, stage: str
) -> None:
    many = dict.fromkeys(range(2 * slices.KEYS_AT_ONCE), 9)
    coordinating.appends.held = True
    task: asyncio.Task[Any] = asyncio.create_task(
        coordinating.commit_in_transaction(PRODUCER, many)
    )
    while not coordinating.appends.waiting:
        await asyncio.sleep(0)
    coordinating.appends.waiting.pop().set_result(None)
    if stage == "append":
        for _ in range(3):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await coordinating.end(PRODUCER, commit=True)
    else:
        await task
        position = await coordinating.append_marker(PRODUCER, commit=True)
        task = asyncio.create_task(coordinating.tell(PRODUCER, position, commit=True))
        for _ in range(3):
            await asyncio.sleep(0)
        assert task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert (await coordinating.committed(), coordinating.unstable()) == (many, set())


async def test_append_that_replicas_did_not_acknowledge_in_time_may_count_later(
    coordinating: Coordinating,
) -> None:
    coordinating.appends.failure = ErrorCode.REQUEST_TIMED_OUT
    answer = await coordinating.commit_in_transaction(PRODUCER, {0: 2})
    assert answer == codes(0, code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert coordinating.unstable() == {0}
    await coordinating.end(PRODUCER, commit=True)
    assert await coordinating.committed() == {0: 2}
    assert coordinating.state() == await coordinating.state_in_log()


# --- deletion and expiry --------------------------------------------------------------------------


@pytest.mark.parametrize("deletion", ["group", "offsets", "topic"])
async def test_deletion_takes_pending_offsets_too(
    coordinating: Coordinating, deletion: str
) -> None:
    await coordinating.commit_in_transaction(PRODUCER, {0: 2, 1: 3})
    partitions = [*codes(0, 1)]
    deletes = coordinating.coordinator.deletion
    if deletion == "group":
        assert await deletes.delete_group("g") is ErrorCode.NONE
    elif deletion == "offsets":
        assert await deletes.delete_offsets("g", partitions) == (ErrorCode.NONE, codes(0, 1))
    else:
        await deletes.forget_partitions(set(partitions))
    assert (await coordinating.committed(), coordinating.unstable()) == ({}, set())
    assert coordinating.listed() == set()
    await coordinating.end(PRODUCER, commit=True)
    assert await coordinating.committed() == {}
    assert coordinating.state() == await coordinating.state_in_log() == ({}, {})


async def test_group_stays_when_its_last_offset_is_deleted_while_others_are_pending(
    coordinating: Coordinating,
) -> None:
    await coordinating.commit_in_transaction(PRODUCER, {1: 3})
    await coordinating.coordinator.deletion.delete_offsets("g", [TopicPartition("t", 0)])
    assert (coordinating.listed(), await coordinating.committed()) == ({"g"}, {})
    await coordinating.end(PRODUCER, commit=True)
    assert await coordinating.committed() == {1: 3}


@pytest.mark.parametrize("deletion", ["group", "offsets", "topic"])
async def test_deletion_takes_offsets_whose_append_began_before_it(
    coordinating: Coordinating, deletion: str
) -> None:
    coordinating.appends.held = True
    late = await begun(coordinating.commit_in_transaction(PRODUCER, {1: 3}))
    deletes = coordinating.coordinator.deletion
    partitions = [*codes(0, 1)]
    deleting = await begun(
        deletes.delete_group("g")
        if deletion == "group"
        else deletes.delete_offsets("g", partitions)
        if deletion == "offsets"
        else deletes.forget_partitions(set(partitions))
    )
    for settled in (1, 0):
        coordinating.appends.waiting[settled].set_result(None)
        await (late, deleting)[settled]
    await coordinating.end(PRODUCER, commit=True)
    assert coordinating.state() == await coordinating.state_in_log() == ({}, {})


async def test_commit_after_a_topic_deletion_belongs_to_the_new_topic(
    coordinating: Coordinating,
) -> None:
    deletes = coordinating.coordinator.deletion
    coordinating.appends.held = True
    forgetting = await begun(deletes.forget_partitions({TopicPartition("t", 0)}))
    coordinating.appends.held = False
    await coordinating.commit_in_transaction(PRODUCER, {0: 0})
    coordinating.appends.waiting.pop().set_result(None)
    await forgetting
    await coordinating.end(PRODUCER, commit=True)
    assert await coordinating.committed() == {0: 0}


async def test_pending_offset_keeps_its_group_and_the_offset_before_it_from_expiry(
    coordinating: Coordinating,
) -> None:
    await coordinating.commit({1: 1})
    await coordinating.commit_in_transaction(PRODUCER, {0: 2})
    await coordinating.commit_in_transaction(OTHER, {0: 2}, group="h")
    coordinating.clock.now_ms += 8 * DAY_MS
    await coordinating.coordinator.expiry.expire()
    assert coordinating.listed() == {"g", "h"}
    assert await coordinating.committed() == {0: 1}
    for producer in (PRODUCER, OTHER):
        await coordinating.end(producer, commit=False)
    await coordinating.coordinator.expiry.expire()
    assert coordinating.listed() == set()
    assert coordinating.state() == await coordinating.state_in_log() == ({}, {})


@pytest.mark.parametrize("in_transaction", [True, False])
async def test_offset_does_not_expire_while_a_commit_of_it_is_in_flight(
    coordinating: Coordinating, in_transaction: bool
) -> None:
    coordinating.clock.now_ms += 8 * DAY_MS
    coordinating.appends.held = True
    late = await begun(
        coordinating.commit_in_transaction(PRODUCER, {0: 2})
        if in_transaction
        else coordinating.commit({0: 2})
    )
    await coordinating.coordinator.expiry.expire()
    coordinating.appends.waiting.pop().set_result(None)
    await late
    await coordinating.end(PRODUCER, commit=True)
    assert await coordinating.committed() == {0: 2}
