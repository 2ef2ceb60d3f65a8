"""An upgrade of the operator with another image of brokers, beside clusters that choose when."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cluster.settings import REPO
from tests.e2e.test_operations import broker_pods
from tests.e2e.test_release import VALUES, release
from tests.support import helm
from tests.support.kubectl import Kubectl, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

FORMER, LATER = (f"localhost/odradek/broker:{tag}" for tag in ("dev", "later"))
SECONDS = 600


@contextmanager
def cluster(kubectl: Kubectl, name: str, port: int, **spec: Any) -> Iterator[None]:
    """A cluster of one broker, beside those of the quick start."""
    zookeeper = kubectl.get("kafkacluster", "main")["spec"]["zookeeper"]
    storage = {"size": "1Gi", "storageClassName": "local", "deleteClaims": True}
    brokers = {
        **{"replicas": 1, "port": port, "metricsPort": port + 1, "storage": storage},
        "config": {"offsets.topic.replication.factor": "1"},
        "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}},
    }
    kubectl.apply(
        {
            "apiVersion": "odradek.io/v1alpha1",
            "kind": "KafkaCluster",
            "metadata": {"name": name},
            "spec": {
                "zookeeper": {**zookeeper, "chroot": f"/{name}"},
                "brokers": brokers,
                **spec,
            },
        }
    )
    try:
        ready(kubectl, name)
        yield
    finally:
        kubectl("delete", "kafkacluster", name, "--ignore-not-found", "--timeout=120s")


def ready(kubectl: Kubectl, name: str) -> None:
    def is_so() -> bool:
        return kubectl.condition("kafkacluster", name).get("reason") == "BrokersReady"

    eventually(is_so, f"{name} BrokersReady", SECONDS)


def uids(kubectl: Kubectl, name: str) -> set[str]:
    return {one["metadata"]["uid"] for one in broker_pods(kubectl, name).values()}


def up_to_date(kubectl: Kubectl, name: str, reason: str) -> None:
    def is_so() -> bool:
        return kubectl.condition("kafkacluster", name, "UpToDate").get("reason") == reason

    eventually(is_so, f"{name} {reason}", SECONDS)


def restarted(kubectl: Kubectl, name: str, former: set[str], image: str) -> None:
    """Wait until all pods are others, and brokers have the image."""

    def is_so() -> bool:
        listed = kubectl.get("kafkacluster", name)["status"]["brokers"]
        return not uids(kubectl, name) & former and {one.get("image") for one in listed} == {image}

    eventually(is_so, f"brokers of {name} with {image}", SECONDS)
    ready(kubectl, name)


@pytest.mark.full(
    "tests/reconcile/test_upgrade_flow.py"
    "::test_an_upgrade_restarts_the_brokers_of_the_cluster_that_follows_and_no_others"
)
def test_helm_upgrade_restarts_the_brokers_that_follow_and_no_others(
    kubectl: Kubectl, healthy: None
) -> None:
    command = [sys.executable, "-m", "tests.cluster", "tag", "broker", "later"]
    subprocess.run(command, cwd=REPO, check=True)
    wait = ("--wait", "--timeout=5m")
    with (
        cluster(kubectl, "pinned", 9292, image=FORMER),
        cluster(kubectl, "asks", 9392, rollout={"upgrades": "OnRequest"}),
    ):
        try:
            upgrade(kubectl, wait)
        finally:
            then = uids(kubectl, "main")
            release(kubectl, "upgrade", str(helm.CHART), VALUES, *wait)
    restarted(kubectl, "main", then, FORMER)


def upgrade(kubectl: Kubectl, wait: Sequence[str]) -> None:
    """Take the later image, and look who gets it when."""
    before = {name: uids(kubectl, name) for name in ("main", "pinned", "asks")}
    tag = "--set=image.broker.tag=later"
    release(kubectl, "upgrade", str(helm.CHART), VALUES, tag, *wait)
    restarted(kubectl, "main", before["main"], LATER)
    up_to_date(kubectl, "asks", "UpgradeWaiting")
    up_to_date(kubectl, "pinned", "UpToDate")
    assert {name: uids(kubectl, name) for name in ("pinned", "asks")} == {
        name: before[name] for name in ("pinned", "asks")
    }
    patch = json.dumps({"spec": {"rollout": {"requestId": "1"}}})
    kubectl("patch", "kafkacluster", "asks", "--type=merge", f"--patch={patch}")
    restarted(kubectl, "asks", before["asks"], LATER)
    up_to_date(kubectl, "asks", "UpToDate")
    assert uids(kubectl, "pinned") == before["pinned"]
