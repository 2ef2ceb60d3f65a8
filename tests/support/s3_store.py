"""A store that speaks S3: versitygw over a folder, whose folders are the buckets.

The program is one of those that the built-in cluster builds into the project's cache.
"""

from __future__ import annotations

import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType

from tests.support.apiserver import require_programs
from tests.support.ports import free_port

BUCKET = "lake"
ACCESS_KEY = "odradek"
SECRET_KEY = "odradek-secret"
KEYS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
"""What a job's Secret has for a store, as environment."""
_START_SECONDS = 60


class S3Store:
    """A running store with one bucket, for those who know its secret key."""

    def __init__(self, folder: Path, host: str = "127.0.0.1", secret_key: str = SECRET_KEY) -> None:
        program = require_programs("versitygw") / "versitygw"
        self.folder = folder / "store"
        (self.folder / BUCKET).mkdir(parents=True)
        self.endpoint = f"http://{host}:{free_port()}"
        self.log = folder / "store.log"
        self._argv = [
            str(program),
            f"--port={self.endpoint.removeprefix('http://')}",
            f"--access={ACCESS_KEY}",
            f"--secret={secret_key}",
            "--quiet",
            "posix",
            str(self.folder),
        ]

    def __enter__(self) -> S3Store:
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(self._argv, stdout=log, stderr=log)
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            assert self._process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(self.endpoint, timeout=5).close()
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    @property
    def url(self) -> str:
        """The bucket, as Hadoop names it."""
        return f"s3a://{BUCKET}"

    @property
    def spark_conf(self) -> dict[str, str]:
        """What a job's sparkConf says of this store."""
        return {
            "spark.hadoop.fs.s3a.endpoint": self.endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
        }
