"""Lines that strangers cause are limited, and it is said how many were left out."""

from __future__ import annotations

import logging

import pytest

from odradek.net.rare_log import LINES_PER_PERIOD, PERIOD_S, RareLog
from tests.support.log_lines import messages_of


def test_a_flood_of_one_kind_leaves_room_for_others(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    now = 0.0
    log = RareLog(logging.getLogger("tests.rare"), lambda: now)
    for number in range(10_000):
        log.log(logging.INFO, "refused %d", number)
        log.log(logging.WARNING, "something else")
    assert messages_of(caplog, "tests.rare") == [
        "refused 0",
        "something else",
        *(f"refused {number}" for number in range(1, LINES_PER_PERIOD)),
    ]
    caplog.clear()
    now += PERIOD_S
    log.log(logging.INFO, "refused %d", -1)
    left_out = 10_000 - LINES_PER_PERIOD
    assert messages_of(caplog, "tests.rare") == [
        f"left out {left_out} lines like the next one",
        "refused -1",
    ]


def test_what_is_not_shown_is_not_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "tests.rare")
    now = 0.0
    log = RareLog(logging.getLogger("tests.rare"), lambda: now)
    for _ in range(100):
        log.log(logging.INFO, "hidden")
    assert not messages_of(caplog, "tests.rare")
