"""What runs on the cluster: the chart, and the quickstart example."""

import json
from collections.abc import Sequence

from tests.cluster import control
from tests.cluster.settings import Paths


def restart(paths: Paths, changed: Sequence[str]) -> None:
    """Replace the pods that run an older build of the given images."""
    if not changed:
        return
    pods = json.loads(control.kubectl(paths, "get", "pods", "--all-namespaces", "-o", "json"))
    for pod in pods["items"]:
        if any(container["image"] in changed for container in pod["spec"]["containers"]):
            name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
            control.kubectl(paths, "delete", "pod", name, "--namespace", namespace, "--wait=false")


def up(paths: Paths) -> None:
    """Install the chart and the example, wait until lines flow, print the result."""
