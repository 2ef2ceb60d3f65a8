"""Starts the long-running processes of the built-in cluster, and finds them again.

A component has a log file and a pid file with its name. It is in a control group from its first
instruction on, so that `down` finds it and its children.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.cluster import cgroups
from tests.cluster.settings import Paths
from tests.cluster.shell import ClusterError, wait_until

# Joins the groups before "--", then executes the command after it.
JOIN = 'while [ "$1" != -- ]; do echo $$ > "$1" || exit 1; shift; done; shift; exec "$@"'


def pid_of(paths: Paths, name: str) -> int | None:
    """Return the process id of a running component. Its group excludes a reused id."""
    try:
        pid = int((paths.pids / name).read_text())
        groups = Path(f"/proc/{pid}/cgroup").read_text()
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, ValueError):
        return None
    return pid if f"/{cgroups.ROOT_NAME}/" in groups and state != "Z" else None


def start(
    paths: Paths,
    name: str,
    argv: Sequence[str | Path],
    *,
    group: str = "control",
    netns: str | None = None,
) -> None:
    """Start a component unless it runs. Appends its output to its log."""
    if pid_of(paths, name) is not None:
        return
    paths.logs.mkdir(parents=True, exist_ok=True)
    paths.pids.mkdir(parents=True, exist_ok=True)
    # "ip netns exec" would remount /sys and hide the control groups from kubelet; nsenter does not.
    enter = ["nsenter", f"--net=/run/netns/{netns}"] if netns else []
    join = ["sh", "-c", JOIN, "sh", *cgroups.create(group), "--"]
    words = [str(word) for word in (*join, *enter, *argv)]
    if shutil.which(str(argv[0])) is None:
        raise ClusterError(f"{argv[0]} is not installed")
    with (paths.logs / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=paths.state,
            env={"PATH": os.environ["PATH"], "HOME": str(paths.state)},
            start_new_session=True,
        )
    (paths.pids / name).write_text(str(process.pid))
    # `pid_of` finds the process only after it joined its group.
    deadline = time.monotonic() + 60
    while pid_of(paths, name) is None and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)


def stop(paths: Paths, name: str) -> None:
    """Stop a component with SIGTERM, and wait for its end. Raises ClusterError."""
    pid = pid_of(paths, name)
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: pid_of(paths, name) is None, f"{name} to end", timeout_s=60)


def require(paths: Paths, name: str) -> None:
    """Raise ClusterError with the end of its log if a component has ended."""
    if pid_of(paths, name) is None:
        log = paths.logs / f"{name}.log"
        tail = log.read_text(errors="replace").splitlines()[-5:] if log.exists() else []
        raise ClusterError("\n    ".join([f"{name} has ended; the end of {log}:", *tail]))


def listens(path: Path) -> bool:
    """Return whether a process listens on a socket; a killed one leaves the file of its own."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True
