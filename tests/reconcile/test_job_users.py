"""The user of a job is removed, or the resource waits: passes in memory."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from odradek.zk.operations import Delete, Operation
from odradek_operator.loop.reconciler import Reconciler
from odradek_operator.shared import client_users, user_znodes
from odradek_operator.shared.spec import FINALIZER, ClusterKey
from odradek_operator.shared.store import KIND_ORDER, ResourceStore, key_of
from odradek_operator.shared.zookeeper import RefusedError
from tests.reconcile.in_memory import cluster, existing_topic, reconcile_in, resource, run
from tests.support.memory import MemoryKube, MemoryPool, MemoryZooKeeper, context

SCRAM = {"type": "scram-sha-512"}
PLAIN = [{"name": "internal", "port": 9093}]
SECURED = [{"name": "internal", "port": 9093, "authentication": SCRAM}]
ELSEWHERE = "elsewhere"


def group(namespace: str = "n", *, deleted: bool = False) -> dict[str, Any]:
    task = {"sink": {"console": {}}, "volume": {"size": "1Gi"}}
    reference = {"name": "c"} if namespace == "n" else {"name": "c", "namespace": "n"}
    found = resource(
        "ConsumerGroup",
        "g",
        namespace=namespace,
        deleted=deleted,
        clusterRef=reference,
        topics=["t"],
        job=task,
    )
    found["metadata"]["finalizers"] = [FINALIZER]
    return found


def secret(owner: dict[str, Any]) -> dict[str, Any]:
    meta = owner["metadata"]
    return {
        "kind": "Secret",
        "metadata": {"name": f"g-brokers-{meta['uid'][:8]}", "namespace": meta["namespace"]},
        "data": {"username": base64.b64encode(b"u").decode()},
    }


def known(namespace: str = "n") -> MemoryZooKeeper:
    """Znodes with the user of the job."""
    zookeeper = existing_topic()
    data = b'{"version":1,"config":{"SCRAM-SHA-512":"x"}}'
    zookeeper.put(user_znodes.user_path(f"odradek-job.{namespace}.g"), data)
    return zookeeper


def passed(
    body: dict[str, Any], owner: dict[str, Any], zookeeper: MemoryZooKeeper | None
) -> list[str]:
    """Run a pass; return the finalizers that are left."""
    kube, store = MemoryKube(body, owner, secret(body)), ResourceStore()
    for one in (body, owner):
        assert one["kind"] in KIND_ORDER
        store.put(one)
    pool = MemoryPool({} if zookeeper is None else {"zk:2181": zookeeper})
    namespace = body["metadata"]["namespace"]
    done = Reconciler(context(kube, pool), store).reconcile(
        namespace, ClusterKey("n", "c"), {key_of(body): body}
    )
    for result in done.values():
        assert not isinstance(result, Exception), result
    found = kube.get("odradek.io/v1alpha1", "ConsumerGroup", namespace, "g")
    assert found is not None
    left: list[str] = found["metadata"]["finalizers"]
    return left


@pytest.mark.parametrize("deleted", [False, True])
def test_user_is_not_forgotten_while_zookeeper_is_away(deleted: bool) -> None:
    body = group(deleted=deleted)
    assert passed(body, cluster(listeners=SECURED), None) == [FINALIZER]


@pytest.mark.parametrize("policy", ["Delete", "Retain", None])
@pytest.mark.parametrize("listeners", [PLAIN, SECURED])
@pytest.mark.parametrize("paused", [False, True])
def test_deletion_waits_for_zookeeper_until_its_policy_says_retain(
    policy: str | None, listeners: list[dict[str, Any]], paused: bool
) -> None:
    wanted: dict[str, Any] = {} if policy is None else {"deletionPolicy": policy}
    going = resource("ConsumerGroup", "g", deleted=True, clusterRef={"name": "c"}, **wanted)
    going["metadata"]["finalizers"] = [FINALIZER]
    away = cluster(listeners=listeners, zookeeper={"connect": "away:1"}, paused=paused)
    kube = run([going], [away], known())
    found = kube.get("", "ConsumerGroup", "n", "g")
    assert found is not None
    # Without a policy the user of a job is all that is to be removed.
    waits = policy == "Delete" or (policy is None and listeners is SECURED)
    assert found["metadata"]["finalizers"] == ([FINALIZER] if waits else [])
    if waits:
        message = kube.statuses[-1]["conditions"][0]["message"]
        assert ("set spec.deletionPolicy to Retain" in message) == (not paused)
        # Nothing is left behind, so no Event says so.
        assert [one.reason for one in kube.told] == (["Paused"] if paused else [])
        return
    assert kube.statuses == []
    left = ["UserAbandoned"] if listeners is SECURED else []
    assert [one.reason for one in kube.told] == left


def test_group_whose_cluster_is_gone_goes_and_says_what_stays() -> None:
    cases: list[tuple[dict[str, Any], list[str]]] = [
        (group(deleted=True), ["UserAbandoned"]),
        (resource("ConsumerGroup", "g", deleted=True, clusterRef={"name": "c"}), []),
    ]
    for body, left in cases:
        body["metadata"]["finalizers"] = [FINALIZER]
        kube = run([body], [secret(body)] if left else [], known())
        found = kube.get("", "ConsumerGroup", "n", "g")
        assert found is not None
        assert found["metadata"]["finalizers"] == []
        assert [one.reason for one in kube.told] == left
        assert all("its cluster is not there" in one.message for one in kube.told)


class Refusing(MemoryZooKeeper):
    """ZooKeeper whose znodes of users are not open to the operator."""

    def commit(self, wanted: Sequence[Operation]) -> None:
        raise RefusedError(f"the ACL of znodes does not let me write {wanted[0].path}")


def test_zookeeper_that_refuses_to_remove_a_user_is_not_called_away() -> None:
    refusing = Refusing({})
    data = b'{"version":1,"config":{"SCRAM-SHA-512":"x"}}'
    path = user_znodes.user_path("odradek-job.n.g")
    refusing.put(path, data)
    going = group(deleted=True)
    kube = run([going], [cluster(listeners=SECURED)], refusing)
    ready = kube.statuses[-1]["conditions"][0]
    assert ready["reason"] == "ZooKeeperRefuses"
    assert f"write {path}; to let the resource go" in ready["message"]
    going["spec"]["deletionPolicy"] = "Retain"
    kube = run([going], [cluster(listeners=SECURED)], refusing)
    assert [one.reason for one in kube.told] == ["UserAbandoned"]
    lag = client_users.reported("LagExporter", partial(refusing.commit, [Delete(path)]))
    assert [one.reason for one in lag] == ["ZooKeeperRefuses"]


@pytest.mark.parametrize("deleted", [False, True])
def test_user_goes_when_brokers_ask_for_none_any_more(deleted: bool) -> None:
    zookeeper = known()
    assert passed(group(deleted=deleted), cluster(listeners=PLAIN), zookeeper) == []
    assert zookeeper.committed


@pytest.mark.parametrize("deleted", [False, True])
def test_user_goes_when_its_namespace_is_not_allowed_any_more(deleted: bool) -> None:
    zookeeper = known(ELSEWHERE)
    body = group(ELSEWHERE, deleted=deleted)
    assert passed(body, cluster(listeners=SECURED), zookeeper) == []
    assert zookeeper.committed


def test_finalizer_stays_while_the_cluster_is_gone() -> None:
    body = group()
    other = cluster("other", listeners=SECURED, zookeeper={"connect": "zk2:2181"})
    assert passed(body, other, known()) == [FINALIZER]


def test_user_of_a_namespace_that_is_not_allowed_any_more_waits_for_zookeeper() -> None:
    assert passed(group(ELSEWHERE), cluster(listeners=SECURED), None) == [FINALIZER]
    # The deletion waits for nobody who does not allow it, and says what it leaves.
    going = group(ELSEWHERE, deleted=True)
    away = cluster(listeners=SECURED, zookeeper={"connect": "away:1"})
    kube = MemoryKube(going, away, secret(going))
    reconcile_in(ELSEWHERE, kube, going, away)
    assert [one.reason for one in kube.told] == ["UserAbandoned"]


def test_offsets_that_stay_are_told_of_when_the_resource_goes_and_not_while_it_waits() -> None:
    going = group(deleted=True)
    going["spec"] |= {"deletionPolicy": "Delete", "group": "shared"}
    heir = resource("ConsumerGroup", "heir", clusterRef={"name": "c"}, group="shared")
    refusing = Refusing({})
    data = b'{"version":1,"config":{"SCRAM-SHA-512":"x"}}'
    refusing.put(user_znodes.user_path("odradek-job.n.g"), data)
    for zookeeper, told in ((refusing, False), (known(), True)):
        kube = run([going], [cluster(listeners=SECURED), heir], zookeeper)
        found = kube.get("", "ConsumerGroup", "n", "g")
        assert found is not None
        assert found["metadata"]["finalizers"] == ([] if told else [FINALIZER])
        assert ("GroupAbandoned" in [one.reason for one in kube.told]) == told
