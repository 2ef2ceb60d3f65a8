"""The folder with all that a start writes: data, logs, its lock, and who runs on it.

The lock is a file that each process of a start keeps open: while one of them runs, it is taken.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from odradek.properties import is_utf8
from odradek_local import processes
from odradek_local.errors import LocalError
from odradek_local.processes import Child, ProcessIdentity

# A start that is to stop ends stages of processes one after the other.
_STOP_S: Final = 4 * processes.PATIENCE_S
_PAUSE_S: Final = 0.05
# Between its lock and its first note, a start is busy for less than this.
_NOTE_S: Final = 5.0
_NOT_IN_SETTINGS: Final = ",\\"


def default() -> Path:
    """Return the folder in the user's state directory. Raises LocalError if there is none."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    try:
        return Path(state).expanduser() / "odradek" / "local"
    except RuntimeError as error:
        message = f"cannot use {state} for data, give a folder with --data: {error}"
        raise LocalError(message) from error


@dataclass(frozen=True, slots=True)
class Note:
    """Who runs on the data: `starter` began it, and `kept` says that it went and left the rest."""

    starter: ProcessIdentity
    kept: bool
    stages: Mapping[int, tuple[ProcessIdentity, ...]]


class DataFolder:
    """One folder."""

    def __init__(self, path: Path) -> None:
        """Raise LocalError if `path` begins with the home of somebody who has none, or cannot stand
        in the settings of brokers and ZooKeeper: a comma would make two folders of it.
        """
        try:
            self.path = path.expanduser().absolute()
        except (RuntimeError, OSError) as error:
            raise LocalError(f"cannot use {path} for data: {error}") from error
        text = str(self.path)
        if not is_utf8(text) or any(one in _NOT_IN_SETTINGS or one < " " for one in text):
            raise LocalError(
                f"cannot use {text!r} for data: its path must be UTF-8, without comma, backslash "
                "and control characters"
            )
        self.logs = self.path / "logs"
        self._note = self.path / "running.json"
        self._cluster = self.path / "cluster.json"
        self.lock: int | None = None

    def log(self, name: str) -> Path:
        """Return the log of a process."""
        return self.logs / f"{name}.log"

    def take(self) -> int:
        """Lock the folder for this process; return how many processes a killed start had left.

        Raises LocalError if somebody runs on it, or it cannot be used.
        """
        left = 0
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            if not self._locked():
                note = self.note()
                if note is None or note.kept or processes.lives(note.starter):
                    raise LocalError(
                        f"{self._in_use(note)}: stop it with `odradek local stop"
                        f"{self.option()}`, or give another folder with --data"
                    )
                left = self._clean_up(note)
            # A second start at the same moment reads whom it has to wait for.
            self.write_note(())
        except OSError as error:
            raise self._unusable(error) from error
        return left

    def _unusable(self, error: OSError) -> LocalError:
        return LocalError(f"cannot use {self.path} for data: {error.strerror}")

    def _in_use(self, note: Note | None) -> str:
        if note is None or note.kept:
            return f"{self.path} is in use by an `odradek local` in the background"
        return f"{self.path} is in use by another `odradek local`, process {note.starter.pid}"

    def option(self) -> str:
        """Return what commands for this folder need behind them, as a shell reads it."""
        with contextlib.suppress(LocalError):
            if self.path == default():
                return ""
        return f" --data {shlex.quote(str(self.path))}"

    def _clean_up(self, note: Note) -> int:
        """End what a killed start has left, and lock the folder."""
        stages = [note.stages[number] for number in sorted(note.stages)]
        left = sum(processes.lives(one) for stage in stages for one in stage)
        processes.end_groups(stages)
        self._await_lock(_STOP_S)
        return left

    def _await_lock(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._locked():
            if time.monotonic() > until:
                raise LocalError(f"processes that use {self.path} do not end", 1)
            time.sleep(_PAUSE_S)

    def _locked(self) -> bool:
        """Take the lock unless somebody has it."""
        if self.lock is None:
            self.lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self.lock)
            self.lock = None
            return False
        return True

    def note(self) -> Note | None:
        """Return who runs on the data, as they wrote it last."""
        try:
            document = json.loads(self._note.read_text(encoding="utf-8"))
            return Note(
                ProcessIdentity(**document["starter"]),
                bool(document["kept"]),
                {
                    int(stage): tuple(ProcessIdentity(**one) for one in members)
                    for stage, members in document["stages"].items()
                },
            )
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None

    def write_note(self, children: Iterable[Child], kept: bool = False) -> None:
        """Write who runs."""
        stages: dict[str, list[dict[str, Any]]] = {}
        for child in children:
            if child.identity is not None:
                stages.setdefault(str(child.stage), []).append(asdict(child.identity))
        starter = processes.identity(os.getpid())
        assert starter is not None
        _write(self._note, {"starter": asdict(starter), "kept": kept, "stages": stages})

    def clear_note(self) -> None:
        """Nobody runs any more."""
        self._note.unlink(missing_ok=True)

    def check_cluster(self, name: str, brokers: int) -> None:
        """Remember whose data these are. Raises LocalError if they are of another cluster."""
        document: Any = None
        with contextlib.suppress(OSError, ValueError):
            document = json.loads(self._cluster.read_text(encoding="utf-8"))
        if isinstance(document, dict):
            former, count = document.get("name"), document.get("brokers")
            if former != name or not isinstance(count, int) or count > brokers:
                raise LocalError(
                    f"{self.path} has the data of KafkaCluster {former} with {count} brokers, not "
                    f"of {name} with {brokers}: give another folder with --data, or remove it"
                )
        try:
            _write(self._cluster, {"name": name, "brokers": brokers})
        except OSError as error:
            raise self._unusable(error) from error

    def stop(self) -> bool:
        """End what runs on the data; return whether anything did. Raises LocalError."""
        try:
            if not (self.path / "lock").exists() or self._locked():
                return False
        except OSError as error:
            raise self._unusable(error) from error
        note = self._await_note()
        if note is None:
            raise LocalError(f"something uses {self.path}, and it is not known what", 1)
        if not note.kept and processes.lives(note.starter):
            try:
                os.kill(note.starter.pid, signal.SIGTERM)
                # One that Ctrl-Z suspended hears of it only then.
                os.kill(note.starter.pid, signal.SIGCONT)
            except ProcessLookupError:
                pass
            except PermissionError as error:
                who = f"process {note.starter.pid}"
                raise LocalError(f"{who} of another user runs on {self.path}") from error
            self._await_lock(_STOP_S)
        else:
            self._clean_up(note)
        self.clear_note()
        return True

    def _await_note(self) -> Note | None:
        until = time.monotonic() + _NOTE_S
        while (note := self.note()) is None and time.monotonic() < until:
            time.sleep(_PAUSE_S)
        return note


def _write(path: Path, document: Mapping[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)
