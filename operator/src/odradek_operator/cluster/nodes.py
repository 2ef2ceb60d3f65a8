"""The nodes of Kubernetes, where the operator may read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

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


def cordoned(context: ReconcileContext, tolerations: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the nodes that take no new pods with these tolerations, as far as is known.

    Raises KubeError.
    """
    if any(map(_tolerates_cordons, tolerations)):
        return frozenset()
    found = by_name(context) or {}
    return frozenset(
        name for name, one in found.items() if one.get("spec", {}).get("unschedulable")
    )


def _tolerates_cordons(toleration: Mapping[str, Any]) -> bool:
    """Return whether it is about the taint of a cordoned node, as the scheduler judges."""
    if toleration.get("effect") not in (None, "", "NoSchedule"):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", _TAINT)
    return toleration.get("key") == _TAINT and not toleration.get("value")


_TAINT: Final = "node.kubernetes.io/unschedulable"
