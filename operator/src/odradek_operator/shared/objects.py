"""What Kubernetes objects of several kinds share: labels, owner references, security. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from odradek_operator.shared.spec import API_VERSION, ResourceMeta

USER: Final = 10001
MANAGED_BY: Final = "odradek-operator"
CLUSTER_LABEL: Final = "odradek.io/cluster"
_MANAGER: Final = "app.kubernetes.io/managed-by"

Object = dict[str, Any]


def owner_reference(meta: ResourceMeta) -> Object:
    """Make the garbage collector delete a child with its owner."""
    return {
        "apiVersion": API_VERSION,
        "kind": meta.kind,
        "name": meta.name,
        "uid": meta.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def belongs_to(uid: str, one: Mapping[str, Any]) -> bool:
    """Return whether the owner with this uid is among those of an object."""
    return any(owner["uid"] == uid for owner in one["metadata"].get("ownerReferences", ()))


def is_of_former(meta: ResourceMeta, one: Mapping[str, Any]) -> bool:
    """Return whether an object is of a former resource of this kind and name, and goes with it."""
    return any(
        (owner.get("apiVersion"), owner["kind"], owner["name"])
        == (API_VERSION, meta.kind, meta.name)
        and owner["uid"] != meta.uid
        for owner in one["metadata"].get("ownerReferences", ())
    )


def is_foreign(wanted: Mapping[str, Any], live: Mapping[str, Any]) -> bool:
    """Return whether an object in the place of an owned one was made by somebody else.

    One that the operator made, and whose owner is gone, is not.
    """
    owners = wanted["metadata"].get("ownerReferences", ())
    if not owners or any(belongs_to(one["uid"], live) for one in owners):
        return False
    found: str | None = live["metadata"].get("labels", {}).get(_MANAGER)
    return found != MANAGED_BY


def metadata(meta: ResourceMeta, name: str, all_labels: Mapping[str, str]) -> Object:
    """Metadata of a child object."""
    return {
        "name": name,
        "namespace": meta.namespace,
        "labels": dict(all_labels),
        "ownerReferences": [owner_reference(meta)],
    }


def beginning(name: str) -> str:
    """Return as much of a name as leaves room for further parts, and may stand before them."""
    return name[:200].rstrip("-.")


def digest(value: object) -> str:
    """A short hash of any JSON value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def scrape_annotations(port: int) -> dict[str, str]:
    """What Prometheus' usual pod discovery reads."""
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(port),
        "prometheus.io/path": "/metrics",
    }


def pod_security() -> Object:
    """The restricted profile's pod part."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        # Without it each start walks the whole data folder to change owners that are right.
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Object:
    """The restricted profile's container part."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def field_env(name: str, path: str) -> Object:
    """An environment variable from the pod's own fields."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


GROUP_LABEL: Final = "odradek.io/group"
# Labels of all executors; a driver makes its own (odradek_spark.cluster_conf).
EXECUTORS: Final = "app.kubernetes.io/component=spark-executor"
