"""A chaos run whose cluster does not come up says so in a line, and not in a traceback."""

import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import tests.chaos.__main__ as command
import tests.chaos.run as chaos_run
from tests.support.zookeeper import Server

SAID = re.compile(
    r"Error: seed 1, round 1 of 1: the cluster did not come up: (.+); its logs are in (\S+)"
)


def end() -> tuple[str, Path]:
    """Run one round, and return why its cluster did not come up, and the folder of its logs."""
    done = CliRunner().invoke(command.main, ["--faults", "1"])
    assert done.exit_code == 1, done.output
    assert isinstance(done.exception, SystemExit), done.exception
    lines = [line for line in done.output.splitlines() if line and not line.startswith("seed 1")]
    assert len(lines) == 1, done.output
    found = SAID.fullmatch(lines[0])
    assert found is not None, lines[0]
    return found[1], Path(found[2])


def test_broker_that_does_not_start_is_named_with_its_last_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(chaos_run.SETTINGS, "log.segment.bytes", "many")
    why, logs = end()
    try:
        assert why.startswith("broker 1 ended: ")
        assert "log.segment.bytes" in why
        assert "log.segment.bytes" in (logs / "broker-1.log").read_text()
        assert list(logs.glob("zookeeper*"))
    finally:
        shutil.rmtree(logs)


def test_zookeeper_that_does_not_start_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: Server) -> None:
        raise RuntimeError(
            "ZooKeeper did not start: first line\nException in thread main\n  last\n"
        )

    monkeypatch.setattr(Server, "start", start)
    why, logs = end()
    shutil.rmtree(logs)
    assert why == "ZooKeeper did not start: last"


def test_error_without_words_is_told_by_its_name() -> None:
    assert chaos_run.in_a_line(AssertionError()) == "AssertionError()"
    assert chaos_run.in_a_line(ValueError("one line")) == "one line"
