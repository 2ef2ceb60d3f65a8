"""Installs the packages that commands need on Debian and Ubuntu, and makes them run as root."""

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from tests.cluster import node
from tests.cluster.settings import Paths
from tests.cluster.shell import ClusterError, run_logged, step

# Debian package -> a program or file of it.
BUILD_PACKAGES = {
    "buildah": "buildah",
    "debian-archive-keyring": "/usr/share/keyrings/debian-archive-keyring.gpg",
    "mmdebstrap": "mmdebstrap",
    "skopeo": "skopeo",
}
BUILTIN_PACKAGES = {
    **BUILD_PACKAGES,
    "conntrack": "conntrack",
    "containerd": "containerd",
    "containernetworking-plugins": f"{node.PLUGINS}/bridge",
    "iproute2": "ip",
    "iptables": "iptables",
    "openssl": "openssl",
    "procps": "sysctl",
    "runc": "runc",
    "util-linux": "nsenter",
}


def _present(mark: str) -> bool:
    return Path(mark).exists() if mark.startswith("/") else shutil.which(mark) is not None


def missing(packages: Mapping[str, str], present: Callable[[str], bool] = _present) -> list[str]:
    """Return the names of packages whose program or file is missing."""
    return sorted(name for name, mark in packages.items() if not present(mark))


def ensure(packages: Mapping[str, str], paths: Paths) -> None:
    """Install missing packages with apt. Raises ClusterError."""
    lacking = missing(packages)
    if not lacking:
        return
    if shutil.which("apt-get") is None:
        raise ClusterError(f"this system has no apt; install {_sentence(lacking)} yourself")
    log = paths.build_logs / "apt.log"
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with step(f"installing {_sentence(lacking)}", log):
        run_logged(["apt-get", "update"], log, env=environment)
        install = ["apt-get", "install", "-y", "--no-install-recommends", *lacking]
        run_logged(install, log, env=environment)
    if still := missing(packages):
        raise ClusterError(f"failed to install {_sentence(still)}; see {log}")


def become_root(module: str) -> None:
    """Restart a command line under sudo, unless this is root. Raises ClusterError.

    It keeps the caller's home, which has the cache.
    """
    if os.geteuid() == 0:
        return
    if shutil.which("sudo") is None:
        raise ClusterError("run this as root; there is no sudo")
    kept = [f"{name}={os.environ[name]}" for name in ("HOME", "PATH") if name in os.environ]
    again = [sys.executable, "-m", module, *sys.argv[1:]]
    os.execvp("sudo", ["sudo", "--preserve-env", "env", *kept, *again])


def give_to_caller(*paths: Path) -> None:
    """Let files and folders that root made belong to the user who called sudo, if one did."""
    if "SUDO_UID" in os.environ:
        for path in paths:
            os.chown(path, int(os.environ["SUDO_UID"]), int(os.environ["SUDO_GID"]))


def make_folder(folder: Path) -> None:
    """Make a folder with those above it; they belong to the owner of the one that is there."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    if missing:
        owner = missing[-1].parent.stat()
        for one in missing:
            os.chown(one, owner.st_uid, owner.st_gid)


def _sentence(names: Iterable[str]) -> str:
    return ", ".join(names)
