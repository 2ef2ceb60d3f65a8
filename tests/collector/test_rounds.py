"""Rounds: nothing is sent between them, and a round ends when nothing is left."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
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


def test_metrics_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "odradek_collector"],
            env={
                **os.environ,
                "PYTHONPATH": str(Path(collector.__file__).parents[1]),
                "BOOTSTRAP": "127.0.0.1:1",
                "TOPIC": "logs",
                "LOG_GLOBS": str(tmp_path / "*.log"),
                "STATE_FILE": str(tmp_path / "state.json"),
                "METRICS_PORT": str(port),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    # librdkafka says beside it that there is no broker.
    said = f"odradek-collector: METRICS_PORT {port}: Address already in use\n"
    assert said in done.stderr
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
