"""The API server and ZooKeeper in memory, to reconcile without either.

They behave as the operator's own `Kube` and `ZooKeeper` do, and record what was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from random import Random
from typing import Any

from odradek.zk.operations import Create, Operation
from odradek_operator.shared.apply import Platform, ReconcileContext
from odradek_operator.shared.kube import KubeError
from odradek_operator.shared.status import Event
from odradek_operator.shared.zookeeper import UnreachableError, Znode


class MemoryKube:
    """Objects by kind, namespace and name. `forbidden` kinds cannot be read or written."""

    def __init__(self, *bodies: Mapping[str, Any], forbidden: frozenset[str] = frozenset()) -> None:
        self._objects = {_key(one): dict(one) for one in bodies}
        self._forbidden = forbidden
        self.statuses: list[Mapping[str, Any]] = []
        self.told: list[Event] = []

    def _ask(self, kind: str) -> None:
        if kind in self._forbidden:
            raise KubeError(403, f"{kind} is forbidden")

    def get(self, _version: str, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        self._ask(kind)
        return self._objects.get((kind, namespace, name))

    def select(
        self, _version: str, kind: str, namespace: str, _selector: str = ""
    ) -> list[dict[str, Any]]:
        self._ask(kind)
        return [one for key, one in self._objects.items() if key[:2] == (kind, namespace)]

    def create(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        made = {**wanted, "metadata": {"generation": 1, **wanted["metadata"]}}
        self._objects[_key(made)] = made
        return made

    apply = create

    def apply_over(self, _read: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
        return self.apply(wanted)

    def delete(self, body: Mapping[str, Any]) -> None:
        self._objects.pop(_key(body), None)

    def apply_status(self, body: Mapping[str, Any], status: Mapping[str, Any]) -> dict[str, Any]:
        self.statuses.append(status)
        return self.create({**body, "status": status})

    def set_finalizers(self, body: Mapping[str, Any], finalizers: list[str]) -> dict[str, Any]:
        return self.create({**body, "metadata": {**body["metadata"], "finalizers": finalizers}})

    def post_event(self, _body: Mapping[str, Any], event: Event) -> None:
        self.told.append(event)

    def names(self, kind: str) -> list[str]:
        """Return the names of all objects of a kind."""
        return [key[2] for key in self._objects if key[0] == kind]


class MemoryZooKeeper:
    """Znodes by path; `committed` and `deleted` record the writes."""

    def __init__(self, nodes: Mapping[str, bytes] | None = None) -> None:
        self._nodes = dict(nodes or {})
        self.committed: list[Operation] = []
        self.deleted: list[str] = []

    @property
    def cached(self) -> MemoryZooKeeper:
        """Nothing is remembered."""
        return self

    def put(self, path: str, data: bytes) -> None:
        """Set a znode as another client would."""
        self._nodes[path] = data

    def take(self, path: str) -> None:
        """Delete a znode as another client would."""
        del self._nodes[path]

    def read(self, paths: Iterable[str]) -> dict[str, Znode | None]:
        return {
            path: Znode(self._nodes[path], 0, 77, 77) if path in self._nodes else None
            for path in paths
        }

    def children(self, paths: Iterable[str]) -> dict[str, list[str] | None]:
        found: dict[str, list[str] | None] = {}
        for path in paths:
            below = [one[len(path) + 1 :] for one in self._nodes if one.startswith(f"{path}/")]
            names = sorted({one.partition("/")[0] for one in below})
            found[path] = names if below or path in self._nodes else None
        return found

    def commit(self, wanted: Sequence[Operation]) -> None:
        self.committed += wanted

    def delete_tree(self, path: str) -> None:
        self.deleted.append(path)

    def created(self) -> list[str]:
        """Return the paths that were created."""
        return [one.path for one in self.committed if isinstance(one, Create)]


class MemoryPool:
    """ZooKeepers by connect string; others do not answer. `kept` is the last value kept."""

    def __init__(self, zookeepers: Mapping[str, MemoryZooKeeper] | None = None) -> None:
        self._zookeepers = zookeepers or {}
        self.kept: Set[str] = frozenset()

    def keep(self, wanted: Callable[[], Set[str]]) -> None:
        self.kept = wanted()

    def get(self, connect: str) -> MemoryZooKeeper:
        if connect not in self._zookeepers:
            raise UnreachableError(f"no connection to {connect}")
        return self._zookeepers[connect]


def context(kube: MemoryKube, pool: MemoryPool | None = None, **fields: Any) -> ReconcileContext:
    """Return what reconciling needs, with effects in memory."""
    stand_ins: Any = {"kube": kube, "zookeepers": pool or MemoryPool()}
    hooks: Any = {
        "remember": lambda _body: None,
        "forget": lambda _body: None,
        "platform": Platform("spark:1", "IfNotPresent"),
        **fields,
    }
    return ReconcileContext(broker_image="broker:1", random=Random(1), **stand_ins, **hooks)


def _key(body: Mapping[str, Any]) -> tuple[str, str, str]:
    meta = body["metadata"]
    return body["kind"], meta.get("namespace", ""), meta["name"]
