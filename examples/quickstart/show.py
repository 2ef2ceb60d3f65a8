"""Waits until the quickstart's whole path has worked, then prints what it did.

usage: python3 show.py [--namespace logs] [--timeout 600]

`make up` ends with it. The path: log files -> collector -> topic -> Spark job -> Parquet, and the
job's lag -> Prometheus. It has worked when the Parquet result counts at least one line and, after
that, Prometheus has a scrape in which the group's lag is 0 on every partition. New lines keep
coming, so lag is 0 only between batches: the job commits a batch, its lag is 0 until the
collector sends again, and a scrape every five seconds soon meets such a moment.

Everything is asked through kubectl, so whoever can reach the API server can run this; only the
standard library is needed. Progress goes to stderr, the result to stdout. Exit status: 0 shown, 1
not reached in time.
"""

# ruff: noqa: T201 - what a script prints is its result

from __future__ import annotations

import argparse
import json
import math
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

HERE = pathlib.Path(__file__).resolve().parent
CLUSTER = "main"
TOPIC = "cluster-logs"
GROUP = "log-counts"
DRIVER = f"{GROUP}-driver"
RESULT = "/data/counts"
LAG_QUERY = f'sum(kafka_consumergroup_lag{{consumergroup="{GROUP}",topic="{TOPIC}"}})'
PARTITIONS_QUERY = f'count(kafka_consumergroup_lag{{consumergroup="{GROUP}",topic="{TOPIC}"}})'
POLL_S = 2.0

Answer = TypeVar("Answer")
Resource = dict[str, Any]


class NotYetError(Exception):
    """Something that time may mend; the text says what is missing."""


@dataclass(frozen=True)
class Kubectl:
    """kubectl in one namespace, under whatever KUBECONFIG says."""

    namespace: str

    def __call__(self, *arguments: str, stdin: str | None = None) -> str:
        """Return the standard output; raise NotYetError with the last line of stderr."""
        command = ["kubectl", f"--namespace={self.namespace}", *arguments]
        try:
            ended = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)
        except subprocess.TimeoutExpired as error:
            raise NotYetError(
                f"kubectl {arguments[0]} takes longer than {error.timeout} s"
            ) from error
        if ended.returncode:
            complaint = ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"]
            raise NotYetError(complaint[-1])
        return ended.stdout

    def get(self, kind: str, name: str) -> Resource:
        """Return one object."""
        found: Resource = json.loads(self("get", kind, name, "--output=json"))
        return found


@dataclass(frozen=True)
class Counts:
    """The Parquet result: its rows as (minute, component, severity, lines)."""

    rows: tuple[tuple[str, str, str, int], ...]

    @property
    def lines(self) -> int:
        """Every log line that has been counted."""
        return sum(row[3] for row in self.rows)


# --- what is asked --------------------------------------------------------------------------------


def ready_or_why(resource: Resource) -> None:
    """Raise NotYetError with the reason unless the resource is Ready in its present generation."""
    name = f"{resource['kind']} {resource['metadata']['name']}"
    for condition in resource.get("status", {}).get("conditions", []):
        if condition["type"] == "Ready":
            if condition["status"] == "True":
                return
            raise NotYetError(f"{name}: {condition['reason']}: {condition['message']}")
    raise NotYetError(f"{name}: the operator has not looked at it yet")


def parse_table(text: str) -> list[dict[str, str]]:
    """Return the rows of a table: a line of names, one of dashes as wide as each column, rows."""
    names, rule, *lines = text.splitlines()
    columns = [match.span() for match in re.finditer("-+", rule)]
    # The last column has no right edge: nothing follows it.
    edges = [*columns[:-1], (columns[-1][0], None)]
    header = [names[slice(*edge)].strip() for edge in edges]
    return [
        dict(zip(header, (line[slice(*e)].strip() for e in edges), strict=True)) for line in lines
    ]


def counts(kubectl: Kubectl) -> Counts:
    """Return what the job has counted; raise NotYetError while that is nothing."""
    text = kubectl("exec", DRIVER, "--", "python3", "-m", "odradek_spark", "show", RESULT)
    rows = [
        (row["minute"], row["component"], row["severity"], int(row["lines"]))
        for row in parse_table(text)
    ]
    found = Counts(tuple(sorted(rows, key=lambda row: (row[0], -row[3]))))
    if not found.lines:
        raise NotYetError("the job has counted nothing yet")
    return found


