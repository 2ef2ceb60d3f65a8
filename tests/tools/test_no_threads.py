"""Commands on a machine that lets them start no thread."""

from __future__ import annotations

import threading
from collections.abc import Coroutine
from typing import Any

import pytest
from click.testing import CliRunner

from odradek import commands
from odradek.tools import cluster

LINE = (
    "odradek: can't start new thread: too many processes and threads, or too little memory; "
    "end some, or raise the limit (ulimit -u, or pids.max of the container)\n"
)


@pytest.mark.parametrize(
    "arguments",
    [
        ["topics", "list", "--bootstrap-server", "localhost:1"],
        ["groups", "list", "--zookeeper", "localhost:1"],
    ],
    ids=["to look up a broker", "to talk to ZooKeeper"],
)
def test_a_command_that_can_start_no_thread_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    done = CliRunner().invoke(commands.main, arguments)
    assert (done.exit_code, done.stderr, done.stdout) == (1, LINE, "")


def test_other_errors_of_the_kind_are_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(work: Coroutine[Any, Any, None]) -> None:
        work.close()
        raise RuntimeError("a bug")

    monkeypatch.setattr(cluster, "run", fail)
    done = CliRunner().invoke(commands.main, ["cluster"])
    assert str(done.exception) == "a bug"
