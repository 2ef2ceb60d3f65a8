"""The newest known body of every resource."""

from __future__ import annotations

import threading
from typing import Final, NamedTuple

from odradek_operator.shared.spec import Body

KIND_ORDER: Final = ("KafkaCluster", "User", "Topic", "ConsumerGroup", "Reassignment")


class ResourceKey(NamedTuple):
    """Which resource."""

    kind: str
    namespace: str
    name: str


def key_of(body: Body) -> ResourceKey:
    """Return the key of a resource."""
    meta = body["metadata"]
    return ResourceKey(body["kind"], meta["namespace"], meta["name"])


class ResourceStore:
    """The newest known body of every resource; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bodies: dict[ResourceKey, Body] = {}
        self._revisions: dict[ResourceKey, int] = {}

    def put(self, body: Body) -> bool:
        """Keep a body; False if it is not newer than the known one: late events, own writes."""
        meta = body["metadata"]
        key = ResourceKey(body["kind"], meta["namespace"], meta["name"])
        text = meta.get("resourceVersion", "")
        revision = int(text) if text.isdigit() else 0
        # managedFields are most of a body, and unused here.
        kept = {name: value for name, value in meta.items() if name != "managedFields"}
        with self._lock:
            known = self._bodies.get(key)
            same = known is not None and known["metadata"]["uid"] == meta["uid"]
            if same and revision <= self._revisions[key]:
                return False
            self._bodies[key] = {**body, "metadata": kept}
            self._revisions[key] = revision
            return True

    def drop(self, body: Body) -> None:
        """Forget a resource, unless another of the same name has taken its place."""
        key = key_of(body)
        with self._lock:
            known = self._bodies.get(key)
            if known is not None and known["metadata"]["uid"] == body["metadata"]["uid"]:
                del self._bodies[key], self._revisions[key]

    def get(self, key: ResourceKey) -> Body | None:
        """Return a body, or None."""
        with self._lock:
            return self._bodies.get(key)

    def select(self, kind: str, namespace: str | None = None) -> list[Body]:
        """Return all bodies of a kind."""
        with self._lock:
            return [
                body
                for key, body in self._bodies.items()
                if key.kind == kind and namespace in (None, key.namespace)
            ]

    def namespaces(self) -> set[str]:
        """Return the namespaces in which there are resources."""
        with self._lock:
            return {key.namespace for key in self._bodies}
