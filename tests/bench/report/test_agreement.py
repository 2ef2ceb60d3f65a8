"""Whether reports of several runs agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.report import agreement
from tests.bench.report.results import Results, What
from tests.bench.report.systems import AGAIN, KAFKA, NEWEST, OURS

FAST = What("Produce", "1 kB", "MB/s", 2.0)


@pytest.fixture
def reports(tmp_path: Path) -> list[str]:
    """Reports of ratios 2 to 3, 2.5 to 3.5, and 4 to 5 to Kafka 2.8.2; to 4.1.0 all are 4."""
    found = []
    for number, speeds in enumerate(([2.0, 3.0], [2.5, 3.5], [4.0, 5.0])):
        results = Results()
        for speed in speeds:
            for system, value in {OURS: speed, AGAIN: speed, KAFKA: 1, NEWEST: speed / 4}.items():
                results.note(FAST, system, value)
        path = tmp_path / f"{number}.md"
        path.write_text("\n".join(results.sections()))
        found.append(str(path))
    return found


def test_ranges_that_overlap_agree(reports: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert agreement.main(reports[:2]) == 0
    assert capsys.readouterr().out == "2 of 2 ratios agree in 2 reports\n"


def test_ranges_that_are_apart_are_named(
    reports: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert agreement.main(reports) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("apart: Produce: 1 kB, MB/s, ratio to kafka 2.8.2: 2.50 (2.00-3.00)")
    assert said[-1] == "1 of 2 ratios agree in 3 reports"


def test_a_goal_that_one_run_misses_is_named(
    tmp_path: Path, reports: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "missed.md"
    other.write_text(Path(reports[0]).read_text().replace("**met**", "**missed**"))
    assert agreement.main([reports[0], str(other)]) == 0
    assert "goal met in some: Produce: 1 kB, MB/s\n" in capsys.readouterr().out


def test_what_differs_no_more_than_a_broker_from_itself_agrees(reports: list[str]) -> None:
    noisy = Path(reports[2])
    noisy.write_text(noisy.read_text().replace("1.00 (1.00-1.00)", "1.00 (0.70-1.10)"))
    assert agreement.main(reports) == 0


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
