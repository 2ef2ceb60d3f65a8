"""The mounts of this host, as far as they are below directories of ours."""

from collections.abc import Iterable
from pathlib import Path

from tests.cluster.shell import run


def points() -> list[str]:
    """Return every mount point."""
    return [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]


def below(folders: Iterable[Path]) -> list[str]:
    """Return the mount points below any of the folders, the deepest first."""
    roots = tuple(f"{folder}/" for folder in folders)
    return sorted((point for point in points() if point.startswith(roots)), reverse=True)


def unmount(folders: Iterable[Path]) -> list[str]:
    """Unmount what is below the folders, and return what stays mounted."""
    roots = list(folders)
    for _ in range(3):
        for point in below(roots):
            run(["umount", "--lazy", point], check=False)
    return below(roots)