def instant(kubectl: Kubectl, query: str) -> float:
    """Return the single value of a Prometheus query; raise NotYetError when there is none."""
    path = (
        f"/api/v1/namespaces/{kubectl.namespace}/services/prometheus:9090/proxy"
        f"/api/v1/query?query={urllib.parse.quote(query)}"
    )
    return single_value(json.loads(kubectl("get", "--raw", path)))


def single_value(answer: Resource) -> float:
    """Return the value of an instant query; raise NotYetError when there is none or it is NaN."""
    samples = answer.get("data", {}).get("result", [])
    if not samples:
        raise NotYetError("Prometheus has no lag of the group yet")
    value = float(samples[0]["value"][1])
    if math.isnan(value):
        raise NotYetError("Prometheus has no number for the group's lag")
    return value


def zero_lag(kubectl: Kubectl, partitions: int) -> int:
    """Return 0 when Prometheus has the lag of every partition as 0; else raise NotYetError."""
    reported = int(instant(kubectl, PARTITIONS_QUERY))
    if reported < partitions:
        raise NotYetError(f"Prometheus has the lag of {reported} of {partitions} partitions")
    lag = int(instant(kubectl, LAG_QUERY))
    if lag:
        raise NotYetError(f"total lag {lag}, catching up")
    return lag


def leaders(kubectl: Kubectl, cluster: Resource) -> list[Resource]:
    """Return partition, leader, isr and replicas of the topic's partitions."""
    zookeeper = cluster["spec"]["zookeeper"]
    chroot = zookeeper.get("chroot", "/").rstrip("/")
    script = (HERE / "leaders.py").read_text()
    arguments = ["python3", "-", f"{zookeeper['connect']}{chroot}", TOPIC]
    pod = next((b["pod"] for b in cluster["status"]["brokers"] if b.get("registered")), None)
    if pod is None:
        raise NotYetError("no broker is registered")
    answer = kubectl("exec", "--stdin", pod, "--", *arguments, stdin=script)
    found: list[Resource] = json.loads(answer)
    return found


# --- how it is waited for -------------------------------------------------------------------------


class Progress:
    """One line on stderr for each new state of what is waited for."""

    def __init__(self, deadline_s: float) -> None:
        self.started = time.monotonic()
        self.deadline_s = deadline_s
        self.last = ""

    def tell(self, text: str) -> None:
        """Print the text, unless it was the last one."""
        if text != self.last:
            elapsed = time.monotonic() - self.started
            print(f"  [{elapsed:4.0f} s] {text}", file=sys.stderr, flush=True)
            self.last = text

    def wait(self, what: str, ask: Callable[[], Answer]) -> Answer:
        """Ask until it raises NotYetError no more; raise TimeoutError at the deadline."""
        while True:
            try:
                return ask()
            except NotYetError as missing:
                self.tell(f"{what}: {missing}")
                if time.monotonic() - self.started > self.deadline_s:
                    raise TimeoutError(f"{what}: {missing}") from missing
            time.sleep(POLL_S)


# --- how it is printed ----------------------------------------------------------------------------


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return columns that are as wide as their widest cell; numbers stand right."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    right = [
        bool(rows) and all(isinstance(row[i], int) for row in rows) for i in range(len(header))
    ]
    return "\n".join(
        "  "
        + "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in cells
    )


def count_table(found: Counts, windows: int = 2) -> str:
    """Return the rows of the newest windows, and how many windows there are."""
    minutes = sorted({row[0] for row in found.rows})
    shown = minutes[-windows:]
    rows = [row for row in found.rows if row[0] in shown]
    text = table(("MINUTE", "COMPONENT", "SEVERITY", "LINES"), rows)
    hidden = len(minutes) - len(shown)
    return text if not hidden else f"{text}\n  (the newest {len(shown)} of {len(minutes)} windows)"


