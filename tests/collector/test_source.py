"""A followed path, through rotations of its file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from odradek_collector import __main__ as collector
from odradek_collector import delivery, lines, tail


class AcknowledgingSender:
    """Acknowledges every line at once."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def send(self, event: lines.LogEvent, ledger: delivery.Ledger, end: int) -> None:
        self.sent.append(json.loads(event.value())["line"])
        ledger.settle(ledger.add(end))


def test_line_that_comes_while_the_next_file_is_looked_for_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "etcd.log"
    log.write_text("one\n")
    follower = tail.open_at(log, None)
    assert follower is not None
    source = collector.Source(follower, lines.LogOrigin("etcd", "here"), 0)
    sender = AcknowledgingSender()
    renamed = log.with_name("etcd.log.1")
    find = tail.open_successor

    def looked_for(finished: tail.Follower) -> tail.Follower | None:
        if not log.exists():
            with renamed.open("a") as file:
                file.write("two\n")
            log.write_text("three\n")
        return find(finished)

    monkeypatch.setattr(tail, "open_successor", looked_for)
    monkeypatch.setattr(collector, "_RENAME_GRACE_S", 0.0)
    source.ship(sender)  # type: ignore[arg-type]
    log.rename(renamed)
    for _ in range(5):
        source.ship(sender)  # type: ignore[arg-type]
    source.close()
    assert sender.sent == ["one", "two", "three"]
