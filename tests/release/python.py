"""Python's part of a release: wheels, source archive, and the SBOMs of what they install."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.cluster.shell import ClusterError, run
from tests.release import archives, sbom
from tests.support import spark_jars

_LOCK: Final = "examples/quickstart/requirements.lock"
_SPARK_JARS: Final = "operator/spark_jars"


def build(tree: Path, target: Path) -> None:
    """Write wheel and source archive of an exported commit. Raises ClusterError."""
    _hatch(tree, target, "wheel", "sdist")


def write_sbom(tree: Path, target: Path) -> None:
    """Write what `odradek[local]`, which is everything, installs at the tested versions."""
    argv = [sys.executable, "-m", "cyclonedx_py", "requirements", str(tree / _LOCK)]
    argv += ["--pyproject", str(tree / "pyproject.toml"), "--output-reproducible"]
    run([*argv, "--of", "JSON", "-o", str(target)])


def build_spark_jars(tree: Path, target: Path, version: str) -> None:
    """Write the wheel of Spark's connectors, and its SBOM. Raises ClusterError.

    The jars are those that Maven makes of the jobs' recipe, once; each has a hash in SHA256SUMS.
    """
    project = tree / _SPARK_JARS
    package = project / "src/odradek_spark_jars"
    try:
        made = {jar.name: jar for jar in spark_jars.connector_jars()}
    except FileNotFoundError as error:
        raise ClusterError("mvn is not there: install maven and a JDK (Debian: maven)") from error
    except subprocess.CalledProcessError as error:
        raise ClusterError(f"mvn: exit {error.returncode}; what it said is above") from error
    for line in (package / "SHA256SUMS").read_text().splitlines():
        pinned, name = line.split()
        if name not in made or archives.sha256(made[name]) != pinned:
            raise ClusterError(
                f"{name} is not what operator/spark_job/pom.xml makes: write the names and hashes "
                f"of its jars into {_SPARK_JARS}/src/odradek_spark_jars/SHA256SUMS"
            )
        shutil.copy(made[name], package)
    shutil.copy(tree / "LICENSE", project)
    _hatch(project, target, "wheel")
    name = "odradek-spark-jars"
    bill = target / f"{name}-{version}.cdx.json"
    bill.write_text(sbom.of_jars(package, name, version))


def _hatch(project: Path, target: Path, *kinds: str) -> None:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(archives.FILES_EPOCH)}
    wanted = [word for kind in kinds for word in ("-t", kind)]
    argv = [sys.executable, "-m", "hatchling", "build", *wanted, "-d", str(target)]
    run(argv, env=environment, cwd=project)
