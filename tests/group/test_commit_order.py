"""The coordinator's memory equals the log, in whatever order writes complete."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from odradek import config_loading, slices
from odradek.group import offset_deletion
from odradek.group.coordinator import GroupCoordinator
from odradek.group.members import JoinSpec
from odradek.group.offsets import CommittedOffset
from odradek.group.shard import Shard
from odradek.group.states import GroupState
from odradek.log.records.batch import Origin
from odradek.protocol.errors import ErrorCode
from odradek.replica.appends import AppendOutcome
from odradek.values import OFFSETS_TOPIC, TopicPartition
from tests.support.one_partition import OnePartition

PARTITION = TopicPartition("t", 0)
KEY = TopicPartition(OFFSETS_TOPIC, 0)
NOBODY = ("", None, -1)


@dataclass
class SlowReplicas:
    """Leads an empty `__consumer_offsets-0`; the test completes each append."""

    appends: list[asyncio.Future[ErrorCode]] = field(default_factory=list)
    partition: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(
            key=KEY,
            offline=False,
            is_leader=True,
            leader_epoch=0,
            leadership_generation=0,
            log=SimpleNamespace(log_start_offset=0, log_end_offset=0),
        )
    )

    @property
    def partitions(self) -> dict[TopicPartition, object]:
        return {KEY: self.partition}

    async def append(
        self,
        entries: Sequence[tuple[TopicPartition, bytes]],
        acks: int,
        timeout_ms: int,
        origin: Origin,
    ) -> list[AppendOutcome]:
        position = len(self.appends)
        self.appends.append(asyncio.get_running_loop().create_future())
        return [AppendOutcome(KEY, await self.appends[position], base_offset=position)]


@dataclass
class Clock:
    """A wall clock that the test moves."""

    now_ms: int = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


def new_coordinator(
    replicas: SlowReplicas,
    clock: Clock | None = None,
    certain: list[bool] | None = None,
    settings: Mapping[str, str] | None = None,
) -> GroupCoordinator:
    """Return a coordinator whose one shard is about to be loaded."""
    values = {
        "broker.id": "1",
        "zookeeper.connect": "unused",
        "offsets.retention.minutes": "1",
        "group.initial.rebalance.delay.ms": "0",
        **(settings or {}),
    }
    config, _ = config_loading.from_values(values)
    coordinator = GroupCoordinator(
        config,
        replicas,  # type: ignore[arg-type]
        OnePartition(),  # type: ignore[arg-type]
        lambda _: certain is None or certain[0],
        now_ms=clock or Clock(),
    )
    coordinator.refresh()
    return coordinator


async def run_ready_callbacks() -> None:
    """Run all tasks to their next wait. A fixed time would be over at once after a pause."""
    for _ in range(20):
        await asyncio.sleep(0)


def committing(
    coordinator: GroupCoordinator, offset: int, at_ms: int = 0, group: str = "g"
) -> asyncio.Task[dict[TopicPartition, ErrorCode]]:
    commit = {PARTITION: CommittedOffset(offset, "", at_ms)}
    return asyncio.create_task(coordinator.commits.commit(group, NOBODY, commit))


async def loaded(
    replicas: SlowReplicas, clock: Clock | None = None, settings: Mapping[str, str] | None = None
) -> GroupCoordinator:
    """Return a coordinator whose one shard is loaded, and where group g committed offset 7."""
    coordinator = new_coordinator(replicas, clock, settings=settings)
    await run_ready_callbacks()
    commit = committing(coordinator, 7, at_ms=(clock or Clock())())
    await run_ready_callbacks()
    replicas.appends[-1].set_result(ErrorCode.NONE)
    assert await commit == {PARTITION: ErrorCode.NONE}
    return coordinator


async def offset_of_g(coordinator: GroupCoordinator) -> int | None:
    error, found = await coordinator.commits.committed("g")
    assert error is ErrorCode.NONE
    return found[PARTITION].offset if PARTITION in found else None


async def test_commit_that_completes_late_does_not_undo_a_later_one() -> None:
    replicas = SlowReplicas()
    coordinator = new_coordinator(replicas)
    await run_ready_callbacks()
    commits = [committing(coordinator, offset) for offset in (5, 9)]
    await run_ready_callbacks()
    for settled in (1, 0):
        replicas.appends[settled].set_result(ErrorCode.NONE)
        assert await commits[settled] == {PARTITION: ErrorCode.NONE}
    assert await offset_of_g(coordinator) == 9
    coordinator.close()


@pytest.mark.parametrize("first_settled", [0, 1])
@pytest.mark.parametrize("deletion", ["offset", "group"])
@pytest.mark.parametrize("deleted_last", [True, False])
async def test_deletion_and_commit_count_in_the_order_of_the_log(
    deletion: str, deleted_last: bool, first_settled: int
) -> None:
    replicas = SlowReplicas()
    coordinator = await loaded(replicas)

    def delete() -> asyncio.Task[object]:
        if deletion == "group":
            return asyncio.create_task(coordinator.deletion.delete_group("g"))
        return asyncio.create_task(coordinator.deletion.delete_offsets("g", [PARTITION]))

    if deleted_last:
        tasks = [committing(coordinator, 9), delete()]
    else:
        tasks = [delete(), committing(coordinator, 9)]
    await run_ready_callbacks()
    for settled in (first_settled, 1 - first_settled):
        replicas.appends[1 + settled].set_result(ErrorCode.NONE)
        await tasks[settled]
    assert await offset_of_g(coordinator) == (None if deleted_last else 9)
    known = [group.group_id for group in coordinator.groups()[1]]
    assert known == ([] if deleted_last and first_settled == 0 else ["g"])
    coordinator.close()


async def test_new_epoch_of_the_same_leader_keeps_its_groups() -> None:
    replicas = SlowReplicas()
    coordinator = await loaded(replicas)
    replicas.partition.leader_epoch += 1
    assert await offset_of_g(coordinator) == 7
    coordinator.close()


async def test_groups_are_loaded_again_after_a_lost_leadership() -> None:
    replicas = SlowReplicas()
    coordinator = await loaded(replicas)
    replicas.partition.leadership_generation += 1
    error, _ = await coordinator.commits.committed("g")
    assert error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await run_ready_callbacks()
    assert await coordinator.commits.committed("g") == (ErrorCode.NONE, {})
    coordinator.close()


async def test_commit_of_a_lost_leadership_does_not_count_in_the_next_one() -> None:
    replicas = SlowReplicas()
    coordinator = await loaded(replicas)
    late = committing(coordinator, 9)
    await run_ready_callbacks()
    replicas.partition.leadership_generation += 1
    coordinator.refresh()
    await run_ready_callbacks()
    replicas.appends[-1].set_result(ErrorCode.NONE)
    assert await late == {PARTITION: ErrorCode.NONE}
    assert await offset_of_g(coordinator) is None
    coordinator.close()


@pytest.mark.parametrize(
    ("outcome", "answer"),
    [
        (ErrorCode.NONE, ErrorCode.NONE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
    ],
)
async def test_unconfirmed_leader_returns_offsets_only_if_replicas_still_follow(
    outcome: ErrorCode, answer: ErrorCode
) -> None:
    replicas = SlowReplicas()
    certain = [True]
    coordinator = new_coordinator(replicas, certain=certain)
    await run_ready_callbacks()
    commit = committing(coordinator, 7)
    await run_ready_callbacks()
    replicas.appends[-1].set_result(ErrorCode.NONE)
    await commit
    certain[0] = False
    asked = asyncio.create_task(coordinator.commits.committed("g"))
    await run_ready_callbacks()
    assert not asked.done()
    replicas.appends[-1].set_result(outcome)
    error, found = await asked
    assert error is answer
    assert (PARTITION in found) is (answer is ErrorCode.NONE)
    coordinator.close()


async def expire(coordinator: GroupCoordinator, replicas: SlowReplicas) -> None:
    work = asyncio.create_task(coordinator.expiry.expire())
    await run_ready_callbacks()
    while not work.done():
        replicas.appends[-1].set_result(ErrorCode.NONE)
        await run_ready_callbacks()
        await run_ready_callbacks()


async def test_offsets_of_a_consumer_without_a_group_expire_after_the_commit() -> None:
    replicas, clock = SlowReplicas(), Clock()
    coordinator = await loaded(replicas, clock)
    clock.now_ms += 59_000
    commit = committing(coordinator, 8, at_ms=clock())
    await run_ready_callbacks()
    replicas.appends[-1].set_result(ErrorCode.NONE)
    await commit
    clock.now_ms += 59_000
    await expire(coordinator, replicas)
    assert await offset_of_g(coordinator) == 8
    clock.now_ms += 1000
    await expire(coordinator, replicas)
    assert await offset_of_g(coordinator) is None
    assert coordinator.groups() == (ErrorCode.NONE, [])
    coordinator.close()


async def test_commit_that_comes_as_an_offset_expires_stays() -> None:
    replicas, clock = SlowReplicas(), Clock()
    coordinator = await loaded(replicas, clock)
    clock.now_ms += 60_000
    commit = committing(coordinator, 8, at_ms=clock())
    expiring = asyncio.create_task(coordinator.expiry.expire())
    while not (commit.done() and expiring.done()):
        for append in replicas.appends:
            if not append.done():
                append.set_result(ErrorCode.NONE)
        await asyncio.sleep(0)
    assert await commit == {PARTITION: ErrorCode.NONE}
    assert await offset_of_g(coordinator) == 8
    coordinator.close()


def subscription(*topics: str) -> bytes:
    """Return the metadata of a consumer's JoinGroup."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


