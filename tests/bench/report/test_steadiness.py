"""What reports say of processors whose speed changes."""

from __future__ import annotations

import pytest

from tests.bench import steadiness
from tests.bench.report import agreement


def test_a_loop_takes_processor_time() -> None:
    assert 0 < steadiness.loop_s() < 60


@pytest.mark.parametrize(
    ("found", "middle", "slowest"),
    [
        ([2.0], "1.00", "1.00"),
        ([2.0] * 30, "1.00", "1.00"),
        ([2.0] * 20 + [3.0], "1.00", "1.00"),
        ([2.0] * 15 + [3.0] * 5, "1.00", "1.50"),
        ([2.0] * 5 + [3.0] * 15, "1.50", "1.50"),
    ],
)
def test_the_slowest_tenth_is_said(found: list[float], middle: str, slowest: str) -> None:
    assert steadiness.said(found) == (
        f"a fixed loop took {middle} times its shortest time in the median, "
        f"and {slowest} in the slowest tenth"
    )


@pytest.mark.parametrize(("slow", "is_much"), [(1.0, False), (1.19, False), (1.2, True)])
def test_an_unsteady_report_is_noticed(slow: float, is_much: bool) -> None:
    line = steadiness.said([1.0] * 10 + [slow] * 10)
    told = agreement.disturbed(f"# Results\n\n- {line}\n\nClients\n")
    assert told == ([line] if is_much else [])
