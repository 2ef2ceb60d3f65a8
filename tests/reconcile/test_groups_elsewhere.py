"""Whole passes over ConsumerGroups whose KafkaCluster is in another namespace, in memory."""

from typing import Any

import pytest

from odradek_operator.loop.reconciler import Reconciler
from odradek_operator.shared.spec import ClusterKey
from odradek_operator.shared.status import condition_of
from odradek_operator.shared.store import KIND_ORDER, ResourceStore, key_of
from odradek_operator.shared.views import Owner
from tests.reconcile.in_memory import cluster, elsewhere, group_with_offsets, reason, reconcile_in
from tests.support.memory import MemoryKube, MemoryPool, context


def run_elsewhere(
    body: dict[str, Any], others: list[dict[str, Any]], forbidden: frozenset[str] = frozenset()
) -> tuple[MemoryKube, dict[str, Any]]:
    """Run one pass over a group of namespace m; returns its Ready as well."""
    kube, store = MemoryKube(body, *others, forbidden=forbidden), ResourceStore()
    for one in (body, *others):
        if one["kind"] in KIND_ORDER and one["kind"] not in forbidden:
            store.put(one)
    effects = context(kube, MemoryPool({"zk:2181": group_with_offsets()}), forget=store.drop)
    key = ClusterKey("n", "c")
    (result,) = Reconciler(effects, store).reconcile("m", key, {key_of(body): body}).values()
    assert not isinstance(result, Exception), result
    told = kube.get("odradek.io/v1alpha1", "ConsumerGroup", "m", body["metadata"]["name"])
    assert told is not None
    ready = condition_of(told["status"], "Ready")
    assert ready is not None
    return kube, {**ready, "body": told}


def test_namespace_that_a_cluster_does_not_name_learns_nothing_of_it() -> None:
    told = []
    older = elsewhere("home", namespace="n", age=9)
    granting_others = cluster(jobs={"allowedNamespaces": ["o"]})
    for others in ([], [cluster()], [granting_others], [cluster(), older]):
        for observed in (False, True):
            body = elsewhere()
            if observed:
                del body["spec"]["job"]
            kube, ready = run_elsewhere(body, others)
            assert kube.names("Pod") == []
            told.append((ready["reason"], ready["message"]))
    text = "KafkaCluster n/c is not there, or does not name this namespace in spec.jobs"
    assert set(told) == {("RefNotPermitted", f"{text}.allowedNamespaces")}
    going = elsewhere(deletionPolicy="Delete")
    going["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    kube = MemoryKube(going, cluster(), older)
    reconcile_in("m", kube, going, cluster(), older)
    lost = f"its cluster is {Owner.NOT_PERMITTED.value}"
    events = [one.message for one in kube.told]
    assert events == [f"offsets of group g were not deleted: {lost}"]


@pytest.mark.parametrize("allowed", ["m", "*"])
def test_job_runs_in_its_own_namespace_until_that_is_no_longer_allowed(allowed: str) -> None:
    granting = cluster(jobs={"allowedNamespaces": ["o", allowed]})
    kube, ready = run_elsewhere(elsewhere(), [granting])
    assert ready["reason"] == "Pending"
    mine = {
        kind: [one["metadata"]["name"] for one in kube.select("", kind, "m")]
        for kind in ("Pod", "ServiceAccount", "Role", "RoleBinding", "PersistentVolumeClaim")
    }
    account = ["odradek-job-g"]
    assert mine == {
        "Pod": ["g-driver"],
        "ServiceAccount": account,
        "Role": account,
        "RoleBinding": account,
        "PersistentVolumeClaim": ["g-data"],
    }
    assert not kube.select("", "Pod", "n")
    found = kube.get("v1", "ConfigMap", "m", "g-job")
    assert found is not None
    # A Service beside the brokers has another name elsewhere.
    assert '"zookeeper": "zk.n.svc:2181"' in found["data"]["job.json"]

    (pod,) = kube.select("", "Pod", "m")
    wrong = elsewhere(topicPattern="(")
    stopped, ready = run_elsewhere({**wrong, "status": ready["body"]["status"]}, [cluster(), pod])
    # A mistake in its spec does not keep the driver.
    assert (ready["reason"], stopped.names("Pod")) == ("RefNotPermitted", [])
    mended = {**elsewhere(), "status": ready["body"]["status"]}
    stopped, ready = run_elsewhere(mended, [cluster(), pod])
    assert (ready["reason"], stopped.names("Pod")) == ("RefNotPermitted", [])
    again, ready = run_elsewhere(ready["body"], [granting])
    assert again.names("Pod") == ["g-driver"]
    # Its end was wanted, and is no failure.
    assert ready["body"]["status"]["job"]["restarts"] == {"application": 0, "infrastructure": 0}


def test_job_of_a_cluster_that_the_operator_may_not_read_is_left_alone() -> None:
    kube, ready = run_elsewhere(elsewhere(), [], frozenset({"KafkaCluster"}))
    assert (ready["reason"], kube.names("Pod")) == ("RefNotPermitted", [])
    granting = cluster(jobs={"allowedNamespaces": ["m"]})
    started, ready = run_elsewhere(elsewhere(), [granting])
    (pod,) = started.select("", "Pod", "m")
    kept, _ = run_elsewhere(ready["body"], [pod], frozenset({"KafkaCluster"}))
    assert kept.names("Pod") == ["g-driver"]


def test_group_has_one_resource_in_all_namespaces_that_may_name_its_cluster() -> None:
    home = elsewhere("home", namespace="n", age=1)
    granting = cluster(jobs={"allowedNamespaces": ["m"]})
    kube, ready = run_elsewhere(elsewhere(), [granting, home])
    assert (ready["reason"], kube.names("Pod")) == ("ResourceConflict", [])
    assert ready["message"] == "n/home is older and owns this group"
    # Who may not name it holds up nobody.
    stranger = elsewhere("stranger", namespace="o", age=9)
    _, ready = run_elsewhere(elsewhere(), [granting, stranger])
    assert ready["reason"] == "Pending"


def test_group_elsewhere_counts_before_its_cluster_is_in_the_store() -> None:
    """As when the operator starts."""
    home, far = elsewhere("home", namespace="n"), elsewhere(age=9)
    kube = MemoryKube(home, far, cluster(jobs={"allowedNamespaces": ["m"]}))
    reconcile_in("n", kube, home, far)
    assert (reason(kube, "ConsumerGroup", "home"), kube.names("Pod")) == ("ResourceConflict", [])
