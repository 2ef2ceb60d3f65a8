"""Every case of the report, in groups that share running systems."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tests.bench.report import connections, failover, scale
from tests.bench.report.bench import Case
from tests.bench.report.cases import (
    Shape,
    bare_fetch,
    bare_produce,
    consume,
    end_to_end,
    many_producers,
    produce,
    small_requests,
    start_up,
)

PRODUCERS: Final = 8


@dataclass(frozen=True, slots=True)
class Group:
    """Cases for systems of so many brokers with these settings, and so many JVMs for clients."""

    brokers: int
    cases: Sequence[Case]
    tools: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)


def groups() -> list[Group]:
    """Return all cases. What takes much memory, or kills brokers, has systems of its own."""
    return [
        Group(1, of_one_broker(), tools=PRODUCERS),
        Group(3, of_three_brokers(), tools=1),
        Group(3, [failover.leader(), failover.controller()], settings=failover.SETTINGS),
        Group(1, [connections.busy(), connections.idle()]),
        Group(1, [scale.one_broker(), scale.three_brokers()]),
    ]


def chosen(every: Iterable[Group], *, quick: bool, only: str = "") -> list[Group]:
    """Return the groups with the cases of a run, without those that keep none.

    `quick` keeps the cases of short runs, and one JVM for clients; `only` those whose title has
    the text, in upper or lower case.
    """
    found = []
    for group in every:
        kept = [
            one
            for one in group.cases
            if (one.quick or not quick) and only.lower() in one.title.lower()
        ]
        if kept:
            tools = min(1, group.tools) if quick else group.tools
            found.append(replace(group, cases=kept, tools=tools))
    return found


def of_one_broker() -> list[Case]:
    """Return the cases with one broker; the last one restarts it."""
    return [
        produce("100 B", Shape(100), 1.6, 0.9, quick=True),
        produce("1 kB", Shape(1000), 2.0, 0.9, quick=True),
        produce("10 kB", Shape(10_000), 2.0, 0.9, quick=True),
        produce("1 kB, lz4", Shape(1000, codec="lz4"), None, None, quick=False),
        produce("1 kB, zstd", Shape(1000, codec="zstd"), None, None, quick=False),
        produce("1 kB, one partition", Shape(1000, partitions=1), None, None, quick=False),
        produce("1 kB, 200 partitions", Shape(1000, partitions=200), None, None, quick=False),
        many_producers(Shape(1000)),
        consume("1 kB", 1000, 1.3),
        consume("100 B", 100, 1.3, quick=False),
        consume("1 kB, not in the page cache", 1000, None, cold=True, quick=False),
        consume("1 kB, closed segments", 1000, None, closed=True, quick=False),
        bare_produce(),
        bare_fetch(),
        small_requests(),
        end_to_end(1, quick=False),
        end_to_end(10, quick=True),
        end_to_end(50, quick=False),
        start_up(),
    ]


def of_three_brokers() -> list[Case]:
    """Return the cases with three brokers."""
    return [
        produce("100 B", Shape(100, "all"), 2.5, None, quick=False),
        produce("1 kB", Shape(1000, "all"), 2.5, None, quick=True),
        produce("10 kB", Shape(10_000, "all"), 2.5, None, quick=False),
    ]


def order(systems: Sequence[str], number: int) -> list[str]:
    """Return the systems in another order each round."""
    turn = number % len(systems)
    turned = [*systems[turn:], *systems[:turn]]
    return turned if number % 2 == 0 else turned[::-1]
