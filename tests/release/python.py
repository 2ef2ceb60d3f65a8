"""Python's part of a release: wheel, source archive, and the SBOM of what they install."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from tests.cluster.shell import run
from tests.release import archives

_LOCK: Final = "examples/quickstart/requirements.lock"


def build(tree: Path, target: Path) -> None:
    """Write wheel and source archive of an exported commit. Raises ClusterError."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(archives.FILES_EPOCH)}
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist"]
    run([*argv, "-d", str(target)], env=environment, cwd=tree)


def write_sbom(tree: Path, target: Path) -> None:
    """Write what `odradek[local]`, which is everything, installs at the tested versions."""
    argv = [sys.executable, "-m", "cyclonedx_py", "requirements", str(tree / _LOCK)]
    argv += ["--pyproject", str(tree / "pyproject.toml"), "--output-reproducible"]
    run([*argv, "--of", "JSON", "-o", str(target)])
