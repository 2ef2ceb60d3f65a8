"""Downloads the connector jars of the Spark image, for drivers outside of it."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
from pathlib import Path

POM = Path(__file__).parents[2] / "operator" / "spark_job" / "pom.xml"
CACHE = Path.home() / ".cache" / "odradek" / "spark-jars"
NEEDED = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")


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
