"""Whole passes over ConsumerGroups in memory: their offsets, their lag and their jobs."""

import queue
import threading
from collections.abc import Iterable
from typing import Any

import pytest

from odradek.values import BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from odradek.zk import consumers, znodes
from odradek_operator.group import reconcile as group_reconcile
from odradek_operator.loop.reconciler import WRITERS, Reconciler
from odradek_operator.shared import metrics, zookeeper_login
from odradek_operator.shared.kube import KubeError
from odradek_operator.shared.spec import Body, ClusterKey
from odradek_operator.shared.status import condition_of
from odradek_operator.shared.store import ResourceStore, key_of
from odradek_operator.shared.zookeeper import RefusedError, UnreachableError
from odradek_operator.shared.zookeeper_login import ClientFiles
from tests.reconcile.drivers import reporting
from tests.reconcile.in_memory import (
    as_ready,
    cluster,
    elsewhere,
    existing_topic,
    group_with_offsets,
    reason,
    resource,
    run,
)
from tests.support.memory import MemoryKube, MemoryPool, MemoryZooKeeper, context
from tests.support.ports import own_address


def test_younger_resource_of_a_group_waits_and_never_deletes_the_offsets_of_the_other() -> None:
    wanted: dict[str, Any] = {"clusterRef": {"name": "c"}, "group": "g"}
    older = resource("ConsumerGroup", "a", age=9, **wanted)
    younger = resource("ConsumerGroup", "b", deletionPolicy="Delete", **wanted)
    zookeeper = group_with_offsets()
    kube = run([older, younger], [cluster()], zookeeper)
    reasons = [reason(kube, "ConsumerGroup", name) for name in ("a", "b")]
    assert reasons == ["Observed", "ResourceConflict"]

    going = resource("ConsumerGroup", "b", deleted=True, deletionPolicy="Delete", **wanted)
    kube = run([going], [cluster(), older], zookeeper)
    assert [one.reason for one in kube.told] == ["GroupAbandoned"]
    assert zookeeper.deleted == []
    # Nor does the older one while the younger is there to read on.
    going = resource("ConsumerGroup", "a", age=9, deleted=True, deletionPolicy="Delete", **wanted)
    run([going], [cluster(), younger], zookeeper)
    assert zookeeper.deleted == []
    # If both go, nobody reads on.
    also = resource("ConsumerGroup", "b", deleted=True, **wanted)
    run([going], [cluster(), also], zookeeper)
    assert zookeeper.deleted == [consumers.group_path("g")]


def test_groups_of_a_paused_cluster_start_no_driver_and_lose_no_offsets() -> None:
    task = {"sink": {"console": {}}, "volume": {"size": "1Gi"}}
    wanted: dict[str, Any] = {"clusterRef": {"name": "c"}, "topics": ["t"], "job": task}
    running = resource("ConsumerGroup", "g", **wanted)
    going = resource("ConsumerGroup", "g", deleted=True, deletionPolicy="Delete", **wanted)
    zookeeper = group_with_offsets()
    for body in (running, going):
        kube = run([body], [cluster(paused=True)], zookeeper)
        assert reason(kube, "ConsumerGroup", "g") == "Paused"
        assert (kube.names("Pod"), zookeeper.deleted) == ([], [])
    assert run([running], [cluster()], zookeeper).names("Pod") == ["g-driver"]
    run([going], [cluster()], zookeeper)
    assert zookeeper.deleted == [consumers.group_path("g")]


def test_claim_of_a_job_is_looked_at_once_for_each_generation() -> None:
    task = {"sink": {"console": {}}, "volume": {"size": "1Gi"}}
    group = resource("ConsumerGroup", "g", clusterRef={"name": "c"}, topics=["t"], job=task)
    kube = run([group], [cluster()], group_with_offsets())
    seen = kube.get("odradek.io/v1alpha1", "ConsumerGroup", "n", "g")
    pod = kube.get("v1", "Pod", "n", "g-driver")
    assert seen is not None
    assert pod is not None
    unread = frozenset({"PersistentVolumeClaim"})
    kube = run([seen], [cluster(), pod], group_with_offsets(), unread)
    assert reason(kube, "ConsumerGroup", "g") == "Pending"
    changed = {**seen, "metadata": {**seen["metadata"], "generation": 2}}
    kube = run([changed], [cluster(), pod], group_with_offsets(), unread)
    assert reason(kube, "ConsumerGroup", "g") == "DriverRejected"


