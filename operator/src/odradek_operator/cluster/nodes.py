"""The nodes of Kubernetes, where the operator may read them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from odradek_operator.shared.apply import ReconcileContext
from odradek_operator.shared.kube import KubeError

log = logging.getLogger(__name__)


def by_name(context: ReconcileContext) -> dict[str, dict[str, Any]] | None:
    """Return all nodes by name; None where they may not be read. Raises KubeError."""
    try:
        return {one["metadata"]["name"]: one for one in context.kube.select("v1", "Node", "")}
    except KubeError as error:
        if error.code != 403:
            raise
        return None


def closed(
    context: ReconcileContext,
    tolerations: Sequence[Mapping[str, Any]],
    pods: Sequence[Mapping[str, Any]],
) -> frozenset[str]:
    """Return the nodes that take no new pods with these tolerations, as far as is known.

    They are cordoned, tainted or not ready. What `pods` of before tolerate by an admission plugin
    of the cluster, the next ones tolerate, too. Raises KubeError.
    """
    given = (each for pod in pods for each in pod["spec"].get("tolerations", ()))
    tolerations = [*tolerations, *given]
    found = by_name(context) or {}
    return frozenset(
        name
        for name, one in found.items()
        if any(not _is_tolerated(taint, tolerations) for taint in _taints(one))
    )


def not_ready(context: ReconcileContext) -> frozenset[str]:
    """Return the nodes that are not ready, as far as is known: lost ones, too."""
    try:
        found = by_name(context) or {}
    except KubeError as error:
        log.info("failed to list nodes: %s", error)
        return frozenset()
    return frozenset(
        name
        for name, one in found.items()
        for condition in one.get("status", {}).get("conditions", ())
        if condition["type"] == "Ready" and condition["status"] != "True"
    )


def _taints(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the taints that keep new pods from a node."""
    about = node.get("spec", {})
    found = [
        one
        for one in about.get("taints", ())
        # Kubernetes lets pods with requests tolerate this one, which passes by itself.
        if one["effect"] in _KEEPING and one["key"] != "node.kubernetes.io/memory-pressure"
    ]
    # Kubernetes adds it a moment later.
    return [*found, _CORDON] if about.get("unschedulable") else found


def _is_tolerated(taint: Mapping[str, Any], tolerations: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether one of the tolerations is about a taint, as the scheduler judges."""

    def tolerates(one: Mapping[str, Any]) -> bool:
        if one.get("effect") not in (None, "", taint["effect"]):
            return False
        if one.get("operator") == "Exists":
            return one.get("key") in (None, "", taint["key"])
        same_value = (one.get("value") or "") == (taint.get("value") or "")
        return one.get("key") == taint["key"] and same_value

    return any(map(tolerates, tolerations))


_KEEPING: Final = ("NoSchedule", "NoExecute")
_CORDON: Final = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
