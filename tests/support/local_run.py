"""Runs `odradek local` as a process, with its output in a file, and looks at what it leaves."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from odradek_local.data_folder import DataFolder, Note
from tests.support.broker import wait_until

# A machine that is short of time takes minutes to start all of it.
PATIENCE_S = 600


class LocalRun:
    """One call; a context manager that kills what it left if the test fails."""

    def __init__(
        self, data: Path, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self.data = DataFolder(data)
        self._output = data.parent / f"output-{os.urandom(4).hex()}"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "odradek_local", "--data", str(data), *arguments],
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def output(self) -> str:
        """Return what it has said so far."""
        return self._output.read_text()

    def wait_for(self, text: str) -> None:
        """Wait until it has said this."""

        def said() -> bool:
            if text in self.output():
                return True
            assert self.process.poll() is None, self.output()
            return False

        wait_until(said, f"it says {text!r}", PATIENCE_S)

    def note(self, members: int) -> Note:
        """Wait until it has started so many processes, and return them."""

        def noted() -> bool:
            assert self.process.poll() is None, self.output()
            found = self._own_note()
            return found is not None and sum(map(len, found.stages.values())) >= members

        wait_until(noted, f"{members} processes run", PATIENCE_S)
        found = self._own_note()
        assert found is not None
        return found

    def _own_note(self) -> Note | None:
        """Return the note that it has written, and no other start."""
        found = self.data.note()
        return found if found is not None and found.starter.pid == self.process.pid else None

    def wait(self) -> int:
        """Return its exit status."""
        return self.process.wait(PATIENCE_S)

    def stop(self, number: int = signal.SIGINT) -> int:
        """Send a signal, and return the exit status."""
        self.process.send_signal(number)
        return self.wait()

    def __enter__(self) -> LocalRun:
        return self

    def __exit__(self, *_: object) -> None:
        note = self._own_note()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in sessions(note):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def sessions(note: Note | None) -> list[int]:
    """Return the sessions of a start's processes."""
    return [one.pid for stage in note.stages.values() for one in stage] if note else []


def assert_gone(note: Note) -> None:
    """Wait until no process of these sessions is left."""

    def gone() -> bool:
        for pid in sessions(note):
            try:
                os.killpg(pid, 0)
            except ProcessLookupError:
                continue
            return False
        return True

    wait_until(gone, f"sessions {sessions(note)} have ended", PATIENCE_S)
