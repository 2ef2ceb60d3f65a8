"""Groups with very many offsets: these are deleted piece by piece, and nobody sees half of that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import pytest

from odradek import slices
from odradek.group import offset_deletion
from odradek.group.coordinator import GroupCoordinator
from odradek.group.members import JoinSpec
from odradek.group.offsets import CommittedOffset
from odradek.log.records import batch
from odradek.log.records.batch import Origin
from odradek.protocol.errors import ErrorCode
from odradek.replica.appends import AppendOutcome
from odradek.values import TopicPartition
from tests.group.test_commit_order import KEY, NOBODY, Clock, SlowReplicas, new_coordinator

MANY = 1500
PARTITIONS = [TopicPartition("t", index) for index in range(MANY)]


class FastReplicas(SlowReplicas):
    """Acknowledges each append in the next turn of the event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    async def append(
        self,
        entries: Sequence[tuple[TopicPartition, bytes]],
        acks: int,
        timeout_ms: int,
        origin: Origin,
    ) -> list[AppendOutcome]:
        self.sizes.append(batch.parse(entries[0][1]).record_count)
        position = len(self.sizes)
        await asyncio.sleep(0)
        return [AppendOutcome(KEY, ErrorCode.NONE, base_offset=position)]


async def commit(
    coordinator: GroupCoordinator,
    partitions: Iterable[TopicPartition],
    group: str = "g",
    offset: int = 1,
    at_ms: int = 0,
) -> set[ErrorCode]:
    wanted = {each: CommittedOffset(offset, "", at_ms) for each in partitions}
    return {*(await coordinator.commits.commit(group, NOBODY, wanted)).values()}


async def offsets_of(
    coordinator: GroupCoordinator, group: str = "g"
) -> dict[TopicPartition, CommittedOffset] | ErrorCode:
    error, found = await coordinator.commits.committed(group)
    return dict(found) if error is ErrorCode.NONE else error


async def filled(replicas: FastReplicas, clock: Clock | None = None) -> GroupCoordinator:
    """Group g has very many offsets."""
    coordinator = new_coordinator(replicas, clock)
    await asyncio.sleep(0)
    assert await commit(coordinator, PARTITIONS) == {ErrorCode.NONE}
    replicas.sizes.clear()
    return coordinator


def join() -> JoinSpec:
    return JoinSpec("", None, "c", "/h", 10_000, 10_000, "consumer", (("range", b""),), False)


