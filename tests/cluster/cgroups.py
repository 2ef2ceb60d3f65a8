"""Control groups of the cluster: the handle by which each process is found and ended.

The tree is `odradek/control` for the control plane, `odradek/<node>/system` for a node's
containerd, shims, kubelet and kube-proxy, and `odradek/<node>/kubepods`, which kubelet makes, for
its pods. It is made in every hierarchy of the host: one on cgroup v2, one a controller on v1.
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.shell import ClusterError

ROOT_NAME = "odradek"
V2_ROOT = Path("/sys/fs/cgroup")


def hierarchies() -> list[Path]:
    """Mount points of the host's cgroup hierarchies."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return sorted({Path(fields[1]) for fields in mounts if fields[2] in ("cgroup", "cgroup2")})


def create(group: str) -> list[Path]:
    """Make `odradek/<group>` everywhere; returns the files that take a process in."""
    entries = []
    for root in hierarchies():
        path = root
        for name in (ROOT_NAME, *group.split("/")):
            _delegate(path)
            path = path / name
            path.mkdir(exist_ok=True)
            _inherit_cpuset(path)
        entries.append(path / "cgroup.procs")
    return entries


def _delegate(path: Path) -> None:
    """On v2, let children of `path` use every controller that it has."""
    available = path / "cgroup.controllers"
    if not available.exists():
        return
    for controller in available.read_text().split():
        try:
            (path / "cgroup.subtree_control").write_text(f"+{controller}")
        except OSError:
            continue  # a controller that this kernel cannot delegate; kubelet reports if it matters


def _inherit_cpuset(path: Path) -> None:
    """On v1, a new cpuset is empty and takes no process until it has processors and memory."""
    if not (path / "cgroup.clone_children").exists():
        return
    for name in ("cpuset.cpus", "cpuset.mems"):
        own = path / name
        if own.exists() and not own.read_text().strip():
            own.write_text((path.parent / name).read_text())


def _groups(under: str) -> Iterator[Path]:
    """Every group below and including `odradek/<under>`, children before their parents."""
    for root in hierarchies():
        top = root / ROOT_NAME / under if under else root / ROOT_NAME
        for directory, _, _ in os.walk(top, topdown=False):
            yield Path(directory)


def processes(under: str = "") -> set[int]:
    """Ids of all processes in the tree."""
    found: set[int] = set()
    for group in _groups(under):
        try:
            found.update(int(pid) for pid in (group / "cgroup.procs").read_text().split())
        except OSError:
            continue  # the group went away while we walked
    return found


def kill(under: str = "", *, timeout_s: float = 60.0) -> None:
    """SIGKILL every process in the tree, repeatedly, until none is left. Raises ClusterError."""
    deadline = time.monotonic() + timeout_s
    killed: set[int] = set()
    while left := processes(under):
        killed |= left
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            raise ClusterError(f"processes {sorted(left)[:5]} survive SIGKILL")
        time.sleep(0.05)
    # The dead stay in the process table until init collects them, which some do lazily.
    while any(Path(f"/proc/{pid}").exists() for pid in killed) and time.monotonic() < deadline:
        time.sleep(0.1)


def remove() -> None:
    """Remove the empty tree. Raises OSError where a process is still inside."""
    for group in _groups(""):
        group.rmdir()
