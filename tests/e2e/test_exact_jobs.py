"""Windowed jobs write each row once, whatever dies or stands still, and readers see whole batches.

Store and database are on this machine, at the address that it has in the network of the nodes.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import pytest
from kazoo.client import KazooClient

from odradek.zk import consumers
from odradek_spark import offsets
from odradek_spark.storage import LocalFolder
from tests.cluster.settings import REPO
from tests.e2e.conftest import Installed
from tests.e2e.test_group_status import group, status
from tests.e2e.test_quickstart import topic
from tests.e2e.test_under_load import roll_brokers, wait_for
from tests.support.job_results import (
    DeltaResult,
    Result,
    TableResult,
    TopicResult,
    folder_of_checkpoint,
    reading,
)
from tests.support.known_records import JOB, KnownRecords, rows_of
from tests.support.kubectl import Kubectl, eventually
from tests.support.pod_processes import PodProcesses
from tests.support.postgres import Postgres
from tests.support.s3_store import KEYS, S3Store

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]

NAMESPACE = "logs"
PARTITIONS = 4
SECRET = "exact-jobs-store"
# As many as the job must wait for until the first windows close, and some more.
FIRST_RECORDS = 4000
PER_SECOND = 40.0
# A node counts as lost after 40 s, and its driver is evicted 30 s later.
LOST_SECONDS = 300
ADVANCE_SECONDS = 600
# Far less than a commit takes.
MOMENT_SECONDS = 0.002


@dataclass(frozen=True)
class RunningJob:
    """A job that runs: its resource, what its readers see, and where its checkpoint is."""

    kubectl: Kubectl
    name: str
    result: Result
    checkpoint: LocalFolder
    zookeeper: KazooClient

    @property
    def driver(self) -> str:
        return f"{self.name}-driver"

    def executors(self) -> list[str]:
        labels = f"app.kubernetes.io/component=spark-executor,odradek.io/group={self.name}"
        found = self.kubectl.get("pods", "", "-l", labels)["items"]
        return [one["metadata"]["name"] for one in found if one["status"]["phase"] == "Running"]

    def committed(self) -> int:
        """Return the sum of the group's offsets."""
        paths = [consumers.offset_path(self.name, self.name, one) for one in range(PARTITIONS)]
        return sum(
            int(self.zookeeper.get(path)[0]) for path in paths if self.zookeeper.exists(path)
        )

    def is_ahead(self) -> bool:
        """Return whether the sink's last batch is in no offset of the group."""
        ends = offsets.batch_ends(self.checkpoint, self.result.batches() - 1)
        return self.committed() < sum(ends.values())

    def advance(self) -> None:
        """Wait until readers see more rows than now."""
        before = len(self.result.rows())
        eventually(lambda: len(self.result.rows()) > before, "more rows", ADVANCE_SECONDS)


Fault = Callable[[RunningJob], None]


def until(happens: Callable[[], bool], processes: PodProcesses) -> None:
    """Return at the moment when something happens. Raises AssertionError if the processes end."""
    eventually(
        lambda: happens() or processes.have_ended(), "it happens", ADVANCE_SECONDS, MOMENT_SECONDS
    )
    assert not processes.have_ended()


def await_batch(job: RunningJob, processes: PodProcesses) -> None:
    """Wait until readers see another batch, and no longer."""
    before = job.result.batches()
    until(lambda: job.result.batches() > before, processes)


def await_unfinished(job: RunningJob, processes: PodProcesses, known: Collection[str]) -> None:
    """Wait until a batch is begun, and no longer."""
    until(lambda: bool({*job.result.unfinished()} - {*known}), processes)


def executors_die(job: RunningJob) -> None:
    """Kill an executor by a signal, and take one away from the API server."""
    for kill in (
        lambda pod: PodProcesses.of(job.kubectl, pod).kill(),
        lambda pod: job.kubectl("delete", "pod", pod, "--force", "--grace-period=0"),
    ):
        former = eventually(job.executors, "an executor", ADVANCE_SECONDS)
        kill(former[0])

        def is_another(former: list[str] = former) -> bool:
            return job.executors() not in ([], former)

        eventually(is_another, "another one", ADVANCE_SECONDS)
        job.advance()


def driver_dies_between_sink_and_commit(job: RunningJob) -> None:
    """Kill the driver when readers see a batch of which the group has committed nothing.

    It stands still until that is sure. Where the commit came first, it goes on to another batch.
    """

    def died_between() -> bool:
        processes = PodProcesses.of(job.kubectl, job.driver)
        before = len(job.result.rows())
        await_batch(job, processes)
        processes.freeze()
        if len(job.result.rows()) == before or not job.is_ahead():
            processes.thaw()
            return False
        processes.kill()
        eventually(processes.have_ended, "it is dead")
        # A commit that was on its way would have come by now.
        return job.is_ahead()

    eventually(died_between, "it died between sink and commit", ADVANCE_SECONDS, 0)
    job.advance()


