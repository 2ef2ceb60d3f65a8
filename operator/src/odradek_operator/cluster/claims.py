"""The volume claims of brokers: they grow, and a deleted one keeps the pod that holds it.

Kubernetes lets a deleted claim, and the data of its volume, live as long as its pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from odradek_operator.cluster import objects as cluster_objects
from odradek_operator.shared import apply
from odradek_operator.shared.apply import ReconcileContext
from odradek_operator.shared.broker_sets import BrokerSets
from odradek_operator.shared.spec import ResourceMeta
from odradek_operator.shared.status import Condition

# Claims by broker id; of a broker that has none yet there is none.
Claims = Mapping[int, Mapping[str, Any]]


def read(context: ReconcileContext, meta: ResourceMeta, brokers: BrokerSets) -> Claims:
    """Return the claims of these brokers. Raises KubeError."""
    found = {one: _read(context, meta, brokers.pod(meta.name, one)) for one in brokers}
    return {one: claim for one, claim in found.items() if claim is not None}


def _read(context: ReconcileContext, meta: ResourceMeta, pod: str) -> Mapping[str, Any] | None:
    name = cluster_objects.claim_name(pod)
    return context.kube.get("v1", "PersistentVolumeClaim", meta.namespace, name)


def deleted(claims: Claims) -> frozenset[int]:
    """Return the brokers whose claims go, with their data, when their pods end."""
    return frozenset(one for one, claim in claims.items() if _is_deleted(claim))


def is_deleted(context: ReconcileContext, meta: ResourceMeta, pod: str) -> bool:
    """Return whether the claim of this pod goes when the pod ends. Raises KubeError."""
    claim = _read(context, meta, pod)
    return claim is not None and _is_deleted(claim)


def _is_deleted(claim: Mapping[str, Any]) -> bool:
    return "deletionTimestamp" in claim["metadata"]


def grow(
    context: ReconcileContext, claims: Iterable[Mapping[str, Any]], size: str
) -> tuple[Condition, ...]:
    """Request volumes of this size; return what holds them up. Raises KubeError."""
    held = (apply.grow_claim(context, one, size) for one in claims)
    found = [one for one in held if one is not None]
    # One that is rejected needs the user; others grow by themselves.
    found.sort(key=lambda one: one.reason != "ResizeRejected")
    return tuple(found[:1])
