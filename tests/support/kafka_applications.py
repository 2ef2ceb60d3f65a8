"""Programs on Kafka's Java libraries, as child processes."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support import kafka_peer


class Application:
    """A JVM that runs a program of a release; a context manager that kills it.

    `folders` have classes beside the release's jars. Its output is in `log_path`, for all its
    starts.
    """

    def __init__(
        self,
        log_path: Path,
        release: kafka_peer.Release,
        words: Sequence[str | Path],
        folders: Sequence[Path] = (),
    ) -> None:
        self.log_path = log_path
        classpath = ":".join([*map(str, folders), kafka_peer.classpath(release)])
        self._command = [
            *(*kafka_peer.JAVA, kafka_peer.scratch(log_path.parent), "-Xmx256m"),
            *("-cp", classpath, *map(str, words)),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process without waiting for it."""
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, start_new_session=True
            )

    def log_text(self) -> str:
        """Return what the process has said so far, in all its starts."""
        return self.log_path.read_text()

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Application:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