def test_job_is_not_stopped_for_a_reset_that_cannot_be_carried_out_now() -> None:
    task = {"sink": {"console": {}}, "volume": {"size": "1Gi"}}
    wanted: dict[str, Any] = {"clusterRef": {"name": "c"}, "topics": ["t"], "job": task}
    started = run([resource("ConsumerGroup", "g", **wanted)], [cluster()], group_with_offsets())
    (pod,) = [started.get("v1", "Pod", "n", name) for name in started.names("Pod")]
    assert pod is not None
    reset = {"requestId": "1", "strategy": "Earliest"}
    zookeeper = group_with_offsets()
    state = znodes.PartitionState(BrokerId(0), LeaderEpoch(0), (BrokerId(0),), ControllerEpoch(1))
    zookeeper.put(znodes.state_path("t", 0), znodes.encode_state(state))
    asking = resource("ConsumerGroup", "g", reset=reset, **wanted)
    kube = run([asking], [cluster(), pod], zookeeper)
    assert reason(kube, "ConsumerGroup", "g") == "BrokersUnreachable"
    # Nobody leads it yet.
    zookeeper.take(znodes.state_path("t", 0))
    kube = run([asking], [cluster(), pod], zookeeper)
    waits = condition_of(kube.statuses[-1], "Ready")
    assert waits is not None
    assert waits["message"] == "no leader of t-0 is known"
    zookeeper.take(znodes.topic_path("t"))
    unheard = resource("ConsumerGroup", "g", reset=reset, **wanted)
    refused = run([unheard], [cluster(), pod], zookeeper)
    assert reason(refused, "ConsumerGroup", "g") == "ResetWithoutPartitions"
    left = refused.get("", "ConsumerGroup", "n", "g")
    assert left is not None
    ready = condition_of(left["status"], "Ready")
    assert ready is not None
    assert ready["message"].endswith("no topic of spec.topics exists")
    paused = run([asking], [cluster(paused=True), pod], zookeeper)
    assert reason(paused, "ConsumerGroup", "g") == "Paused"
    for each in (kube, refused, paused):
        assert each.names("Pod") == ["g-driver"]


@pytest.mark.parametrize("dry_run", [False, True])
def test_reset_that_has_begun_is_not_carried_out_once_it_shall_be_a_dry_run(dry_run: bool) -> None:
    asked = {"requestId": "a", "strategy": "Earliest", "dryRun": dry_run}
    begun = {"requestId": "a", "phase": "Applying", "after": {"t-0": "3"}, "topics": {"t": "77"}}
    wanted: dict[str, Any] = {"clusterRef": {"name": "c"}, "group": "g", "reset": asked}
    group = as_ready(resource("ConsumerGroup", "g", **wanted), "Observed", lastReset=begun)
    zookeeper = group_with_offsets()
    run([group], [cluster()], zookeeper)
    assert bool(zookeeper.committed) is not dry_run


def test_offsets_that_are_in_the_brokers_are_not_said_to_be_deleted_while_none_answers() -> None:
    wanted: dict[str, Any] = {
        "clusterRef": {"name": "c"},
        "deletionPolicy": "Delete",
        "offsetStore": "Both",
    }
    zookeeper = group_with_offsets()
    group = resource("ConsumerGroup", "g", **wanted)
    kube = run([group], [cluster()], zookeeper)
    assert reason(kube, "ConsumerGroup", "g") == "BrokersUnreachable"
    going = resource("ConsumerGroup", "g", deleted=True, **wanted)
    kube = run([going], [cluster()], zookeeper)
    assert reason(kube, "ConsumerGroup", "g") == "Deleting"
    assert "set spec.deletionPolicy to Retain" in kube.statuses[-1]["conditions"][0]["message"]
    assert zookeeper.deleted == []


