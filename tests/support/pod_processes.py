"""The processes of a pod as its host sees them, where the nodes are namespaces of this machine."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.kubectl import Kubectl

_PAUSE = "/pause"
_DEAD = frozenset("ZX")
_LOOK_SECONDS = 0.2
_READ_BYTES = 1 << 16


@dataclass(frozen=True)
class PodProcesses:
    """The processes of a pod's containers as they were when it was looked at, the first one first.

    A process that ended meanwhile gets no signal.
    """

    pids: Sequence[int]

    @classmethod
    def of(cls, kubectl: Kubectl, pod: str) -> PodProcesses:
        """Return those of a running pod. Raises KubectlError and AssertionError."""
        uid = kubectl.get("pod", pod)["metadata"]["uid"]
        found = [pid for pid in _all() if uid in _text(pid, "cgroup").replace("_", "-")]
        found = [pid for pid in found if _text(pid, "cmdline").split("\0")[0] != _PAUSE]
        assert found, f"no process of pod {pod} ({uid}) on this host"
        return cls(sorted(found))

    def first(self) -> PodProcesses:
        """Return the one that the others came from."""
        return PodProcesses(self.pids[:1])

    def kill(self) -> None:
        """Send SIGKILL to all of them."""
        self._send(signal.SIGKILL)

    def freeze(self) -> None:
        """Let none of them run any more, as on a machine that stands still."""
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let them go on."""
        self._send(signal.SIGCONT)

    def have_ended(self) -> bool:
        """Return whether none of them is left; one that nobody has waited for has ended."""
        return all(_state(pid) in _DEAD for pid in self.pids)

    def keeper(self) -> PodProcesses:
        """Return the process that keeps the pod for its container runtime (containerd's shim)."""
        return PodProcesses([int(_stat(self.pids[0])[1])])

    @contextlib.contextmanager
    def heard(self) -> Iterator[bytearray]:
        """Read what they print, in the place of a keeper that stands still; yield what it was.

        Otherwise they would stand still, too, as soon as their pipes are full.
        """
        said, stop = bytearray(), threading.Event()
        thread = threading.Thread(target=_hear, args=(self.pids[0], said, stop))
        thread.start()
        try:
            yield said
        finally:
            stop.set()
            thread.join()

    def _send(self, number: signal.Signals) -> None:
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _all() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _hear(pid: int, said: bytearray, stop: threading.Event) -> None:
    """Read standard output and standard error of a process, which are pipes, until the stop."""
    with contextlib.ExitStack() as stack:
        pipes = set()
        for number in (1, 2):
            pipes.add(os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_NONBLOCK))
        for pipe in pipes:
            stack.callback(os.close, pipe)
        while not stop.is_set():
            for ready in select.select(pipes, [], [], _LOOK_SECONDS)[0]:
                with contextlib.suppress(BlockingIOError):
                    if not (read := os.read(ready, _READ_BYTES)):
                        return  # nobody is left who writes
                    said += read


def _text(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _stat(pid: int) -> list[str]:
    """Return the fields of a process after its name, the state first; those of a dead one."""
    return _text(pid, "stat").rpartition(")")[2].split() or ["X", "0"]


def _state(pid: int) -> str:
    return _stat(pid)[0]
