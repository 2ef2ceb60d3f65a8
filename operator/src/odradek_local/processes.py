"""The processes of a start: each in a session of its own, and none outlives their starter.

A process is known by its id and its birth: ids are used again. Whoever starts them tells a
guard (`odradek_local.guard`), which ends them if their starter is gone without a word.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from odradek_local.errors import LocalError

# How long a process may take to end when it is asked to, in seconds.
PATIENCE_S: Final = 30.0
_PAUSE_S: Final = 0.05
_LAST_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process for ever: its id and when it began."""

    pid: int
    birth: str


def identity(pid: int) -> ProcessIdentity | None:
    """Return who has this id now; None: nobody, or a process that has ended already."""
    birth = _birth(pid)
    return None if birth is None else ProcessIdentity(pid, birth)


def _birth(pid: int) -> str | None:
    """Return when a process began, in ticks since the boot; None: nobody, or one that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else fields[19]


def check_system() -> None:
    """Raise LocalError where processes cannot be told apart: elsewhere than on Linux."""
    if identity(os.getpid()) is None:
        raise LocalError("`odradek local` needs Linux, with /proc")


def lives(one: ProcessIdentity) -> bool:
    """Return whether this very process runs."""
    return identity(one.pid) == one


def signal_group(one: ProcessIdentity, number: int) -> None:
    """Send a signal to the session that this process leads."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(one.pid, number)


def end_groups(
    ordered: Sequence[Iterable[ProcessIdentity]], patience_s: float = PATIENCE_S
) -> None:
    """End another start's processes, stage after stage: SIGTERM, then SIGKILL."""
    for stage in ordered:
        running = [one for one in stage if lives(one)]
        for one in running:
            signal_group(one, signal.SIGTERM)
        until = time.monotonic() + patience_s
        while any(map(lives, running)) and time.monotonic() < until:
            time.sleep(_PAUSE_S)
        for one in running:
            signal_group(one, signal.SIGKILL)


class Guard:
    """The process that ends all others if this one is killed."""

    def __init__(self, lock: int) -> None:
        reading, self._writing = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "odradek_local.guard"],
            stdin=reading,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=(lock,),
        )
        os.close(reading)

    def add(self, pid: int) -> None:
        """Put a session under guard."""
        self._tell(f"+{pid}")

    def remove(self, pid: int) -> None:
        """Take one out that has ended: another process may get its id."""
        self._tell(f"-{pid}")

    def release(self) -> None:
        """End the guard, and nothing else."""
        self._tell("release")
        with contextlib.suppress(OSError):
            os.close(self._writing)
        self._process.wait()

    def _tell(self, text: str) -> None:
        # Without its guard a start goes on; the next one cleans up.
        with contextlib.suppress(OSError):
            os.write(self._writing, f"{text}\n".encode())


@dataclass(slots=True)
class Child:
    """A process of this start. `stage` says when it is ended: the lowest first."""

    name: str
    stage: int
    process: subprocess.Popen[bytes]
    log: Path
    identity: ProcessIdentity | None
    reported: bool = False

    @property
    def running(self) -> bool:
        """Return whether it runs."""
        return self.process.poll() is None

    def how_it_ended(self) -> str:
        """Return the end in words."""
        status = self.process.poll()
        if status is None:
            return "runs"
        return f"ended with status {status}" if status >= 0 else f"was killed by signal {-status}"

    def last_line(self) -> str:
        """Return the last line of its log that is no part of a trace, or an empty text."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _LAST_BYTES))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        told = [line.strip() for line in lines if line.strip() and not line[0].isspace()]
        return told[-1] if told else ""


class Children:
    """The processes of this start. `changed` is called after each that is added."""

    def __init__(self, lock: int, changed: Callable[[], None]) -> None:
        self._lock = lock
        self._guard = Guard(lock)
        self._changed = changed
        self.all: dict[str, Child] = {}

    def spawn(
        self,
        name: str,
        stage: int,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> Child:
        """Start a process; what it says goes to the end of its log."""
        with log.open("ab") as output:
            process = self._popen(command, output, environment)
        self._guard.add(process.pid)
        child = Child(name, stage, process, log, identity(process.pid))
        self.all[name] = child
        self._changed()
        return child

    def _popen(
        self, command: Sequence[str], output: IO[bytes], environment: Mapping[str, str] | None
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=None if environment is None else dict(environment),
            # Ctrl-C is for this process, which ends the others in order.
            start_new_session=True,
            # As long as one of them runs, the data are in use.
            pass_fds=(self._lock,),
        )

    def clean_up(self, child: Child) -> None:
        """End what is left of a process that has ended; its id may soon be another's."""
        _kill_session(child)
        self._guard.remove(child.process.pid)

    def forget(self, child: Child) -> None:
        """End what is left of a process that has ended, and drop it."""
        self.clean_up(child)
        self.all.pop(child.name, None)

    def end(self, hurry: Callable[[], bool]) -> None:
        """End all, stage after stage; `hurry` says that they are to be killed."""
        for stage in sorted({child.stage for child in self.all.values()}):
            chosen = [child for child in self.all.values() if child.stage == stage]
            for child in chosen:
                if child.running:
                    child.process.terminate()
            until = time.monotonic() + PATIENCE_S
            while any(child.running for child in chosen):
                if hurry() or time.monotonic() > until:
                    break
                time.sleep(_PAUSE_S)
            for child in chosen:
                self.forget(child)
        self._guard.release()

    def leave(self) -> None:
        """Let all go on without this process."""
        self._guard.release()


def _kill_session(child: Child) -> None:
    """Kill the process, and what it has started; not who has its id by now."""
    if identity(child.process.pid) in (None, child.identity):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.process.pid, signal.SIGKILL)
    child.process.wait()