def driver_stands_still_while_its_successor_runs(job: RunningJob) -> None:
    """Freeze the driver within a batch, with its container runtime, as if its node stood still.

    So nobody can end it. It goes on when its successor has written batches.
    """
    kubectl = job.kubectl
    former = kubectl.get("pod", job.driver)
    node = former["spec"]["nodeName"]

    def processes_within_batch() -> PodProcesses | None:
        processes = PodProcesses.of(kubectl, job.driver)
        known = job.result.unfinished()
        await_unfinished(job, processes, known)
        processes.freeze()
        if {*job.result.unfinished()} - {*known}:
            return processes
        processes.thaw()
        return None

    processes = eventually(processes_within_batch, "it is within a batch", ADVANCE_SECONDS, 0)
    assert processes is not None
    keeper = processes.keeper()
    try:
        keeper.freeze()

        def is_reported() -> bool:
            return kubectl.condition("consumergroup", job.name).get("status") == "False"

        eventually(is_reported, "the job is not Ready", 120)
        # Its name is free once the pod is away; there is no place for the next one on that node.
        kubectl("cordon", node)
        kubectl("delete", "pod", job.driver, "--force", "--grace-period=0")

        def is_replaced() -> bool:
            found = kubectl.get("pod", job.driver)
            return bool(found["metadata"]["uid"] != former["metadata"]["uid"])

        eventually(is_replaced, "a successor", ADVANCE_SECONDS)
        job.advance()
        job.advance()
        assert not processes.have_ended()
        with processes.heard() as said:
            processes.thaw()

            def has_ended() -> bool:
                assert processes.have_ended(), said.decode(errors="replace")[-3000:]
                return True

            eventually(has_ended, "the driver that was overtaken ends", 300)
    finally:
        processes.thaw()
        keeper.thaw()
        kubectl("uncordon", node)
    job.advance()


def node_fails_and_returns(job: RunningJob) -> None:
    """Take the driver's node away as in a power cut, until its pods count as lost."""
    node = job.kubectl.get("pod", job.driver)["spec"]["nodeName"]

    def is_lost() -> bool:
        return "deletionTimestamp" in job.kubectl.get("pod", job.driver)["metadata"]

    on_cluster("fail", node)
    try:
        eventually(is_lost, f"the driver on {node} is lost", LOST_SECONDS)
    finally:
        on_cluster("start", node)
    job.advance()


def brokers_restart_in_turn(job: RunningJob) -> None:
    """Give the brokers another template than they have."""
    config = job.kubectl.get("kafkacluster", "main")["spec"]["brokers"].get("config", {})
    roll_brokers(job.kubectl, backoff_ms=int(config.get("replica.fetch.backoff.ms", "1000")) - 1)
    job.advance()


FAULTS: Sequence[Fault] = (
    executors_die,
    driver_dies_between_sink_and_commit,
    driver_stands_still_while_its_successor_runs,
    brokers_restart_in_turn,
    node_fails_and_returns,
)


def on_cluster(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "tests.cluster", *words], cwd=REPO, check=True)


def address_for_pods(kubectl: Kubectl) -> str:
    """Return this machine's address in the network of the nodes."""
    node = kubectl.get("nodes")["items"][0]
    addresses = {one["type"]: one["address"] for one in node["status"]["addresses"]}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as to_node:
        # Nothing is sent.
        to_node.connect((addresses["InternalIP"], 9))
        return str(to_node.getsockname()[0])


@pytest.fixture(scope="module")
def here(installed: Installed) -> str:
    return address_for_pods(installed.kubectl)


@pytest.fixture(scope="module")
def store(here: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Store]:
    with S3Store(tmp_path_factory.mktemp("s3"), here) as running:
        yield running


@pytest.fixture
def zookeeper(kubectl: Kubectl) -> Iterator[KazooClient]:
    address = kubectl.get("service", "zookeeper")["spec"]["clusterIP"]
    chroot = kubectl.get("kafkacluster", "main")["spec"]["zookeeper"]["chroot"]
    client = KazooClient(hosts=f"{address}:2181{chroot}", timeout=60)
    client.start(60)
    yield client
    client.stop()
    client.close()


def manifests(job: str, store: S3Store, result: Result) -> list[dict[str, Any]]:
    """Return the Secret of the store, the topic, and the ConsumerGroup of a job."""
    access = {"secretRef": {"name": SECRET}}
    spec = {
        **JOB,
        "sink": result.sink,
        "checkpoint": {"url": f"{store.url}/checkpoints", **access},
        "driver": {"cores": 1, "memory": "1Gi"},
        "executors": {"instances": 1, "cores": 1, "memory": "1Gi"},
        # As in the quick start: there may be no whole core left.
        "sparkConf": {**store.spark_conf, "spark.kubernetes.executor.request.cores": "250m"},
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": SECRET},
            "stringData": KEYS,
        },
        topic(job, partitions=PARTITIONS),
        group(job, topics=[job], job=spec),
    ]


