"""Spark as its image has it, the connectors among Spark's own jars, for drivers outside of it.

And options with which Spark's JVMs start fast.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support import jvm

# A JVM that is done within a minute gains nothing from the optimizing compiler, nor from a
# collector with threads of its own. Without the optimizing compiler, code has a fifth of the space
# that it has otherwise: one that many sessions share would forget and compile everything again.
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:ReservedCodeCacheSize=240m")
# To compile a plan takes longer than to interpret it for a few rows. Drivers with a JVM of their
# own compile theirs.
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
RECIPE = Path(__file__).parents[2] / "operator" / "spark_job"
CACHE = Path.home() / ".cache" / "odradek" / "spark-jars"
TRAINING = Path(__file__).with_name("spark_training.py")


@functools.cache
def plain() -> Path:
    """Return a copy of Spark's jars and scripts, as they are installed.

    An archive of classes holds for jars of one path and one age, and takes half a minute of a
    processor. Those of a virtual environment are new in each.
    """
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.submodule_search_locations
    package = Path(spec.submodule_search_locations[0])
    jvm.CACHE.mkdir(parents=True, exist_ok=True)
    kept = jvm.CACHE / f"spark-{importlib.metadata.version('pyspark')}"
    with jvm.locked():
        if not kept.is_dir():
            with tempfile.TemporaryDirectory(dir=jvm.CACHE) as partial:
                for name in ("bin", "jars", "python"):
                    shutil.copytree(package / name, Path(partial, "home", name))
                Path(partial, "home").rename(kept)
    return kept


@functools.cache
def home() -> Path:
    """Return Spark with the connectors among its jars, as in the image, for SPARK_HOME."""
    connectors, without = connector_jars(), plain()
    kept = jvm.CACHE / f"{without.name}-{connectors[0].parent.name}"
    with jvm.locked():
        if not kept.is_dir():
            with tempfile.TemporaryDirectory(dir=jvm.CACHE) as partial:
                shutil.copytree(without, Path(partial, "home"), copy_function=os.link)
                for jar in connectors:
                    shutil.copy(jar, Path(partial, "home", "jars"))
                Path(partial, "home").rename(kept)
    return kept


def java_options() -> list[str]:
    """Return options for a driver's JVM: the quick ones, and an archive of its classes, made once.

    They need SPARK_HOME to be `home`.
    """
    jars = home() / "jars"
    archive = jvm.Archive("spark", f"{jars}/*")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists:
            with tempfile.TemporaryDirectory() as folder:
                options = " ".join([*QUICK, *archive.options])
                subprocess.run(
                    [sys.executable, str(TRAINING), folder],
                    env={
                        **os.environ,
                        "SPARK_HOME": str(home()),
                        "SPARK_SUBMIT_OPTS": options,
                        "SPARK_LOCAL_DIRS": folder,
                    },
                    capture_output=True,
                    check=True,
                )
            archive.keep()
    return [*QUICK, *archive.options]


def connector_jars() -> list[Path]:
    """Return the jars, made with Maven once per recipe and cached."""
    CACHE.mkdir(parents=True, exist_ok=True)
    sources = sorted((RECIPE / "java").rglob("*.java"))
    content = b"".join(file.read_bytes() for file in (RECIPE / "pom.xml", *sources))
    folder = CACHE / hashlib.sha256(content).hexdigest()[:12]
    with (CACHE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _build(folder)
    return sorted(folder.glob("*.jar"))


def _build(target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        shutil.copy(RECIPE / "pom.xml", folder)
        shutil.copytree(RECIPE / "java", f"{folder}/java")
        subprocess.run(
            ["mvn", "--quiet", "--batch-mode", f"--file={folder}/pom.xml", "package"], check=True
        )
        (Path(folder) / "jars").rename(target)
