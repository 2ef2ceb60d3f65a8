"""The Reassignments that a Topic creates to change its replicas, one after the other. Pure.

A Reassignment is named after the change, so that the same change gets the same name. One that
failed is not repeated until the spec or the replicas change; one that completed is, if others have
changed the replicas back since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from odradek.zk.znodes import TopicAssignment
from odradek_operator.shared.objects import (
    MANAGED_BY,
    Object,
    beginning,
    belongs_to,
    digest,
    metadata,
)
from odradek_operator.shared.spec import API_VERSION, Body, ResourceMeta
from odradek_operator.shared.views import FINISHED_PHASES
from odradek_operator.topic import drift
from odradek_operator.topic.state import OwnMove
from odradek_operator.topic.topic_spec import TopicSpec

TOPIC_LABEL: Final = "odradek.io/topic-uid"
# How long one that completed stays to be looked at. One that did not stays as long as its Topic.
LIFETIME_SECONDS: Final = 86400


def owned_by(uid: str, bodies: Iterable[Body]) -> tuple[OwnMove, ...]:
    """Return the Reassignments of a Topic among these."""
    return tuple(
        OwnMove(
            body["metadata"]["name"],
            body.get("status", {}).get("phase", "Pending") in FINISHED_PHASES,
            _outcome(body),
            body.get("status", {}).get("phase") == "Completed",
        )
        for body in bodies
        if belongs_to(uid, body)
    )


def _outcome(body: Body) -> str:
    conditions = body.get("status", {}).get("conditions", ())
    for one in conditions:
        if one["type"] == "Ready":
            return f"{one['reason']}: {one['message']}"
    return "not looked at yet"


def running(owned: Sequence[OwnMove]) -> OwnMove | None:
    """Return the one that has not ended."""
    return next((one for one in owned if not one.finished), None)


def needed(
    meta: ResourceMeta, spec: TopicSpec, actual: TopicAssignment, owned: Sequence[OwnMove] = ()
) -> Object | None:
    """Return the Reassignment that gives a topic the replicas of its spec; None: it has them.

    After one that completed, the replicas were changed back by others: that makes another one.
    """
    wanted: dict[str, Any] | None = None
    moved = drift.moved_partitions(spec, actual)
    if moved:
        moves = [
            {"topic": spec.topic, "partition": one, "replicas": list(spec.assignment[one])}
            for one in moved
        ]
        wanted = {"mode": "Explicit", "moves": moves}
    elif drift.factor_differs(spec, actual):
        wanted = {
            "mode": "ReplicationFactor",
            "topics": [spec.topic],
            "replicationFactor": spec.replication_factor,
        }
    if wanted is None:
        return None
    have = {str(one): list(replicas) for one, replicas in actual.partitions.items()}
    completed = {one.name for one in owned if one.completed}
    name, repeated = _name(meta, have, 0), 0
    while name in completed:
        repeated += 1
        name = _name(meta, have, repeated)
    labels = {"app.kubernetes.io/managed-by": MANAGED_BY, TOPIC_LABEL: meta.uid}
    return {
        "apiVersion": API_VERSION,
        "kind": "Reassignment",
        "metadata": metadata(meta, name, labels),
        "spec": {
            "clusterRef": {"name": spec.cluster},
            "ttlSecondsAfterFinished": LIFETIME_SECONDS,
            **wanted,
        },
    }


def _name(meta: ResourceMeta, have: Mapping[str, Sequence[int]], repeated: int) -> str:
    change = [meta.generation, have, *([repeated] if repeated else [])]
    return f"{beginning(meta.name)}-{digest(change)[:8]}"


def outcome(made: Mapping[str, Any], owned: Sequence[OwnMove]) -> str | None:
    """Return how the very same Reassignment ended before, if there was one."""
    name = made["metadata"]["name"]
    return next((f"Reassignment {name}: {one.outcome}" for one in owned if one.name == name), None)