def opened(
    sink: str, name: str, bootstrap: str, store: S3Store, here: str, stack: ExitStack
) -> DeltaResult | TableResult | TopicResult:
    """Return the result of a job; the stack closes what it needs."""
    if sink == "delta":
        return DeltaResult(store, name)
    if sink == "jdbc":
        return stack.enter_context(closing(TableResult(stack.enter_context(Postgres(here)), name)))
    checkpoint = folder_of_checkpoint(store, NAMESPACE, name)
    return stack.enter_context(
        closing(TopicResult(bootstrap, f"{name}-rows", PARTITIONS, checkpoint))
    )


def run_exactly(
    kubectl: Kubectl,
    bootstrap: str,
    store: S3Store,
    zookeeper: KazooClient,
    result: Result,
    name: str,
    faults: Sequence[Fault],
) -> None:
    """Run a job through the faults, and compare its result with its input, row by row."""
    checkpoint = LocalFolder(folder_of_checkpoint(store, NAMESPACE, name))
    job = RunningJob(kubectl, name, result, checkpoint, zookeeper)
    records = KnownRecords(bootstrap, name, PARTITIONS, PER_SECOND)
    kubectl.apply(*manifests(name, store, result))
    try:
        wait_for(kubectl, "topic", name, "Synced")
        records.start(FIRST_RECORDS)
        eventually(result.rows, "first rows", ADVANCE_SECONDS)
        with reading(result) as reader:
            for fault in faults:
                began = time.monotonic()
                fault(job)
                assert reader.faults == []
                print(f"{name}: {fault.__name__}: {time.monotonic() - began:.0f} s")
            records.stop()
            eventually(lambda: job.committed() == records.count, "all is read", ADVANCE_SECONDS)
            records.close_windows()
            eventually(lambda: job.committed() > records.count, "the end is read", ADVANCE_SECONDS)
            wanted = rows_of(records.count)
            eventually(lambda: len(result.rows()) >= len(wanted), "all rows", ADVANCE_SECONDS)
        assert sorted(result.rows()) == wanted
        told = status(kubectl, name)["job"]["restarts"]
        print(f"{name}: {records.count} records, {reader.reads} reads, restarts {json.dumps(told)}")
    finally:
        records.close()
        kubectl("delete", "consumergroup", name, "--ignore-not-found", "--timeout=120s")
        kubectl("delete", "topic", name, "--ignore-not-found", "--timeout=120s")
        kubectl("delete", "secret", SECRET, "--ignore-not-found", "--timeout=120s")


@pytest.mark.full(
    "tests/spark/test_driver.py::test_crash_between_sink_and_commit_replays_the_batch_and_nothing_is_lost_or_doubled",
    "tests/e2e/test_recovery.py::test_no_acknowledged_line_is_missing_in_the_output",
)
def test_driver_that_dies_between_sink_and_commit_doubles_nothing_in_a_delta_table(
    kubectl: Kubectl, healthy: None, bootstrap: str, store: S3Store, zookeeper: KazooClient
) -> None:
    name = "exact-sample"
    faults = [driver_dies_between_sink_and_commit]
    result = DeltaResult(store, name)
    run_exactly(kubectl, bootstrap, store, zookeeper, result, name, faults)


@pytest.mark.full(
    "tests/spark/test_driver.py::test_crash_between_sink_and_commit_replays_the_batch_and_nothing_is_lost_or_doubled",
    "tests/spark/test_iceberg.py::test_driver_that_is_paused_within_its_commit_adds_nothing_however_late",
    "tests/e2e/test_recovery.py::test_no_acknowledged_line_is_missing_in_the_output",
)
@pytest.mark.parametrize("sink", ["delta", "jdbc", "topic"])
def test_job_writes_each_row_once_whatever_dies_or_stands_still(
    kubectl: Kubectl,
    healthy: None,
    bootstrap: str,
    store: S3Store,
    zookeeper: KazooClient,
    here: str,
    sink: str,
) -> None:
    name = f"exact-{sink}"
    with ExitStack() as stack:
        result = opened(sink, name, bootstrap, store, here, stack)
        if sink == "topic":
            kubectl.apply(topic(f"{name}-rows", partitions=PARTITIONS))
            wait_for(kubectl, "topic", f"{name}-rows", "Synced")
            stack.callback(kubectl, "delete", "topic", f"{name}-rows", "--timeout=120s")
        run_exactly(kubectl, bootstrap, store, zookeeper, result, name, FAULTS)