@pytest.mark.parametrize(
    ("failure", "why"),
    [(RefusedError, "ZooKeeperRefuses"), (UnreachableError, "ZooKeeperUnreachable")],
)
def test_deletion_of_a_group_that_cannot_be_read_says_how_to_go_on(
    failure: type[UnreachableError], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    zookeeper = group_with_offsets()
    known = zookeeper.children

    def children(paths: Iterable[str]) -> dict[str, list[str] | None]:
        asked = list(paths)
        if any(one.startswith("/consumers/") for one in asked):
            raise failure("not you")
        return known(asked)

    monkeypatch.setattr(zookeeper, "children", children)
    going = resource(
        "ConsumerGroup", "g", deleted=True, deletionPolicy="Delete", clusterRef={"name": "c"}
    )
    kube = run([going], [cluster()], zookeeper)
    assert reason(kube, "ConsumerGroup", "g") == why
    assert "set spec.deletionPolicy to Retain" in kube.statuses[-1]["conditions"][0]["message"]
    assert zookeeper.deleted == []


def test_job_says_whether_zookeeper_or_all_brokers_are_away() -> None:
    task = {"sink": {"console": {}}, "volume": {"size": "1Gi"}}
    job = resource("ConsumerGroup", "g", clusterRef={"name": "c"}, topics=["t"], job=task)
    kube = run([job], [cluster()], MemoryZooKeeper())
    assert reason(kube, "ConsumerGroup", "g") == "WaitingForBrokers"
    pod = run([job], [cluster()], group_with_offsets()).get("v1", "Pod", "n", "g-driver")
    assert pod is not None
    kube = run([job], [cluster(zookeeper={"connect": "away:1"}), pod], group_with_offsets())
    assert reason(kube, "ConsumerGroup", "g") == "ZooKeeperUnreachable"
    assert "a driver that runs goes on" in kube.statuses[-1]["conditions"][0]["message"]
    assert kube.names("Pod") == ["g-driver"]


def test_group_that_waits_for_its_driver_to_end_says_so() -> None:
    task = {"sink": {"console": {}}, "volume": {"size": "1Gi"}}
    wanted: dict[str, Any] = {"clusterRef": {"name": "c"}, "topics": ["t"]}
    started = run(
        [resource("ConsumerGroup", "g", job=task, **wanted)], [cluster()], group_with_offsets()
    )
    pod = started.get("v1", "Pod", "n", "g-driver")
    assert pod is not None
    # Its node is lost: nobody confirms that it has ended.
    ending = {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": "2026-11-21T12:00:00Z"}}
    kube = run(
        [resource("ConsumerGroup", "g", **wanted)], [cluster(), ending], group_with_offsets()
    )
    assert reason(kube, "ConsumerGroup", "g") == "Stopping"
    assert "waiting for pod g-driver to end" in kube.statuses[-1]["conditions"][0]["message"]
    going = resource("ConsumerGroup", "g", deleted=True, deletionPolicy="Delete", **wanted)
    zookeeper = group_with_offsets()
    kube = run([going], [cluster(), ending], zookeeper)
    assert reason(kube, "ConsumerGroup", "g") == "Deleting"
    assert "waiting for pod g-driver to end" in kube.statuses[-1]["conditions"][0]["message"]
    assert zookeeper.deleted == []


def test_lag_that_is_not_known_any_more_has_no_series() -> None:
    observed = resource("ConsumerGroup", "g", clusterRef={"name": "c"}, offsetStore="Both")
    task = {"sink": {"console": {}}, "volume": {"size": "1Gi"}}
    with_job = resource("ConsumerGroup", "g", clusterRef={"name": "c"}, topics=["t"], job=task)
    invalid = resource("ConsumerGroup", "g", clusterRef={"name": "c"}, topicPattern="(")
    older = resource("ConsumerGroup", "a", age=9, clusterRef={"name": "c"}, group="g")
    away = cluster(zookeeper={"connect": "away:1"})
    lag = metrics.GroupLag("n", "c", "g", {TopicPartition("t", 0): 5}, {}, read_at=7)

    def series(batch: list[dict[str, Any]], *others: dict[str, Any]) -> set[tuple[str, float]]:
        metrics.GROUP_LAGS.put(observed["metadata"]["uid"], lag)
        run(batch, list(others), group_with_offsets())
        return {
            (one.name, one.value)
            for family in metrics.GROUP_LAGS.collect()
            for one in family.samples
        }

    # No broker answers in the first case. An alert asks when the lag was read last.
    last_read = {("odradek_consumergroup_lag_read_timestamp_seconds", 7)}
    assert series([observed], cluster()) == last_read
    assert series([observed], away) == last_read
    assert series([with_job], cluster()) == set()
    assert series([invalid], cluster()) == set()
    assert series([observed], cluster(), older) == set()
    # The resource is gone.
    assert series([], cluster()) == set()


def test_lag_of_a_namespace_that_another_operator_acts_in_is_not_told() -> None:
    observed = resource("ConsumerGroup", "g", clusterRef={"name": "c"})
    lag = metrics.GroupLag("n", "c", "g", {}, {}, read_at=7)
    metrics.GROUP_LAGS.put(observed["metadata"]["uid"], lag)
    store = ResourceStore()
    store.put(observed)
    standby = Reconciler(context(MemoryKube(observed)), store, may_act=lambda _namespace: False)
    standby.reconcile("n", ClusterKey("n", "c"), {key_of(observed): observed})
    assert not [one for family in metrics.GROUP_LAGS.collect() for one in family.samples]


def test_group_is_deleted_even_if_its_spec_became_invalid() -> None:
    wanted: dict[str, Any] = {
        "clusterRef": {"name": "c"},
        "deletionPolicy": "Delete",
        "topicPattern": "(",
    }
    zookeeper = group_with_offsets()
    run([resource("ConsumerGroup", "g", deleted=True, **wanted)], [cluster()], zookeeper)
    assert zookeeper.deleted == [consumers.group_path("g")]


def test_many_groups_are_looked_at_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that does not answer takes seconds for each: one after the other is minutes."""
    together = threading.Barrier(WRITERS)
    looked: queue.Queue[str] = queue.Queue()

    def look(_context: object, body: Body, *_: object) -> float:
        together.wait(30)
        looked.put(body["metadata"]["name"])
        return 15.0

    monkeypatch.setattr(group_reconcile, "reconcile", look)
    names = [f"g{number}" for number in range(2 * WRITERS)]
    groups = [resource("ConsumerGroup", name, clusterRef={"name": "c"}) for name in names]
    store, batch = ResourceStore(), {key_of(one): one for one in groups}
    for one in groups:
        store.put(one)
    done = Reconciler(context(MemoryKube(*groups)), store).reconcile(
        "n", ClusterKey("n", "c"), batch
    )
    assert done == dict.fromkeys(batch, 15.0)
    assert sorted(looked.get_nowait() for _ in names) == sorted(names)


def test_job_goes_on_while_nobody_can_tell_how_it_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> ClientFiles:
        raise KubeError(500, "the API server is away")

    monkeypatch.setattr(zookeeper_login, "client_files", fail)
    job = {"sink": {"console": {}}, "volume": {"size": "1Gi"}}
    group = resource("ConsumerGroup", "g", clusterRef={"name": "c"}, topics=["t"], job=job)
    store = ResourceStore()
    for body in (group, cluster()):
        store.put(body)
    kube = MemoryKube(group, cluster())
    effects = context(kube, MemoryPool({"zk:2181": existing_topic()}))
    done = Reconciler(effects, store).reconcile("n", ClusterKey("n", "c"), {key_of(group): group})
    assert [type(one) for one in done.values()] == [KubeError]
    # Nothing is said or changed that nobody knows.
    assert (kube.statuses, kube.names("Pod")) == ([], [])


def test_job_of_a_cluster_in_conflict_says_so_and_one_of_a_taken_group_is_stopped() -> None:
    task = {"sink": {"console": {}}, "volume": {"size": "1Gi"}}
    wanted: dict[str, Any] = {
        "clusterRef": {"name": "c"},
        "topics": ["t"],
        "job": task,
        "group": "g",
    }
    older = cluster(
        namespace="production", age=9, zookeeper={"connect": "zk.n.svc.cluster.local:2181"}
    )
    kube = run([resource("ConsumerGroup", "g", **wanted)], [cluster(), older], existing_topic())
    assert reason(kube, "ConsumerGroup", "g") == "ClusterConflict"

    younger = resource("ConsumerGroup", "b", **wanted)
    started = run([younger], [cluster()], group_with_offsets())
    (pod,) = [started.get("v1", "Pod", "n", name) for name in started.names("Pod")]
    assert pod is not None
    rival = resource("ConsumerGroup", "a", age=9, **{**wanted, "job": None})
    del rival["spec"]["job"]
    kube = run([younger], [cluster(), rival, pod], group_with_offsets())
    assert reason(kube, "ConsumerGroup", "b") == "ResourceConflict"
    assert kube.names("Pod") == []
    # Its end was wanted: once the group is free it starts at once, and nothing counts as a failure.
    left = kube.get("odradek.io/v1alpha1", "ConsumerGroup", "n", "b")
    assert left is not None
    again = run([left], [cluster()], group_with_offsets())
    assert again.names("Pod") == ["b-driver"]


def test_driver_that_waits_for_secrets_which_do_not_exist_says_which() -> None:
    secrets = [{"name": "there"}, {"name": "none"}]
    task = {"sink": {"console": {}}, "volume": {"size": "1Gi"}, "secretRefs": secrets}
    group = resource("ConsumerGroup", "g", clusterRef={"name": "c"}, topics=["t"], job=task)
    there = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "there", "namespace": "n"}}
    kube = run([group], [cluster(), there], group_with_offsets())
    seen = kube.get("odradek.io/v1alpha1", "ConsumerGroup", "n", "g")
    pod = kube.get("v1", "Pod", "n", "g-driver")
    secrets_of_all = kube.select("v1", "Secret", "n")
    assert seen is not None
    assert pod is not None
    told = []
    for node in ({}, {"nodeName": "node1"}):
        placed = {**pod, "spec": {**pod["spec"], **node}}
        kube = run([seen], [cluster(), placed, *secrets_of_all], group_with_offsets())
        found = kube.get("odradek.io/v1alpha1", "ConsumerGroup", "n", "g")
        assert found is not None
        condition = condition_of(found["status"], "Ready")
        assert condition is not None
        assert condition["reason"] == "Pending"
        told.append(condition["message"])
    assert told == [
        "the driver pod is starting",
        "the driver waits for Secrets that do not exist: none",
    ]


def test_executors_that_lack_a_secret_say_so_and_the_driver_with_another_key_too() -> None:
    task = {"sink": {"console": {}}, "volume": {"size": "1Gi"}}
    group = resource("ConsumerGroup", "g", clusterRef={"name": "c"}, topics=["t"], job=task)
    started = run([group], [cluster()], group_with_offsets())
    pod = started.get("v1", "Pod", "n", "g-driver")
    (key,) = started.select("v1", "Secret", "n")
    assert pod is not None
    address, began = own_address(), "2026-11-21T11:00:10Z"
    container = {"name": "driver", "ready": True, "state": {"running": {"startedAt": began}}}
    pod["metadata"] |= {"uid": "of-driver", "creationTimestamp": "2026-11-21T11:00:05Z"}
    pod["status"] = {"phase": "Running", "podIP": address, "containerStatuses": [container]}
    waiting = {
        "kind": "Pod",
        "metadata": {
            "name": "g-exec-1",
            "namespace": "n",
            "ownerReferences": [{"kind": "Pod", "name": "g-driver", "uid": "of-driver"}],
        },
        "spec": {
            "nodeName": "node1",
            "volumes": [{"name": "theirs", "secret": {"secretName": "theirs"}}],
        },
        "status": {"phase": "Pending"},
    }

    def made(second: int) -> dict[str, Any]:
        when = f"2026-11-21T11:00:{second:02}Z"
        return {**key, "metadata": {**key["metadata"], "creationTimestamp": when}}

    name = key["metadata"]["name"]
    way_out = "delete pod g-driver, and the next ones have the same again"
    whose = f"Secret {name}, which has the key of driver and executors: {way_out}"
    report = {"state": "Running", "executors": 0, "lastBatchId": 7, "totalLag": 5}
    cases: list[tuple[list[dict[str, Any]], str]] = [
        ([], f": somebody deleted {whose}"),
        ([made(11)], f": somebody made anew {whose}"),
        # The operator makes it while a driver waits for it.
        ([made(9)], ""),
        ([made(4)], ""),
        ([made(4), waiting], ": they wait for Secrets that do not exist: theirs"),
    ]
    for others, why in cases:
        with reporting(address, report):
            kube = run([group], [cluster(), pod, *others], group_with_offsets())
        ready = kube.statuses[-1]["conditions"][0]
        assert (ready["status"], ready["reason"]) == ("False", "ExecutorsPending")
        assert ready["message"] == f"0 of 1 executors run{why}"


def test_driver_that_waits_gets_the_claim_or_the_key_that_somebody_deleted() -> None:
    task = {"sink": {"console": {}}, "volume": {"size": "1Gi"}}
    group = resource("ConsumerGroup", "g", clusterRef={"name": "c"}, topics=["t"], job=task)
    kube = run([group], [cluster()], group_with_offsets())
    seen = kube.get("odradek.io/v1alpha1", "ConsumerGroup", "n", "g")
    pod = kube.get("v1", "Pod", "n", "g-driver")
    (key,) = kube.names("Secret")
    assert kube.names("PersistentVolumeClaim") == ["g-data"]
    assert seen is not None
    assert pod is not None
    text = 'persistentvolumeclaim "g-data" not found'
    unscheduled = {"type": "PodScheduled", "status": "False", "message": text}
    nowhere = {**pod, "status": {"phase": "Pending", "conditions": [unscheduled]}}
    placed = {**pod, "spec": {**pod["spec"], "nodeName": "node1"}}
    for waiting, kind, name in (
        (nowhere, "PersistentVolumeClaim", "g-data"),
        (placed, "Secret", key),
    ):
        kube = run([seen], [cluster(), waiting], group_with_offsets())
        assert reason(kube, "ConsumerGroup", "g") == "Pending"
        assert kube.names(kind) == [name]
        paused = run([seen], [cluster(paused=True), waiting], group_with_offsets())
        assert paused.names(kind) == []


def test_driver_whose_volume_would_go_with_it_is_left_to_the_user() -> None:
    task: dict[str, Any] = {"sink": {"console": {}}, "volume": {"size": "1Gi"}}
    wanted: dict[str, Any] = {"clusterRef": {"name": "c"}, "topics": ["t"]}
    first = resource("ConsumerGroup", "g", job=task, **wanted)
    started = run([first], [cluster()], group_with_offsets())
    seen = started.get("odradek.io/v1alpha1", "ConsumerGroup", "n", "g")
    pod = started.get("v1", "Pod", "n", "g-driver")
    claim = started.get("v1", "PersistentVolumeClaim", "n", "g-data")
    assert seen is not None
    assert pod is not None
    assert claim is not None
    meta = {**claim["metadata"], "deletionTimestamp": "2026-11-21T12:00:00Z"}
    doomed = {**claim, "metadata": meta}
    ended = {**pod, "status": {"phase": "Failed"}}
    changes: list[dict[str, Any]] = [{"sql": "select 1"}, {"suspend": True}]
    for change in changes:
        body = resource("ConsumerGroup", "g", job={**task, **change}, **wanted)
        body["status"] = seen["status"]
        kube = run([body], [cluster(), pod, doomed], group_with_offsets())
        assert kube.names("Pod") == ["g-driver"]
        assert reason(kube, "ConsumerGroup", "g") == "ClaimDeleted"
        assert "delete pod g-driver yourself" in kube.statuses[-1]["conditions"][0]["message"]
        # What it remembers of the job is as it was.
        assert kube.statuses[-1]["job"] == seen["status"]["job"]
        for others in ([pod, claim], [ended, doomed]):
            kube = run([body], [cluster(), *others], group_with_offsets())
            assert kube.names("Pod") == []


def test_job_that_is_left_as_it_is_tells_what_its_driver_says_and_no_old_number() -> None:
    task: dict[str, Any] = {"sink": {"console": {}}, "volume": {"size": "1Gi"}}
    wanted: dict[str, Any] = {"clusterRef": {"name": "c"}, "topics": ["t"]}
    first = resource("ConsumerGroup", "g", job=task, **wanted)
    started = run([first], [cluster()], group_with_offsets())
    pod = started.get("v1", "Pod", "n", "g-driver")
    claim = started.get("v1", "PersistentVolumeClaim", "n", "g-data")
    assert pod is not None
    assert claim is not None
    address, container = own_address(), {"name": "driver", "ready": True}
    runs = {"phase": "Running", "podIP": address, "containerStatuses": [container]}
    working = {**pod, "status": runs}
    meta = {**claim["metadata"], "deletionTimestamp": "2026-11-21T12:00:00Z"}
    doomed = {**claim, "metadata": meta}
    report = {"state": "Running", "executors": 1, "members": 1, "lastBatchId": 7, "totalLag": 5}
    with reporting(address, report):
        kube = run([first], [cluster(), working, claim], group_with_offsets())
    before = kube.statuses[-1]
    assert (before["totalLag"], before["verdict"], before["job"]["lastBatchId"]) == (5, "OK", 7)

    changed = resource("ConsumerGroup", "g", job={**task, "sql": "select 1"}, **wanted)
    changed["status"] = before
    report.update(lastBatchId=8, totalLag=9)
    away = cluster(zookeeper={"connect": "away:1"})
    for why, others in (
        ("ClaimDeleted", [cluster(), working, doomed]),
        ("Paused", [cluster(paused=True), working, claim]),
        ("ZooKeeperUnreachable", [away, working, claim]),
    ):
        with reporting(address, report):
            kube = run([changed], others, group_with_offsets())
        assert reason(kube, "ConsumerGroup", "g") == why
        told = kube.statuses[-1]
        assert (told["totalLag"], told["verdict"], told["members"]) == (9, "OK", 1)
        assert (told["job"]["phase"], told["job"]["lastBatchId"]) == ("Running", 8)
        kube = run([changed], others, group_with_offsets())
        told = kube.statuses[-1]
        assert (reason(kube, "ConsumerGroup", "g"), told["state"]) == (why, "DriverUnreachable")
        assert {"totalLag", "verdict", "members"}.isdisjoint(told)
        assert {"lastBatchId", "executors"}.isdisjoint(told["job"])
        assert kube.names("Pod") == ["g-driver"]

    invalid = resource("ConsumerGroup", "g", job=task, topicPattern="(", **wanted)
    invalid["status"] = before
    kube = run([invalid], [cluster(), working, claim], group_with_offsets())
    assert reason(kube, "ConsumerGroup", "g") == "InvalidTopicPattern"
    told = kube.statuses[-1]
    assert "totalLag" not in told
    assert told["job"]["phase"] == "Running"
    assert {"lastBatchId", "executors"}.isdisjoint(told["job"])


def test_job_that_is_made_anew_waits_for_the_driver_of_the_former_one() -> None:
    task = {"sink": {"console": {}}, "volume": {"size": "1Gi"}}
    group = resource("ConsumerGroup", "g", clusterRef={"name": "c"}, topics=["t"], job=task)
    former = {**group, "metadata": {**group["metadata"], "uid": "former"}}
    pod = run([former], [cluster()], group_with_offsets()).get("v1", "Pod", "n", "g-driver")
    assert pod is not None
    orphan = {**pod, "metadata": {**pod["metadata"], "ownerReferences": []}}
    for found, status, why in ((pod, "False", "Stopping"), (orphan, "True", "ResourceConflict")):
        kube = run([group], [cluster(), found], group_with_offsets())
        assert kube.get("v1", "Pod", "n", "g-driver") == found
        assert reason(kube, "ConsumerGroup", "g") == why
        left = kube.get("odradek.io/v1alpha1", "ConsumerGroup", "n", "g")
        assert left is not None
        stalled = condition_of(left["status"], "Stalled")
        assert stalled is not None
        assert stalled["status"] == status


def test_job_that_stalled_after_a_change_may_go_back_to_its_former_query() -> None:
    """What its driver found wrong with the state, or with the query, is no query to keep."""

    def counting(sql: str, status: dict[str, Any]) -> dict[str, Any]:
        body = elsewhere(namespace="n")
        body["spec"]["job"]["sql"] = sql
        return {**body, "status": status}

    def passed(body: dict[str, Any], *others: Any) -> tuple[MemoryKube, dict[str, Any]]:
        kube = run([body], [cluster(), *others], group_with_offsets())
        found = kube.get("odradek.io/v1alpha1", "ConsumerGroup", "n", "g")
        assert found is not None
        return kube, found["status"]

    kube, told = passed(counting("select 2", {}))
    (pod,), (file, *_) = kube.select("", "Pod", "n"), kube.select("", "ConfigMap", "n")
    ended = {"exitCode": 2, "message": "odradek-spark: StatefulQueryChanged: the state is another"}
    container = {"name": "driver", "state": {"terminated": ended}}
    pod["status"] = {"phase": "Failed", "containerStatuses": [container]}
    # The driver of the query before has told of it.
    told["job"]["keepsState"] = True
    for _ in range(2):
        kube, told = passed(counting("select 1", told), *kube.select("", "Pod", "n"), file)
    assert kube.names("Pod") == []
    kube, told = passed(counting("select 1", told), file)
    assert kube.names("Pod") == ["g-driver"]
    started = kube.get("v1", "ConfigMap", "n", "g-job")
    assert started is not None
    assert "select 1" in started["data"]["job.json"]
