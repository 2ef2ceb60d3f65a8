"""What runs on the cluster: the chart, and the quickstart example with its report."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence

from tests.cluster import control
from tests.cluster.settings import REPO, Paths
from tests.cluster.shell import ClusterError, run_logged, step

RELEASE = "odradek"
NAMESPACE = "logs"
QUICKSTART = REPO / "examples/quickstart"
CHART = REPO / "charts/odradek"


def restart(paths: Paths, changed: Sequence[str]) -> None:
    """Replace the pods that run an older build of the given images; others keep running."""
    if not changed:
        return
    pods = json.loads(control.kubectl(paths, "get", "pods", "--all-namespaces", "-o", "json"))
    for pod in pods["items"]:
        if any(container["image"] in changed for container in pod["spec"]["containers"]):
            name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
            control.kubectl(paths, "delete", "pod", name, "--namespace", namespace, "--wait=false")


def up(paths: Paths) -> None:
    """Install chart and example, wait until lines flow, print the report. Raises ClusterError."""
    log = paths.build_logs / "helm.log"
    with step("installing the chart", log):
        control.kubectl(paths, "apply", "-f", QUICKSTART / "namespace.yaml")
        where = ["--kubeconfig", str(paths.kubeconfig), "--namespace", NAMESPACE]
        install = ["upgrade", "--install", RELEASE, str(CHART)]
        # helm keeps caches and settings in the home directory unless told otherwise.
        home = {f"HELM_{name}_HOME": f"{paths.cache}/helm" for name in ("CACHE", "CONFIG", "DATA")}
        values = ["--values", str(QUICKSTART / "values.yaml")]
        waiting = ["--wait", "--timeout", "5m"]
        run_logged(
            [paths.bin / "helm", *install, *values, *where, *waiting],
            log,
            env={**os.environ, **home},
        )
    with step("applying the quickstart"):
        control.kubectl(paths, "apply", "-k", QUICKSTART)
    environment = {**os.environ, "KUBECONFIG": str(paths.kubeconfig)}
    report = [sys.executable, str(QUICKSTART / "show.py"), "--namespace", NAMESPACE]
    if subprocess.run(report, env=environment, check=False).returncode:
        raise ClusterError("the quickstart has not come to its end; see above")
