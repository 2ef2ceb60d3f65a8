"""An operator that dies at its n-th call, in one process: the real API server, the real ZooKeeper.

A life of the operator is a store filled by a list, as watches begin, and passes over everything in
it. `Fuse` ends a life at the n-th call to the API server or to ZooKeeper, before it is made or
before its answer is seen. Nothing outlives a life but what it wrote; the next one begins with that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import kubernetes

from odradek.zk.operations import Operation
from odradek_operator.loop.reconciler import Reconciler
from odradek_operator.shared import spec, zookeeper
from odradek_operator.shared.apply import Platform, ReconcileContext
from odradek_operator.shared.kube import Kube
from odradek_operator.shared.store import KIND_ORDER, ResourceStore, key_of

API = spec.API_VERSION
PASSES = 400


class Killed(BaseException):
    """The process is gone."""


@dataclass
class Fuse:
    """Counts calls and ends the life at one, or never at 0. `answered`: that call took effect."""

    at: int = 0
    answered: bool = False
    calls: int = 0

    @contextmanager
    def call(self) -> Iterator[None]:
        self.calls += 1
        mine = self.calls == self.at
        if mine and not self.answered:
            raise Killed
        yield
        if mine:
            raise Killed


class FusedKube(Kube):
    """The operator's own client with a fuse in each call."""

    fuse = Fuse()

    def _call(self, *arguments: Any, **named: Any) -> dict[str, Any]:
        with self.fuse.call():
            return super()._call(*arguments, **named)


class FusedZooKeeper:
    """The operator's own session with a fuse in each call."""

    def __init__(self, inner: zookeeper.ZooKeeper, fuse: Fuse) -> None:
        self._inner = inner
        self._fuse = fuse

    @property
    def cached(self) -> FusedZooKeeper:
        """Every read is a call: nothing is remembered from a life before."""
        return self

    def read(self, paths: Any) -> Any:
        with self._fuse.call():
            return self._inner.read(paths)

    def children(self, paths: Any) -> Any:
        with self._fuse.call():
            return self._inner.children(paths)

    def commit(self, wanted: Sequence[Operation]) -> None:
        with self._fuse.call():
            self._inner.commit(wanted)

    def ensure(self, paths: Any) -> None:
        with self._fuse.call():
            self._inner.ensure(paths)

    def delete_tree(self, path: str) -> None:
        with self._fuse.call():
            self._inner.delete_tree(path)


class _Pool:
    def __init__(self, only: FusedZooKeeper) -> None:
        self._only = only

    def get(self, _connect: str) -> FusedZooKeeper:
        return self._only

    def keep(self, _wanted: object) -> None:
        """Nothing to end."""


def client(kubeconfig: Path) -> FusedKube:
    """Return a client of the test's API server."""
    settings = kubernetes.client.Configuration()
    kubernetes.config.load_kube_config(  # type: ignore[no-untyped-call]
        str(kubeconfig), client_configuration=settings
    )
    settings.retries = False
    return FusedKube(kubernetes.client.ApiClient(settings))


class Lives:
    """Lives of operators over one namespace, one after the other."""

    def __init__(self, kube: FusedKube, session: zookeeper.ZooKeeper, namespace: str) -> None:
        self.kube = kube
        self.namespace = namespace
        # How far the operator's clock is ahead of the real one.
        self.ahead = timedelta()
        self.session = session

    def listed(self, kind: str) -> list[dict[str, Any]]:
        """Return the resources of a kind, each with its kind as in a watch."""
        found = self.kube.select(API, kind, self.namespace)
        return [{"apiVersion": API, "kind": kind, **one} for one in found]

    def live(self, fuse: Fuse, react: Callable[[], bool]) -> bool:
        """Reconcile until `react`, the world outside, says that it is over; False if killed."""
        store = ResourceStore()
        pool: Any = _Pool(FusedZooKeeper(self.session, fuse))
        context = ReconcileContext(
            kube=self.kube,
            zookeepers=pool,
            broker_image="broker:1",
            platform=Platform("spark:1", "IfNotPresent"),
            remember=store.put,
            forget=store.drop,
            now=lambda: datetime.now(UTC) + self.ahead,
        )
        reconciler = Reconciler(context, store)
        main = spec.ClusterKey(self.namespace, "main")
        try:
            for _ in range(PASSES):
                self.kube.fuse = Fuse()
                if react():
                    return True
                self._watch(store)
                self.kube.fuse = fuse
                batch = {
                    key_of(body): body
                    for kind in KIND_ORDER
                    for body in store.select(kind, self.namespace)
                }
                for result in reconciler.reconcile(self.namespace, main, batch).values():
                    # Of a ZooKeeper that is slow to answer the next pass asks again.
                    if isinstance(result, Exception) and not isinstance(
                        result, zookeeper.UnreachableError
                    ):
                        raise AssertionError(result) from result
        except Killed:
            return False
        finally:
            self.kube.fuse = Fuse()
        raise AssertionError(f"not over after {PASSES} passes: {self.show()}")

    def _watch(self, store: ResourceStore) -> None:
        for kind in KIND_ORDER:
            found = self.listed(kind)
            names = {key_of(body) for body in found}
            for body in store.select(kind, self.namespace):
                if key_of(body) not in names:
                    store.drop(body)
            for body in found:
                store.put(body)

    def show(self) -> dict[str, Any]:
        """Return the Ready conditions of everything, for a failure's message."""
        return {
            f"{kind}/{body['metadata']['name']}": summary(body)
            for kind in KIND_ORDER
            for body in self.listed(kind)
        }


def summary(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return phase, reason and finalizers of a resource: what must be the same in the end."""
    status = body.get("status", {})
    ready = [one["reason"] for one in status.get("conditions", ()) if one["type"] == "Ready"]
    held = body["metadata"].get("finalizers", [])
    return (str(status.get("phase", "")), *ready, *held)