@pytest.mark.parametrize(
    ("protocol", "reads", "kept"),
    [
        ("consumer", ["t"], True),
        ("consumer", ["another"], False),
        ("consumer", [], False),
        ("connect", ["another"], True),
    ],
)
async def test_offsets_of_an_active_group_stay_while_it_may_read_the_topic(
    protocol: str, reads: list[str], kept: bool
) -> None:
    replicas, clock = SlowReplicas(), Clock()
    coordinator = await loaded(replicas, clock)
    protocols = (("range", subscription(*reads)),)
    spec = JoinSpec("", None, "c", "/h", 10_000, 10_000, protocol, protocols, False)
    joined = await coordinator.join("g", spec)
    syncing = asyncio.create_task(
        coordinator.sync("g", joined.member_id, None, joined.generation, (None, None), {})
    )
    await run_ready_callbacks()
    await run_ready_callbacks()
    replicas.appends[-1].set_result(ErrorCode.NONE)
    assert (await syncing).error is ErrorCode.NONE
    clock.now_ms += 60_000
    await expire(coordinator, replicas)
    assert await offset_of_g(coordinator) == (7 if kept else None)
    assert [group.group_id for group in coordinator.groups()[1]] == ["g"]
    coordinator.close()


@pytest.mark.parametrize("size", [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE])
async def test_a_group_too_large_to_be_stored_is_not_told_to_be_a_commit(size: ErrorCode) -> None:
    replicas = SlowReplicas()
    coordinator = await loaded(replicas)
    spec = JoinSpec("", None, "c", "/h", 10_000, 10_000, "consumer", (("range", b""),), False)
    joined = await coordinator.join("g", spec)
    syncing = asyncio.create_task(
        coordinator.sync("g", joined.member_id, None, joined.generation, (None, None), {})
    )
    await run_ready_callbacks()
    replicas.appends[-1].set_result(size)
    assert (await syncing).error is ErrorCode.UNKNOWN_SERVER_ERROR
    coordinator.close()


