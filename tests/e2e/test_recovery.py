"""SIGKILL of broker, Spark driver and operator: no acknowledged line is lost (K4, R7)."""

from __future__ import annotations

import json
import re

import pytest

from tests.e2e.test_quickstart import kcat
from tests.support.kubectl import Kubectl, eventually
from tests.support.pod_processes import PodProcesses

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


def restarts(kubectl: Kubectl, pod: str) -> tuple[str, int]:
    found = kubectl.get("pod", pod)
    statuses = found["status"].get("containerStatuses", [])
    return found["metadata"]["uid"], sum(each["restartCount"] for each in statuses)


def operator_pod(kubectl: Kubectl) -> str:
    pods = kubectl.get("pods", "", "-l", "app.kubernetes.io/name=odradek-operator")["items"]
    return str(pods[0]["metadata"]["name"])


@pytest.mark.parametrize("victim", ["broker", "driver", "operator"])
def test_killed_pod_comes_back_by_itself(kubectl: Kubectl, healthy: None, victim: str) -> None:
    pod = {
        "broker": "main-broker-1",
        "driver": "log-counts-driver",
        "operator": operator_pod(kubectl),
    }[victim]
    before = restarts(kubectl, pod)
    PodProcesses.of(kubectl, pod).first().kill()
    eventually(lambda: restarts(kubectl, pod) != before, f"{pod} restarted or replaced", 300)


def test_no_acknowledged_line_is_missing_in_the_output(
    kubectl: Kubectl, healthy: None, bootstrap: str
) -> None:
    acknowledged = eventually(
        lambda: sum(_acknowledged(kubectl, pod) for pod in _collectors(kubectl)),
        "acknowledged lines",
    )
    kubectl("scale", "deployment", "collector-control-plane", "--replicas=0")
    kubectl("patch", "daemonset", "collector", "-p", _nodes({"stop": "here"}))
    try:
        eventually(lambda: not _collectors(kubectl), "collectors stopped")
        produced = eventually(lambda: _end_offsets(bootstrap), "the ends of the partitions")
        assert produced >= acknowledged
        eventually(
            lambda: _counted(kubectl) == _end_offsets(bootstrap), "all lines counted", 300, 3
        )
    finally:
        kubectl("patch", "daemonset", "collector", "-p", _nodes({"stop": None}))
        kubectl("scale", "deployment", "collector-control-plane", "--replicas=1")


def _collectors(kubectl: Kubectl) -> list[str]:
    pods = kubectl.get("pods", "", "-l", "app.kubernetes.io/component=collector")["items"]
    return [pod["metadata"]["name"] for pod in pods]


def _nodes(selector: dict[str, str | None]) -> str:
    return json.dumps({"spec": {"template": {"spec": {"nodeSelector": selector}}}})


def _acknowledged(kubectl: Kubectl, pod: str) -> int:
    metrics = kubectl("get", "--raw", f"/api/v1/namespaces/logs/pods/{pod}:9407/proxy/metrics")
    values = [
        float(line.split()[-1])
        for line in metrics.splitlines()
        if line.startswith("collector_lines_acknowledged_total")
    ]
    return int(sum(values))


def _end_offsets(bootstrap: str) -> int:
    """Return the number of records in the topic: the sum of its end offsets, before retention."""
    queries = [argument for number in range(6) for argument in ("-t", f"cluster-logs:{number}:-1")]
    answer = kcat(bootstrap, "-Q", *queries)
    return sum(int(line.split()[-1]) for line in answer.splitlines())


def _counted(kubectl: Kubectl) -> int:
    """Return the sum of the counts in the job's Parquet result, its last column."""
    shown = kubectl(
        "exec", "log-counts-driver", "--", "python3", "-m", "odradek_spark", "show", "/data/counts"
    )
    return sum(int(count) for count in re.findall(r"(\d+)$", shown, re.M))
