"""Whether reports of several runs agree."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
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
    assert said[-2:] == [
        "1 of 2 ratios agree in 3 reports",
        "chance explains 0 that are apart",
    ]


@pytest.mark.parametrize(
    ("drawn_apart", "ratios", "count", "status"),
    [
        (1, 10, 2, 1),
        (1, 40, 2, 0),
        (2, 40, 2, 1),
        (1, 110, 2, 0),
        (2, 110, 2, 1),
        (2, 110, 3, 0),
        (3, 110, 3, 1),
        (1, 10, 5, 0),
        (2, 10, 5, 1),
    ],
)
def test_no_more_ratios_may_be_apart_than_chance_explains(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    drawn_apart: int,
    ratios: int,
    count: int,
    status: int,
) -> None:
    paths = [tmp_path / f"{number}.md" for number in range(count)]
    for number, path in enumerate(paths):
        results = Results()
        for row in range(ratios):
            speed = 4.0 if number == 1 and row < drawn_apart else 2.0
            for _ in range(3):
                for system, value in {OURS: speed, AGAIN: speed, KAFKA: 1.0}.items():
                    results.note(What("Drawn", f"row {row}", "MB/s"), system, value)
        path.write_text("\n".join(results.sections()))
    assert agreement.main([str(one) for one in paths]) == status
    said = capsys.readouterr().out.splitlines()
    told = f"{ratios - drawn_apart} of {ratios} ratios agree in {count} reports"
    assert (told in said, said[-1].startswith("chance explains")) == (True, bool(status))


@pytest.mark.parametrize("pairs", [1, 10, 11, 40, 110, 330, 660, 1100])
def test_what_chance_explains_is_the_tail_of_a_binomial(pairs: int) -> None:
    most = agreement.most_by_chance(pairs)

    def more_than(number: int) -> float:
        return 1 - sum(
            math.comb(pairs, one) * 0.001**one * 0.999 ** (pairs - one) for one in range(number + 1)
        )

    assert more_than(most) <= 0.01
    assert most == 0 or more_than(most - 1) > 0.0098


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
        "2 ratios are of one round, or in one report alone, and not compared",
    ]


def test_a_short_report_is_compared_in_what_it_has(
    tmp_path: Path, reports: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    whole = Path(reports[0]).read_text()
    longer = tmp_path / "longer.md"
    longer.write_text(whole + "\n" + whole.replace("### Produce", "### Consume"))
    assert agreement.main([reports[0], str(longer)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "2 of 2 ratios agree in 2 reports",
        "2 ratios are of one round, or in one report alone, and not compared",
    ]
    other = tmp_path / "other.md"
    other.write_text(whole.replace("### Produce", "### Consume"))
    with pytest.raises(SystemExit, match="2"):
        agreement.main([reports[0], str(other)])
    assert "no ratio has an interval in two of the reports" in capsys.readouterr().err


def simulated(drawn: random.Random, slower: float = 1.0) -> Mapping[str, Row]:
    """Return the rows of a report whose figures are drawn, of a system that is so much slower.

    Some rows are quiet and some are not, and half of them have five rounds. Each broker is faster
    or slower from its start on, and one figure in twenty is of a disturbed round.
    """
    results = Results()
    for number, (round_noise, start_noise, rounds) in enumerate(
        itertools.product((0.02, 0.03, 0.05, 0.08, 0.12), (0.0, 0.01, 0.02, 0.03), (3, 5))
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


def judged(reports: Sequence[Mapping[str, Row]]) -> tuple[int, int, bool]:
    """Return how many pairs were compared, how many ratios are apart, and whether they agree."""
    compared = agreement.comparisons(reports)
    pairs, apart = sum(one.pairs for one in compared), sum(one.is_apart for one in compared)
    return pairs, apart, apart <= agreement.most_by_chance(pairs)


def test_of_a_thousand_pairs_of_the_same_system_one_is_apart() -> None:
    drawn = random.Random(20)
    runs = [[simulated(drawn) for _ in range(4)] for _ in range(100)]
    for count in (2, 3, 4):
        found = [judged(each[:count]) for each in runs]
        pairs, apart = sum(one[0] for one in found), sum(one[1] for one in found)
        assert pairs == 100 * 40 * 2 * math.comb(count, 2)
        assert pairs / 3000 <= apart <= pairs / 1000, count
        assert sum(agree for *_, agree in found) >= 97, count


def test_system_that_became_a_quarter_slower_is_found() -> None:
    drawn = random.Random(21)
    for _ in range(50):
        _, apart, agree = judged([simulated(drawn), simulated(drawn, slower=4 / 3)])
        assert (apart >= 4, agree) == (True, False), apart


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
