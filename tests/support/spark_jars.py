"""The connector jars that the Spark image holds, for drivers that run outside of it, and options
with which Spark's JVMs start fast.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support import jvm

POM = Path(__file__).parents[2] / "operator" / "spark_job" / "pom.xml"
CACHE = Path.home() / ".cache" / "odradek" / "spark-jars"
NEEDED = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")

# Loads the classes that most drivers need, and ends in order.
TRAINING = """
import sys
from pyspark.sql import SparkSession
session = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
session.sql("select 1 as a").write.parquet(sys.argv[1])
session.read.parquet(sys.argv[1]).collect()
jvm = session.sparkContext._gateway.proc
session.stop()
jvm.stdin.close()
jvm.wait()
"""


def java_options() -> list[str]:
    """Return options for a driver's JVM: an archive of its classes, made once, and no optimizing
    compiler, from which tests gain nothing.
    """
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.submodule_search_locations
    archive = jvm.Archive("spark", f"{spec.submodule_search_locations[0]}/jars/*")
    quick = ["-XX:TieredStopAtLevel=1"]
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists:
            with tempfile.TemporaryDirectory() as folder:
                options = " ".join([*quick, *archive.options])
                subprocess.run(
                    [sys.executable, "-c", TRAINING, f"{folder}/result"],
                    env={**os.environ, "SPARK_SUBMIT_OPTS": options, "SPARK_LOCAL_DIRS": folder},
                    capture_output=True,
                    check=True,
                )
            archive.keep()
    return [*quick, *archive.options]


def connector_jars() -> list[Path]:
    """Return the jars, downloaded with Maven once and cached."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        jars = sorted(CACHE.glob("*.jar"))
        if not all(any(jar.name.startswith(name) for jar in jars) for name in NEEDED):
            _fetch()
            jars = sorted(CACHE.glob("*.jar"))
    return jars


def _fetch() -> None:
    with tempfile.TemporaryDirectory() as folder:
        pom = Path(shutil.copy(POM, folder))
        subprocess.run(
            [
                "mvn",
                "--quiet",
                "--batch-mode",
                f"--file={pom}",
                "dependency:copy-dependencies",
                f"-DoutputDirectory={folder}/jars",
                "-DexcludeTransitive=true",
            ],
            check=True,
        )
        for jar in (Path(folder) / "jars").glob("*.jar"):
            shutil.copy(jar, CACHE)