@pytest.mark.parametrize(
    ("delay_ms", "metadata", "kept"),
    [
        ("0", subscription("another"), False),
        ("600000", subscription("another"), True),
        ("0", b"not of the consumer protocol", True),
    ],
    ids=["known", "first generation not begun", "unknown layout"],
)
async def test_offsets_are_not_deleted_while_nobody_can_tell_what_the_group_reads(
    delay_ms: str, metadata: bytes, kept: bool
) -> None:
    replicas = SlowReplicas()
    settings = {"group.initial.rebalance.delay.ms": delay_ms}
    coordinator = await loaded(replicas, settings=settings)
    protocols = (("range", metadata),)
    spec = JoinSpec("", None, "c", "/h", 10_000, 10_000, "consumer", protocols, False)
    joining = asyncio.create_task(coordinator.join("g", spec))
    await run_ready_callbacks()
    before = len(replicas.appends)
    deleting = asyncio.create_task(coordinator.deletion.delete_offsets("g", [PARTITION]))
    await run_ready_callbacks()
    for tombstones in replicas.appends[before:]:
        tombstones.set_result(ErrorCode.NONE)
    code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if kept else ErrorCode.NONE
    assert await deleting == (ErrorCode.NONE, {PARTITION: code})
    assert await offset_of_g(coordinator) == (7 if kept else None)
    coordinator.close()
    await joining


