"""An unexpected exception about one group, or one shard, leaves the others as they are.

The exceptions are injected: nothing that a client or a disk does is known to cause them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from odradek import quarantine
from odradek.coordination import led_shards
from odradek.group import offsets as schemas
from odradek.group.coordinator import GroupCoordinator
from odradek.group.group import Group
from odradek.group.members import JoinResult, SyncResult
from odradek.group.offsets import CommittedOffset
from odradek.group.shard import Shard
from odradek.group.states import GroupState
from odradek.log.records.batch import Origin
from odradek.log.segment.files import FileRetiredError
from odradek.protocol.errors import ErrorCode
from odradek.replica.appends import AppendOutcome
from odradek.values import TopicPartition
from tests.group.test_commit_order import (
    KEY,
    NOBODY,
    PARTITION,
    Clock,
    SlowReplicas,
    run_ready_callbacks,
)
from tests.group.test_commit_order import new_coordinator as loading_coordinator
from tests.group.test_new_coordinator import NEWCOMER

SICK, SOUND = "sick", "sound"
MEMBER = replace(NEWCOMER, requires_known_id=False)
UNFORESEEN = KeyError("unforeseen")


class Replicas(SlowReplicas):
    """Leads an empty `__consumer_offsets-0`, and acknowledges at once."""

    async def append(
        self,
        entries: Sequence[tuple[TopicPartition, bytes]],
        acks: int,
        timeout_ms: int,
        origin: Origin,
    ) -> list[AppendOutcome]:
        await asyncio.sleep(0)
        return [AppendOutcome(KEY, ErrorCode.NONE, base_offset=0)]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(led_shards, "LOAD_AGAIN_S", 0.01)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


async def loaded(clock: Clock | None = None) -> GroupCoordinator:
    coordinator = loading_coordinator(Replicas(), clock)
    await until(lambda: coordinator.find(SICK)[0] is ErrorCode.NONE)
    return coordinator


def group_of(coordinator: GroupCoordinator, group_id: str) -> Group:
    _, group = coordinator.find(group_id)
    assert group is not None
    return group


async def join(coordinator: GroupCoordinator, group_id: str) -> JoinResult:
    async with asyncio.timeout(60):
        return await coordinator.join(group_id, MEMBER)


async def sync(coordinator: GroupCoordinator, group_id: str, joined: JoinResult) -> SyncResult:
    async with asyncio.timeout(60):
        return await coordinator.sync(
            group_id,
            joined.member_id,
            None,
            joined.generation,
            (None, None),
            {joined.member_id: b"share"},
        )


async def readmitted(coordinator: GroupCoordinator) -> None:
    await until(lambda: not coordinator.quarantines.held()["group"])


async def stable(coordinator: GroupCoordinator, group_id: str) -> JoinResult:
    """Return the only member of a stable group."""
    await readmitted(coordinator)
    joined = await join(coordinator, group_id)
    assert (await sync(coordinator, group_id, joined)).error is ErrorCode.NONE
    return joined


def fail_for(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, group_id: str, times: int = 1
) -> None:
    """Let a function raise for one group, whose `Group` is its first argument."""
    real = getattr(owner, name)
    left = [times]

    def work(group: Group, *arguments: Any, **options: Any) -> Any:
        if group.group_id == group_id and left[0]:
            left[0] -= 1
            raise UNFORESEEN
        return real(group, *arguments, **options)

    monkeypatch.setattr(owner, name, work)


async def test_a_group_whose_timer_fails_begins_anew_and_keeps_its_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coordinator = await loaded()
    sick, sound = await stable(coordinator, SICK), await stable(coordinator, SOUND)
    commit = {PARTITION: CommittedOffset(7, "", 1)}
    member = (sick.member_id, None, sick.generation)
    assert await coordinator.commits.commit(SICK, member, commit) == {PARTITION: ErrorCode.NONE}
    fail_for(monkeypatch, Group, "expire", SICK)
    coordinator._expire(group_of(coordinator, SICK))
    assert coordinator.quarantines.totals()["group"] == 1
    assert (await join(coordinator, SICK)).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await readmitted(coordinator)
    late = coordinator.heartbeat(SICK, sick.member_id, None, sick.generation)
    assert late is ErrorCode.UNKNOWN_MEMBER_ID
    again = await stable(coordinator, SICK)
    assert again.generation > sick.generation
    assert await coordinator.commits.committed(SICK) == (ErrorCode.NONE, commit)
    heartbeat = coordinator.heartbeat(SOUND, sound.member_id, None, sound.generation)
    assert heartbeat is ErrorCode.NONE
    coordinator.close()


async def test_members_that_wait_in_a_group_that_fails_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coordinator = await loaded()
    await stable(coordinator, SICK)
    waiting = asyncio.create_task(join(coordinator, SICK))
    await until(lambda: group_of(coordinator, SICK).state is GroupState.PREPARING_REBALANCE)
    fail_for(monkeypatch, Group, "expire", SICK)
    coordinator._expire(group_of(coordinator, SICK))
    assert (await waiting).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (await stable(coordinator, SICK)).error is ErrorCode.NONE
    coordinator.close()


async def test_a_group_that_cannot_be_stored_answers_its_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They would wait for ever: members that wait for an answer never expire."""
    coordinator = await loaded()
    joined = await join(coordinator, SICK)
    real, failures = coordinator.appends.store_group, [UNFORESEEN]

    async def store(*arguments: Any) -> ErrorCode:
        if failures:
            raise failures.pop()
        return await real(*arguments)

    monkeypatch.setattr(coordinator.appends, "store_group", store)
    answer = await sync(coordinator, SICK, joined)
    assert answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert coordinator.quarantines.totals()["group"] == 1
    await stable(coordinator, SICK)
    coordinator.close()


