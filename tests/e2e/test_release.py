"""The chart on a cluster with data: test, upgrade, uninstall, and install it again."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import deploy
from tests.cluster.settings import REPO
from tests.e2e.conftest import addresses
from tests.e2e.test_quickstart import topic
from tests.support import helm
from tests.support.clients import consume_all, produce_all
from tests.support.kubectl import Kubectl, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

VALUES = f"--values={deploy.QUICKSTART / 'values.yaml'}"
RECORDS = [b"%04d" % number for number in range(300)]


def release(kubectl: Kubectl, command: str, *words: str) -> str:
    """Run helm for the release of the quick start."""
    where = (f"--kubeconfig={kubectl.kubeconfig}", f"--namespace={kubectl.namespace}")
    return helm.run(command, deploy.RELEASE, *words, *where, timeout_s=330)


def previous(directory: Path) -> Path:
    """Return the chart as an older release: lower version, no printer columns, one file less."""
    chart = directory / "odradek"
    shutil.copytree(helm.CHART, chart)
    text = (chart / "Chart.yaml").read_text()
    older, replaced = re.subn("^version: .+$", "version: 0.0.9", text, flags=re.MULTILINE)
    assert replaced == 1
    (chart / "Chart.yaml").write_text(older)
    for file in (chart / "crds").glob("*.yaml"):
        crd = yaml.safe_load(file.read_text())
        del crd["spec"]["versions"][0]["additionalPrinterColumns"]
        file.write_text(yaml.safe_dump(crd))
    (chart / "templates/rbac-aggregate.yaml").unlink()
    return chart


def uids(kubectl: Kubectl) -> dict[str, str]:
    """Return the uids of pods that a chart upgrade must not restart."""
    found = kubectl.get("pods", "", "-l", "app.kubernetes.io/component!=collector")["items"]
    names = ("main-broker-", "zookeeper-", "odradek-operator-")
    return {
        one["metadata"]["name"]: one["metadata"]["uid"]
        for one in found
        if one["metadata"]["name"].startswith(names)
    }


def columns(kubectl: Kubectl) -> list[str]:
    version: dict[str, Any] = kubectl.get("crd", "topics.odradek.io")["spec"]["versions"][0]
    return [one["name"] for one in version.get("additionalPrinterColumns", ())]


def wanted_columns() -> list[str]:
    source = yaml.safe_load((REPO / "crds/topics.yaml").read_text())
    return [one["name"] for one in source["spec"]["versions"][0]["additionalPrinterColumns"]]


def test_the_charts_own_test_reconciler(kubectl: Kubectl, healthy: None) -> None:
    assert "Phase:          Succeeded" in release(kubectl, "test")


def test_upgrade_from_the_previous_chart_brings_its_crds_and_restarts_nothing(
    kubectl: Kubectl, healthy: None, tmp_path: Path
) -> None:
    before = uids(kubectl)
    assert len(before) == 5
    release(kubectl, "upgrade", str(previous(tmp_path)), VALUES, "--wait", "--timeout=5m")
    assert columns(kubectl) == []
    role = f"{kubectl.namespace}-odradek-view"
    assert role not in kubectl("get", "clusterroles", "-o", "name")

    release(kubectl, "upgrade", str(helm.CHART), VALUES, "--wait", "--timeout=5m")
    assert columns(kubectl) == wanted_columns()
    kubectl("get", "clusterrole", role)
    left = kubectl("get", "jobs,configmaps,serviceaccounts", "-o", "name")
    assert "odradek-crds" not in left
    assert uids(kubectl) == before
    for kind, name in (("kafkacluster", "main"), ("topic", "cluster-logs")):

        def is_ready(kind: str = kind, name: str = name) -> bool:
            return kubectl.condition(kind, name).get("status") == "True"

        eventually(is_ready, f"{kind} {name} Ready")


def test_uninstalled_and_installed_again_everything_is_still_there(
    kubectl: Kubectl, healthy: None, bootstrap: str
) -> None:
    kubectl.apply(topic("kept", partitions=1))
    eventually(lambda: kubectl.condition("topic", "kept").get("status") == "True", "the topic")
    produce_all(bootstrap, "kept", RECORDS)
    incarnation = kubectl.get("topic", "kept")["status"]["incarnation"]
    cluster = kubectl.get("kafkacluster", "main")
    claims = {one["metadata"]["uid"] for one in kubectl.get("pvc")["items"]}

    kubectl("delete", "kafkacluster", "main", "--timeout=120s", timeout_s=150)
    kubectl(
        *("wait", "pods", "--for=delete", "-l", "app.kubernetes.io/component=broker"),
        "--timeout=120s",
        timeout_s=150,
    )
    release(kubectl, "uninstall", "--wait", "--timeout=5m")
    eventually(lambda: not uids(kubectl), "the release's pods gone")
    assert kubectl.get("topic", "kept")["status"]["incarnation"] == incarnation

    # CRDs stay when a release goes, and these could be an older one's.
    old = [{"op": "remove", "path": "/spec/versions/0/additionalPrinterColumns"}]
    kubectl("patch", "crd", "topics.odradek.io", "--type=json", f"--patch={json.dumps(old)}")
    release(kubectl, "install", str(helm.CHART), VALUES, "--wait", "--timeout=5m")
    assert columns(kubectl) == wanted_columns()
    kubectl.apply(
        {
            **{key: cluster[key] for key in ("apiVersion", "kind", "spec")},
            "metadata": {"name": "main"},
        }
    )
    kubectl("wait", "kafkacluster/main", "--for=condition=Ready", "--timeout=300s", timeout_s=330)
    assert claims <= {one["metadata"]["uid"] for one in kubectl.get("pvc")["items"]}
    assert kubectl.get("topic", "kept")["status"]["incarnation"] == incarnation
    # The cluster is another one, with an authority of its own; the User has its former password.
    assert consume_all(addresses(kubectl), "kept", 1, len(RECORDS)) == RECORDS
    kubectl("delete", "topic", "kept", "--timeout=120s", timeout_s=150)
