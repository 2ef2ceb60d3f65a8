"""What is started: addresses, files and command lines of a start, from its resources. Pure."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from odradek_local.errors import LocalError
from odradek_local.ports import HOST
from odradek_local.resources import LocalGroup, LocalResources, LocalTopic
from odradek_operator.shared.console_spec import ConsoleSpec

# The folder on the volume of a job, as its resource names it.
VOLUME: Final = "/data"
# Records per second of a topic that is filled.
RATE: Final = 50
# Not with modules of the folder where the user is: a file signal.py there would take the place of
# the library's, and whoever may write to it would run code here.
_PYTHON: Final = (sys.executable, "-P")
_DATAGEN: Final = "from odradek_spark.datagen.command import datagen; datagen()"
_FOREVER: Final = str(10**9)
_MOST_CORES: Final = 4


@dataclass(frozen=True, slots=True)
class Ports:
    """Where each process listens, in the order of the brokers and of the jobs."""

    zookeeper: int
    brokers: tuple[int, ...]
    metrics: tuple[int, ...]
    jobs: tuple[int, ...]
    console: int

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, for clients."""
        return ",".join(f"{HOST}:{port}" for port in self.brokers)


@dataclass(frozen=True, slots=True)
class LocalJob:
    """The job of a ConsumerGroup: its file, its folder, its environment, and its table, if any.

    `table` is the folder of a Parquet sink; `sink` names where rows go, for people.
    """

    name: str
    group: str
    topics: tuple[str, ...]
    folder: Path
    file: str
    environment: Mapping[str, str]
    table: Path | None
    sink: str
    port: int


def zookeeper_connect(resources: LocalResources, ports: Ports) -> str:
    """Return the connect string: ZooKeeper's own address here, with the chroot of the resource."""
    chroot = resources.cluster.zookeeper.partition("/")[2]
    return f"{HOST}:{ports.zookeeper}" + (f"/{chroot}" if chroot else "")


def server_properties(resources: LocalResources, ports: Ports, number: int, folder: Path) -> str:
    """Return the properties of the broker with this number, from 0 on."""
    values = {
        # Brokers and ZooKeeper start at the same time.
        "zookeeper.connection.timeout.ms": "120000",
        # They also stop at the same time: no follower comes back that is worth a pause.
        "controlled.shutdown.max.retries": "1",
        **resources.cluster.config,
        "broker.id": str(number),
        "listeners": f"PLAINTEXT://{HOST}:{ports.brokers[number]}",
        "log.dirs": str(folder),
        "zookeeper.connect": zookeeper_connect(resources, ports),
        "odradek.metrics.host": HOST,
        "odradek.metrics.port": str(ports.metrics[number]),
    }
    return "".join(f"{name}={_escaped(text)}\n" for name, text in sorted(values.items()))


def _escaped(text: str) -> str:
    escaped = text.replace("\\", "\\\\")
    return f"\\{escaped}" if escaped.startswith((" ", "\t")) else escaped


def broker_command(properties: Path) -> list[str]:
    """Return the command line of a broker."""
    return [*_PYTHON, "-m", "odradek", "broker", str(properties)]


def datagen_command(topic: LocalTopic, ports: Ports) -> list[str]:
    """Return the command line that fills a topic."""
    assert topic.datagen is not None
    return [
        *(*_PYTHON, "-c", _DATAGEN),
        *("--quickstart", topic.datagen),
        *("--topic", topic.spec.topic),
        *("--bootstrap-server", ports.bootstrap),
        *("--rate", str(RATE)),
        *("--iterations", _FOREVER),
    ]


def console_command(resources: LocalResources, ports: Ports) -> list[str]:
    """Return the command line of the console."""
    wanted = resources.cluster.console or ConsoleSpec()
    registry = wanted.schema_registry
    return [
        *(*_PYTHON, "-m", "odradek_console"),
        *("--bootstrap-server", ports.bootstrap),
        *("--host", HOST),
        *("--port", str(ports.console)),
        *(() if wanted.records else ("--no-records",)),
        *(() if registry is None else ("--schema-registry", registry)),
    ]


def job_command() -> list[str]:
    """Return the command line of a driver; what it does is in its environment.

    Its `python` may be a module of the folder where the user is.
    """
    return [sys.executable, "-m", "odradek_spark"]


def job(
    resources: LocalResources,
    group: LocalGroup,
    ports: Ports,
    number: int,
    folder: Path,
    java: Path,
) -> LocalJob:
    """Return the job with this number, from 0 on; `folder` is its own."""
    assert group.job is not None
    data = folder / "data"
    wanted, sink, table = _with_local_paths(group, data)
    document = {
        "name": group.name,
        "group": group.spec.group,
        "bootstrap": ports.bootstrap,
        "zookeeper": zookeeper_connect(resources, ports),
        "offsetStore": group.spec.offset_store,
        "topics": list(group.spec.topics),
        "topicPattern": group.spec.topic_pattern,
        "metricsHost": HOST,
        "metricsPort": ports.jobs[number],
        "job": wanted,
    }
    environment = {
        "ODRADEK_JOB": str(folder / "job.json"),
        "ODRADEK_DATA": str(data),
        "ODRADEK_SPARK_MASTER": f"local[{_cores(wanted)}]",
        "ODRADEK_SESSION_TIMEOUT_MS": "20000",
        "POD_NAME": "local",
        "PYSPARK_PYTHON": sys.executable,
        # The name of a laptop may be that of an address which it does not have at the moment.
        "SPARK_LOCAL_IP": HOST,
        "SPARK_LOCAL_DIRS": str(folder / "scratch"),
        "JAVA_HOME": str(java.resolve().parents[1]),
    }
    return LocalJob(
        name=group.name,
        group=group.spec.group,
        topics=group.spec.topics,
        folder=folder,
        file=json.dumps(document, indent=2, sort_keys=True) + "\n",
        environment=environment,
        table=table,
        sink=sink,
        port=ports.jobs[number],
    )


def _cores(wanted: Mapping[str, Any]) -> int:
    executors = wanted.get("executors", {})
    asked = executors.get("instances", 1) * executors.get("cores", 1)
    return int(max(1, min(asked, os.cpu_count() or 1, _MOST_CORES)))


def _with_local_paths(group: LocalGroup, data: Path) -> tuple[dict[str, Any], str, Path | None]:
    """Return the job with its volume's paths in a folder, where rows go, and the Parquet table."""
    assert group.job is not None
    wanted = json.loads(json.dumps(group.job))
    (kind, sink), *_ = wanted["sink"].items()
    if "path" in sink:
        sink["path"] = _on_this_machine(group, f"job.sink.{kind}.path", sink["path"], data)
    if "path" in wanted.get("eventLog", {}):
        path = wanted["eventLog"]["path"]
        wanted["eventLog"]["path"] = _on_this_machine(group, "job.eventLog.path", path, data)
    places = {"topic": "topic {name}", "jdbc": "table {table}", "console": "the log of the job"}
    shown = places.get(kind, "{path}").format(**sink)
    return wanted, shown, Path(sink["path"]) if kind == "parquet" else None


def _on_this_machine(group: LocalGroup, field: str, path: str, data: Path) -> str:
    if not path.startswith("/"):
        return path
    inside = path.removeprefix(f"{VOLUME}/")
    if inside == path or not inside or ".." in Path(inside).parts:
        raise LocalError(
            f"ConsumerGroup {group.name}: {field} {path} must be below {VOLUME}, the job's volume"
        )
    return str(data / inside)
