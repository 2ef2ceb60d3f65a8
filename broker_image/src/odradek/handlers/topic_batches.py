"""Requests that name many topics, which are looked through in slices and changed a few at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, TypeVar

from odradek import slices

# Topics of one request that are changed at once; other requests run in between.
CHANGES_AT_ONCE = 50


class _HasName(Protocol):
    name: str


class _HasErrorCode(Protocol):
    error_code: int


Topic = TypeVar("Topic")
Named = TypeVar("Named", bound=_HasName)
Result = TypeVar("Result")
Outcome = TypeVar("Outcome", bound=_HasErrorCode)


async def change_few_at_once(
    refuse: Callable[[Topic], Result | None],
    change: Callable[[Topic], Awaitable[Result]],
    topics: Iterable[Topic],
) -> list[Result]:
    """Refuse each topic at once, or apply a change to it; return the outcomes in order."""
    outcomes: list[Result] = []
    with slices.collector_paused():
        for few in slices.cut(topics, CHANGES_AT_ONCE):
            refused = [refuse(topic) for topic in few]
            changing = [
                change(topic) for topic, one in zip(few, refused, strict=True) if one is None
            ]
            changed = iter(await asyncio.gather(*changing)) if changing else iter(())
            outcomes += [next(changed) if one is None else one for one in refused]
            if not changing:
                await slices.pause()
    return outcomes


async def wait_for_changes(
    wait: Callable[[Outcome], Awaitable[None]], outcomes: list[Outcome]
) -> None:
    """Wait for what comes of each change that was made."""
    made: list[Outcome] = []
    for few in slices.cut(outcomes, slices.KEYS_AT_ONCE):
        made += [one for one in few if not one.error_code]
        if len(few) == slices.KEYS_AT_ONCE:
            await slices.pause()
    await asyncio.gather(*map(wait, made))


async def by_name(named: Iterable[Named]) -> tuple[set[str], dict[str, Named]]:
    """Return the topics that are named more than once, and what was said last of each."""
    repeated: set[str] = set()
    last: dict[str, Named] = {}
    for few in slices.cut(named, slices.KEYS_AT_ONCE):
        for one in few:
            if one.name in last:
                repeated.add(one.name)
            last[one.name] = one
        if len(few) == slices.KEYS_AT_ONCE:
            await slices.pause()
    return repeated, last


async def total(count: Callable[[Topic], int], topics: Iterable[Topic]) -> int:
    """Return the sum of what `count` says of each topic."""
    found = 0
    for few in slices.cut(topics, slices.KEYS_AT_ONCE):
        found += sum(map(count, few))
        if len(few) == slices.KEYS_AT_ONCE:
            await slices.pause()
    return found