async def test_a_restarted_static_member_is_answered_if_its_group_cannot_be_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coordinator = await loaded()
    spec = replace(MEMBER, instance_id="i")
    async with asyncio.timeout(60):
        joined = await coordinator.join(SICK, spec)
        synced = await coordinator.sync(
            SICK, joined.member_id, "i", joined.generation, (None, None), {}
        )
    assert synced.error is ErrorCode.NONE

    async def store(*arguments: Any) -> ErrorCode:
        raise UNFORESEEN

    monkeypatch.setattr(coordinator.appends, "store_group", store)
    async with asyncio.timeout(60):
        again = await coordinator.join(SICK, spec)
    assert again.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert coordinator.quarantines.totals()["group"] == 1
    coordinator.close()


@pytest.mark.parametrize("step", ["join", "sync", "leave", "encode", "answer"])
async def test_a_request_that_breaks_off_in_a_group_starts_that_group_anew(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    coordinator = await loaded()
    sound = await stable(coordinator, SOUND)
    joined = await join(coordinator, SICK)
    if step == "encode":
        fail_for(monkeypatch, schemas, "encode_group", SICK)
    else:
        names = {"sync": "_extend_session", "answer": "_assigned"}
        fail_for(monkeypatch, Group, names.get(step, step), SICK)
    lost = ErrorCode.COORDINATOR_NOT_AVAILABLE
    if step == "join":
        assert (await join(coordinator, SICK)).error is lost
    elif step == "leave":
        assert coordinator.leave(SICK, [(joined.member_id, None)]) == (lost, [])
    else:
        assert (await sync(coordinator, SICK, joined)).error is lost
    assert (await stable(coordinator, SICK)).error is ErrorCode.NONE
    heartbeat = coordinator.heartbeat(SOUND, sound.member_id, None, sound.generation)
    assert heartbeat is ErrorCode.NONE
    coordinator.close()


async def test_a_shard_that_cannot_be_loaded_is_loaded_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not at each request: its groups are loading meanwhile."""
    real, attempts = Shard.load, []

    async def load(self: Shard, *arguments: Any) -> None:
        attempts.append(1)
        if len(attempts) < 3:
            raise UNFORESEEN
        await real(self, *arguments)

    monkeypatch.setattr(Shard, "load", load)
    monkeypatch.setattr(quarantine, "FIRST_PAUSE_S", 0.05)
    coordinator = loading_coordinator(Replicas())
    seen = set()
    async with asyncio.timeout(60):
        while (error := coordinator.find(SICK)[0]) is not ErrorCode.NONE:
            seen.add(error)
            await asyncio.sleep(0)
    assert seen == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    assert len(attempts) == 3
    assert coordinator.quarantines.totals()["group-loading"] == 2
    assert coordinator.quarantines.held()["group-loading"] == 0
    coordinator.close()


async def test_a_segment_that_left_the_log_while_its_shard_was_loaded_raises_no_alert(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, attempts = Shard.load, []

    async def load(self: Shard, *arguments: Any) -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise FileRetiredError("00000000000000000000.log")
        await real(self, *arguments)

    monkeypatch.setattr(Shard, "load", load)
    coordinator = await loaded()
    assert len(attempts) == 2
    assert coordinator.quarantines.totals()["group-loading"] == 0
    coordinator.close()


async def test_a_shard_that_was_given_up_is_not_loaded_after_its_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts = []
    monkeypatch.setattr(quarantine, "FIRST_PAUSE_S", 3600.0)
    monkeypatch.setattr(quarantine, "LONGEST_PAUSE_S", 3600.0)

    async def load(self: Shard, *arguments: Any) -> None:
        attempts.append(self)
        raise UNFORESEEN

    monkeypatch.setattr(Shard, "load", load)
    replicas = Replicas()
    coordinator = loading_coordinator(replicas)
    await until(lambda: coordinator.quarantines.held()["group-loading"] == 1)
    waiting = coordinator._shards._shards[0]
    replicas.partition.is_leader = False
    coordinator.refresh()
    assert coordinator.quarantines.held()["group-loading"] == 0
    assert coordinator.find(SICK)[0] is ErrorCode.NOT_COORDINATOR
    coordinator._shards._begin_load(waiting, replicas.partition)  # type: ignore[arg-type]
    await run_ready_callbacks()
    assert waiting not in attempts
    coordinator.close()


async def test_offsets_of_other_groups_expire_beside_one_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    coordinator = await loaded(clock)
    commit = {PARTITION: CommittedOffset(7, "", clock())}
    for group_id in (SICK, SOUND):
        await coordinator.commits.commit(group_id, NOBODY, commit)
    fail_for(monkeypatch, Group, "subscribed_topics", SICK)
    clock.now_ms += 120_000
    await coordinator.expiry.expire()
    assert [group.group_id for group in coordinator.groups()[1]] == [SICK]
    assert coordinator.quarantines.held()["group-expiry"] == 1
    await coordinator.expiry.expire()
    assert coordinator.groups()[1] == []
    assert coordinator.quarantines.held()["group-expiry"] == 0
    coordinator.close()


async def test_rounds_that_fail_do_not_end_the_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coordinator = await loaded()
    rounds = []

    async def fail() -> None:
        rounds.append(1)
        raise UNFORESEEN

    monkeypatch.setattr("odradek.group.coordinator.TICK_S", 0.001)
    monkeypatch.setattr(coordinator.partition_count, "learn", fail)
    running = asyncio.create_task(coordinator.run())
    await until(lambda: len(rounds) > 3)
    assert not running.done()
    running.cancel()
    coordinator.close()


async def test_a_group_that_always_fails_costs_ever_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its members come back at once, whatever they are told; other groups have the loop."""
    monkeypatch.setattr(quarantine, "FIRST_PAUSE_S", 0.001)
    coordinator = await loaded()
    sound = await stable(coordinator, SOUND)
    fail_for(monkeypatch, Group, "join", SICK, times=10**9)
    pauses: list[float] = []
    put = coordinator.quarantines.put

    def put_and_note(*arguments: Any) -> float:
        pauses.append(put(*arguments))
        return pauses[-1]

    monkeypatch.setattr(coordinator.quarantines, "put", put_and_note)
    async with asyncio.timeout(60):
        while len(pauses) < 5:
            await join(coordinator, SICK)
            await asyncio.sleep(0)
    assert pauses == [0.001, 0.002, 0.004, 0.008, 0.016]
    heartbeat = coordinator.heartbeat(SOUND, sound.member_id, None, sound.generation)
    assert heartbeat is ErrorCode.NONE
    coordinator.close()
