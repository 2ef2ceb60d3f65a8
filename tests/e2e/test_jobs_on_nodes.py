"""What jobs have on real nodes: an Iceberg table on a claim, a namespace of their own, Spark's UI,
the history server, and the table of a Topic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.cluster import deploy
from tests.e2e.conftest import Installed
from tests.e2e.test_exact_jobs import address_for_pods
from tests.e2e.test_group_status import group
from tests.e2e.test_operations import patch
from tests.e2e.test_quickstart import topic
from tests.e2e.test_release import VALUES, release
from tests.e2e.test_under_load import wait_for
from tests.support import helm
from tests.support.clients import produce_all
from tests.support.delta_table import DeltaTable
from tests.support.kubectl import Kubectl, eventually
from tests.support.s3_store import BUCKET, KEYS, S3Store

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]

ELSEWHERE = "analytics"
SECRET = "jobs-store"
PATIENCE_S = 600
LEFT = ("--ignore-not-found", "--timeout=120s")


@pytest.fixture(scope="module")
def store(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Store]:
    with S3Store(tmp_path_factory.mktemp("s3"), address_for_pods(installed.kubectl)) as running:
        yield running


@pytest.fixture
def elsewhere(kubectl: Kubectl) -> Iterator[Kubectl]:
    """kubectl in a namespace without brokers."""
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": ELSEWHERE}})
    yield Kubectl(kubectl.binary, kubectl.kubeconfig, ELSEWHERE)
    kubectl("delete", "namespace", ELSEWHERE, "--timeout=300s", timeout_s=330)


def store_secret() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET},
        "stringData": KEYS,
    }


def small(store: S3Store) -> dict[str, str]:
    """Return properties with which a job finds the store, and a place on a small node."""
    return {**store.spark_conf, "spark.kubernetes.executor.request.cores": "250m"}


def proxied(kubectl: Kubectl, service: str, path: str) -> Any:
    """Return the JSON that a Service answers."""
    base = f"/api/v1/namespaces/{kubectl.namespace}/services/{service}/proxy"
    return json.loads(kubectl("get", "--raw", base + path))


def folder_of_claim(kubectl: Kubectl, name: str) -> Path:
    """Return where the volume of a claim is on this machine."""
    volume = kubectl.get("pvc", name)["spec"]["volumeName"]
    return Path(kubectl.get("pv", volume)["spec"]["local"]["path"])


@pytest.mark.full(
    "tests/reconcile/test_jobs_elsewhere.py::test_job_lives_in_its_own_namespace_while_the_cluster_allows_it",
    "tests/spark/test_iceberg.py::test_batch_is_in_the_table_once_however_often_and_by_whomever_it_is_run",
    "tests/spark/test_driver_ui.py::test_ui_lets_nobody_end_a_job_and_a_history_server_shows_it_afterwards",
)
def test_job_of_another_namespace_writes_iceberg_and_shows_its_ui_and_its_past(
    kubectl: Kubectl,
    healthy: None,
    bootstrap: str,
    store: S3Store,
    elsewhere: Kubectl,
) -> None:
    name, count = "revenue", 300
    job = {
        "startingOffsets": "earliest",
        "trigger": "2s",
        "format": "json",
        "schema": "n long",
        "sql": "select n, n % 7 as day from records",
        "sink": {"iceberg": {"path": "/data/revenue", "partitionBy": ["day"]}},
        "driver": {"cores": 1, "memory": "1Gi"},
        "executors": {"instances": 1, "cores": 1, "memory": "1Gi"},
        "volume": {"size": "1Gi", "storageClassName": "local"},
        "ui": {"enabled": True},
        "eventLog": {"path": f"{store.url}/events", "secretRef": {"name": SECRET}},
        "sparkConf": small(store),
    }
    owner = {"clusterRef": {"name": "main", "namespace": kubectl.namespace}}
    with ExitStack() as stack:
        stack.callback(kubectl, "delete", "topic", name, *LEFT)
        kubectl.apply(topic(name, partitions=2))
        wait_for(kubectl, "topic", name, "Synced")
        produce_all(bootstrap, name, [b'{"n": %d}' % n for n in range(count)], partitions=2)
        stack.callback(elsewhere, "delete", "consumergroup", name, *LEFT)
        elsewhere.apply(store_secret(), group(name, topics=[name], job=job, **owner))
        wait_for(elsewhere, "consumergroup", name, "RefNotPermitted")
        stack.callback(patch, kubectl, "kafkacluster", "main", jobs=None)
        patch(kubectl, "kafkacluster", "main", jobs={"allowedNamespaces": [ELSEWHERE]})
        wait_for(elsewhere, "consumergroup", name, "Running")

        def rows() -> list[tuple[int, int]]:
            table = folder_of_claim(elsewhere, f"{name}-data") / "revenue"
            files = sorted((table / "data").rglob("*.parquet"))
            found = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
            return sorted((row["n"], row["day"]) for row in found)

        wanted = [(n, n % 7) for n in range(count)]
        eventually(lambda: len(rows()) >= count, "all rows", PATIENCE_S)
        assert rows() == wanted
        (running,) = proxied(elsewhere, f"{name}-driver-ui:4040", "/api/v1/applications")
        assert running["attempts"][0]["completed"] is False
        # Nothing of the job is beside the brokers.
        pods = kubectl.get("pods")["items"]
        assert not [one for one in pods if one["metadata"]["name"].startswith(f"{name}-")]

        patch(kubectl, "kafkacluster", "main", jobs=None)
        wait_for(elsewhere, "consumergroup", name, "RefNotPermitted")

        def is_gone() -> bool:
            found = elsewhere.get("pods")["items"]
            return not [one for one in found if one["metadata"]["name"].startswith(f"{name}-")]

        eventually(is_gone, "driver and executor are gone", PATIENCE_S)
        ended = past_of(kubectl, store, running["id"])
        assert ended["attempts"][0]["completed"] is True
        assert ended["name"] == f"odradek-{name}"


def past_of(kubectl: Kubectl, store: S3Store, application: str) -> dict[str, Any]:
    """Return what the chart's history server says of an application that ended."""
    # Some are "true", which the chart wants as a text, too.
    properties = [
        f"--set-string=historyServer.sparkConf.{key.replace('.', chr(92) + '.')}={value}"
        for key, value in {
            **store.spark_conf,
            "spark.history.fs.update.interval": "2s",
        }.items()
    ]
    settings = (
        "--set=historyServer.enabled=true",
        f"--set=historyServer.path={store.url}/events",
        f"--set=historyServer.secretName={SECRET}",
        *properties,
    )
    kubectl.apply(store_secret())
    try:
        release(kubectl, "upgrade", str(helm.CHART), VALUES, *settings, "--wait", "--timeout=5m")
        service = f"{deploy.RELEASE}-history-server:18080"

        def told() -> dict[str, Any]:
            found = proxied(kubectl, service, "/api/v1/applications")
            (one,) = [one for one in found if one["id"] == application]
            return dict(one)

        return eventually(told, "the history server shows it", PATIENCE_S)
    finally:
        release(kubectl, "upgrade", str(helm.CHART), VALUES, "--wait", "--timeout=5m")
        kubectl("delete", "secret", SECRET, *LEFT)


