"""Installs the chart and the quick start on the cluster, and prints its report."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tests.cluster import control
from tests.cluster.settings import REPO, Paths
from tests.cluster.shell import ClusterError, run_logged, step, wait_until

RELEASE = "odradek"
NAMESPACE = "logs"
BROKER_LABEL = "odradek.io/cluster"
RESTART_SECONDS = 600
QUICKSTART = REPO / "examples/quickstart"
CHART = REPO / "charts/odradek"


def restart(paths: Paths, changed: Sequence[str]) -> None:
    """Replace the pods that run an older build of the given images.

    Restarts brokers one after the other, each after the one before is in sync again.
    """
    if not changed:
        return
    pods = json.loads(control.kubectl(paths, "get", "pods", "--all-namespaces", "-o", "json"))
    outdated = [
        pod["metadata"]
        for pod in pods["items"]
        if any(container["image"] in changed for container in pod["spec"]["containers"])
    ]
    brokers = [one for one in outdated if BROKER_LABEL in one.get("labels", {})]
    for one in outdated:
        if one not in brokers:
            where = ("--namespace", one["namespace"])
            control.kubectl(paths, "delete", "pod", one["name"], *where, "--wait=false")
    for one in brokers:
        with step(f"restarting {one['name']} with its new image"):
            _replace_broker(paths, one)


def _replace_broker(paths: Paths, pod: Mapping[str, Any]) -> None:
    where = ("--namespace", pod["namespace"])
    cluster = f"kafkacluster/{pod['labels'][BROKER_LABEL]}"

    def healthy() -> bool:
        found = json.loads(control.kubectl(paths, "get", cluster, *where, "-o", "json"))
        status = found.get("status", {})
        ready = [one for one in status.get("conditions", ()) if one["type"] == "Ready"]
        full = status.get("replicas") == found["spec"]["brokers"]["replicas"]
        whole = status.get("underReplicatedPartitions") == 0
        return full and whole and [one["status"] for one in ready] == ["True"]

    def replaced() -> bool:
        text = control.kubectl(
            paths, "get", "pod", pod["name"], *where, "-o", "json", "--ignore-not-found"
        )
        found = json.loads(text) if text else {}
        conditions = found.get("status", {}).get("conditions", ())
        is_new = bool(found) and found["metadata"]["uid"] != pod["uid"]
        return is_new and any(
            one["type"] == "Ready" and one["status"] == "True" for one in conditions
        )

    wait_until(healthy, f"{cluster} to be healthy", timeout_s=RESTART_SECONDS)
    control.kubectl(paths, "delete", "pod", pod["name"], *where, "--wait=false")
    wait_until(replaced, f"{pod['name']} to be Ready", timeout_s=RESTART_SECONDS)


def install(paths: Paths) -> None:
    """Install chart and quick start, or bring them up to date. Raises ClusterError."""
    log = paths.build_logs / "helm.log"
    with step("installing the chart", log):
        control.kubectl(paths, "apply", "-f", QUICKSTART / "namespace.yaml")
        where = ["--kubeconfig", str(paths.kubeconfig), "--namespace", NAMESPACE]
        install = ["upgrade", "--install", RELEASE, str(CHART)]
        # helm keeps caches and settings in the home directory unless told otherwise.
        home = {f"HELM_{name}_HOME": f"{paths.cache}/helm" for name in ("CACHE", "CONFIG", "DATA")}
        values = ["--values", str(QUICKSTART / "values.yaml")]
        run_logged(
            [paths.bin / "helm", *install, *values, *where, "--timeout", "15m"],
            log,
            env={**os.environ, **home},
        )
    with step("applying the quickstart"):
        # The chart's Job has made the CRDs. Pods of both start together.
        control.kubectl(paths, "apply", "-k", QUICKSTART)
        for workload in ("deployment/odradek-operator", "statefulset/zookeeper"):
            status = ("rollout", "status", workload, f"--namespace={NAMESPACE}", "--timeout=15m")
            control.kubectl(paths, *status)


def report(paths: Paths) -> None:
    """Wait for the quick start, and print its report. Raises ClusterError."""
    environment = {**os.environ, "KUBECONFIG": str(paths.kubeconfig)}
    shown = [sys.executable, str(QUICKSTART / "show.py"), "--namespace", NAMESPACE]
    if subprocess.run(shown, env=environment, check=False).returncode:
        raise ClusterError("the quick start does not work yet; see above")
