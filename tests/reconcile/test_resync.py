"""Which resources are let go without an event: those that the API server has not, and no others."""

import queue
from collections.abc import Mapping
from typing import Any

import pytest

from odradek_operator.loop.resync import Resync
from odradek_operator.shared.kube import KubeError
from odradek_operator.shared.spec import Body
from odradek_operator.shared.store import ResourceStore
from tests.reconcile.in_memory import resource
from tests.support.memory import MemoryKube


class Listing(MemoryKube):
    """Has what MemoryKube has, but may list less. `lists` counts how often.

    In namespaces that are `closed` it answers with this code, 0 being no answer.
    """

    hidden: frozenset[str] = frozenset()
    closed: Mapping[str, int] = {}
    lists = 0

    def select(self, *place: Any) -> list[dict[str, Any]]:
        self.lists += 1
        return [one for one in super().select(*place) if one["metadata"]["name"] not in self.hidden]

    def count(self, *place: Any) -> int:
        _version, kind, namespace = place
        if namespace in self.closed:
            raise KubeError(self.closed[namespace], f"{kind} in {namespace}")
        found = super().select(*place)
        return sum(one["metadata"]["name"] not in self.hidden for one in found)


def departed(kube: Any, *known: Body) -> list[str]:
    """Names of the resources that are passed on as gone, of those known."""
    store = ResourceStore()
    gone: list[str] = []
    for body in known:
        store.put(body)
    Resync(
        kube, store, lambda body: gone.append(body["metadata"]["name"]), lambda _namespaces: None
    ).check()
    return gone


def test_nothing_is_listed_while_the_numbers_agree() -> None:
    bodies = [resource("Topic", "a"), resource("KafkaCluster", "c"), resource("Topic", "a2")]
    kube = Listing(*bodies)
    assert departed(kube, *bodies) == []
    assert kube.lists == 0


def test_what_is_gone_or_another_of_its_name_is_let_go() -> None:
    kept, gone, replaced = (resource("Topic", name) for name in ("kept", "gone", "replaced"))
    another = {**replaced, "metadata": {**replaced["metadata"], "uid": "another"}}
    assert departed(Listing(kept, another), kept, gone, replaced) == ["gone", "replaced"]


def test_what_a_list_leaves_out_is_kept_as_long_as_it_can_be_read() -> None:
    bodies = [resource("Topic", "a"), resource("Topic", "b")]
    kube = Listing(*bodies)
    kube.hidden = frozenset({"a", "b"})
    assert departed(kube, *bodies) == []
    assert kube.lists == 1


def test_a_namespace_that_may_not_be_read_hides_no_deletion_in_others() -> None:
    there, gone = resource("Topic", "a", namespace="closed"), resource("Topic", "b")
    kube = Listing(there)
    kube.closed = {"closed": 403}
    assert departed(kube, there, gone) == ["b"]
    kube.closed = {"closed": 0}
    with pytest.raises(KubeError):
        departed(kube, there, gone)


def test_the_check_goes_on_after_an_error_that_nobody_expects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("odradek_operator.loop.resync.CHECK_SECONDS", 0.01)
    asked: queue.Queue[None] = queue.Queue()

    def keep(_namespaces: object) -> None:
        asked.put(None)
        raise TypeError("a bug")

    checks = Resync(Listing(), ResourceStore(), lambda _body: None, keep)  # type: ignore[arg-type]
    checks.start()
    try:
        for _ in range(2):
            asked.get(timeout=30)
    finally:
        checks.stop()