def broker_table(cluster: Resource) -> str:
    """Return one row a broker; a star marks the controller."""
    status = cluster["status"]
    return table(
        ("BROKER", "POD", "NODE", "ADDRESS", "REGISTERED", "CONTROLLER"),
        [
            (
                broker["id"],
                broker.get("pod", ""),
                broker.get("node", ""),
                broker.get("address", ""),
                "yes" if broker.get("registered") else "no",
                "*" if broker["id"] == status.get("controllerId") else "",
            )
            for broker in status.get("brokers", [])
        ],
    )


def leader_table(partitions: Sequence[Resource]) -> str:
    """Return one row a partition."""
    return table(
        ("PARTITION", "LEADER", "IN SYNC", "REPLICAS"),
        [
            (
                p["partition"],
                p["leader"],
                ",".join(map(str, p["isr"])),
                ",".join(map(str, p["replicas"])),
            )
            for p in partitions
        ],
    )


def further(namespace: str, address: str) -> str:
    """Return commands for whoever wants to see more, in a shell that knows of no kubectl yet."""
    kubectl = shutil.which("kubectl")
    folder = shlex.quote(str(pathlib.Path(kubectl).parent)) if kubectl else ""
    path = f"  export PATH={folder}:$PATH\n" if folder else ""
    return f"""\
{path}  export KUBECONFIG=$(make -s kubeconfig)
  kubectl -n {namespace} get kafkaclusters,topics,consumergroups
  kubectl -n {namespace} describe kafkacluster {CLUSTER}
  kubectl -n {namespace} exec {DRIVER} -- python3 -m odradek_spark show {RESULT}
  kubectl -n {namespace} port-forward service/prometheus 9090    then http://localhost:9090
  kcat -b {address} -L                                 what a client of Kafka sees
  kcat -b {address} -C -t {TOPIC} -o -5 -e             the last lines of each partition"""


def report(
    namespace: str, found: Counts, cluster: Resource, partitions: Sequence[Resource], lag: int
) -> str:
    """Return everything that is shown."""
    brokers = cluster["status"]["brokers"]
    address = next((b["address"] for b in brokers if b.get("address")), "BROKER:9092")
    led = sum(p["leader"] >= 0 for p in partitions)
    return f"""
Lines of this cluster's own logs, by minute, component and severity (Parquet, {RESULT})
{count_table(found)}

Brokers of KafkaCluster {CLUSTER}
{broker_table(cluster)}

Topic {TOPIC}
{leader_table(partitions)}

Look further
{further(namespace, address)}

Brokers registered:        {sum(bool(b.get("registered")) for b in brokers)} of {len(brokers)}
Partitions with a leader:  {led} of {len(partitions)}
Lines counted:             {found.lines}
Total lag in Prometheus:   {lag}"""


# --- the whole ------------------------------------------------------------------------------------


def collect(kubectl: Kubectl, progress: Progress) -> str:
    """Wait for each stage of the path in its order, and return the report."""

    def ready(kind: str, name: str) -> Resource:
        resource = kubectl.get(kind, name)
        ready_or_why(resource)
        return resource

    progress.wait("brokers", lambda: ready("kafkacluster", CLUSTER))
    topic = progress.wait("topic", lambda: ready("topic", TOPIC))
    progress.wait("job", lambda: ready("consumergroup", GROUP))
    progress.wait("counts", lambda: counts(kubectl))
    lag = progress.wait("lag", lambda: zero_lag(kubectl, topic["spec"]["partitions"]))
    # Asked again, so that what is printed is what stands at the moment of no lag.
    found = progress.wait("counts", lambda: counts(kubectl))
    cluster = progress.wait("brokers", lambda: ready("kafkacluster", CLUSTER))
    partitions = progress.wait("leaders", lambda: leaders(kubectl, cluster))
    return report(kubectl.namespace, found, cluster, partitions, lag)


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description="Show what the quickstart does, once it does it.")
    parser.add_argument("--namespace", default="logs")
    parser.add_argument("--timeout", type=float, default=600, metavar="SECONDS")
    options = parser.parse_args(arguments)
    try:
        print(collect(Kubectl(options.namespace), Progress(options.timeout)))
    except TimeoutError as error:
        print(f"not reached in {options.timeout:.0f} s: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
