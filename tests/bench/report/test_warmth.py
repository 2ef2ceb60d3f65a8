"""How often brokers in JVMs are warmed up."""

from __future__ import annotations

import pytest

from tests.bench.report.warmth import warm_up


@pytest.mark.parametrize(
    ("old", "new", "passes"),
    [
        # Each falls by a tenth or more, as often as it may.
        ([9, 8, 7, 6], [9, 8, 7, 6], 4),
        ([9, 6, 5.5, 5], [9, 8, 7.5, 5], 3),
        # One of them is warm, and the other one is not.
        ([9, 9, 9, 9], [9, 6, 5, 4.9], 4),
        ([9, 9, 9, 9], [9, 10, 5, 4.9], 2),
    ],
)
def test_passes_are_repeated_until_every_system_is_level(
    old: list[float], new: list[float], passes: int
) -> None:
    done = []

    def do_pass(number: int) -> dict[str, float]:
        done.append(number)
        return {"old": old[number], "new": new[number]}

    assert warm_up(do_pass, most=4) == passes
    assert done == [*range(passes)]
