"""Whether reports of several runs agree: `python -m tests.bench.report.agreement FILE FILE ...`.

Each ratio of a report has an interval beside it. Runs agree on a ratio if their intervals overlap.
Those of the same system do in 99 of 100 ratios and more (`spread`): that is what intervals say, and
no more. So reports agree if that many ratios do; of a hundred, one may be apart by chance. Prints
where they do not agree, and goals that one meets and another misses; exit status 1 if more are
apart. Rows of one round state no interval, and are not compared. A report whose machine lost much
processor time to others is named: it may differ for that alone.
"""

from __future__ import annotations

import argparse
import itertools
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
_AGREEING: Final = 0.99
"""The share of ratios on which runs of the same system agree."""


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


def apart(reports: Sequence[Mapping[str, Row]]) -> list[str]:
    """Return the ratios on which two of the reports do not agree, a line each."""
    found = []
    names = dict.fromkeys(name for report in reports for name in report)
    for name in names:
        having = [report[name] for report in reports if name in report]
        for to in having[0].ratios:
            stated = [one.ratios[to] for one in having if to in one.ratios]
            if not all(overlap(*both) for both in itertools.combinations(stated, 2)):
                found.append(f"{name}, {to}: {', '.join(map(str, stated))}")
    return found


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
    differences = apart(found)
    for line in differences:
        print(f"apart: {line}")
    for name in undecided(found):
        print(f"goal met in some: {name}")
    stated = {
        (name, to): one.interval is not None
        for report in found
        for name, row in report.items()
        for to, one in row.ratios.items()
    }
    compared = sum(stated.values())
    agreeing = compared - len(differences)
    print(f"{agreeing} of {compared} ratios agree in {len(found)} reports")
    if single := len(stated) - compared:
        print(f"{single} ratios are of one round, and not compared")
    return 0 if agreeing >= _AGREEING * compared else 1


if __name__ == "__main__":
    sys.exit(main())
