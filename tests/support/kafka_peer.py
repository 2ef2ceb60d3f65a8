"""Apache Kafka's jars, and its command-line tools as child processes.

Kafka 2.8.2 is the peer. 0.10.2 is here for its consumers that balance through ZooKeeper, 3.9.1, the
last with ZooKeeper, for what 2.8 lacks.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import functools
import os
import shutil
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.support import jvm

POMS = Path(__file__).parents[1] / "peers"
CACHE = Path.home() / ".cache" / "odradek" / "peers"
# A JVM that is done within seconds gains nothing from the optimizing compiler.
JAVA = ("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
LIMIT_SECONDS = 300
# By default a record that has no answer after 1.5 seconds is sent again, and is there twice then,
# or given up by the old release.
PATIENT_PRODUCER = ("kafka.tools.ConsoleProducer", "--request-timeout-ms", "60000")


def scratch(folder: Path) -> str:
    """Return the JVM option for the folder of unpacked codec libraries, which JVMs never delete."""
    return f"-Djava.io.tmpdir={folder}"


@dataclass(frozen=True, slots=True)
class Release:
    """A release of Kafka: its pom in the tests, and jars that prove a complete download."""

    version: str
    pom: str
    needed: tuple[str, ...]


CURRENT = Release(
    "2.8.2",
    "pom.xml",
    ("kafka_2.13-2.8.2", "kafka-tools-2.8.2", "kafka-clients-2.8.2", "slf4j-log4j12"),
)
NEWER = Release("3.9.1", "pom.xml", ("kafka_2.13-3.9.1", "kafka-tools-3.9.1", "slf4j-log4j12"))
OLD = Release(
    "0.10.2.2",
    "pom-0.10.2.xml",
    ("kafka_2.12-0.10.2.2", "kafka-clients-0.10.2.2", "zkclient", "slf4j-log4j12"),
)


def clients(version: str) -> Release:
    """Return the Java clients of a release only."""
    needed = (f"kafka-clients-{version}", "zstd-jni", "slf4j-nop")
    return Release(f"clients-{version}", "pom-clients.xml", needed)


def tools(version: str) -> Release:
    """Return the command-line tools of a release since 3.9."""
    if version == NEWER.version:
        return NEWER
    needed = (f"kafka-tools-{version}", f"kafka-clients-{version}", "slf4j-simple")
    return Release(version, "pom-4.xml", needed)


def streams(version: str) -> Release:
    """Return Kafka Streams of a release."""
    needed = (f"kafka-streams-{version}", f"kafka-clients-{version}", "slf4j-simple")
    return Release(f"streams-{version}", "pom-streams.xml", needed)


def connect(version: str) -> Release:
    """Return Kafka Connect and MirrorMaker 2 of a release."""
    needed = (f"connect-file-{version}", f"connect-mirror-{version}", "slf4j-simple")
    return Release(f"connect-{version}", "pom-connect.xml", needed)


def flink(version: str) -> Release:
    """Return Apache Flink of a release, with its connector to Kafka."""
    needed = (f"flink-clients-{version}", "flink-connector-kafka", "kafka-clients", "slf4j-simple")
    return Release(f"flink-{version}", "pom-flink.xml", needed)


def classpath(release: Release = CURRENT) -> str:
    """Return the class path of a release, downloaded with Maven once and cached."""
    cache = CACHE / f"kafka-{release.version}"
    cache.mkdir(parents=True, exist_ok=True)
    lib = cache / "lib"
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not lib.is_dir():
            _fetch(release, lib)
    missing = [name for name in release.needed if not list(lib.glob(f"{name}*.jar"))]
    if missing:
        raise FileNotFoundError(f"{lib} lacks {missing}: remove the folder to fetch it again")
    return f"{lib}/*"


def _fetch(release: Release, lib: Path) -> None:
    partly = lib.with_name("partly")
    shutil.rmtree(partly, ignore_errors=True)
    subprocess.run(
        [
            *("mvn", "--quiet", "--batch-mode", f"--file={POMS / release.pom}"),
            *("dependency:copy-dependencies", f"-DoutputDirectory={partly}"),
            f"-Dkafka.version={release.version.rpartition('-')[2]}",
        ],
        check=True,
    )
    partly.rename(lib)


class RepeatedTools:
    """One JVM that runs Kafka's tools one after the other; a context manager.

    The second run of a tool costs a tenth of a JVM's start. Not for releases before Kafka 1.0,
    whose tools end their JVM.
    """

    def __init__(self, line: list[str]) -> None:
        self._line = line
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, words: Sequence[str], stdin: str) -> tuple[int, str, str]:
        """Return the exit status, the output and the errors of a tool: its class, and arguments."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        request = b" ".join(base64.b64encode(one.encode()) for one in (stdin, *words))
        process.stdin.write(request + b"\n")
        process.stdin.flush()
        limit = threading.Timer(LIMIT_SECONDS, process.kill)
        limit.start()
        answer = process.stdout.readline()
        limit.cancel()
        assert answer, f"{words}: the JVM ended, or took longer than {LIMIT_SECONDS} s"
        status, *said = answer.rstrip(b"\n").split(b" ")
        output, errors = (base64.b64decode(one).decode() for one in said)
        return int(status), output, errors

    def __enter__(self) -> RepeatedTools:
        self._process = subprocess.Popen(
            self._line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        # At the end of its input it ends by itself.
        try:
            self._process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise


class Tools:
    """Runs Kafka's tools; a context manager. `directory` has the files that they read: properties,
    JSON, log4j. A subclass has another `java`.
    """

    java: Sequence[str] = JAVA

    def __init__(
        self,
        directory: Path,
        heap: str = "256m",
        log_level: str = "WARN",
        release: Release = CURRENT,
    ) -> None:
        self.directory = directory
        self._heap = heap
        self._classpath = classpath(release)
        self._release = release
        self._archives: dict[str, jvm.Archive] = {}
        self._repeated = contextlib.ExitStack()
        self._log4j = self.file(
            "log4j.properties",
            f"log4j.rootLogger={log_level}, stderr\n"
            "log4j.appender.stderr=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.stderr.Target=System.err\n"
            "log4j.appender.stderr.layout=org.apache.log4j.PatternLayout\n"
            "log4j.appender.stderr.layout.ConversionPattern=%p %m (%c)%n\n",
        )

    def file(self, name: str, text: str) -> Path:
        """Write a file for a tool, and return its path."""
        path = self.directory / name
        path.write_text(text)
        return path

    def command(self, tool: str, *arguments: str | os.PathLike[str]) -> list[str]:
        """The command line of a tool, named by its class.

        Once the process has ended, `keep_archive` makes the next one start faster.
        """
        archive = self._archives.get(tool)
        if archive is None:
            archive = jvm.Archive(f"{self._release.version}-{tool}", self._classpath)
            self._archives[tool] = archive
        own = (*archive.options, *self._options)
        return [*self.java, *own, "-cp", self._classpath, tool, *map(str, arguments)]

    @property
    def _options(self) -> list[str]:
        log4j = f"-Dlog4j.configuration=file:{self._log4j}"
        return [f"-Xmx{self._heap}", log4j, scratch(self.directory)]

    def keep_archive(self, tool: str) -> None:
        """Keep the archive of classes that a tool's process left, if it did."""
        self._archives[tool].keep()

    def run(
        self,
        tool: str,
        *arguments: str | os.PathLike[str],
        stdin: str = "",
        statuses: Sequence[int] = (0,),
    ) -> str:
        """Return the output of a tool. Fail if its exit status is not among `statuses`."""
        words = [tool, *map(str, arguments)]
        run = self._run_alone if self._release is OLD else self._shared_jvm.run
        status, output, errors = run(words, stdin)
        assert status in statuses, f"{words}: {status}\n{output[-4000:]}\n{errors[-4000:]}"
        return output if status == 0 else output + errors

    @functools.cached_property
    def _shared_jvm(self) -> RepeatedTools:
        program = Path(__file__).with_name("RepeatedTools.java")
        everything = f"{jvm.compiled(program, self._classpath)}:{self._classpath}"
        line = [*self.java, *self._options, "-cp", everything, program.stem]
        return self._repeated.enter_context(RepeatedTools(line))

    def _run_alone(self, words: Sequence[str], stdin: str) -> tuple[int, str, str]:
        tool, *arguments = words
        done = subprocess.run(
            self.command(tool, *arguments),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        self.keep_archive(tool)
        return done.returncode, done.stdout, done.stderr

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._repeated.close()
