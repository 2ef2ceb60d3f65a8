"""Runs the Spark driver as a child process with its own topic, result and metrics port."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from odradek.zk import consumers
from odradek_spark import show
from tests.support import broker, kafka_peer, spark_jvm
from tests.support.broker import wait_until
from tests.support.clients import QUIET, create_topic
from tests.support.ports import free_port
from tests.support.spark_jars import QUICK, home, java_options

# A machine that is short of time takes minutes to start a JVM with Spark.
PATIENCE_S = 400
MAIN = "from odradek_spark.__main__ import main; main()"


class Driver:
    """One group's driver, with its data folder and a topic, both named like the group.

    Drivers take the `jvm` one after the other, where it is given and none of their own is asked
    for, which takes ten seconds of a processor with its first query.
    """

    def __init__(
        self,
        cluster: broker.Cluster,
        folder: Path,
        group: str,
        jvm: spark_jvm.SharedJvm | None = None,
    ) -> None:
        self.cluster = cluster
        self.group = group
        self._jvm = jvm
        self.topics = [group]
        self.offset_store = "ZooKeeper"
        self.session_ms = 6000
        self.seam: dict[str, Any] = {}  # further fields of the job file
        self.environment: dict[str, str] = {}
        self.value: Callable[[int], dict[str, Any]] = lambda number: {"n": number}
        self.data = folder / "data"
        self.data.mkdir()
        self.out = self.data / "out"
        self.port = free_port()
        self.log = folder / "driver.log"
        self._job = folder / "job.json"
        self._scratch = folder / "scratch"
        self._scratch.mkdir()
        self._process: subprocess.Popen[bytes] | None = None
        create_topic(cluster.bootstrap, group, partitions=2)

    def start(self, program: str = MAIN, *, own_jvm: bool = False, **job: Any) -> None:
        """Start the process with a job that stores each record and its offset."""
        document = {
            "group": self.group,
            "bootstrap": self.cluster.bootstrap,
            "zookeeper": self.cluster.zookeeper.connect,
            "topics": self.topics,
            "offsetStore": self.offset_store,
            "metricsPort": self.port,
            **self.seam,
            "job": {
                "trigger": "500ms",
                "schema": "n int",
                "sql": f"select n, _partition, _offset from `{self.group}`",
                "sink": {"parquet": {"path": str(self.out)}},
                **job,
            },
        }
        self._job.write_text(json.dumps(document))
        environment = {
            **os.environ,
            **self.environment,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(home()),
            # A killed driver deletes nothing.
            "TMPDIR": str(self._scratch),
            "SPARK_LOCAL_DIRS": str(self._scratch),
            "SPARK_LAUNCHER_OPTS": " ".join(QUICK),
            "SPARK_SUBMIT_OPTS": " ".join([kafka_peer.scratch(self._scratch), *java_options()]),
            "ODRADEK_JOB": str(self._job),
            "ODRADEK_SPARK_MASTER": "local[2]",
            "ODRADEK_DATA": str(self.data),
            "ODRADEK_SESSION_TIMEOUT_MS": str(self.session_ms),
            "POD_NAME": "driver",
        }
        if self._jvm is not None and not own_jvm:
            self._jvm.clear()
            environment |= self._jvm.environment
            program = spark_jvm.TAKING + program
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def successor(self) -> Driver:
        """Return another driver of the group, with the same data and another port."""
        other = copy.copy(self)
        other.port = free_port()
        other.log = self.log.with_name(f"driver-{other.port}.log")
        other._job = self._job.with_name(f"job-{other.port}.json")
        other._process = None
        return other

    def await_paused(self) -> None:
        """Wait until the process has stopped itself."""
        assert self._process is not None
        stat = Path(f"/proc/{self._process.pid}/stat")
        wait_until(
            lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "it pauses", PATIENCE_S
        )

    def go_on(self) -> None:
        """Let a process that has stopped itself go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def wait(self) -> int:
        """Wait for the end, and return the exit status."""
        assert self._process is not None
        return self._process.wait(PATIENCE_S)

    def terminate(self) -> int:
        """Send SIGTERM, and return the exit status."""
        assert self._process is not None
        self._process.terminate()
        return self.wait()

    def kill(self) -> None:
        """Send SIGKILL to the driver and its JVM."""
        if self._process is not None and self._process.poll() is None:
            # The JVM is in the group, too.
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def end_session(self) -> None:
        """End the session of a driver that was killed, for which its successor would wait."""
        path = consumers.consumer_ids_path(self.group)
        with self.cluster.zookeeper.client() as client:
            members = client.get_children(path)
        for member in members:
            self.cluster.zookeeper.end_session_of(consumers.consumer_id_path(self.group, member))

    def produce(self, numbers: range) -> None:
        """Write these numbers to the topic."""
        producer = Producer(
            {"bootstrap.servers": self.cluster.bootstrap, "enable.idempotence": True, **QUIET}
        )
        failures: list[object] = []
        for number in numbers:
            producer.produce(
                self.group,
                key=str(number),
                value=json.dumps(self.value(number)),
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
        assert producer.flush(120) == 0
        assert failures == []

    def get(self, path: str) -> str:
        """Return the response of the driver's endpoint, empty if it does not respond."""
        with contextlib.suppress(OSError):
            address = f"http://127.0.0.1:{self.port}{path}"
            with urllib.request.urlopen(address, timeout=30) as answer:
                return str(answer.read().decode())
        return ""

    def committed(self) -> int:
        """Return the sum of the group's offsets in ZooKeeper."""
        with self.cluster.zookeeper.client() as client:
            paths = [consumers.offset_path(self.group, self.group, number) for number in (0, 1)]
            return sum(int(client.get(path)[0]) for path in paths if client.exists(path))

    def await_committed(self, count: int) -> None:
        """Wait until the group's offsets add up to this."""

        def reached() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, self.log.read_text()[-3000:]
            return self.committed() == count

        wait_until(reached, f"{count} records are committed", PATIENCE_S)

    def registered(self) -> list[str]:
        """Return the names of all ephemeral znodes of the group's members."""
        with self.cluster.zookeeper.client() as client:
            members = client.get_children(consumers.consumer_ids_path(self.group))
            owners = client.get_children(consumers.owners_path(self.group, self.group))
            return [*members, *owners]

    def rows(self) -> list[int]:
        """Return the numbers in the result, with duplicates."""
        names, rows = show.read(self.out)
        return sorted(row[names.index("n")] for row in rows)

    def last_line(self) -> str:
        """Return the last line of the driver's output."""
        return self.log.read_text().splitlines()[-1]
