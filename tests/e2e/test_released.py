"""A release on nodes that have nothing of it: pushed, installed and upgraded as README says.

It needs a cluster of its own, without the quickstart, and so comes last.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import buildah, layout, settings
from tests.cluster.settings import REPO
from tests.cluster.shell import run
from tests.docs import blocks
from tests.e2e.test_group_status import group
from tests.e2e.test_quickstart import topic
from tests.e2e.test_under_load import wait_for
from tests.release import images
from tests.release.__main__ import build
from tests.release.test_release import REGISTRY, VERSION, WHOLE, new_repository, push
from tests.support import helm
from tests.support.clients import consume_all, produce_all
from tests.support.kubectl import Kubectl, eventually
from tests.support.ports import free_port
from tests.support.registry import Registry, running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(5400)]

RECORDS = [b'{"n": %d}' % n for n in range(100)]
VALUES = "my-values.yaml"


def cluster(*words: str) -> None:
    """Run a command of the development cluster."""
    subprocess.run([sys.executable, "-m", "tests.cluster", *words], cwd=REPO, check=True)


@contextmanager
def bare_nodes() -> Iterator[Kubectl]:
    """Boot a new cluster with nothing in it; yield kubectl for it, and remove it in the end."""
    cluster("down")
    try:
        cluster("cluster")
        where = settings.paths()
        yield Kubectl(where.bin / "kubectl", where.kubeconfig)
    finally:
        cluster("down")


def trust(served: Registry) -> None:
    """Let the nodes trust the registry, as those of its owner would."""
    for node in layout.load():
        folder = settings.paths().node(node.name) / "certs.d" / served.address
        folder.mkdir(parents=True)
        shutil.copy(served.authority, folder / "ca.crt")


def own_values(served: Registry, place: str) -> dict[str, Any]:
    """Push the cluster's own ZooKeeper, as no other can be had here; return values that name it."""
    stored = buildah.stored(settings.paths(), "localhost/odradek/zookeeper:dev")
    copy = ["skopeo", "--insecure-policy", "copy", "--quiet", stored]
    target = f"docker://{place}/zookeeper:dev"
    run([*copy, target], env={**buildah.environment(settings.paths()), **served.environment})
    image = {"repository": f"{place}/zookeeper", "tag": "dev"}
    return {"zookeeper": {"image": image, "metrics": {"enabled": False}}}


def install(repository: Path, place: str, environment: Mapping[str, str]) -> None:
    """Install the chart, and upgrade it, as README says, but with values from the beginning."""
    text = blocks.take("README.md", "install a release").replace(REGISTRY, place)
    text = text.replace("--create-namespace", f"--create-namespace -f {VALUES}")
    assert text.count(f"-f {VALUES}") == 2
    path = f"{helm.binary().parent}:{os.environ['PATH']}"
    blocks.run(text, {"PATH": path, **environment}, repository, seconds=900)


def brokers() -> dict[str, Any]:
    return {
        "apiVersion": "odradek.io/v1alpha1",
        "kind": "KafkaCluster",
        "metadata": {"name": "main"},
        "spec": {
            "zookeeper": {"connect": "zookeeper.logs.svc.cluster.local:2181"},
            "brokers": {"replicas": 3, "storage": {"size": "1Gi"}},
        },
    }


def counting_job() -> dict[str, Any]:
    return {
        "startingOffsets": "earliest",
        "trigger": "2s",
        "format": "json",
        "schema": "n long",
        "sql": "select n from records",
        "sink": {"console": {}},
        "driver": {"cores": 1, "memory": "1Gi"},
        "executors": {"instances": 1, "cores": 1, "memory": "1Gi"},
        "volume": {"size": "1Gi"},
        "sparkConf": {"spark.kubernetes.executor.request.cores": "250m"},
    }


def pulled(kubectl: Kubectl) -> dict[str, str]:
    """Return the digest of each image that a pod of any namespace names."""
    pods = json.loads(kubectl("get", "pods", "--all-namespaces", "-o", "json"))["items"]
    containers = [
        one
        for pod in pods
        for kind in ("initContainerStatuses", "containerStatuses")
        for one in pod["status"].get(kind, [])
    ]
    assert all(one["imageID"] for one in containers), containers
    return {one["image"]: one["imageID"].rpartition("@")[2] for one in containers}


@pytest.mark.full(
    "tests/release/test_release.py::"
    "test_wheel_source_archive_chart_and_sbom_are_the_same_bytes_again"
)
def test_a_release_is_pulled_and_runs_on_nodes_that_have_nothing_of_it(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "repository", WHOLE)
    address = f"{settings.GATEWAY}:{free_port()}"
    place = f"{address}/odradek"
    made = build(repository, place, settings.paths())
    cluster("images", "zookeeper")
    with bare_nodes() as kubectl, running(tmp_path / "registry", address) as served:
        trust(served)
        push(repository, served, place)
        (repository / VALUES).write_text(yaml.safe_dump(own_values(served, place)))
        environment = {"KUBECONFIG": str(kubectl.kubeconfig), **served.environment}
        install(repository, place, environment)
        kubectl("rollout", "status", "deployment/odradek-operator", "--timeout=5m", timeout_s=330)
        kubectl.apply(brokers(), topic("records", partitions=1))
        for kind, name in (("kafkacluster", "main"), ("topic", "records")):

            def is_ready(kind: str = kind, name: str = name) -> bool:
                return kubectl.condition(kind, name).get("status") == "True"

            eventually(is_ready, f"{kind} {name} Ready", 900)
        status = kubectl.get("kafkacluster", "main")["status"]
        bootstrap = ",".join(one["address"] for one in status["brokers"])
        produce_all(bootstrap, "records", RECORDS)
        assert consume_all(bootstrap, "records", 1, len(RECORDS)) == RECORDS
        kubectl.apply(group("numbers", topics=["records"], job=counting_job()))
        wait_for(kubectl, "consumergroup", "numbers", "Running")

        found = pulled(kubectl)
        assert {name.rpartition(":")[0] for name in found} == {
            f"{place}/{name}" for name in (*images.NAMES, "zookeeper")
        }
        notes = (made / "RELEASE_NOTES.md").read_text().splitlines()
        for image in images.NAMES:
            name = f"{place}/{image}:{VERSION}"
            (row,) = [line for line in notes if f"`{name}`" in line]
            assert found[name] in row
