"""Apache Kafka 2.8.2 beside the broker: its jars, and its command-line tools as child processes."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

POM = Path(__file__).parents[1] / "peers" / "pom.xml"
CACHE = Path.home() / ".cache" / "odradek" / "peers" / "kafka-2.8.2"
NEEDED = ("kafka_2.13-2.8.2", "kafka-tools-2.8.2", "kafka-clients-2.8.2", "slf4j-log4j12")
# A JVM that is done within seconds gains nothing from the optimizing compiler.
JAVA = ("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
LIMIT_SECONDS = 120


def classpath() -> str:
    """Class path of Kafka 2.8.2, fetched with Maven once and kept in the cache."""
    CACHE.mkdir(parents=True, exist_ok=True)
    lib = CACHE / "lib"
    with (CACHE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not lib.is_dir():
            _fetch(lib)
    missing = [name for name in NEEDED if not list(lib.glob(f"{name}*.jar"))]
    if missing:
        raise FileNotFoundError(f"{lib} lacks {missing}: remove the folder to fetch it again")
    return f"{lib}/*"


def _fetch(lib: Path) -> None:
    partly = lib.with_name("partly")
    shutil.rmtree(partly, ignore_errors=True)
    subprocess.run(
        [
            *("mvn", "--quiet", "--batch-mode", f"--file={POM}"),
            *("dependency:copy-dependencies", f"-DoutputDirectory={partly}"),
        ],
        check=True,
    )
    partly.rename(lib)


class Tools:
    """Runs Kafka's tools. `directory` takes the files they read: properties, JSON, log4j."""

    def __init__(self, directory: Path, heap: str = "256m", log_level: str = "WARN") -> None:
        self.directory = directory
        self._heap = heap
        self._classpath = classpath()
        self._log4j = self.file(
            "log4j.properties",
            f"log4j.rootLogger={log_level}, stderr\n"
            "log4j.appender.stderr=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.stderr.Target=System.err\n"
            "log4j.appender.stderr.layout=org.apache.log4j.PatternLayout\n"
            "log4j.appender.stderr.layout.ConversionPattern=%p %m (%c)%n\n",
        )

    def file(self, name: str, text: str) -> Path:
        """Write a file for a tool to read; its path."""
        path = self.directory / name
        path.write_text(text)
        return path

    def command(self, tool: str, *arguments: str | os.PathLike[str]) -> list[str]:
        """The command line of a tool, named by its class."""
        log4j = f"-Dlog4j.configuration=file:{self._log4j}"
        heap = f"-Xmx{self._heap}"
        return [*JAVA, heap, log4j, "-cp", self._classpath, tool, *map(str, arguments)]

    def run(
        self,
        tool: str,
        *arguments: str | os.PathLike[str],
        stdin: str = "",
        statuses: Sequence[int] = (0,),
    ) -> str:
        """What a tool printed. An exit status not among `statuses` fails, with all it said."""
        done = subprocess.run(
            self.command(tool, *arguments),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        said = (
            f"{tool} {arguments}: {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        )
        assert done.returncode in statuses, said
        return done.stdout if done.returncode == 0 else done.stdout + done.stderr
