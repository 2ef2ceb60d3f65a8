"""The processes of a pod as its host sees them, where the nodes are namespaces of this machine."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.kubectl import Kubectl

_PAUSE = "/pause"
_DEAD = frozenset("ZX")


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

    def _send(self, number: signal.Signals) -> None:
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _all() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


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
