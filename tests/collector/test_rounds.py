"""Rounds: nothing is sent between them, and a round ends when nothing is left."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest
from odradek_collector import __main__ as collector
from odradek_collector import delivery

ENVIRONMENT = {"BOOTSTRAP": "h:1", "TOPIC": "t", "LOG_GLOBS": "/x", "ROUND_S": "30"}


@dataclasses.dataclass
class Lines:
    """A source with this many lines to send, two per call."""

    waiting: int

    def ship(self, sender: Any) -> int:
        sent = min(2, self.waiting)
        self.waiting -= sent
        return sent


def test_lines_wait_for_the_next_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [3000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    settings = collector.settings_from(ENVIRONMENT)
    state = delivery.load_state(tmp_path / "state.json")
    one = collector.Collector(settings, state, None, None)  # type: ignore[arg-type]
    source = Lines(3)
    one._sources["x"] = source  # type: ignore[assignment]
    assert [one._ship() for _ in range(4)] == [2, 1, 0, 0]
    source.waiting = 5
    now[0] = 3029.9
    assert one._ship() == 0
    now[0] = 3030.0
    assert [one._ship() for _ in range(4)] == [2, 2, 1, 0]
