"""What the specs of all kinds have in common: identity, the cluster they name, and faults.

Each kind has a module that reads its resources, as the API server admitted them, into frozen values
(`cluster_spec`, `topic_spec` and so on). The CRD schemas refuse what a schema can refuse. `parse_*`
there checks the rest, what depends on Kafka's own keys, and raises `InvalidSpec` with the reason
that the Ready condition then carries. Nothing is written for an invalid resource, and it is not
tried again until it changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

# How long a finalizer may hold a namespace that is being deleted.
TERMINATING_TIMEOUT: Final = timedelta(seconds=30)

GROUP: Final = "odradek.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
FINALIZER: Final = "odradek.io/finalizer"

Body = Mapping[str, Any]


class InvalidSpec(Exception):  # noqa: N818 (what is wrong is the spec, and users read the name)
    """A spec that cannot be executed: `reason` in CamelCase, and a sentence."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class ResourceMeta:
    """Identity and life cycle of a resource; times are the API server's wall clock.

    `has_finalizer` is about this operator's own.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    generation: int
    created: datetime
    deleted: datetime | None
    has_finalizer: bool

    @property
    def deleting(self) -> bool:
        """Return whether the API server waits only for finalizers."""
        return self.deleted is not None


def parse_time(text: str) -> datetime:
    """Read a time as the API server writes it (RFC 3339, UTC)."""
    return datetime.fromisoformat(text)


def parse_meta(body: Body) -> ResourceMeta:
    """Read the metadata of any resource."""
    meta = body["metadata"]
    deleted = meta.get("deletionTimestamp")
    return ResourceMeta(
        kind=body["kind"],
        namespace=meta.get("namespace", ""),
        name=meta["name"],
        uid=meta["uid"],
        generation=meta.get("generation", 0),
        created=datetime.fromisoformat(meta["creationTimestamp"]),
        deleted=datetime.fromisoformat(deleted) if deleted else None,
        has_finalizer=FINALIZER in meta.get("finalizers", ()),
    )


class ClusterKey(NamedTuple):
    """Which KafkaCluster."""

    namespace: str
    name: str


def cluster_of(body: Body) -> ClusterKey:
    """Return the KafkaCluster that a resource belongs to, or is."""
    meta = body["metadata"]
    if body["kind"] == "KafkaCluster":
        return ClusterKey(meta["namespace"], meta["name"])
    reference = body["spec"]["clusterRef"]
    return ClusterKey(reference.get("namespace", meta["namespace"]), reference["name"])


def shown(namespace: str, reference: Mapping[str, Any]) -> str:
    """Return a clusterRef as messages name it to resources of a namespace."""
    other, name = reference.get("namespace", namespace), reference["name"]
    return str(name) if other == namespace else f"{other}/{name}"


def may_refer(namespace: str, cluster: Body | None) -> bool:
    """Return whether ConsumerGroups of a namespace may name a KafkaCluster.

    A cluster that does not exist allows nobody elsewhere, so that it cannot be told from one that
    does not allow it.
    """
    if cluster is None:
        return False
    allowed = cluster["spec"].get("jobs", {}).get("allowedNamespaces", ())
    return namespace == cluster["metadata"]["namespace"] or not {"*", namespace}.isdisjoint(allowed)


def for_deletion(body: Body) -> Body:
    """Return a resource without what can be invalid in it and has no meaning for its deletion."""
    wanted = {name: value for name, value in body["spec"].items() if name not in _NOT_DELETED_BY}
    return {**body, "spec": wanted}


_NOT_DELETED_BY: Final = frozenset({"config", "replicaAssignment", "topicPattern", "reset", "job"})
