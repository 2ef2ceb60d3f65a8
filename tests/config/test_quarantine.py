"""What is quarantined, for how long, and what is logged of it."""

from __future__ import annotations

import logging

import pytest

from odradek.quarantine import FORGOTTEN_AFTER_S, LONGEST_PAUSE_S, Quarantines, Work
from tests.support.log_lines import records_of


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def quarantines(clock: Clock) -> Quarantines:
    return Quarantines(clock)


def fail(quarantines: Quarantines, subject: str = "t-0") -> float:
    return quarantines.put(Work.COPYING, subject, KeyError("unforeseen"))


def test_pauses_double_up_to_a_limit_and_begin_anew_after_a_success(
    quarantines: Quarantines,
) -> None:
    pauses = [fail(quarantines) for _ in range(8)]
    assert pauses == [1, 2, 4, 8, 16, 32, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    assert fail(quarantines, "t-1") == 1
    quarantines.release(Work.COPYING, "t-0")
    assert fail(quarantines) == 1


def test_a_subject_on_trial_is_not_held_but_waits_longer_the_next_time(
    quarantines: Quarantines,
) -> None:
    fail(quarantines)
    quarantines.readmit(Work.COPYING, "t-0")
    quarantines.readmit(Work.COPYING, "unknown")
    assert quarantines.held()["copying"] == 0
    assert fail(quarantines) == 2
    assert quarantines.held()["copying"] == 1


def test_a_subject_that_never_comes_back_is_forgotten(
    quarantines: Quarantines, clock: Clock
) -> None:
    """Its partition may be deleted: nobody would ever release it."""
    fail(quarantines)
    clock.now_s += FORGOTTEN_AFTER_S + 1
    assert quarantines.held()["copying"] == 0
    assert not quarantines.active
    assert fail(quarantines) == 1
    assert quarantines.totals()["copying"] == 2


def test_guarded_work_that_fails_is_passed_over_and_that_succeeds_is_released(
    quarantines: Quarantines,
) -> None:
    for failing in (True, False):
        with quarantines.guard(Work.ISR_CHECK, "t-0"):
            if failing:
                raise KeyError("unforeseen")
        assert quarantines.held()["isr-check"] == failing


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_the_end_of_the_process_is_no_quarantine(
    quarantines: Quarantines, end: type[BaseException]
) -> None:
    with pytest.raises(end), quarantines.guard(Work.ISR_CHECK, "t-0"):
        raise end
    assert quarantines.totals()["isr-check"] == 0


def test_a_failure_that_repeats_does_not_fill_the_log(
    quarantines: Quarantines, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    for _ in range(1000):
        fail(quarantines)
    records = records_of(caplog, "odradek")
    assert [bool(one.exc_info) for one in records] == [True] + [False] * 9
    what = "t-0: failed to copy from the leader: unexpected KeyError('unforeseen')"
    assert records[1].getMessage() == f"{what}, failure 2; retrying"


def test_another_failure_of_the_same_subject_is_logged_whole(
    quarantines: Quarantines, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    for text in ("one", "one", "two"):  # the third time would not be logged
        quarantines.note(Work.CALLBACK, "event loop", KeyError(text), "going on")
    assert [bool(one.exc_info) for one in records_of(caplog, "odradek")] == [True, False, True]
