"""The packages of another revision of this repository, beside those of the checkout."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.support import tar_files

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("broker_image/src", "operator/src", "operator/spark_job/src")


class UnknownRevisionError(ValueError):
    """The repository has no such commit."""


def resolve(revision: str) -> str:
    """Return the short commit id of a revision; raises UnknownRevisionError."""
    found = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", "--short", f"{revision}^{{commit}}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if found.returncode:
        raise UnknownRevisionError(f"unknown revision: {revision}")
    return found.stdout.strip()


@contextlib.contextmanager
def sources(revision: str) -> Iterator[Path]:
    """Yield a temporary folder with the packages of a revision.

    They are taken out of an archive: unlike a worktree that leaves nothing behind in the
    repository, however the process ends.
    """
    commit = resolve(revision)
    packed = subprocess.run(
        ["git", "archive", commit, "--", *SOURCES], cwd=ROOT, capture_output=True, check=True
    )
    with tempfile.TemporaryDirectory(prefix="odradek-revision-") as folder:
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
            tar_files.extract(archive, Path(folder))
        yield Path(folder)


def environment(root: Path = ROOT) -> dict[str, str]:
    """Return the environment of a process that runs the packages below `root`.

    The tests are those of this checkout.
    """
    folders = [*(str(root / one) for one in SOURCES), str(ROOT)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
