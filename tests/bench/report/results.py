"""What was measured, as tables of Markdown. Pure: no clock, no process.

A ratio is that of two medians. Beside it stands the interval that `spread` explains, and the ratio
of this broker to itself.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.bench.report.spread import Spread, noise_of, spread
from tests.bench.report.systems import AGAIN, OURS, PEERS
from tests.bench.stolen import Ticks

# What a server reaches that does the least, and what one does that checks and writes, too.
LIMIT: Final = "limit"
WRITES: Final = "limit that writes"
LIMITS: Final = (LIMIT, WRITES)
PER_GIGABYTE: Final = "s/GB"


@dataclass(frozen=True, slots=True)
class What:
    """One line of a table: what was measured, its unit, and what the ratio to Kafka should be.

    `goal` is the least ratio, or the greatest where `less` is better; None where there is none.
    `share` is the least share of the limit that does instead.
    """

    section: str
    name: str
    unit: str
    goal: float | None = None
    less: bool = False
    share: float | None = None


@dataclass(slots=True)
class Results:
    """Values by what was measured and by system, in the order of the rounds.

    `stolen` has the processor time meanwhile, by the name of the measurement; `loops` the seconds
    of a fixed loop before each.
    """

    found: dict[What, dict[str, list[float]]] = field(default_factory=dict)
    remarks: dict[str, list[str]] = field(default_factory=dict)
    stolen: dict[str, Ticks] = field(default_factory=dict)
    loops: list[float] = field(default_factory=list)

    def note(self, what: What, system: str, value: float) -> None:
        """Keep a value."""
        self.found.setdefault(what, {}).setdefault(system, []).append(value)

    def remark(self, section: str, text: str) -> None:
        """Keep a line for below a section's table, such as why a system is missing in it."""
        self.remarks.setdefault(section, []).append(text)

    def newest(self, system: str, unit: str) -> float:
        """Return the sum of a system's newest values in a unit, one of each line that has it."""
        rows = (by for what, by in self.found.items() if what.unit == unit)
        return sum(by[system][-1] for by in rows if system in by)

    def sections(self) -> Iterator[str]:
        """Yield the lines of a table for each section."""
        noise = self.noise()
        for section in dict.fromkeys(one.section for one in self.found):
            chosen = {what: by for what, by in self.found.items() if what.section == section}
            yield f"### {section}"
            yield ""
            yield from _table(chosen, noise)
            yield ""
            for text in self.remarks.get(section, ()):
                yield f"- {text}"
                yield ""

    def noise(self) -> float:
        """Return how much this broker differs from itself as a rule, as `noise_of` has it."""
        rows = [by for by in self.found.values() if OURS in by and AGAIN in by]
        return noise_of(against(by, AGAIN).value for by in rows)

    def missed(self) -> list[str]:
        """Return what misses its goal, one line each."""
        return [
            f"{what.section}, {what.name}"
            for what, by in self.found.items()
            if verdict(what, by) == "missed"
        ]


def verdict(what: What, by_system: Mapping[str, Sequence[float]]) -> str:
    """Return whether the goal is met beside every Kafka: "met", "missed", or "" without a goal.

    A share of `LIMIT` that is large enough meets it as well: there the client is the bound.
    """
    if what.goal is None and what.share is None:
        return ""
    if what.share is not None and LIMIT in by_system:
        reached = statistics.median(by_system[OURS]) / statistics.median(by_system[LIMIT])
        if reached >= what.share:
            return "met"
    if what.goal is None:
        return "missed"
    each = [against(by_system, one) for one in PEERS if one in by_system]
    if not each:
        return ""
    met = all(one.value <= what.goal if what.less else one.value >= what.goal for one in each)
    return "met" if met else "missed"


def missed_by(what: What, by_system: Mapping[str, Sequence[float]]) -> str:
    """Return the limit that misses a goal as well, if this broker misses it; "" if none does."""
    if verdict(what, by_system) != "missed":
        return ""
    for limit in LIMITS:
        if limit in by_system:
            in_our_place = {**by_system, OURS: by_system[limit]}
            if verdict(what, in_our_place) == "missed":
                return limit
    return ""


def against(by_system: Mapping[str, Sequence[float]], other: str, noise: float = 0.0) -> Spread:
    """Return the ratio of this broker to another system in the rounds that both have."""
    rounds = min(len(by_system[OURS]), len(by_system[other]))
    return spread(by_system[OURS][:rounds], by_system[other][:rounds], noise)


def _table(chosen: Mapping[What, Mapping[str, Sequence[float]]], noise: float) -> Iterator[str]:
    columns = [one for one in (OURS, *PEERS, *LIMITS) if any(one in by for by in chosen.values())]
    limits = [one for one in LIMITS if one in columns]
    ratios = [one for one in (*PEERS, AGAIN) if any(one in by for by in chosen.values())]
    heads = ["", *columns, *(f"ratio to {one.removeprefix('odradek ')}" for one in ratios)]
    heads += [*(f"share of {one}" for one in limits), "goal"]
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    for what, by in chosen.items():
        cells = [f"{what.name}, {what.unit}" if what.unit else what.name]
        cells += [_figure(statistics.median(by[one])) if one in by else "" for one in columns]
        cells += [str(against(by, one, noise)) if one in by else "" for one in ratios]
        cells += [f"{against(by, one).value:.2f}" if one in by else "" for one in limits]
        cells.append(_goal(what, by))
        yield f"| {' | '.join(cells)} |"


def _goal(what: What, by: Mapping[str, Sequence[float]]) -> str:
    asked = []
    if what.goal is not None:
        asked.append(f"{'at most' if what.less else 'at least'} {what.goal:g}")
    if what.share is not None:
        asked.append(f"{what.share:g} of the limit")
    limit = missed_by(what, by)
    too = f", by the {limit} too" if limit else ""
    reached = verdict(what, by)
    found = f"**{reached}**" if reached else "not compared"
    return f"{' or '.join(asked)}: {found}{too}" if asked else ""


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
