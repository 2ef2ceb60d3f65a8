"""KEDA scales a job on its lag: examples/autoscaling/keda.yaml, on real nodes and brokers."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from tests.cluster.settings import REPO
from tests.e2e.test_quickstart import topic
from tests.e2e.test_under_load import wait_for
from tests.support import keda, yaml_text
from tests.support.clients import settings
from tests.support.kubectl import Kubectl, eventually

EXAMPLE = REPO / "examples/autoscaling/keda.yaml"
NAME = "page-view-archive"
# A kubelet takes up to two minutes to tell a driver, and KEDA looks at the lag of a minute.
PATIENCE_S = 600
# Prints the user of each row, file by file: a driver has little memory left for others.
ROWS = """
import glob
from pyarrow import parquet
for file in glob.glob("/data/page_views/current/**/*.parquet", recursive=True):
    print(*parquet.ParquetFile(file).read(["user"])["user"].to_pylist())
"""


@pytest.fixture
def autoscaler(kubectl: Kubectl, tmp_path: Path) -> Iterator[None]:
    """KEDA beside the cluster."""
    subprocess.run([sys.executable, "-m", "tests.cluster", "tools", "--keda"], cwd=REPO, check=True)
    with keda.running(kubectl, tmp_path):
        yield


@contextmanager
def views(bootstrap: str) -> Iterator[list[str]]:
    """Produce some hundred views a second; yield the users of those that are acknowledged."""
    users: list[str] = []
    errors: list[object] = []
    stop = threading.Event()

    def write() -> None:
        producer = confluent_kafka.Producer(
            {**settings(bootstrap), "acks": "all", "enable.idempotence": True}
        )

        def note(error: object, message: confluent_kafka.Message) -> None:
            if error is None:
                users.append((message.key() or b"").decode())
            else:
                errors.append(error)

        for number in itertools.count():
            if stop.is_set():
                break
            at = datetime.now(UTC).isoformat()
            view = {"user": str(number), "page": f"/{number % 7}", "at": at}
            producer.produce("page_views", json.dumps(view), key=str(number), on_delivery=note)
            producer.poll(0 if number % 25 else 0.05)
        errors.extend(["not delivered"] * producer.flush(300))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield users
    finally:
        stop.set()
        writer.join()
    assert errors == []


def example() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the job and the ScaledObject, as on a cluster with small nodes and little traffic.

    An executor per 1000 records of lag, instead of 100 000, and executors that request little of
    the two processors of the node where they all are.
    """
    job, scaled = yaml_text.load_all(EXAMPLE.read_text())
    job["spec"]["job"]["sparkConf"]["spark.kubernetes.executor.request.cores"] = "50m"
    (trigger,) = scaled["spec"]["triggers"]
    trigger["metadata"]["threshold"] = "1000"
    return job, scaled


@pytest.mark.e2e
@pytest.mark.timeout(3600)
@pytest.mark.full(
    "tests/reconcile/test_job_account.py::test_job_is_scaled_without_a_restart_of_its_driver"
)
def test_keda_scales_a_job_on_its_lag_and_each_row_is_there_once(
    kubectl: Kubectl, healthy: None, bootstrap: str, autoscaler: None
) -> None:
    job, scaled = example()

    def executors() -> tuple[int, int]:
        """How many are asked for, and how many pods run."""
        found = kubectl.get("consumergroup", NAME)
        selector = f"odradek.io/group={NAME},app.kubernetes.io/component=spark-executor"
        pods = kubectl.get("pods", "", "-l", selector)["items"]
        running = [one for one in pods if one["status"].get("phase") == "Running"]
        return found["spec"]["job"]["executors"]["instances"], len(running)

    def is_read() -> bool:
        status = kubectl.get("consumergroup", NAME)["status"]
        return bool(status.get("totalLag") == 0)

    kubectl.apply(topic("page-views", topicName="page_views", partitions=6))
    wait_for(kubectl, "topic", "page-views", "Synced")
    kubectl.apply(job)
    try:
        wait_for(kubectl, "consumergroup", NAME, "Running")
        driver = kubectl.get("pod", f"{NAME}-driver")["metadata"]["uid"]
        kubectl.apply(scaled)
        with views(bootstrap) as users:
            eventually(lambda: executors() == (3, 3), "three executors", PATIENCE_S, 1)
            wait_for(kubectl, "consumergroup", NAME, "Running")
            with_three = len(users)
            eventually(lambda: len(users) > with_three + 5000, "load for three of them", 300)
        eventually(is_read, "all records are read", PATIENCE_S)
        eventually(lambda: executors() == (1, 1), "one executor", PATIENCE_S, 1)
        wait_for(kubectl, "consumergroup", NAME, "Running")
        assert kubectl.get("pod", f"{NAME}-driver")["metadata"]["uid"] == driver
        found = kubectl("exec", f"{NAME}-driver", "--", "python3", "-c", ROWS).split()
        assert sorted(found) == sorted(users)
    finally:
        # In this order, for otherwise the scaler would still look at a job that is gone.
        kubectl("delete", "scaledobject", NAME, "--ignore-not-found", "--timeout=120s")
        kubectl("delete", "consumergroup", NAME, "--ignore-not-found", "--timeout=120s")
        claim = f"{NAME}-data"
        kubectl("delete", "pvc", claim, "--ignore-not-found", "--timeout=120s")
        kubectl("delete", "topic", "page-views", "--ignore-not-found", "--timeout=120s")
