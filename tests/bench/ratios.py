"""A table of two systems that were measured by turns, with a second run of the first one.

The second one, `again`, differs from the first by noise alone: a ratio that is no farther from 1
than theirs says nothing. A fourth one, `bound`, may tell the most that the client reaches: where
the first one is close to it, another ratio would be the client's.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

# From this share of the bound on, it is the client that is measured.
AT_BOUND: Final = 0.9


@dataclass(frozen=True, slots=True)
class Ratio:
    """The ratio of two medians, and the lowest and the highest of single rounds."""

    value: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.least:.2f}-{self.most:.2f})"


def ratio(above: list[float], below: list[float]) -> Ratio:
    """Return the ratio of what was measured in the same rounds."""
    each = [one / other for one, other in zip(above, below, strict=True)]
    return Ratio(statistics.median(above) / statistics.median(below), min(each), max(each))


@dataclass(slots=True)
class Table:
    """Speeds in MB/s and processor seconds per GB, by what was measured and by system."""

    mine: str
    theirs: str
    again: str
    bound: str = ""
    speeds: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    processor: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def note(self, what: str, name: str, speed: float, spent: float) -> None:
        """Keep a round's figures of one system."""
        for figures, value in ((self.speeds, speed), (self.processor, spent)):
            figures.setdefault(what, {}).setdefault(name, []).append(value)

    def lines(self, goals: Mapping[str, float]) -> Iterator[str]:
        """Yield the table of what all systems finished, and whether each goal is met.

        Goals are the least ratios, by the first word of what was measured.
        """
        yield (
            f"{'':42}{'MB/s, medians':>15}  {'ratio (rounds)':18}{'the same twice':18}"
            f"{'CPU s per GB':>14}{f'  of {self.bound}' if self.bound else ''}"
        )
        names = f"{self.mine:>8} {self.theirs[:6]:>6}"
        yield f"{'':42}{names}{'':37}{names}"
        found: dict[str, list[Ratio]] = {}
        at_bound: dict[str, list[bool]] = {}
        for what, by_name in self.speeds.items():
            each = [by_name.get(one, []) for one in (self.mine, self.theirs, self.again)]
            rounds = min(map(len, each))
            if not rounds:
                continue
            mine, theirs, again = (one[:rounds] for one in each)
            against = ratio(mine, theirs)
            noise = ratio(again, mine)
            word = what.split()[0]
            found.setdefault(word, []).append(against)
            most = by_name.get(self.bound, [])[:rounds]
            share = ratio(mine, most) if len(most) == rounds else None
            at_bound.setdefault(word, []).append(share is not None and share.value >= AT_BOUND)
            medians = [statistics.median(one) for one in (mine, theirs)]
            spent = [
                statistics.median(self.processor[what][one]) for one in (self.mine, self.theirs)
            ]
            yield (
                f"{what:42}{medians[0]:8.1f} {medians[1]:6.1f}  {against!s:18}{noise!s:18}"
                f"{spent[0]:7.2f} {spent[1]:6.2f}{f'  {share}' if share else ''}"
            )
        for word, least in goals.items():
            if all_of := [one.value for one in found.get(word, [])]:
                met = sum(one >= least for one in all_of)
                yield (
                    f"{word}: {met} of {len(all_of)} at least {least}; "
                    f"median {statistics.median(all_of):.2f}, lowest {min(all_of):.2f}"
                )
                others = [
                    one
                    for one, full in zip(all_of, at_bound[word], strict=True)
                    if one < least and full
                ]
                if others:
                    yield f"{word}: {len(others)} of the others reach {AT_BOUND} of {self.bound}"