async def test_offsets_of_a_group_that_was_empty_are_deleted_while_it_is_joined_again() -> None:
    """Nobody of its last generation reads the topic, which is what Kafka asks."""
    replicas = SlowReplicas()
    settings = {"group.initial.rebalance.delay.ms": "600000"}
    coordinator = await loaded(replicas, settings=settings)
    _, group = coordinator.find("g")
    assert group is not None
    group.protocol_type = "consumer"
    group.restore([], 3, None)
    protocols = (("range", subscription("t")),)
    spec = JoinSpec("", None, "c", "/h", 10_000, 10_000, "consumer", protocols, False)
    joining = asyncio.create_task(coordinator.join("g", spec))
    await run_ready_callbacks()
    assert group.state is GroupState.PREPARING_REBALANCE
    before = len(replicas.appends)
    deleting = asyncio.create_task(coordinator.deletion.delete_offsets("g", [PARTITION]))
    await run_ready_callbacks()
    for tombstones in replicas.appends[before:]:
        tombstones.set_result(ErrorCode.NONE)
    assert await deleting == (ErrorCode.NONE, {PARTITION: ErrorCode.NONE})
    assert await offset_of_g(coordinator) is None
    coordinator.close()
    await joining


@pytest.mark.parametrize("deleted", [{PARTITION}, {TopicPartition("other", 0)}])
async def test_offsets_of_a_deleted_topic_are_deleted(
    deleted: set[TopicPartition],
) -> None:
    replicas = SlowReplicas()
    coordinator = await loaded(replicas)
    before = len(replicas.appends)
    coordinator.forget_partitions(deleted)
    await run_ready_callbacks()
    for tombstones in replicas.appends[before:]:
        tombstones.set_result(ErrorCode.NONE)
    await run_ready_callbacks()
    assert await offset_of_g(coordinator) == (None if PARTITION in deleted else 7)
    listed = {group.group_id for group in coordinator.groups()[1]}
    assert listed == (set() if PARTITION in deleted else {"g"})
    coordinator.close()


async def test_commits_after_a_topic_deletion_belong_to_the_new_topic() -> None:
    replicas = SlowReplicas()
    coordinator = await loaded(replicas)
    other = committing(coordinator, 3, group="h")
    await run_ready_callbacks()
    replicas.appends[-1].set_result(ErrorCode.NONE)
    await other
    before = len(replicas.appends)
    coordinator.forget_partitions({PARTITION})
    await run_ready_callbacks()
    commits = [committing(coordinator, 1, group=group) for group in "gh"]
    await run_ready_callbacks()
    while settled := [one for one in replicas.appends[before:] if not one.done()]:
        for one in settled:
            one.set_result(ErrorCode.NONE)
        await run_ready_callbacks()
    assert await asyncio.gather(*commits) == [{PARTITION: ErrorCode.NONE}] * 2
    for group in "gh":
        _, found = await coordinator.commits.committed(group)
        assert found[PARTITION].offset == 1
    coordinator.close()


