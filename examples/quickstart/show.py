"""Waits until the quick start works from end to end, then prints its results.

usage: python3 show.py [--namespace logs] [--timeout 600]

`make up` runs it last. The data flow: log files -> collector -> topic -> Spark job -> Parquet, and
the job's lag -> Prometheus. It works when the Parquet result counts at least one line and, after
that, Prometheus has a scrape in which the group's lag is 0 in every partition. New lines keep
arriving, so the lag is 0 only between micro-batches: the job commits a batch, its lag is 0 until
the collector sends again, and one of the scrapes every five seconds soon shows that.

The script uses kubectl for everything and only Python's standard library. Progress goes to stderr,
the result to stdout. Exit status: 0 shown, 1 timed out.
"""

# ruff: noqa: T201 - the script prints its result

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
# Of examples/quickstart/kafka.yaml, for people.
USER = "admin"
DRIVER = f"{GROUP}-driver"
RESULT = "/data/counts"
# The driver's own: the lag exporter has the group too.
_LAG = (
    f'kafka_consumergroup_lag{{consumergroup="{GROUP}",topic="{TOPIC}",'
    'app_kubernetes_io_component="spark-driver"}'
)
LAG_QUERY, PARTITIONS_QUERY = f"sum({_LAG})", f"count({_LAG})"
POLL_S = 2.0

Answer = TypeVar("Answer")
Resource = dict[str, Any]


class NotYetError(Exception):
    """A condition is not met yet; the message says which one."""


@dataclass(frozen=True)
class Kubectl:
    """kubectl in one namespace of the cluster that KUBECONFIG names."""

    namespace: str

    def __call__(self, *arguments: str, stdin: str | None = None) -> str:
        """Return the standard output; raise NotYetError with the last line of stderr."""
        command = ["kubectl", f"--namespace={self.namespace}", *arguments]
        try:
            ended = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)
        except subprocess.TimeoutExpired as error:
            raise NotYetError(
                f"kubectl {arguments[0]} took longer than {error.timeout} s"
            ) from error
        if ended.returncode:
            lines = ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"]
            raise NotYetError(lines[-1])
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
        """The number of log lines counted."""
        return sum(row[3] for row in self.rows)


# --- queries --------------------------------------------------------------------------------------


def ready_or_why(resource: Resource) -> None:
    """Raise NotYetError with the reason unless the resource is Ready."""
    name = f"{resource['kind']} {resource['metadata']['name']}"
    for condition in resource.get("status", {}).get("conditions", []):
        if condition["type"] == "Ready":
            if condition["status"] == "True":
                return
            raise NotYetError(f"{name}: {condition['reason']}: {condition['message']}")
    raise NotYetError(f"{name}: not reconciled yet")


def parse_table(text: str) -> list[dict[str, str]]:
    """Return the rows of a text table: a line of names, a line of dashes, and the rows."""
    names, rule, *lines = text.splitlines()
    columns = [match.span() for match in re.finditer("-+", rule)]
    # The last column is as wide as its cells.
    edges = [*columns[:-1], (columns[-1][0], None)]
    header = [names[slice(*edge)].strip() for edge in edges]
    return [
        dict(zip(header, (line[slice(*e)].strip() for e in edges), strict=True)) for line in lines
    ]


def counts(kubectl: Kubectl) -> Counts:
    """Return the job's counts; raise NotYetError if there are none yet."""
    text = kubectl("exec", DRIVER, "--", "python3", "-m", "odradek_spark", "show", RESULT)
    rows = [
        (row["minute"], row["component"], row["severity"], int(row["lines"]))
        for row in parse_table(text)
    ]
    found = Counts(tuple(sorted(rows, key=lambda row: (row[0], -row[3]))))
    if not found.lines:
        raise NotYetError("the job has no result yet")
    return found


def instant(kubectl: Kubectl, query: str) -> float:
    """Return the single value of a Prometheus query; raise NotYetError if there is none."""
    path = (
        f"/api/v1/namespaces/{kubectl.namespace}/services/prometheus:9090/proxy"
        f"/api/v1/query?query={urllib.parse.quote(query)}"
    )
    return single_value(json.loads(kubectl("get", "--raw", path)))


def single_value(answer: Resource) -> float:
    """Return the value of an instant query; raise NotYetError if there is none or it is NaN."""
    samples = answer.get("data", {}).get("result", [])
    if not samples:
        raise NotYetError("Prometheus has no lag of the group yet")
    value = float(samples[0]["value"][1])
    if math.isnan(value):
        raise NotYetError("Prometheus has no number for the group's lag")
    return value


def zero_lag(kubectl: Kubectl, partitions: int) -> int:
    """Return 0 if the lag of every partition in Prometheus is 0; else raise NotYetError."""
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


# --- waiting --------------------------------------------------------------------------------------


