"""Which transfers are too slow for the memory that they hold."""

from __future__ import annotations

import pytest

from odradek.net.pace import LEAST_RATE, LONGEST_S, Pace, Transfer

WINDOW_S = 30.0
LOOKS = 4
MEBIBYTE = 1024 * 1024


def first_failure(moved_per_look: float, total: int, looks: int = 1000) -> int | None:
    """The look at which a steady transfer is found too slow, None if it ends before."""
    pace = Pace()
    for look in range(looks):
        moved = min(int(1 + look * moved_per_look), total)
        if moved == total:
            return None
        if pace.is_too_slow(Transfer(1, moved, total), LOOKS, WINDOW_S):
            return look
    raise AssertionError("neither too slow nor done")


@pytest.mark.parametrize(
    ("total", "least_rate"),
    [
        (5_000, LEAST_RATE),
        (200_000, LEAST_RATE),
        (MEBIBYTE, MEBIBYTE / LONGEST_S),
        (100 * MEBIBYTE, 100 * MEBIBYTE / LONGEST_S),
    ],
)
def test_least_rate_is_that_of_the_size(total: int, least_rate: float) -> None:
    a_look = WINDOW_S / LOOKS
    assert first_failure(1.05 * least_rate * a_look, total) is None
    if total > least_rate * WINDOW_S:
        assert first_failure(0.9 * least_rate * a_look, total) == LOOKS


def test_what_stands_still_is_found_after_one_window() -> None:
    assert first_failure(0, 10) == LOOKS
    assert first_failure(0, 100 * MEBIBYTE) == LOOKS


def test_one_byte_now_and_then_is_not_enough() -> None:
    pace, moved = Pace(), 1
    found = []
    for look in range(2 * LOOKS):
        moved += look % (LOOKS - 1) == 0
        found.append(pace.is_too_slow(Transfer(1, moved, 100_000), LOOKS, WINDOW_S))
    assert found.index(True) == LOOKS


def test_each_transfer_begins_a_window() -> None:
    pace = Pace()
    for number in range(3):
        for _ in range(LOOKS):
            assert not pace.is_too_slow(Transfer(number, 1, 100), LOOKS, WINDOW_S)


def test_time_that_is_no_fault_of_the_peer_does_not_count() -> None:
    pace = Pace()
    for _ in range(5):
        for _ in range(LOOKS):
            assert not pace.is_too_slow(Transfer(1, 1, 100), LOOKS, WINDOW_S)
        pace.pause()