@pytest.fixture(autouse=True)
async def small_pieces(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """So that tests need fewer offsets. At the end nothing is left to free."""
    monkeypatch.setattr(slices, "KEYS_AT_ONCE", MANY // 3)
    monkeypatch.setattr(slices, "FREED_AT_ONCE", MANY // 3)
    monkeypatch.setattr(offset_deletion, "DELETED_AT_ONCE", MANY // 10)
    yield
    while slices._tasks:
        await asyncio.sleep(0)


async def test_they_expire_piece_by_piece_while_clients_wait() -> None:
    replicas, clock = FastReplicas(), Clock(0)
    coordinator = await filled(replicas, clock)
    clock.now_ms = 60_000
    expiring = asyncio.create_task(coordinator.expiry.expire())
    seen: set[object] = set()
    while not expiring.done():
        found = await offsets_of(coordinator)
        seen.add(found if isinstance(found, ErrorCode) else len(found))
        await asyncio.sleep(0)
    assert seen <= {MANY, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 0}, "never a part of them"
    assert ErrorCode.COORDINATOR_LOAD_IN_PROGRESS in seen
    assert max(replicas.sizes) <= offset_deletion.DELETED_AT_ONCE
    assert coordinator.groups() == (ErrorCode.NONE, [])
    assert coordinator.expiry.expired == MANY
    coordinator.close()


async def test_what_is_committed_while_expired_ones_are_looked_for_stays() -> None:
    replicas, clock = FastReplicas(), Clock(0)
    coordinator = await filled(replicas, clock)
    clock.now_ms = 60_000
    expiring = asyncio.create_task(coordinator.expiry.expire())
    await asyncio.sleep(0)
    fresh = PARTITIONS[:3]
    assert await commit(coordinator, fresh, offset=2, at_ms=60_000) == {ErrorCode.NONE}
    await expiring
    found = await offsets_of(coordinator)
    assert found == {each: CommittedOffset(2, "", 60_000) for each in fresh}
    assert [group.group_id for group in coordinator.groups()[1]] == ["g"]
    coordinator.close()


async def test_a_group_is_deleted_whole_or_not_at_all_for_its_clients() -> None:
    replicas = FastReplicas()
    coordinator = await filled(replicas)
    deleting = asyncio.create_task(coordinator.deletion.delete_group("g"))
    while not replicas.sizes:
        await asyncio.sleep(0)
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert await offsets_of(coordinator) is loading
    assert (await coordinator.join("g", join())).error is loading
    assert await commit(coordinator, PARTITIONS[:1]) == {loading}
    assert await coordinator.deletion.delete_group("g") is loading
    assert await deleting is ErrorCode.NONE
    assert coordinator.groups() == (ErrorCode.NONE, [])
    assert max(replicas.sizes) <= offset_deletion.DELETED_AT_ONCE
    coordinator.close()


async def test_members_stay_and_the_group_is_stored_while_offsets_are_deleted() -> None:
    replicas, clock = FastReplicas(), Clock()
    coordinator = await filled(replicas, clock)
    joined = await coordinator.join("g", join())
    _, group = coordinator.find("g")
    assert group is not None
    member = group.members[joined.member_id]
    async with coordinator._shards.withheld("g"):
        member.deadline_ms = 0
        beat = coordinator.heartbeat("g", joined.member_id, None, joined.generation)
        assert beat is ErrorCode.NONE
        assert member.deadline_ms > 0
        member.deadline_ms = 0
        clock.now_ms += 1
        coordinator._expire(group)
        while coordinator._shards._tasks:
            await asyncio.sleep(0)
    assert replicas.sizes == [1], "that it has no members"
    [shard] = coordinator._shards.loaded()
    assert shard.empty_since_ms == {"g": clock.now_ms}
    coordinator.close()


async def test_single_offsets_are_deleted_piece_by_piece() -> None:
    replicas = FastReplicas()
    coordinator = await filled(replicas)
    unknown = [TopicPartition("other", index) for index in range(MANY)]
    error, errors = await coordinator.deletion.delete_offsets("g", [*PARTITIONS[1:], *unknown])
    assert (error, {*errors.values()}) == (ErrorCode.NONE, {ErrorCode.NONE})
    assert max(replicas.sizes) <= offset_deletion.DELETED_AT_ONCE
    found = await offsets_of(coordinator)
    assert isinstance(found, dict)
    assert found.keys() == {PARTITIONS[0]}
    await coordinator.deletion.delete_offsets("g", {})
    await coordinator.deletion.delete_offsets("g", [*unknown[:1]])
    assert [group.group_id for group in coordinator.groups()[1]] == ["g"]
    await coordinator.deletion.delete_offsets("g", [PARTITIONS[0], *unknown[:1]])
    assert coordinator.groups() == (ErrorCode.NONE, []), "it has neither members nor offsets"
    coordinator.close()


async def test_offsets_of_deleted_topics_go_in_slices_and_those_of_new_ones_stay() -> None:
    """The topic is made anew while the groups are searched, and its readers commit."""
    replicas = FastReplicas()
    coordinator = await filled(replicas)
    late = TopicPartition("t", 0)
    assert await commit(coordinator, [late], group="h") == {ErrorCode.NONE}
    replicas.sizes.clear()
    coordinator.forget_partitions({*PARTITIONS})
    await asyncio.sleep(0)
    assert not replicas.sizes, "it is still looking"
    assert await commit(coordinator, [late], group="h", offset=5) == {ErrorCode.NONE}
    while isinstance(found := await offsets_of(coordinator), ErrorCode) or found:
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    assert await offsets_of(coordinator, "h") == {late: CommittedOffset(5, "", 0)}
    # Group g's offsets and g itself, and the commit; h is not deleted, which has an offset.
    assert sum(replicas.sizes) == MANY + 2
    assert max(replicas.sizes) <= offset_deletion.DELETED_AT_ONCE
    coordinator.close()


async def test_offsets_of_two_topics_that_are_deleted_at_once_all_go() -> None:
    """Readers of a topic made anew would skip records up to what is left."""
    replicas = FastReplicas()
    coordinator = await filled(replicas)
    others = [TopicPartition("u", index) for index in range(MANY)]
    assert await commit(coordinator, others) == {ErrorCode.NONE}
    replicas.sizes.clear()
    coordinator.forget_partitions({*PARTITIONS})
    coordinator.forget_partitions({*others})
    while coordinator._shards._tasks:
        await asyncio.sleep(0)
    assert await offsets_of(coordinator) == {}
    assert max(replicas.sizes) <= offset_deletion.DELETED_AT_ONCE
    coordinator.close()


async def test_a_deletion_that_waited_through_the_end_of_the_leadership_writes_nothing() -> None:
    """A later leadership may have newer offsets of these partitions."""
    replicas = FastReplicas()
    coordinator = await filled(replicas)
    coordinator.forget_partitions({*PARTITIONS})
    coordinator.forget_partitions({*PARTITIONS})
    while not replicas.sizes:
        await asyncio.sleep(0)
    replicas.partition.leadership_generation += 1
    coordinator.refresh()
    while coordinator._shards._tasks:
        await asyncio.sleep(0)
    assert len(replicas.sizes) == 1
    assert await commit(coordinator, PARTITIONS[:1]) == {ErrorCode.NONE}
    coordinator.close()


async def test_a_deletion_that_the_end_of_the_leadership_broke_off_is_not_told_as_done() -> None:
    """The next coordinator has the rest of the offsets, and the group."""
    replicas = FastReplicas()
    coordinator = await filled(replicas)
    deleting = asyncio.create_task(coordinator.deletion.delete_group("g"))
    while not replicas.sizes:
        await asyncio.sleep(0)
    replicas.partition.leadership_generation += 1
    coordinator.refresh()
    assert await deleting is ErrorCode.NOT_COORDINATOR
    assert len(replicas.sizes) == 1
    coordinator.close()


async def test_a_refused_commit_of_very_many_is_freed_in_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    freed: list[int] = []
    discard = slices.discard

    def noting(*containers: Any) -> None:
        freed.extend(map(len, containers))
        discard(*containers)

    monkeypatch.setattr(slices, "discard", noting)
    coordinator = await filled(FastReplicas())
    freed.clear()
    member = ("nobody", None, 3)
    wanted = {each: CommittedOffset(1, "", 0) for each in PARTITIONS}
    errors = await coordinator.commits.commit("g", member, wanted)
    assert {*errors.values()} == {ErrorCode.UNKNOWN_MEMBER_ID}
    assert freed == [MANY], "the records that were made of them"
    coordinator.close()
