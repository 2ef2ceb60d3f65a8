"""Whether reports of several runs agree."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.bench.report import agreement
from tests.bench.report.agreement import Row
from tests.bench.report.results import Results, What
from tests.bench.report.spread import spread
from tests.bench.report.systems import AGAIN, KAFKA, NEWEST, OURS

FAST = What("Produce", "1 kB", "MB/s", 2.0)
SMALL = What("Produce", "100 B", "MB/s")


@pytest.fixture
def reports(tmp_path: Path) -> list[str]:
    """Reports of ratios about 2.1, 2.3 and 4.1 to Kafka 2.8.2; to 4.1.0 all are 4."""
    found = []
    for number, speeds in enumerate(([2.0, 2.1, 2.2], [2.2, 2.3, 2.4], [4.0, 4.1, 4.2])):
        results = Results()
        for speed in speeds:
            for system, value in {OURS: speed, AGAIN: speed, KAFKA: 1, NEWEST: speed / 4}.items():
                results.note(FAST, system, value)
        path = tmp_path / f"{number}.md"
        path.write_text("\n".join(results.sections()))
        found.append(str(path))
    return found


def test_intervals_that_overlap_agree(
    reports: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert agreement.main(reports[:2]) == 0
    assert capsys.readouterr().out == "2 of 2 ratios agree in 2 reports\n"


def test_intervals_that_are_apart_are_named(
    reports: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert agreement.main(reports) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("apart: Produce: 1 kB, MB/s, ratio to kafka 2.8.2: 2.10 (1.87-2.36)")
    assert said[-1] == "1 of 2 ratios agree in 3 reports"


@pytest.mark.parametrize(("drawn_apart", "status"), [(1, 0), (2, 1)])
def test_one_ratio_of_a_hundred_may_be_apart_by_chance(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], drawn_apart: int, status: int
) -> None:
    paths = [tmp_path / "first.md", tmp_path / "second.md"]
    for number, path in enumerate(paths):
        results = Results()
        for row in range(100):
            speed = 4.0 if number and row < drawn_apart else 2.0
            for _ in range(3):
                for system, value in {OURS: speed, AGAIN: speed, KAFKA: 1.0}.items():
                    results.note(What("Drawn", f"row {row}", "MB/s"), system, value)
        path.write_text("\n".join(results.sections()))
    assert agreement.main([str(one) for one in paths]) == status
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == f"{100 - drawn_apart} of 100 ratios agree in 2 reports"


def test_a_goal_that_one_run_misses_is_named(
    tmp_path: Path, reports: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "missed.md"
    other.write_text(Path(reports[0]).read_text().replace("**met**", "**missed**"))
    assert agreement.main([reports[0], str(other)]) == 0
    assert "goal met in some: Produce: 1 kB, MB/s\n" in capsys.readouterr().out


def test_a_round_of_zero_states_no_interval() -> None:
    assert str(spread([0.0, 2.0, 2.0], [1.0, 1.0, 1.0], 0.0)) == "2.00"


def test_rows_of_one_round_are_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = []
    for speed in (1.0, 3.0):
        results = Results()
        for system in (OURS, AGAIN, NEWEST):
            results.note(FAST, system, 1.0)
        results.note(FAST, KAFKA, speed)
        for _ in range(2):
            for system in (OURS, AGAIN, NEWEST, KAFKA):
                results.note(SMALL, system, 1.0)
        paths.append(tmp_path / f"{speed}.md")
        paths[-1].write_text("\n".join(results.sections()))
    assert agreement.main([str(one) for one in paths]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "2 of 2 ratios agree in 2 reports",
        "2 ratios are of one round, and not compared",
    ]


def simulated(drawn: random.Random, rounds: int, slower: float = 1.0) -> Mapping[str, Row]:
    """Return the rows of a report whose figures are drawn, of a system that is so much slower.

    Some rows are quiet and some are not. Each broker is faster or slower from its start on, and one
    figure in twenty is of a disturbed round.
    """
    results = Results()
    for number, (round_noise, start_noise) in enumerate(
        itertools.product((0.02, 0.03, 0.05, 0.08, 0.12), (0.0, 0.01, 0.02, 0.03))
    ):
        what = What("Drawn", f"row {number}", "MB/s")
        for system, speed in {OURS: 400, AGAIN: 400, KAFKA: 150, NEWEST: 120}.items():
            own = speed * drawn.lognormvariate(0, start_noise)
            if system in (OURS, AGAIN):
                own /= slower
            for _ in range(rounds):
                disturbed = drawn.uniform(1, 1.5) if drawn.random() < 0.05 else 1.0
                results.note(what, system, own * drawn.lognormvariate(0, round_noise) / disturbed)
    return agreement.rows("\n".join(results.sections()))


@pytest.mark.parametrize("rounds", [3, 5])
def test_three_runs_of_the_same_system_agree_in_99_of_100_ratios(rounds: int) -> None:
    drawn = random.Random(20)
    compared = apart = 0
    for _ in range(100):
        reports = [simulated(drawn, rounds) for _ in range(3)]
        compared += sum(len(row.ratios) for row in reports[0].values())
        apart += len(agreement.apart(reports))
    assert compared == 100 * 20 * 2
    assert apart <= compared / 100


def test_system_that_became_a_quarter_slower_is_found() -> None:
    drawn = random.Random(21)
    for _ in range(100):
        before, after = simulated(drawn, 5), simulated(drawn, 5, slower=4 / 3)
        found = agreement.apart([before, after])
        assert len(found) >= 4, found


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "No such file"), ("no table", "has no table with ratios")],
)
def test_no_report(
    tmp_path: Path,
    reports: list[str],
    text: str | None,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "none.md"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SystemExit, match="2"):
        agreement.main([reports[0], str(path)])
    assert said in capsys.readouterr().err
