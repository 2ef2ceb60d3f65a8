"""What reports say of processor time that the host gave to others."""

from __future__ import annotations

import pytest

from tests.bench import stolen
from tests.bench.report import agreement
from tests.bench.stolen import Ticks

STAT = """cpu  352320 5 84493 369652 7529 10 12523 91339 77 0
cpu0 176171 0 41629 182815 4649 0 5845 46165 77 0
intr 1 2 3
"""


def test_what_is_wanted_has_no_idle_time_and_no_guests_twice() -> None:
    assert stolen.parsed(STAT) == Ticks(352320 + 5 + 84493 + 10 + 12523 + 91339, 91339)


def test_this_machine_tells_what_was_wanted() -> None:
    before = stolen.now()
    after = stolen.now()
    assert after.wanted >= before.wanted > 0
    assert 0 <= after.since(before).share <= 1


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({}, "the host gave 0% of the processor time to others"),
        ({"one": Ticks(100, 0)}, "the host gave 0% of the processor time to others"),
        (
            {"one": Ticks(100, 2), "two": Ticks(300, 90), "three": Ticks(0, 0)},
            "the host gave 23% of the processor time to others, 30% in the worst measurement (two)",
        ),
    ],
)
def test_the_whole_is_said_with_the_worst(found: dict[str, Ticks], said: str) -> None:
    assert stolen.said(found) == said


@pytest.mark.parametrize(("percent", "is_much"), [(0, False), (1, False), (2, True), (11, True)])
def test_much_is_noticed_in_a_report(percent: int, is_much: bool) -> None:
    line = stolen.said({"round 1, produce 1 kB: odradek": Ticks(100, percent)})
    assert agreement.disturbed(f"# Results\n\n- {line}\n\nClients\n") == ([line] if is_much else [])


def test_reports_from_before_say_nothing_of_it() -> None:
    assert agreement.disturbed("# Results\n\n- 2 processors\n") == []