@pytest.mark.full(
    "tests/spark/test_landing.py::test_topic_lands_in_its_table_and_a_given_schema_grows_with_the_job"
)
def test_topic_lands_in_its_table_with_the_columns_that_come_later(
    kubectl: Kubectl, healthy: None, bootstrap: str, store: S3Store
) -> None:
    name = "lands"
    table = {
        "format": "delta",
        "path": f"{store.url}/topics/{name}",
        "partitionBy": ["day"],
        "trigger": "2s",
        "secretRef": {"name": SECRET},
        "driver": {"cores": 1, "memory": "1Gi"},
        "executors": {"instances": 1, "cores": 1, "memory": "1Gi"},
        "sparkConf": small(store),
    }
    first = [b'{"n": %d}' % n for n in range(200)]
    later = [b'{"n": %d, "shop": "s%d"}' % (n, n % 3) for n in range(200, 300)]
    try:
        kubectl.apply(store_secret(), topic(name, partitions=2, table=table))
        wait_for(kubectl, "topic", name, "Synced")
        produce_all(bootstrap, name, first, partitions=2)
        landed = DeltaTable(store.folder / BUCKET / "topics" / name)

        def told(rows: int) -> bool:
            ready = kubectl.condition("topic", name, "TableReady")
            assert ready.get("status") == "True", ready
            found = kubectl.get("topic", name)["status"]["table"]
            return bool(found.get("rows") == rows and found.get("totalLag") == 0)

        eventually(lambda: told(200), "the Topic tells of 200 rows", PATIENCE_S)
        produce_all(bootstrap, name, later, partitions=2)
        eventually(lambda: told(300), "the Topic tells of 300 rows", PATIENCE_S)
        rows = sorted((row["n"], row.get("shop")) for row in landed.rows())
        assert rows == [(n, None if n < 200 else f"s{n % 3}") for n in range(300)]
    finally:
        kubectl("delete", "topic", name, *LEFT)
        kubectl("delete", "secret", SECRET, *LEFT)
    eventually(
        lambda: f"{name}-table-driver" not in kubectl("get", "pods", "-o", "name"),
        "the job goes with its Topic",
        PATIENCE_S,
    )
