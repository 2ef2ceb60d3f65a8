"""Whole passes over resources in memory: what resources of one cluster see of each other."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from odradek.values import BrokerId, ControllerEpoch, LeaderEpoch
from odradek.zk import znodes
from odradek.zk.operations import Operation
from odradek_operator.loop.reconciler import WRITERS, Reconciler
from odradek_operator.shared import metrics, observe, zookeeper
from odradek_operator.shared.connect_strings import qualified
from odradek_operator.shared.kube import KubeError
from odradek_operator.shared.objects import belongs_to
from odradek_operator.shared.spec import API_VERSION, FINALIZER, ClusterKey
from odradek_operator.shared.status import condition_of
from odradek_operator.shared.store import ResourceStore, key_of
from odradek_operator.shared.zookeeper import Znode
from odradek_operator.topic import reassign
from odradek_operator.topic.plan import REFUSED_SECONDS
from tests.reconcile.in_memory import (
    as_ready,
    cluster,
    existing_topic,
    group_with_offsets,
    reason,
    resource,
    run,
    status_of,
)
from tests.support.memory import MemoryKube, MemoryPool, MemoryZooKeeper, context


def test_short_name_of_a_zookeeper_is_that_of_the_service_beside_the_cluster() -> None:
    wanted: dict[str, Any] = {"clusterRef": {"name": "c"}, "deletionPolicy": "Delete"}
    going = {**resource("Topic", "t", deleted=True, **wanted), "status": {"incarnation": 77}}
    for home, place in (("n", "zk:2181"), ("operators", "zk.n.svc:2181")):
        store, znodes_of = ResourceStore(), {one: existing_topic() for one in PLACES}
        pool = MemoryPool(znodes_of)
        for body in (going, cluster()):
            store.put(body)
        done = Reconciler(context(MemoryKube(going, cluster()), pool, home=home), store)
        for one in (going, cluster()):
            done.reconcile("n", ClusterKey("n", "c"), {key_of(one): one})
        asked = {one for one, found in znodes_of.items() if found.committed}
        assert (asked, pool.kept) == ({place}, {place})


PLACES = ("zk:2181", "zk.n.svc:2181")


def test_topics_of_a_cluster_in_conflict_touch_nothing_of_the_older_ones() -> None:
    older = cluster(
        namespace="production", age=9, zookeeper={"connect": "zk.n.svc.cluster.local:2181"}
    )
    wanted: dict[str, Any] = {"clusterRef": {"name": "c"}, "deletionPolicy": "Delete"}
    zookeeper = existing_topic()
    kube = run([resource("Topic", "t", **wanted)], [cluster(), older], zookeeper)
    assert reason(kube, "Topic", "t") == "ClusterConflict"
    going = {**resource("Topic", "t", deleted=True, **wanted), "status": {"incarnation": 77}}
    kube = run([going], [cluster(), older], zookeeper)
    assert [one.reason for one in kube.told] == ["TopicAbandoned"]
    assert zookeeper.committed == []
    run([going], [cluster()], zookeeper)
    assert zookeeper.created() == [znodes.delete_topic_path("t")]


def test_no_deletion_is_requested_that_the_controller_would_drop() -> None:
    wanted: dict[str, Any] = {"clusterRef": {"name": "c"}, "deletionPolicy": "Delete"}
    going = {**resource("Topic", "t", deleted=True, **wanted), "status": {"incarnation": 77}}
    zookeeper = existing_topic()
    disabled = cluster(config={"delete.topic.enable": "FALSE"})
    kube = run([going], [disabled], zookeeper)
    assert reason(kube, "Topic", "t") == "TopicDeletionDisabled"
    assert zookeeper.created() == []
    enabled = cluster(config={"delete.topic.enable": "true"})
    kube = run([going], [enabled], zookeeper)
    assert zookeeper.created() == [znodes.delete_topic_path("t")]
    assert _why(kube) == "the brokers are deleting the topic"
    # The znode is gone, as the controller still runs with the former setting.
    kube = run([as_ready(going, "Deleting", incarnation=77)], [enabled], zookeeper)
    assert zookeeper.created() == [znodes.delete_topic_path("t")] * 2
    assert "the controller dropped the request" in _why(kube)


def _why(kube: MemoryKube) -> str:
    body = kube.get("odradek.io/v1alpha1", "Topic", "n", "t")
    assert body is not None
    told = condition_of(body["status"], "Ready")
    assert told is not None
    return str(told["message"])


def test_topic_without_numbers_is_not_created_while_its_cluster_is_invalid() -> None:
    wrong = cluster(config={"num.partitions": "8", "log.segment.bytes": "x"})
    topic = resource("Topic", "new", clusterRef={"name": "c"})
    assert reason(run([topic], [wrong], existing_topic()), "Topic", "new") == "ClusterInvalid"
    mended = cluster(config={"num.partitions": "8"})
    assert reason(run([topic], [mended], existing_topic()), "Topic", "new") == "Creating"


def test_resources_of_a_cluster_that_cannot_be_exposed_so_are_reconciled() -> None:
    # Broker 0 would advertise port 0.
    listener = {
        "name": "outside",
        "port": 9094,
        "expose": {"type": "NodePort", "advertisedPortTemplate": "{nodeId}"},
    }
    inside = {"name": "inside", "port": 9092}
    wrong = cluster(brokers={"replicas": 3}, listeners=[inside, listener])
    going = resource("Topic", "t", deleted=True, clusterRef={"name": "c"}, deletionPolicy="Delete")
    going["status"] = {"incarnation": 77}
    zookeeper = existing_topic()
    topic = resource("Topic", "new", clusterRef={"name": "c"})
    kube = run([topic, going], [wrong], zookeeper)
    assert reason(kube, "Topic", "new") == "ClusterInvalid"
    assert zookeeper.created() == [znodes.delete_topic_path("t")]


class RefusingZooKeeper(MemoryZooKeeper):
    """Lets nobody write."""

    def commit(self, wanted: Sequence[Operation]) -> None:
        raise zookeeper.RefusedError(f"the ACL of znodes does not let me write {wanted[0].path}")

    def delete_tree(self, path: str) -> None:
        raise zookeeper.RefusedError(f"the ACL of znodes does not let me write {path}")


def refusing() -> RefusingZooKeeper:
    """Topic t as in `existing_topic`, which has a leader and is configured by hand."""
    known = existing_topic()
    state = znodes.PartitionState(BrokerId(0), LeaderEpoch(0), (BrokerId(0),), ControllerEpoch(1))
    paths = [znodes.broker_path(0), znodes.topic_path("t")]
    refuses = RefusingZooKeeper({path: one.data for path, one in known.read(paths).items() if one})
    refuses.put(znodes.state_path("t", 0), znodes.encode_state(state))
    refuses.put(znodes.topic_config_path("t"), znodes.encode_config({"retention.ms": "1"}))
    refuses.put(
        znodes.CONTROLLER_PATH, znodes.encode_controller(znodes.ControllerClaim(BrokerId(0), 0))
    )
    return refuses


@pytest.mark.parametrize("deleted", [False, True])
def test_topic_that_cannot_be_written_is_not_ready(deleted: bool) -> None:
    wanted: dict[str, Any] = {"clusterRef": {"name": "c"}, "config": {"retention.ms": "5"}}
    topic = resource("Topic", "t", deleted=deleted, deletionPolicy="Delete", **wanted)
    kube = run([as_ready(topic, "Synced", incarnation=77)], [cluster()], refusing())
    assert reason(kube, "Topic", "t") == "ZooKeeperRefuses"
    found = kube.get("", "Topic", "n", "t")
    assert found is not None
    told = {one["type"]: one["status"] for one in found["status"]["conditions"]}
    assert (told["Ready"], told["Stalled"], told["Synced"]) == ("False", "True", "False")
    # It is this resource's still.
    assert found["status"]["incarnation"] == 77
    assert FINALIZER in found["metadata"]["finalizers"]


def test_reassignment_and_group_that_cannot_be_written_say_so() -> None:
    place: dict[str, Any] = {"clusterRef": {"name": "c"}}
    move = resource("Reassignment", "r", mode="PreferredLeader", topics=["t"], **place)
    move["metadata"]["finalizers"] = [FINALIZER]
    led_by_other = refusing()
    state = znodes.PartitionState(BrokerId(1), LeaderEpoch(0), (BrokerId(0),), ControllerEpoch(1))
    led_by_other.put(znodes.state_path("t", 0), znodes.encode_state(state))
    plans: list[dict[str, Any]] = []
    for _ in range(3):
        kube = run([move], [cluster(), *plans], led_by_other)
        move, plans = (
            kube.get("", "Reassignment", "n", "r") or {},
            kube.select("", "ConfigMap", "n"),
        )
    assert reason(kube, "Reassignment", "r") == "ZooKeeperRefuses"
    going = resource("ConsumerGroup", "g", deleted=True, deletionPolicy="Delete", **place)
    kube = run([going], [cluster()], refusing())
    assert reason(kube, "ConsumerGroup", "g") == "ZooKeeperRefuses"


def test_reset_that_cannot_be_written_says_so() -> None:
    request = {"requestId": "1", "strategy": "Earliest"}
    group = resource("ConsumerGroup", "g", clusterRef={"name": "c"}, topics=["t"], reset=request)
    begun = {"requestId": "1", "phase": "Applying", "after": {"t-0": "0"}, "topics": {"t": "77"}}
    kube = run([group | {"status": {"lastReset": begun}}], [cluster()], refusing())
    told = kube.statuses[-1]
    assert reason(kube, "ConsumerGroup", "g") == "ZooKeeperRefuses"
    stalled = condition_of(told, "Stalled")
    assert stalled is not None
    assert stalled["status"] == "True"
    # It goes on as it was begun.
    assert told["lastReset"] == begun


def test_cluster_whose_settings_cannot_be_written_is_not_ready() -> None:
    wanted = cluster(config={"log.retention.ms": "5"})
    zookeeper = refusing()
    zookeeper.put(znodes.broker_config_path("<default>"), znodes.encode_config({}))
    pod = {
        "kind": "Pod",
        "metadata": {"name": "c-broker-0", "namespace": "n"},
        "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    kube = run([as_ready(wanted, "BrokersReady")], [pod], zookeeper)
    assert reason(kube, "KafkaCluster", "c") == "ZooKeeperRefuses"


def test_resources_of_a_cluster_whose_brokers_cannot_be_read_are_not_ready() -> None:
    zookeeper = existing_topic()
    zookeeper.put(znodes.broker_path(0), b"torn")
    place: dict[str, Any] = {"clusterRef": {"name": "c"}}
    batch = [
        as_ready(resource("Topic", "t", **place), "Synced", incarnation=77),
        as_ready(
            resource("User", "u", authentication={"type": "scram-sha-512"}, **place), "Synced"
        ),
        as_ready(resource("ConsumerGroup", "g", **place), "Observed"),
    ]
    kube = run(batch, [cluster()], zookeeper)
    for body in batch:
        kind, name = body["kind"], body["metadata"]["name"]
        assert reason(kube, kind, name) == "ZooKeeperUnreachable", kind
        found = kube.get("", kind, "n", name)
        assert found is not None
        told = condition_of(found["status"], "Ready")
        assert told is not None
        assert "/brokers/ids/0" in told["message"]


def test_a_registration_that_cannot_be_read_hides_no_other_broker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registered = znodes.BrokerRegistration(
        BrokerId(1), (znodes.BrokerEndpoint("PLAINTEXT", "one", 9092),)
    )
    zookeeper = MemoryZooKeeper(
        {
            znodes.broker_path(0): b"torn",
            znodes.broker_path(1): znodes.encode_broker(registered),
        }
    )
    assert observe.brokers(zookeeper) == {1: registered}
    assert "passing over the registration of a broker: znode /brokers/ids/0" in caplog.text


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
def test_place_of_znodes_that_no_host_can_have_is_told_by_cluster_and_resources(host: str) -> None:
    wrong = cluster(zookeeper={"connect": f"{host}:2181"})
    place: dict[str, Any] = {"clusterRef": {"name": "c"}}
    kube = run([wrong], [], existing_topic())
    assert reason(kube, "KafkaCluster", "c") == "InvalidConfig"
    batch = [
        resource("Topic", "t", **place),
        resource("User", "u", authentication={"type": "scram-sha-512"}, **place),
        resource("ConsumerGroup", "g", **place),
        resource("Reassignment", "r", mode="PreferredLeader", **place),
    ]
    kube = run(batch, [wrong], existing_topic())
    for body in batch:
        kind, name = body["kind"], body["metadata"]["name"]
        assert reason(kube, kind, name) == "ZooKeeperUnreachable", kind
        found = kube.get("", kind, "n", name)
        assert found is not None
        told = condition_of(found["status"], "Ready")
        assert told is not None
        assert f"{host} is not a host name" in told["message"]


@pytest.mark.parametrize("of_cluster", [False, True])
@pytest.mark.parametrize("away", [False, True])
def test_user_that_is_paused_says_so_whatever_else_there_is_to_say(
    of_cluster: bool, away: bool
) -> None:
    body = resource(
        "User",
        "u",
        clusterRef={"name": "c"},
        authentication={"type": "tls"},
        paused=not of_cluster,
    )
    place: dict[str, Any] = {"zookeeper": {"connect": "away:1" if away else "zk:2181"}}
    kube = run([body], [cluster(paused=of_cluster, **place)], existing_topic())
    assert reason(kube, "User", "u") == ("ZooKeeperUnreachable" if away else "NoClientsAuthority")
    found = kube.get("", "User", "n", "u")
    assert found is not None
    told = condition_of(found["status"], "Paused")
    assert told is not None
    assert (told["status"], told["reason"]) == ("True", "Paused")


def leaving_user(**fields: Any) -> dict[str, Any]:
    """A User that is deleted, and has credentials."""
    wanted: dict[str, Any] = {
        "clusterRef": {"name": "c"},
        "authentication": {"type": "scram-sha-512"},
        **fields,
    }
    body = resource("User", "u", deleted=True, **wanted)
    body["metadata"]["finalizers"] = [FINALIZER]
    return body | {"status": {"username": "u", "mechanisms": ["SCRAM-SHA-512"]}}


@pytest.mark.parametrize("paused", [False, True])
def test_deleted_user_goes_without_zookeeper_once_what_it_has_there_may_stay(paused: bool) -> None:
    away = cluster(zookeeper={"connect": "away:1"}, paused=paused)
    kube = run([leaving_user()], [away], existing_topic())
    found = kube.get("", "User", "n", "u")
    assert found is not None
    told = condition_of(found["status"], "Ready")
    assert told is not None
    assert told["reason"] == "ZooKeeperUnreachable"
    assert told["message"].endswith("set spec.deletionPolicy to Retain")
    assert (found["metadata"]["finalizers"], kube.told) == ([FINALIZER], [])
    zookeeper = existing_topic()
    for place in (away, cluster(paused=paused)):
        kube = run([leaving_user(deletionPolicy="Retain")], [place], zookeeper)
        found = kube.get("", "User", "n", "u")
        assert found is not None
        assert found["metadata"]["finalizers"] == []
        assert [one.reason for one in kube.told] == ["UserRetained"]
    assert zookeeper.committed == []


def test_user_that_is_made_anew_waits_for_the_secret_of_the_former_one() -> None:
    wanted: dict[str, Any] = {
        "clusterRef": {"name": "c"},
        "authentication": {"type": "scram-sha-512"},
    }
    user = resource("User", "u", **wanted)
    user["metadata"]["finalizers"] = [FINALIZER]
    former = {"apiVersion": API_VERSION, "kind": "User", "name": "u", "uid": "former"}
    for owner, why in (
        (former, "SecretTerminating"),
        ({**former, "name": "other"}, "SecretInUse"),
        ({**former, "apiVersion": "user.openshift.io/v1"}, "SecretInUse"),
    ):
        meta = {"name": "u", "namespace": "n", "ownerReferences": [owner]}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": meta}
        kube = run([user], [cluster(), secret], existing_topic())
        assert reason(kube, "User", "u") == why
        assert kube.get("v1", "Secret", "n", "u") == secret


def test_topics_whose_names_metrics_cannot_tell_apart_are_not_both_created() -> None:
    wanted: dict[str, Any] = {"clusterRef": {"name": "c"}, "partitions": 1, "replicationFactor": 1}
    older = resource("Topic", "older", age=9, topicName="a.b", **wanted)
    younger = resource("Topic", "younger", topicName="a_b", **wanted)
    zookeeper = existing_topic()
    kube = run([younger, older], [cluster()], zookeeper)
    assert reason(kube, "Topic", "older") == "Creating"
    assert zookeeper.created() == [znodes.topic_config_path("a.b"), znodes.topic_path("a.b")]
    # The younger waits, and says for what.
    found = kube.get(API_VERSION, "Topic", "n", "younger")
    assert found is not None
    told = condition_of(found["status"], "Ready")
    assert told is not None
    assert (told["reason"], told["message"]) == (
        "Creating",
        "an older Topic may create a.b, which has the same name in metrics",
    )
    assert found["status"].get("incarnation") is None
    # In the next pass the other exists.
    taken = existing_topic()
    assignment = znodes.TopicAssignment({0: (BrokerId(0),)})
    taken.put(znodes.topic_path("a.b"), znodes.encode_topic(assignment))
    kube = run([younger], [cluster(), older], taken)
    assert (reason(kube, "Topic", "younger"), taken.committed) == ("TopicCollision", [])
    # Nor does the older one hold up the end of the younger.
    wanted["deletionPolicy"] = "Delete"
    going = resource("Topic", "younger", topicName="a_b", deleted=True, **wanted)
    kube = run([going, older], [cluster(brokers={"replicas": 2})], existing_topic())
    assert reason(kube, "Topic", "older") == "WaitingForBrokers"
    left = kube.get(API_VERSION, "Topic", "n", "younger")
    assert left is not None
    assert left["metadata"]["finalizers"] == []


@pytest.mark.parametrize("phase", ["", "Pending", "Planned", "AwaitingApproval"])
def test_reassignment_that_is_deleted_before_it_has_begun_ends(phase: str) -> None:
    wanted: dict[str, Any] = {"clusterRef": {"name": "c"}, "mode": "AddBrokers", "brokers": [1]}
    going = resource("Reassignment", "r", deleted=True, approval="Manual", **wanted)
    going["metadata"]["finalizers"] = [FINALIZER]
    going["status"] = {"phase": phase} if phase else {}
    zookeeper = existing_topic()
    kube = run([going], [cluster()], zookeeper)
    left = kube.get("odradek.io/v1alpha1", "Reassignment", "n", "r")
    assert left is not None
    assert (left["metadata"]["finalizers"], zookeeper.committed) == ([], [])


@pytest.mark.parametrize("phase", ["Completed", "Failed", "RolledBack", "Cancelled"])
def test_reassignment_of_a_topic_that_did_not_complete_stays_with_the_topic(phase: str) -> None:
    move = resource("Reassignment", "r", clusterRef={"name": "c"}, mode="X", topics=["t"])
    move["spec"]["ttlSecondsAfterFinished"] = reassign.LIFETIME_SECONDS
    move["status"] = {"phase": phase, "finishedAt": "2020-01-01T00:00:00Z"}
    owner = {"apiVersion": API_VERSION, "kind": "Topic", "name": "t", "uid": "Topic-n-t"}
    for is_owned in (False, True):
        move["metadata"]["ownerReferences"] = [owner] if is_owned else []
        kube = run([move], [cluster()], existing_topic())
        stays = is_owned and phase != "Completed"
        assert kube.names("Reassignment") == (["r"] if stays else [])


def test_broker_is_not_called_empty_while_others_move_replicas_to_it() -> None:
    move = resource(
        "Reassignment", "r", clusterRef={"name": "c"}, mode="RemoveBrokers", brokers=[7]
    )
    zookeeper = existing_topic()
    first, seventh = BrokerId(0), BrokerId(7)
    moving = znodes.TopicAssignment({0: (seventh, first)}, {0: (seventh,)}, {0: (first,)})
    zookeeper.put(znodes.topic_path("t"), znodes.encode_topic(moving))
    # Nor is it taken for one that has gone while its session is lost.
    kube = run([move], [cluster()], zookeeper)
    assert reason(kube, "Reassignment", "r") == "Blocked"
    found = kube.get("", "Reassignment", "n", "r")
    assert found is not None
    assert found["status"]["phase"] == "Pending"
    blocked = condition_of(found["status"], "Blocked")
    assert blocked is not None
    assert blocked["message"] == "another reassignment moves t-0 to brokers [7]"
    assert reason(run([move], [cluster()], existing_topic()), "Reassignment", "r") == "Completed"


def test_sessions_of_clusters_that_moved_or_went_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    class Session:
        away_seconds = 0.0

        def __init__(self, connect: str, *_: object) -> None:
            self._connect = connect
            metrics.SESSION_AGE.labels(connect=connect).set(0)

        away_since = None

        def require(self) -> None:
            pass

        def close(self) -> None:
            ended.append(self._connect)

    monkeypatch.setattr(zookeeper, "ZooKeeper", Session)
    pool = zookeeper.Pool(lambda: None)
    first = pool.get("zk:2181")
    pool.get("zk:2181/moved")
    pool.keep(lambda: {"zk:2181", "zk:2181/unused"})
    assert ended == ["zk:2181/moved"]
    assert pool.get("zk:2181") is first


def test_only_what_a_stored_cluster_names_is_kept_after_a_pass() -> None:
    body, store, pool = cluster(), ResourceStore(), MemoryPool()
    store.put(body)
    reconciler = Reconciler(context(MemoryKube(body), pool), store)
    reconciler.reconcile("n", ClusterKey("n", "c"), {key_of(body): body})
    assert pool.kept == {"zk:2181"}
    store.drop(body)
    reconciler.reconcile("n", ClusterKey("n", "c"), {})
    assert pool.kept == set()


def test_session_of_a_cluster_that_is_gone_ends_with_the_pass_of_what_it_left() -> None:
    # A cluster's end wakes all that is not ready, and both may come in one batch.
    topic, store, pool = (
        resource("Topic", "t", clusterRef={"name": "c"}),
        ResourceStore(),
        MemoryPool(),
    )
    store.put(topic)
    pool.kept = {"zk:2181"}
    Reconciler(context(MemoryKube(topic), pool), store).reconcile(
        "n", ClusterKey("n", "c"), {key_of(topic): topic}
    )
    assert pool.kept == set()


def test_cluster_that_a_topic_read_first_is_still_news_when_its_event_comes() -> None:
    body = cluster()
    topic = resource("Topic", "t", clusterRef={"name": "c"}, partitions=1, replicationFactor=1)
    kube, store = MemoryKube(body, topic), ResourceStore()
    store.put(topic)
    effects = context(kube, MemoryPool({"zk:2181": existing_topic()}), forget=store.drop)
    Reconciler(effects, store).reconcile("n", ClusterKey("n", "c"), {key_of(topic): topic})
    assert store.put(body)


def test_objects_of_others_with_names_of_owned_ones_are_left_alone() -> None:
    def of_others(kind: str, name: str, **labels: str) -> dict[str, Any]:
        about = {"name": name, "namespace": "n", "uid": "theirs", "labels": labels}
        return {"apiVersion": "v1", "kind": kind, "metadata": about, "data": {"their": "own"}}

    theirs = of_others("ConfigMap", "c-broker")
    kube = run([cluster()], [theirs], existing_topic())
    assert reason(kube, "KafkaCluster", "c") == "ApplyRejected"
    told = condition_of(status_of(kube), "Ready")
    assert told is not None
    assert told["message"] == (
        "ConfigMap c-broker exists and is not of KafkaCluster c: delete or rename it"
    )
    assert kube.get("v1", "ConfigMap", "n", "c-broker") == theirs
    assert kube.get("apps/v1", "StatefulSet", "n", "c-broker") is None

    task = {"sink": {"console": {}}, "volume": {"size": "1Gi"}}
    group = resource("ConsumerGroup", "g", clusterRef={"name": "c"}, topics=["t"], job=task)
    kube = run([group], [cluster(), of_others("ConfigMap", "g-job")], group_with_offsets())
    assert reason(kube, "ConsumerGroup", "g") == "DriverRejected"
    assert kube.names("Pod") == []
    # What the operator made, and has lost its owner, goes on.
    left = of_others("ConfigMap", "g-job", **{"app.kubernetes.io/managed-by": "odradek-operator"})
    kube = run([group], [cluster(), left], group_with_offsets())
    assert reason(kube, "ConsumerGroup", "g") == "Pending"
    assert kube.names("Pod") == ["g-driver"]


@pytest.mark.parametrize(
    ("connect", "from_elsewhere"),
    [
        ("zk:2181/a", "zk.n.svc:2181/a"),
        ("a:1,b.n:2,10.0.0.1:3", "a.n.svc:1,b.n:2,10.0.0.1:3"),
        ("localhost:2181", "localhost:2181"),
    ],
)
def test_services_of_a_namespace_are_named_in_full_elsewhere(
    connect: str, from_elsewhere: str
) -> None:
    assert qualified(connect, "n") == from_elsewhere


def test_each_topic_looks_only_at_its_own_reassignments(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    def counted(uid: str, one: dict[str, Any]) -> bool:
        nonlocal asked
        asked += 1
        return belongs_to(uid, one)

    monkeypatch.setattr(reassign, "belongs_to", counted)
    topics = [resource("Topic", f"t{number}", clusterRef={"name": "c"}) for number in range(8)]
    moves = []
    for one in topics:
        move = resource("Reassignment", one["metadata"]["name"], clusterRef={"name": "c"})
        owner = {"kind": "Topic", "name": move["metadata"]["name"], "uid": one["metadata"]["uid"]}
        move["metadata"]["ownerReferences"] = [owner]
        moves.append(move)
    run(topics, [cluster(), *moves], existing_topic())
    assert asked == len(topics)


def test_each_resource_that_is_done_is_progress_of_its_batch() -> None:
    ref = {"name": "c"}
    batch = [
        cluster(),
        resource("User", "u", clusterRef=ref, authentication={"type": "tls"}),
        *(resource("Topic", f"t{number}", clusterRef=ref) for number in range(WRITERS + 1)),
        resource("ConsumerGroup", "g", clusterRef=ref, topics=["t"]),
        resource("Reassignment", "r", clusterRef=ref, mode="AddBrokers", brokers=[7]),
    ]
    store, done = ResourceStore(), list[None]()
    for body in batch:
        store.put(body)
    effects = context(MemoryKube(*batch), MemoryPool({"zk:2181": existing_topic()}))
    bodies = {key_of(body): body for body in batch}
    Reconciler(effects, store).reconcile(
        "n", ClusterKey("n", "c"), bodies, lambda: done.append(None)
    )
    assert len(done) == len(batch)


def test_who_waits_for_a_reassignment_that_is_known_to_run_lists_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting, other = (resource("Reassignment", one, clusterRef={"name": "c"}) for one in "wo")
    running = other | {"status": {"phase": "Running"}}
    kube, store = MemoryKube(waiting, running), ResourceStore()
    for one in (waiting, running):
        store.put(one)
    listed, select = 0, kube.select

    def counted(*arguments: str) -> list[dict[str, Any]]:
        nonlocal listed
        listed += 1
        return select(*arguments)

    monkeypatch.setattr(kube, "select", counted)
    done = Reconciler(context(kube, MemoryPool({})), store)
    assert (done._running(waiting), listed) == ("o", 0)
    # What is known may be out of date.
    kube.create(other | {"status": {"phase": "Completed"}})
    assert (done._running(waiting), listed) == (None, 1)
    late = resource("Reassignment", "late", clusterRef={"name": "c"})
    kube.create(late | {"status": {"phase": "Running"}})
    assert (done._running(waiting), listed) == ("late", 2)


class CountedReads(MemoryZooKeeper):
    """Counts the znodes that its cache does not answer."""

    def __init__(self, topics: int) -> None:
        nodes = existing_topic()._nodes
        topic = nodes[znodes.topic_path("t")]
        nodes |= {znodes.topic_path(f"t{number}"): topic for number in range(topics)}
        super().__init__(nodes)
        self.asked = 0

    @property
    def cached(self) -> MemoryZooKeeper:
        return MemoryZooKeeper(self._nodes)

    def read(self, paths: Iterable[str]) -> dict[str, Znode | None]:
        wanted = list(paths)
        self.asked += len(wanted)
        return super().read(wanted)


def test_reassignment_that_waits_does_not_read_all_topics_again() -> None:
    asked = []
    for topics in (1, 50):
        zookeeper = CountedReads(topics)
        move = resource(
            "Reassignment", "r", clusterRef={"name": "c"}, mode="AddBrokers", brokers=[7]
        )
        kube = run([move], [cluster()], zookeeper)
        assert reason(kube, "Reassignment", "r") == "BrokerUnavailable"
        asked.append(zookeeper.asked)
    assert asked[0] == asked[1]


class LateCache(MemoryZooKeeper):
    """Has a cache that was told of no topic yet."""

    @property
    def cached(self) -> MemoryZooKeeper:
        return MemoryZooKeeper({})


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ({"mode": "PreferredLeader", "topics": ["t"]}, "Completed"),
        ({"mode": "RemoveBrokers", "brokers": [0]}, "NotEnoughBrokers"),
    ],
)
def test_reassignment_is_judged_by_zookeeper_not_by_a_late_cache(
    wanted: dict[str, Any], why: str
) -> None:
    move = resource("Reassignment", "r", clusterRef={"name": "c"}, **wanted)
    kube = run([move], [cluster()], LateCache(existing_topic()._nodes))
    assert reason(kube, "Reassignment", "r") == why


def test_topic_whose_finalizer_the_api_server_rejects_says_so() -> None:
    class Webhook(MemoryKube):
        def set_finalizers(self, body: Mapping[str, Any], finalizers: list[str]) -> dict[str, Any]:
            raise KubeError(500, 'failed calling webhook "a.b": no endpoints')

    topic = resource("Topic", "t", clusterRef={"name": "c"}, deletionPolicy="Delete")
    topic["metadata"]["finalizers"] = []
    kube, store, zookeeper = Webhook(topic, cluster()), ResourceStore(), existing_topic()
    for one in (topic, cluster()):
        store.put(one)
    effects = context(kube, MemoryPool({"zk:2181": zookeeper}))
    done = Reconciler(effects, store).reconcile("n", ClusterKey("n", "c"), {key_of(topic): topic})
    assert not isinstance(done[key_of(topic)], Exception)
    assert reason(kube, "Topic", "t") == "ApplyRejected"
    # Nothing is done before it is there.
    assert zookeeper.committed == []


def test_topic_whose_reassignment_has_the_name_of_another_says_so() -> None:
    class Unique(MemoryKube):
        def create(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
            kind, name = wanted["kind"], wanted["metadata"]["name"]
            if kind == "Reassignment" and name in self.names(kind):
                raise KubeError(409, f"{name} already exists")
            return super().create(wanted)

    topic = resource("Topic", "t", clusterRef={"name": "c"}, replicationFactor=2)
    topic["status"] = {"incarnation": 77}
    larger = cluster(brokers={"replicas": 2})
    (name,) = run([topic], [larger], existing_topic()).names("Reassignment")
    # Made by an operator, too, for a Topic that went without it.
    theirs = resource("Reassignment", name, clusterRef={"name": "c"})
    theirs["metadata"]["labels"] = {"app.kubernetes.io/managed-by": "odradek-operator"}
    kube, store = Unique(topic, larger, theirs), ResourceStore()
    for one in (topic, larger, theirs):
        store.put(one)
    effects = context(kube, MemoryPool({"zk:2181": existing_topic()}))
    done = Reconciler(effects, store).reconcile("n", ClusterKey("n", "c"), {key_of(topic): topic})
    assert done == {key_of(topic): REFUSED_SECONDS}
    found = kube.get(API_VERSION, "Topic", "n", "t")
    assert found is not None
    told = condition_of(found["status"], "Stalled")
    assert told is not None
    assert (told["status"], told["reason"]) == ("True", "ApplyRejected")
    assert told["message"] == (
        f"Reassignment {name} exists and is not of Topic t: delete or rename it"
    )
    assert kube.get(API_VERSION, "Reassignment", "n", name) == theirs
