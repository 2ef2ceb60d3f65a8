"""The nodes of Kubernetes, where the operator may read them."""

from __future__ import annotations

from typing import Any

from odradek_operator.shared.apply import ReconcileContext
from odradek_operator.shared.kube import KubeError


def by_name(context: ReconcileContext) -> dict[str, dict[str, Any]] | None:
    """Return all nodes by name; None where they may not be read. Raises KubeError."""
    try:
        return {one["metadata"]["name"]: one for one in context.kube.select("v1", "Node", "")}
    except KubeError as error:
        if error.code != 403:
            raise
        return None


def cordoned(context: ReconcileContext) -> frozenset[str]:
    """Return the nodes that take no new pods, as far as is known. Raises KubeError."""
    found = by_name(context) or {}
    return frozenset(
        name for name, one in found.items() if one.get("spec", {}).get("unschedulable")
    )
