"""What the thread of a metrics scrape sees of a large group while its offsets are replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from odradek import slices
from odradek.group.offsets import CommittedOffset
from odradek.group.shard import Shard
from odradek.values import TopicPartition
from tests.group.test_commit_order import KEY

MANY = 3 * slices.FREED_AT_ONCE


def offsets(value: int) -> dict[TopicPartition, CommittedOffset]:
    return {TopicPartition("t", index): CommittedOffset(value, "", 0) for index in range(MANY)}


class Interrupted(dict[Any, Any]):
    """Offsets whose reader is interrupted by the event loop right before it copies them."""

    def __init__(self, content: dict[Any, Any], meanwhile: Iterator[None]) -> None:
        super().__init__(content)
        self._meanwhile = meanwhile

    def items(self) -> Any:
        next(self._meanwhile, None)
        return super().items()


def shard_of(content: dict[TopicPartition, CommittedOffset]) -> Shard:
    partition: Any = SimpleNamespace(key=KEY, leadership_generation=0)
    shard = Shard(partition)
    shard.offsets["g"] = content
    shard.loaded = True
    return shard


async def test_offsets_that_were_replaced_meanwhile_are_read_again() -> None:
    def replace() -> Iterator[None]:
        work = shard._taken_in_slices("g", offsets(2), 5)
        for _ in work:
            pass
        # The event loop frees what was there, in slices.
        shard_former.popitem()
        yield

    shard = shard_of({})
    shard_former = Interrupted(offsets(1), replace())
    shard.offsets["g"] = shard_former
    found = shard.offsets_of("g")
    assert found is not None
    assert dict(found) == offsets(2)
    await asyncio.sleep(0)


async def test_a_group_whose_leadership_ended_is_not_shown_without_its_offsets() -> None:
    def retire() -> Iterator[None]:
        shard.retire()
        yield

    shard = shard_of({})
    shard.offsets["g"] = Interrupted(offsets(1), retire())
    assert shard.offsets_of("g") is None
    await asyncio.sleep(0)
