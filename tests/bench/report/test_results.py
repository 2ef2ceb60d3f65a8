"""What the report says of figures: ratios, goals, and which of them are missed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bench.report.results import LIMIT, WRITES, Results, What, verdict
from tests.bench.report.systems import AGAIN, KAFKA, NEWEST, OURS

FAST = What("Produce", "1 kB", "MB/s", 2.0, share=0.9)
SMALL = What("Memory", "loaded", "MiB", 0.5, less=True)


def figures(
    mine: float,
    kafka: float,
    newest: float,
    limit: float | None = None,
    writes: float | None = None,
) -> dict[str, list[float]]:
    found = {OURS: mine, AGAIN: mine, KAFKA: kafka, NEWEST: newest, LIMIT: limit, WRITES: writes}
    return {system: [value] for system, value in found.items() if value is not None}


@pytest.mark.parametrize(
    ("what", "by_system", "expected"),
    [
        (FAST, figures(200, 100, 90), "met"),
        # Every Kafka counts.
        (FAST, figures(200, 100, 101), "missed"),
        # The client is the bound.
        (FAST, figures(200, 150, 150, limit=222), "met"),
        (FAST, figures(200, 150, 150, limit=223), "missed"),
        # Of a server that writes, no share is enough.
        (FAST, figures(200, 150, 150, limit=223, writes=200), "missed"),
        (SMALL, figures(50, 100, 100), "met"),
        (SMALL, figures(51, 100, 100), "missed"),
        (What("a", "share alone", "MB/s", share=0.7), figures(70, 1, 1, limit=100), "met"),
        (What("a", "share alone", "MB/s", share=0.7), figures(69, 1, 1, limit=100), "missed"),
        (What("a", "no goal", "MB/s"), figures(1, 2, 3), ""),
    ],
)
def test_verdict(what: What, by_system: dict[str, list[float]], expected: str) -> None:
    assert verdict(what, by_system) == expected


def test_tables_have_medians_ratios_and_their_intervals() -> None:
    results = Results()
    for mine, theirs in ((100.0, 50.0), (120.0, 40.0), (110.0, 44.0)):
        results.note(FAST, OURS, mine)
        results.note(FAST, AGAIN, mine)
        results.note(FAST, KAFKA, theirs)
        results.note(FAST, LIMIT, 200.0)
    text = "\n".join(results.sections())
    assert "### Produce" in text
    assert "| 1 kB, MB/s | 110 | 44 | 200 | 2.50 (1.51-4.14) | 1.00 (1.00-1.00) | 0.55 |" in text
    assert "at least 2 or 0.9 of the limit: **met**" in text
    assert results.missed() == []


def test_limit_that_writes_has_columns_of_its_own() -> None:
    results = Results()
    for system, value in figures(110, 44, 55, limit=200, writes=137.5).items():
        results.note(FAST, system, value[0])
    head, _, row = list(results.sections())[2:5]
    assert "| kafka 4.1.0 | limit | limit that writes | ratio to kafka 2.8.2 |" in head
    assert "| share of limit | share of limit that writes | goal |" in head
    assert "| 110 | 44 | 55 | 200 | 138 | 2.50 |" in row
    assert "| 0.55 | 0.80 | at least 2 or 0.9 of the limit: **met** |" in row


def test_table_has_the_limit_that_writes_alone_where_only_that_was_measured() -> None:
    results = Results()
    spent = What("Processor time", "1 kB", "s/GB", less=True)
    for system, value in figures(1.2, 1.5, 1.5, writes=0.8).items():
        results.note(spent, system, value[0])
    head, _, row = list(results.sections())[2:5]
    assert "| kafka 4.1.0 | limit that writes | ratio" in head
    assert row.endswith("| 1.50 |  |")


LATE = What("Latency", "p99", "ms", 0.3, less=True)


@pytest.mark.parametrize(
    ("what", "by_system", "expected"),
    [
        (LATE, figures(40, 100, 100, limit=29), "at most 0.3: **missed** |"),
        (LATE, figures(40, 100, 100, limit=31), "at most 0.3: **missed**, by the limit too |"),
        # What this broker reaches is in reach.
        (LATE, figures(30, 100, 100, limit=31), "at most 0.3: **met** |"),
        (FAST, figures(150, 100, 100, limit=300, writes=199), "missed**, by the limit that writes"),
        (FAST, figures(150, 100, 100, limit=300, writes=200), "of the limit: **missed** |"),
        # It is the client that bounds that one.
        (FAST, figures(150, 100, 100, limit=180, writes=162), "of the limit: **missed** |"),
    ],
)
def test_missed_goal_that_a_limit_misses_too_names_it(
    what: What, by_system: dict[str, list[float]], expected: str
) -> None:
    results = Results()
    for system, values in by_system.items():
        results.note(what, system, values[0])
    assert expected in "\n".join(results.sections())


def test_goal_without_a_system_to_compare_with_is_neither_met_nor_missed() -> None:
    results = Results()
    results.note(replace(SMALL, unit=""), OURS, 1.0)
    [row] = [one for one in results.sections() if one.startswith(f"| {SMALL.name} |")]
    assert row.endswith(f"at most {SMALL.goal:g}: not compared |")
    assert not results.missed()


def test_newest_figures_of_a_unit_are_added() -> None:
    results = Results()
    for value in (9.0, 1.0):
        results.note(What("a", "1 kB", "s/GB"), KAFKA, value)
        results.note(What("a", "100 B", "s/GB"), KAFKA, value + 1)
        results.note(What("a", "1 kB", "MB/s"), KAFKA, value)
    assert results.newest(KAFKA, "s/GB") == 3
    assert results.newest(OURS, "s/GB") == 0


def test_missed_goals_are_listed() -> None:
    results = Results()
    for system, values in figures(1, 1, 1).items():
        results.note(SMALL, system, values[0])
    assert results.missed() == ["Memory, loaded"]


def test_remarks_are_below_the_table_of_their_section() -> None:
    results = Results()
    results.note(FAST, OURS, 1.0)
    results.note(SMALL, OURS, 1.0)
    results.remark(FAST.section, "Kafka cannot")
    lines = list(results.sections())
    assert lines.index("- Kafka cannot") < lines.index("### Memory")
