"""Local volumes: the storage class `local`, and a few directories on every node behind it.

Nothing provisions local volumes. A released one keeps its data and stays unusable until `renew`
empties it and makes it available again.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from tests.cluster import settings

STORAGE_CLASS = "local"


def storage_class(*, default: bool) -> dict[str, Any]:
    """Return the storage class; a claim is bound when its pod is scheduled."""
    key = "storageclass.kubernetes.io/is-default-class"
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": STORAGE_CLASS, "annotations": {key: str(default).lower()}},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def volume(node: str, number: int, directory: str) -> dict[str, Any]:
    """Return PersistentVolume `<node>-pv<number>` for a directory of that node."""
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
    """Return the storage class and all volumes, given each node's directories."""
    made = [
        volume(node, number, directory)
        for node, paths in directories.items()
        for number, directory in enumerate(paths, 1)
    ]
    return [storage_class(default=default), *made]


def renew(kubectl: Callable[..., str], empty: Callable[[str, str], None]) -> list[str]:
    """Empty released volumes and make them available again; return their names.

    `empty(node, directory)` deletes a directory's content on a node.
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
        # The reference reserves the volume for a deleted claim; without it any claim may bind.
        patch = '{"spec": {"claimRef": null}}'
        kubectl("patch", "persistentvolume", name, "--type=merge", "-p", patch)
        renewed.append(name)
    return renewed
