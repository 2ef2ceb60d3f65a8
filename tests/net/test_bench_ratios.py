"""The table of benchmarks that measure by turns: medians, spreads and goals."""

from __future__ import annotations

from tests.bench.ratios import Ratio, Table, ratio


def test_ratio_is_of_medians_and_its_spread_of_rounds() -> None:
    found = ratio([10.0, 30.0, 20.0], [10.0, 10.0, 20.0])
    assert found == Ratio(2.0, 1.0, 3.0)
    assert str(found) == "2.00 (1.00-3.00)"


def test_goals_count_the_cases_that_meet_them() -> None:
    table = Table("ours", "theirs", "again")
    for what, mine in (("produce A", 12.0), ("produce B", 11.0), ("fetch A", 10.0)):
        for name, speed in (("ours", mine), ("theirs", 10.0), ("again", mine)):
            table.note(what, name, speed, 0.5)
    lines = list(table.lines({"produce": 1.2, "fetch": 1.0, "other": 1.0}))
    assert lines[-2:] == [
        "produce: 1 of 2 at least 1.2; median 1.15, lowest 1.10",
        "fetch: 1 of 1 at least 1.0; median 1.00, lowest 1.00",
    ]
    assert lines[2].startswith("produce A")
    assert "1.20 (1.20-1.20)" in lines[2]


def test_what_was_interrupted_does_not_count() -> None:
    table = Table("ours", "theirs", "again")
    for name in ("ours", "theirs", "again", "ours"):
        table.note("fetch A", name, 10.0, 0.5)
    table.note("fetch B", "ours", 10.0, 0.5)
    assert [line[:7] for line in list(table.lines({}))[2:]] == ["fetch A"]


def test_case_at_the_bound_of_the_client_is_told_apart() -> None:
    table = Table("ours", "theirs", "again", "dropped")
    for what, most in (("produce A", 11.0), ("produce B", 20.0)):
        for name, speed in (("ours", 10.0), ("theirs", 10.0), ("again", 10.0), ("dropped", most)):
            table.note(what, name, speed, 0.5)
    table.note("fetch A", "ours", 10.0, 0.5)
    lines = list(table.lines({"produce": 1.2}))
    assert lines[2].endswith("  0.91 (0.91-0.91)")
    assert lines[-1] == "produce: 1 of the others reach 0.9 of dropped"