class Progress:
    """Prints one line on stderr per new state of the wait."""

    def __init__(self, deadline_s: float) -> None:
        self.started = time.monotonic()
        self.deadline_s = deadline_s
        self.last = ""

    def tell(self, text: str) -> None:
        """Print the text, unless it is the same as the last one."""
        if text != self.last:
            elapsed = time.monotonic() - self.started
            print(f"  [{elapsed:4.0f} s] {text}", file=sys.stderr, flush=True)
            self.last = text

    def wait(self, what: str, ask: Callable[[], Answer]) -> Answer:
        """Retry until `ask` raises no NotYetError; raise TimeoutError at the deadline."""
        while True:
            try:
                return ask()
            except NotYetError as missing:
                self.tell(f"{what}: {missing}")
                if time.monotonic() - self.started > self.deadline_s:
                    raise TimeoutError(f"{what}: {missing}") from missing
            time.sleep(POLL_S)


# --- output ---------------------------------------------------------------------------------------


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a text table; numbers are aligned to the right."""
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
    """Return a table of the newest windows, with the number of windows."""
    minutes = sorted({row[0] for row in found.rows})
    shown = minutes[-windows:]
    rows = [row for row in found.rows if row[0] in shown]
    text = table(("MINUTE", "COMPONENT", "SEVERITY", "LINES"), rows)
    hidden = len(minutes) - len(shown)
    return text if not hidden else f"{text}\n  (the newest {len(shown)} of {len(minutes)} windows)"


def broker_table(cluster: Resource) -> str:
    """Return a table with one row per broker; a star marks the controller."""
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
    """Return a table with one row per partition."""
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


def further(namespace: str, address: str, *, secured: bool) -> str:
    """Return commands that show more, for a shell without kubectl in its PATH."""
    kubectl = shutil.which("kubectl")
    folder = shlex.quote(str(pathlib.Path(kubectl).parent)) if kubectl else ""
    path = f"  export PATH={folder}:$PATH\n" if folder else ""
    login, kcat = "", f"kcat -b {address}"
    if secured:
        login = f"""\
  secret() {{ kubectl -n {namespace} get secret $1 -o "jsonpath={{.data.$2}}" | base64 -d; }}
  secret {CLUSTER}-cluster-ca-cert 'ca\\.crt' > ca.crt
  printf '%s\\n' security.protocol=SASL_SSL ssl.ca.location=ca.crt sasl.mechanism=SCRAM-SHA-512 \\
    sasl.username={USER} sasl.password=$(secret {USER} password) > kcat.conf
"""
        kcat = f"kcat -F kcat.conf -b {address}"
    return f"""\
{path}  export KUBECONFIG=$(make -s kubeconfig)
  kubectl -n {namespace} get kafkaclusters,topics,consumergroups,users
  kubectl -n {namespace} describe kafkacluster {CLUSTER}
  kubectl -n {namespace} exec {DRIVER} -- python3 -m odradek_spark show {RESULT}
  kubectl -n {namespace} port-forward service/prometheus 9090    then http://localhost:9090
{login}\
  {kcat} -L                                 what a Kafka client sees
  {kcat} -C -t {TOPIC} -o -5 -e             the last lines of each partition"""


def report(
    namespace: str, found: Counts, cluster: Resource, partitions: Sequence[Resource], lag: int
) -> str:
    """Return the whole report."""
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
{further(namespace, address, secured=bool(cluster["spec"].get("listeners")))}

Brokers registered:        {sum(bool(b.get("registered")) for b in brokers)} of {len(brokers)}
Partitions with a leader:  {led} of {len(partitions)}
Lines counted:             {found.lines}
Total lag in Prometheus:   {lag}"""


# --- command --------------------------------------------------------------------------------------


def collect(kubectl: Kubectl, progress: Progress) -> str:
    """Wait for each stage of the data flow in order, and return the report."""

    def ready(kind: str, name: str) -> Resource:
        resource = kubectl.get(kind, name)
        ready_or_why(resource)
        return resource

    progress.wait("brokers", lambda: ready("kafkacluster", CLUSTER))
    topic = progress.wait("topic", lambda: ready("topic", TOPIC))
    progress.wait("job", lambda: ready("consumergroup", GROUP))
    progress.wait("counts", lambda: counts(kubectl))
    lag = progress.wait("lag", lambda: zero_lag(kubectl, topic["spec"]["partitions"]))
    # Read the counts again, so that the report has those of the moment without lag.
    found = progress.wait("counts", lambda: counts(kubectl))
    cluster = progress.wait("brokers", lambda: ready("kafkacluster", CLUSTER))
    partitions = progress.wait("leaders", lambda: leaders(kubectl, cluster))
    return report(kubectl.namespace, found, cluster, partitions, lag)


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        description="Wait until the quick start works, then show its results."
    )
    parser.add_argument("--namespace", default="logs")
    parser.add_argument("--timeout", type=float, default=600, metavar="SECONDS")
    options = parser.parse_args(arguments)
    try:
        print(collect(Kubectl(options.namespace), Progress(options.timeout)))
    except TimeoutError as error:
        print(f"timed out after {options.timeout:.0f} s: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
