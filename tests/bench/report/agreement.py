"""Whether reports of several runs agree: `python -m tests.bench.report.agreement FILE FILE ...`.

Each ratio of a report has an interval beside it. Runs agree on a ratio if their intervals overlap,
of more than two reports those of each pair. Of a thousand pairs of the same system one is apart
(`spread`), so that more reports have more. Reports agree if no more ratios are apart than in 99 of
100 comparisons of the same system: of 110 ratios one in two reports, two in three. Prints where
they do not agree, and goals that one meets and another misses; exit status 1 if more are apart. Who
compares reports often will see it once in a hundred times for no reason.

Rows of one round state no interval, and are not compared, nor is what only one report has. A report
whose machine lost much processor time to others is named: it may differ for that alone.
"""

from __future__ import annotations

import argparse
import itertools
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.bench import steadiness, stolen
from tests.bench.report.spread import Spread, overlap

_RATIO: Final = re.compile(r"([\d.]+)(?: \(([\d.]+)-([\d.]+)\))?")
_GOAL: Final = re.compile(r"\*\*(met|missed)\*\*")
_STOLEN: Final = re.compile(r"^- (the host gave (\d+)% .*)", re.MULTILINE)
_STEADY: Final = re.compile(
    r"^- (a fixed loop took .* and (\d+\.\d+) in the slowest tenth)", re.MULTILINE
)
_HEAD: Final = "ratio to "
_ITSELF: Final = "ratio to again"
_APART_BY_CHANCE: Final = 0.001
"""The share of pairs of intervals that are apart, of the same system.

Drawn reports have 0.0006 to 0.0009 where half of the rows have three rounds and half have five.
Counts of several ratios vary as those of independent ones, though two are of one row.
"""
_RARE: Final = 0.01
"""How often the same system may have more ratios apart than reports that agree."""


class Row(NamedTuple):
    """What a line of a table says: ratios by the system that they are to, and of its goal."""

    ratios: Mapping[str, Spread]
    verdict: str  # "" without a goal


def rows(report: str) -> dict[str, Row]:
    """Return the rows of a report that have ratios to Kafka, by section and name."""
    return dict(_rows(report))


def _rows(report: str) -> Iterator[tuple[str, Row]]:
    section, heads = "", [""]
    for line in report.splitlines():
        if line.startswith("### "):
            section = line.removeprefix("### ")
        if not line.startswith("|") or line.startswith("|---"):
            continue
        cells = [one.strip() for one in line.strip("|").split("|")]
        if not cells[0]:
            heads = cells
            continue
        found = {
            head: _stated(*match.groups())
            for head, cell in zip(heads, cells, strict=True)
            if head.startswith(_HEAD) and head != _ITSELF and (match := _RATIO.fullmatch(cell))
        }
        if found:
            goal = _GOAL.search(line)
            yield f"{section}: {cells[0]}", Row(found, goal.group(1) if goal else "")


def _stated(value: str, least: str | None, most: str | None) -> Spread:
    interval = None if least is None or most is None else (float(least), float(most))
    return Spread(float(value), interval)


class Comparison(NamedTuple):
    """What reports say of one ratio: `stated` are those which have an interval, two at least."""

    what: str
    stated: Sequence[Spread]

    @property
    def pairs(self) -> int:
        """Return how many pairs of intervals must overlap."""
        return math.comb(len(self.stated), 2)

    @property
    def is_apart(self) -> bool:
        """Return whether two of the reports do not agree."""
        return not all(overlap(*both) for both in itertools.combinations(self.stated, 2))

    def __str__(self) -> str:
        return f"{self.what}: {', '.join(map(str, self.stated))}"


def comparisons(reports: Sequence[Mapping[str, Row]]) -> list[Comparison]:
    """Return the ratios that two of the reports state an interval of, at least."""
    stated: dict[str, list[Spread]] = {}
    for report in reports:
        for name, row in report.items():
            for to, one in row.ratios.items():
                if one.interval is not None:
                    stated.setdefault(f"{name}, {to}", []).append(one)
    return [Comparison(what, found) for what, found in stated.items() if len(found) > 1]


def most_by_chance(pairs: int) -> int:
    """Return how many ratios may be apart in so many pairs of intervals of the same system.

    More are in one of 100 comparisons at most. They are rare, so their number is Poisson's.
    """
    expected = _APART_BY_CHANCE * pairs
    exactly = so_far = math.exp(-expected)
    number = 0
    while 1 - so_far > _RARE:
        number += 1
        exactly *= expected / number
        so_far += exactly
    return number


def undecided(reports: Sequence[Mapping[str, Row]]) -> list[str]:
    """Return the rows whose goal is met in one report and missed in another."""
    names = dict.fromkeys(name for report in reports for name in report)
    return [
        name
        for name in names
        if len({report[name].verdict for report in reports if name in report} - {""}) > 1
    ]


def disturbed(report: str) -> list[str]:
    """Return what a report says of the machine that spoils ratios: processor time that others got,
    if that was much, and processors that were not steady.
    """
    stole, steady = _STOLEN.search(report), _STEADY.search(report)
    told = []
    if stole and int(stole.group(2)) >= 100 * stolen.MUCH:
        told.append(stole.group(1))
    if steady and float(steady.group(2)) >= steadiness.MUCH:
        told.append(steady.group(1))
    return told


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare reports, and print where they differ; return 1 if more ratios do than by chance."""
    parser = argparse.ArgumentParser(description="Whether reports of several runs agree.")
    parser.add_argument("reports", metavar="FILE", nargs="+", type=Path)
    options = parser.parse_args(arguments)
    if len(options.reports) < 2:
        parser.error("there must be two reports at least")
    try:
        texts = [one.read_text() for one in options.reports]
    except (OSError, UnicodeDecodeError) as error:
        parser.error(str(error))
    found = [rows(one) for one in texts]
    for path, text, one in zip(options.reports, texts, found, strict=True):
        if not one:
            parser.error(f"{path} has no table with ratios")
        for said in disturbed(text):
            print(f"{path}: {said}")
    compared = comparisons(found)
    if not compared:
        parser.error("no ratio has an interval in two of the reports")
    differences = [one for one in compared if one.is_apart]
    for difference in differences:
        print(f"apart: {difference}")
    for name in undecided(found):
        print(f"goal met in some: {name}")
    agreeing = len(compared) - len(differences)
    print(f"{agreeing} of {len(compared)} ratios agree in {len(found)} reports")
    stated = {(name, to) for report in found for name, row in report.items() for to in row.ratios}
    if left_out := len(stated) - len(compared):
        print(f"{left_out} ratios are of one round, or in one report alone, and not compared")
    most = most_by_chance(sum(one.pairs for one in compared))
    if len(differences) > most:
        print(f"chance explains {most} that are apart")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
