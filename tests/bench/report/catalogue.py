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
    memory,
    produce,
    single_records,
    small_requests,
    start_up,
)
from tests.bench.report.systems import KAFKA, OURS, PEERS, SYSTEMS

FEW_ROUNDS: Final = 3
# As many warm-ups as it takes.
WARM: Final = None


@dataclass(frozen=True, slots=True)
class Group:
    """Cases for systems of so many brokers with these settings.

    Without brokers, the cases start systems of their own. `compiles` goes before the
    cases that warm Kafka's brokers up, once, and is no case of the report.
    """

    brokers: int
    cases: Sequence[Case]
    settings: Mapping[str, str] = field(default_factory=dict)
    compiles: Case | None = None

    @property
    def tools(self) -> int:
        """How many clients in JVMs the cases share."""
        return max(one.tools for one in self.cases)

    @property
    def compiling(self) -> list[Case]:
        """What has JVMs compile, if there is something to warm up."""
        return [self.compiles] if self.compiles and self.warming else []

    @property
    def warming(self) -> list[Case]:
        """The cases that are repeated until Kafka's brokers are warm, before all steps."""
        return [one for one in self.cases if one.warm_ups is WARM]


def groups() -> list[Group]:
    """Return all cases. What takes much memory, or kills brokers, has systems of its own."""
    return [
        Group(1, of_one_broker(), compiles=_takes(15, 1, single_records("1"), PEERS)),
        Group(3, of_three_brokers(), compiles=_takes(40, 1, single_records("all"), PEERS)),
        Group(3, of_dying_brokers(), settings=failover.SETTINGS),
        Group(1, of_many_connections()),
        Group(0, of_many_partitions()),
    ]


def chosen(every: Iterable[Group], *, quick: bool, only: str = "") -> list[Group]:
    """Return the groups with the cases of a run, without those that keep none.

    `quick` keeps the cases of short runs; `only` those whose title has the text, in upper or lower
    case.
    """
    found = []
    for group in every:
        kept = [
            one
            for one in group.cases
            if (one.quick or not quick) and only.lower() in one.title.lower()
        ]
        if kept:
            found.append(replace(group, cases=kept))
    return found


def steps(cases: Sequence[Case], rounds: int) -> list[tuple[int, Case]]:
    """Return what runs in which round, in this order; numbers below 0 are warm-ups.

    The warm-ups of a group's `warming` are not among them: how many there are is not known before.
    """
    passes = range(-max((one.warm_ups or 0 for one in cases), default=0), rounds)
    return [
        (number, case)
        for restarts in (False, True)
        for number in passes
        for case in cases
        if case.restarts is restarts and _is_due(case, number)
    ]


def _is_due(case: Case, number: int) -> bool:
    return number >= -(case.warm_ups or 0) and (case.rounds is None or number < case.rounds)


def of_one_broker() -> list[Case]:
    """Return the cases with one broker.

    A JVM compiles for long: the processor time of Kafka falls to a third or less in three passes.
    What they compile serves the other cases, too.
    """
    one_partition, many_partitions = Shape(1000, partitions=1), Shape(1000, partitions=200)
    return [
        _takes(7, WARM, produce("100 B", Shape(100), 1.6, 0.9, quick=True)),
        _takes(8, WARM, produce("1 kB", Shape(1000), 2.0, 0.9, quick=True)),
        _takes(6, WARM, produce("10 kB", Shape(10_000), 2.0, 0.9, quick=True)),
        _compares(3, 2, produce("1 kB, lz4", Shape(1000, codec="lz4"), None, None, quick=False)),
        _compares(3, 2, produce("1 kB, zstd", Shape(1000, codec="zstd"), None, None, quick=False)),
        _compares(6, 0, produce("1 kB, one partition", one_partition, None, None, quick=False)),
        _compares(8, 0, produce("1 kB, 200 partitions", many_partitions, None, None, quick=False)),
        _compares(13, 3, many_producers(Shape(1000))),
        _takes(13, WARM, consume("1 kB", 1000, 1.3)),
        _takes(7, 0, consume("100 B", 100, 1.3, quick=False)),
        _compares(
            11, 0, consume("1 kB, not in the page cache", 1000, None, cold=True, quick=False)
        ),
        _compares(11, 0, consume("1 kB, closed segments", 1000, None, closed=True, quick=False)),
        _takes(11, 1, bare_produce()),
        _takes(11, 1, bare_fetch()),
        _takes(13, 1, small_requests()),
        _compares(20, 0, end_to_end(1, quick=False)),
        _takes(27, 1, end_to_end(10, quick=True)),
        _takes(17, 0, end_to_end(50, quick=False)),
        _compares(1, 0, memory()),
        _takes(20, 0, start_up()),
    ]


def of_three_brokers() -> list[Case]:
    """Return the cases with three brokers."""
    return [
        _takes(15, WARM, produce("100 B", Shape(100, "all"), 2.5, None, quick=False)),
        _takes(16, WARM, produce("1 kB", Shape(1000, "all"), 2.5, None, quick=True)),
        _takes(12, WARM, produce("10 kB", Shape(10_000, "all"), 2.5, None, quick=False)),
    ]


def of_dying_brokers() -> list[Case]:
    """Return the cases that kill one of three brokers."""
    return [
        _takes(50, 0, failover.leader(), (OURS, *PEERS)),
        _takes(65, 0, failover.controller(), (OURS, *PEERS)),
    ]


def of_many_connections() -> list[Case]:
    """Return the cases with a thousand connections."""
    return [
        _compares(12, 1, connections.busy()),
        _compares(33, 0, connections.idle()),
    ]


def of_many_partitions() -> list[Case]:
    """Return the cases that start systems of their own."""
    return [
        _takes(100, 0, scale.one_broker(), (OURS,)),
        _takes(240, 0, scale.one_replica(), (OURS, KAFKA)),
        _takes(240, 0, scale.three_replicas(), (OURS, KAFKA)),
    ]


def _takes(
    seconds: float, warm_ups: int | None, case: Case, chosen: Sequence[str] = SYSTEMS
) -> Case:
    """Return a case with about the seconds of a round, its warm-ups and its systems."""
    return replace(case, seconds=seconds, warm_ups=warm_ups, systems=chosen)


def _compares(seconds: float, warm_ups: int, case: Case) -> Case:
    """Return a case without a goal: few rounds of it do, and without the second of our brokers."""
    return replace(_takes(seconds, warm_ups, case, (OURS, *PEERS)), rounds=FEW_ROUNDS)


def order(systems: Sequence[str], number: int) -> list[str]:
    """Return the systems in another order each round."""
    turn = number % len(systems)
    turned = [*systems[turn:], *systems[:turn]]
    return turned if number % 2 == 0 else turned[::-1]