async def test_a_deletion_that_ends_first_leaves_another_what_it_has_to_spare(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offset_deletion, "GROUPS_AT_ONCE", 1)
    replicas = SlowReplicas()
    coordinator = await loaded(replicas)
    former = committing(coordinator, 3, group="h")
    await run_ready_callbacks()
    replicas.appends[-1].set_result(ErrorCode.NONE)
    await former
    coordinator.forget_partitions({PARTITION})
    await run_ready_callbacks()
    assert not replicas.appends[-1].done(), "it deletes the offset of g"
    coordinator.forget_partitions({TopicPartition("nobody reads it", 0)})
    await run_ready_callbacks()
    commit = committing(coordinator, 1, group="h")
    await run_ready_callbacks()
    while settled := [one for one in replicas.appends if not one.done()]:
        for one in settled:
            one.set_result(ErrorCode.NONE)
        await run_ready_callbacks()
    assert await commit == {PARTITION: ErrorCode.NONE}
    assert await offset_of_g(coordinator) is None
    _, found = await coordinator.commits.committed("h")
    assert found[PARTITION].offset == 1
    coordinator.close()


@pytest.mark.parametrize("lost", [False, True])
async def test_offsets_of_a_topic_deleted_while_its_groups_are_loaded_go(
    monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    """But not in a later leadership: those may be of the topic made anew."""
    replicas = SlowReplicas()
    read, load = asyncio.Event(), Shard.load

    async def load_late(self: Shard, *arguments: Any) -> None:
        await read.wait()
        self.offsets["g"] = {PARTITION: CommittedOffset(7, "", 0)}
        await load(self, *arguments)

    monkeypatch.setattr(Shard, "load", load_late)
    coordinator = new_coordinator(replicas)
    await run_ready_callbacks()
    coordinator.forget_partitions({PARTITION})
    await run_ready_callbacks()
    if lost:
        replicas.partition.leadership_generation += 1
        coordinator.refresh()
    read.set()
    await run_ready_callbacks()
    for tombstones in replicas.appends:
        tombstones.set_result(ErrorCode.NONE)
    await run_ready_callbacks()
    assert await offset_of_g(coordinator) == (7 if lost else None)
    coordinator.close()


MANY = [TopicPartition("t", number) for number in range(2 * slices.KEYS_AT_ONCE)]


async def many_in_flight(
    coordinator: GroupCoordinator, replicas: SlowReplicas, offset: int
) -> asyncio.Task[dict[TopicPartition, ErrorCode]]:
    """Commit an offset in many partitions; return when it waits for its append."""
    before = len(replicas.appends)
    commits = dict.fromkeys(MANY, CommittedOffset(offset, "", 0))
    commit = asyncio.create_task(coordinator.commits.commit("g", NOBODY, commits))
    while len(replicas.appends) == before:
        await run_ready_callbacks()
    return commit


async def offsets_of_g(coordinator: GroupCoordinator) -> dict[TopicPartition, int]:
    error, found = await coordinator.commits.committed("g")
    assert error is ErrorCode.NONE
    return {partition: committed.offset for partition, committed in found.items()}


async def test_many_offsets_take_effect_at_once_while_others_run() -> None:
    replicas = SlowReplicas()
    coordinator = await loaded(replicas)
    commit = await many_in_flight(coordinator, replicas, 9)
    replicas.appends[-1].set_result(ErrorCode.NONE)
    seen = set()
    turns = 0
    while not commit.done():
        seen.add(frozenset((await offsets_of_g(coordinator)).items()))
        await asyncio.sleep(0)
        turns += 1
    seen.add(frozenset((await offsets_of_g(coordinator)).items()))
    assert seen == {frozenset({(PARTITION, 7)}), frozenset(dict.fromkeys(MANY, 9).items())}
    assert turns > len(MANY) / slices.KEYS_AT_ONCE
    coordinator.close()


@pytest.mark.parametrize("after_turns", [1, 4, 8])
async def test_a_commit_during_one_of_many_offsets_counts_if_it_is_later_in_the_log(
    after_turns: int,
) -> None:
    replicas = SlowReplicas()
    coordinator = await loaded(replicas)
    earlier = committing(coordinator, 8, group="g")
    await run_ready_callbacks()
    many = await many_in_flight(coordinator, replicas, 9)
    last = {MANY[-1]: CommittedOffset(10, "", 0)}
    later = asyncio.create_task(coordinator.commits.commit("g", NOBODY, last))
    await run_ready_callbacks()
    first_append, append_of_many, last_append = replicas.appends[-3:]
    append_of_many.set_result(ErrorCode.NONE)
    for _ in range(after_turns):
        await asyncio.sleep(0)
    assert not many.done()
    for append in (first_append, last_append):
        append.set_result(ErrorCode.NONE)
    await asyncio.gather(earlier, many, later)
    assert await offsets_of_g(coordinator) == dict.fromkeys(MANY, 9) | {MANY[-1]: 10}
    coordinator.close()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_of_two_commits_of_many_offsets_the_later_in_the_log_counts(
    order: tuple[int, int],
) -> None:
    replicas = SlowReplicas()
    coordinator = await loaded(replicas)
    commits = [await many_in_flight(coordinator, replicas, offset) for offset in (8, 9)]
    for settled in order:
        replicas.appends[1 + settled].set_result(ErrorCode.NONE)
        await asyncio.sleep(0)
    await asyncio.gather(*commits)
    assert await offsets_of_g(coordinator) == dict.fromkeys(MANY, 9)
    coordinator.close()


@pytest.mark.parametrize("cancelled", [(0,), (1,), (0, 1)])
async def test_many_offsets_that_are_in_the_log_count_though_the_client_left(
    cancelled: tuple[int, ...],
) -> None:
    replicas = SlowReplicas()
    coordinator = await loaded(replicas)
    commits = [await many_in_flight(coordinator, replicas, offset) for offset in (8, 9)]
    for append in replicas.appends[1:]:
        append.set_result(ErrorCode.NONE)
    for _ in range(4):
        await asyncio.sleep(0)
    for number in cancelled:
        commits[number].cancel()
    await asyncio.gather(*commits, return_exceptions=True)
    while coordinator.commits.unstable("g"):
        await asyncio.sleep(0)
    assert await offsets_of_g(coordinator) == dict.fromkeys(MANY, 9)
    coordinator.close()


async def test_a_lost_leadership_ends_a_commit_of_many_offsets() -> None:
    replicas = SlowReplicas()
    coordinator = await loaded(replicas)
    commit = await many_in_flight(coordinator, replicas, 9)
    replicas.appends[-1].set_result(ErrorCode.NONE)
    for _ in range(4):
        await asyncio.sleep(0)
    replicas.partition.leadership_generation += 1
    coordinator.refresh()
    await commit
    assert await offsets_of_g(coordinator) == {}
    coordinator.close()


async def test_an_offset_that_is_in_the_log_counts_though_the_client_left_meanwhile() -> None:
    replicas = SlowReplicas()
    coordinator = await loaded(replicas)
    leaving = committing(coordinator, 9)
    await run_ready_callbacks()
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    replicas.appends[-1].set_result(ErrorCode.NONE)
    await run_ready_callbacks()
    assert await offset_of_g(coordinator) == 9
    assert not coordinator.commits.unstable("g")
    coordinator.close()


async def test_a_group_whose_tombstones_are_in_the_log_is_gone_though_the_client_left() -> None:
    replicas = SlowReplicas()
    coordinator = await loaded(replicas)
    leaving = asyncio.create_task(coordinator.deletion.delete_group("g"))
    await run_ready_callbacks()
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    replicas.appends[-1].set_result(ErrorCode.NONE)
    await run_ready_callbacks()
    assert coordinator.groups() == (ErrorCode.NONE, [])
    coordinator.close()
