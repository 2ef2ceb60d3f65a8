"""Local volumes: the storage class `local`, and a few directories on every node behind it.

Nothing provisions local volumes, and a released one keeps its data, so it stays unusable until
someone clears it. `renew` is that someone: it empties released volumes and offers them again.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from tests.cluster import settings

STORAGE_CLASS = "local"


def storage_class(*, default: bool) -> dict[str, Any]:
    """The class; a claim is bound when its pod has found a node."""
    key = "storageclass.kubernetes.io/is-default-class"
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": STORAGE_CLASS, "annotations": {key: str(default).lower()}},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def volume(node: str, number: int, directory: str) -> dict[str, Any]:
    """PersistentVolume `<node>-pv<number>` over a directory of that node."""
    term = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{node}-pv{number}"},
        "spec": {
            "capacity": {"storage": settings.VOLUME_SIZE},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": STORAGE_CLASS,
            "persistentVolumeReclaimPolicy": "Retain",
            "local": {"path": directory},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}},
        },
    }


def objects(directories: Mapping[str, list[str]], *, default: bool) -> list[dict[str, Any]]:
    """The class and all volumes, from each node's directories."""
    made = [
        volume(node, number, directory)
        for node, paths in directories.items()
        for number, directory in enumerate(paths, 1)
    ]
    return [storage_class(default=default), *made]


def renew(kubectl: Callable[..., str], empty: Callable[[str, str], None]) -> list[str]:
    """Empty and offer again every released volume; returns their names.

    `empty(node, directory)` removes a directory's content on a node.
    """
    listed = json.loads(kubectl("get", "persistentvolumes", "-o", "json"))["items"]
    renewed = []
    for item in listed:
        ours = item["spec"].get("storageClassName") == STORAGE_CLASS
        if not ours or item["status"].get("phase") != "Released":
            continue
        terms = item["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        empty(terms[0]["matchExpressions"][0]["values"][0], item["spec"]["local"]["path"])
        name = item["metadata"]["name"]
        # The claim's uid is what holds the volume; without it any claim may bind.
        patch = '{"spec": {"claimRef": null}}'
        kubectl("patch", "persistentvolume", name, "--type=merge", "-p", patch)
        renewed.append(name)
    return renewed
