"""Control groups of the cluster, to find and kill all of its processes.

The tree is `odradek/control` for the control plane, `odradek/<node>/system` for a node's
containerd, shims, kubelet and kube-proxy, and `odradek/<node>/kubepods`, which kubelet makes, for
its pods. It exists in every hierarchy of the host: one on cgroup v2, one per controller on v1.
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.shell import ClusterError

ROOT_NAME = "odradek"
V2_ROOT = Path("/sys/fs/cgroup")
# As many as ten processes have.
_SHARES = 10 * 1024


def hierarchies() -> list[Path]:
    """Return the mount points of the host's cgroup hierarchies."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return sorted({Path(fields[1]) for fields in mounts if fields[2] in ("cgroup", "cgroup2")})


def create(group: str) -> list[Path]:
    """Create `odradek/<group>` in all hierarchies, and return the files `cgroup.procs`."""
    entries = []
    for root in hierarchies():
        path = root
        for name in (ROOT_NAME, *group.split("/")):
            _delegate(path)
            path = path / name
            path.mkdir(exist_ok=True)
            _inherit_cpuset(path)
        _give_shares(root / ROOT_NAME)
        entries.append(path / "cgroup.procs")
    return entries


def _delegate(path: Path) -> None:
    """On v2, enable all controllers of `path` for its children."""
    available = path / "cgroup.controllers"
    if not available.exists():
        return
    for controller in available.read_text().split():
        try:
            (path / "cgroup.subtree_control").write_text(f"+{controller}")
        except OSError:
            continue  # the kernel cannot delegate this controller; kubelet reports it if needed


def _inherit_cpuset(path: Path) -> None:
    """On v1, copy processors and memory to a new cpuset, which takes no process without."""
    if not (path / "cgroup.clone_children").exists():
        return
    for name in ("cpuset.cpus", "cpuset.mems"):
        own = path / name
        if own.exists() and not own.read_text().strip():
            own.write_text((path.parent / name).read_text())


def _give_shares(path: Path) -> None:
    """On v1, let the tree have as much of the processors as several processes outside of it.

    Otherwise the whole cluster has as much as one of them, and starves beside a busy test run.
    """
    shares = path / "cpu.shares"
    if shares.exists():
        shares.write_text(str(_SHARES))


def _groups(under: str) -> Iterator[Path]:
    """Yield `odradek/<under>` and all groups below it, children before their parents."""
    for root in hierarchies():
        top = root / ROOT_NAME / under if under else root / ROOT_NAME
        for directory, _, _ in os.walk(top, topdown=False):
            yield Path(directory)


def processes(under: str = "") -> set[int]:
    """Return the ids of all processes in the tree."""
    found: set[int] = set()
    for group in _groups(under):
        try:
            found.update(int(pid) for pid in (group / "cgroup.procs").read_text().split())
        except OSError:
            continue  # the group was removed meanwhile
    return found


def kill(under: str = "", *, timeout_s: float = 60.0) -> None:
    """Send SIGKILL to every process in the tree until none is left. Raises ClusterError."""
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
    # Dead processes stay in the process table until init reaps them, which may take a while.
    while any(Path(f"/proc/{pid}").exists() for pid in killed) and time.monotonic() < deadline:
        time.sleep(0.1)


def remove() -> None:
    """Remove the empty tree. Raises OSError if it still has a process."""
    for group in _groups(""):
        group.rmdir()
