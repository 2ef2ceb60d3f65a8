"""Topics through the real operator process, the real API server and the real ZooKeeper."""

from functools import partial

from kazoo.security import OPEN_ACL_UNSAFE, make_acl

from odradek.values import BrokerId
from odradek.zk import znodes
from tests.reconcile.conftest import Operator, Place
from tests.support.kubectl import eventually


def test_topic_is_created_becomes_ready_and_is_deleted_with_its_resource(
    place: Place, operator: Operator
) -> None:
    place.create_cluster()
    place.kubectl.apply(
        place.topic(
            "views",
            topicName="page_views",
            partitions=4,
            replicationFactor=3,
            config={"retention.ms": "1000000"},
            deletionPolicy="Delete",
        )
    )
    place.wait_for("topic", "views", "WaitingForLeaders")
    path = znodes.topic_path("page_views")
    assignment = znodes.decode_topic(path, place.client.get(path)[0])
    assert sorted(assignment.partitions) == [0, 1, 2, 3]
    assert znodes.is_topic_id(assignment.topic_id)
    assert all(sorted(one) == [0, 1, 2] for one in assignment.partitions.values())
    config_path = znodes.topic_config_path("page_views")
    config = znodes.decode_config(config_path, place.client.get(config_path)[0])
    assert config == {"retention.ms": "1000000"}

    place.elect("page_views")
    ready = place.wait_for("topic", "views", "Synced")
    assert ready["status"] == "True"
    status = place.kubectl.get("topic", "views")["status"]
    assert (status["partitions"], status["replicationFactor"]) == (4, 3)
    assert status["incarnation"] == place.client.exists(path).czxid

    place.kubectl("delete", "topic", "views", "--wait=false")
    request = znodes.delete_topic_path("page_views")
    eventually(lambda: place.client.exists(request), "a deletion request", pause_s=0.2)
    assert place.kubectl.get("topic", "views")["metadata"]["finalizers"] == ["odradek.io/finalizer"]
    place.finish_deletion("page_views")
    place.kubectl("wait", "--for=delete", "topic/views", "--timeout=120s")
    eventually(lambda: place.events("TopicDeleted"), "an Event", pause_s=0.2)


def read_topic(place: Place, topic: str) -> znodes.TopicAssignment:
    path = znodes.topic_path(topic)
    return znodes.decode_topic(path, place.client.get(path)[0])


def read_config(place: Place, topic: str) -> dict[str, str]:
    path = znodes.topic_config_path(topic)
    return znodes.decode_config(path, place.client.get(path)[0])


def make_topic(place: Place, topic: str, partitions: int, config: dict[str, str]) -> None:
    """Create a topic as somebody else would, leaders included."""
    assignment = {one: (BrokerId(0),) for one in range(partitions)}
    place.client.create(znodes.topic_config_path(topic), znodes.encode_config(config))
    place.client.create(
        znodes.topic_path(topic), znodes.encode_topic(znodes.TopicAssignment(assignment))
    )
    place.elect(topic)


def test_growth_and_configuration_changes_reach_the_znodes_with_a_notice(
    place: Place, operator: Operator
) -> None:
    place.create_cluster()
    first = {"retention.ms": "1000000", "segment.bytes": "1000000"}
    place.kubectl.apply(place.topic("t", partitions=2, replicationFactor=2, config=first))
    eventually(lambda: place.client.exists(znodes.topic_path("t")), "the topic", pause_s=0.2)
    place.elect("t")
    place.wait_for("topic", "t", "Synced")
    before = read_topic(place, "t").partitions
    second = {"retention.ms": "2000000"}
    place.kubectl.apply(place.topic("t", partitions=5, replicationFactor=2, config=second))
    place.wait_for("topic", "t", "WaitingForLeaders")
    place.elect("t")
    place.wait_for("topic", "t", "Synced")
    after = read_topic(place, "t").partitions
    assert sorted(after) == [0, 1, 2, 3, 4]
    assert {one: after[one] for one in before} == before
    assert read_config(place, "t") == second
    (notice,) = place.client.get_children(znodes.CONFIG_CHANGES_PATH)
    path = f"{znodes.CONFIG_CHANGES_PATH}/{notice}"
    change = znodes.decode_config_change(path, place.client.get(path)[0])
    assert change == znodes.ConfigChange("topics/t")


def test_impossible_topics_write_nothing_and_are_not_tried_again(
    place: Place, operator: Operator
) -> None:
    place.create_cluster(2)
    place.kubectl.apply(
        place.topic("much", partitions=1, replicationFactor=3),
        place.topic("odd", partitions=1, config={"retention.ms": "soon"}),
        place.topic("unheard", partitions=1, config={"no.such.key": "1"}),
        place.topic("nowhere", replicaAssignment={"0": [0, 7]}),
        place.topic("twice", replicaAssignment={"0": [1, 1]}),
    )
    place.wait_for("topic", "much", "InvalidReplicationFactor")
    place.wait_for("topic", "odd", "InvalidConfig")
    place.wait_for("topic", "unheard", "InvalidConfig")
    place.wait_for("topic", "nowhere", "InvalidReplicaAssignment")
    place.wait_for("topic", "twice", "InvalidReplicaAssignment")
    assert place.kubectl.condition("topic", "much", "Stalled")["status"] == "True"
    assert place.client.get_children(znodes.TOPICS_PATH) == []
    assert place.client.get_children("/config/topics") == []
    assert operator.metric("odradek_operator_reconcile_errors_total") == 0


def test_invalid_topic_goes_on_to_show_what_there_is(place: Place, operator: Operator) -> None:
    place.create_cluster(1)
    place.kubectl.apply(place.topic("views", topicName="page_views", partitions=2))
    eventually(lambda: place.client.exists(znodes.topic_path("page_views")), "t", pause_s=0.2)
    place.elect("page_views")
    place.wait_for("topic", "views", "Synced")
    before = place.kubectl.get("topic", "views")["status"]
    broken = {"retention.ms": "soon"}
    place.kubectl.apply(place.topic("views", topicName="page_views", partitions=2, config=broken))
    place.wait_for("topic", "views", "InvalidConfig")
    after = place.kubectl.get("topic", "views")["status"]
    shown = ("topicName", "partitions", "replicationFactor", "incarnation")
    assert [after.get(one) for one in shown] == [before[one] for one in shown]


def test_topic_that_takes_no_records_with_acks_all_is_ready_with_a_warning(
    place: Place, operator: Operator
) -> None:
    place.create_cluster(3, config={"min.insync.replicas": "2"})
    own = {"min.insync.replicas": "3"}
    fits = {"min.insync.replicas": "1"}
    place.kubectl.apply(
        place.topic("default", partitions=1, replicationFactor=1),
        place.topic("own", partitions=1, replicationFactor=2, config=own),
        place.topic("fits", partitions=1, replicationFactor=1, config=fits),
    )
    for topic in ("default", "own", "fits"):
        exists = partial(place.client.exists, znodes.topic_path(topic))
        eventually(exists, "the topic", pause_s=0.2)
        place.elect(topic)
        place.wait_for("topic", topic, "Synced")
    for topic, told in (("default", "2 is larger than the replication factor 1"), ("own", "3 is")):
        warning = place.kubectl.condition("topic", topic, "ConfigWarning")
        assert (warning["status"], warning["reason"]) == ("True", "MinInsyncReplicas")
        assert told in warning["message"]
    conditions = place.kubectl.get("topic", "fits")["status"]["conditions"]
    assert "ConfigWarning" not in {one["type"] for one in conditions}


def test_existing_topics_are_adopted_only_as_the_resource_allows(
    place: Place, operator: Operator
) -> None:
    place.create_cluster(1)
    for topic in ("same", "other", "forced", "never", "watched"):
        make_topic(place, topic, 2, {"retention.ms": "5"})
    place.kubectl.apply(
        place.topic("same", partitions=2, replicationFactor=1, config={"retention.ms": "7"}),
        place.topic("other", partitions=3, replicationFactor=1),
        place.topic("forced", partitions=3, replicationFactor=1, adoption="Force"),
        place.topic("never", partitions=2, adoption="Never"),
        place.topic("watched", partitions=4, management="Observe"),
    )
    place.wait_for("topic", "same", "Synced")
    assert read_config(place, "same") == {"retention.ms": "7"}
    place.wait_for("topic", "other", "AdoptionRefused")
    assert len(read_topic(place, "other").partitions) == 2
    place.wait_for("topic", "forced", "WaitingForLeaders")
    assert len(read_topic(place, "forced").partitions) == 3
    place.wait_for("topic", "never", "TopicExists")
    assert read_config(place, "never") == {"retention.ms": "5"}
    place.wait_for("topic", "watched", "Synced")
    drift = place.kubectl.get("topic", "watched")["status"]["drift"]
    assert [one["field"] for one in drift] == ["partitions", "config.retention.ms"]
    assert len(read_topic(place, "watched").partitions) == 2


def test_older_of_two_resources_has_the_topic_and_the_younger_takes_over_when_it_goes(
    place: Place, operator: Operator
) -> None:
    place.create_cluster(1)
    wanted = {"topicName": "shared", "partitions": 1, "replicationFactor": 1}
    place.kubectl.apply(place.topic("older", **wanted))
    eventually(lambda: place.client.exists(znodes.topic_path("shared")), "the topic", pause_s=0.2)
    place.elect("shared")
    place.wait_for("topic", "older", "Synced")
    # Creation times have a resolution of one second.
    older = place.kubectl.get("topic", "older")["metadata"]["creationTimestamp"]

    def later() -> bool:
        place.kubectl("delete", "topic", "younger", "--ignore-not-found")
        place.kubectl.apply(place.topic("younger", **wanted))
        younger = place.kubectl.get("topic", "younger")["metadata"]["creationTimestamp"]
        return bool(younger > older)

    eventually(later, "a younger resource", pause_s=0.5)
    refused = place.wait_for("topic", "younger", "ResourceConflict")
    assert "older" in refused["message"]
    place.kubectl("delete", "topic", "older")
    place.wait_for("topic", "younger", "Synced")
    assert place.client.exists(znodes.topic_path("shared"))
    eventually(lambda: place.events("TopicRetained"), "an Event", pause_s=0.2)


def test_topic_whose_resource_gets_another_name_keeps_its_data(
    place: Place, operator: Operator
) -> None:
    place.create_cluster(1)
    path, request = znodes.topic_path("shared"), znodes.delete_topic_path("shared")
    wanted = {"topicName": "shared", "partitions": 1, "replicationFactor": 1}
    place.kubectl.apply(place.topic("former", **wanted, deletionPolicy="Delete"))
    eventually(lambda: place.client.exists(path), "the topic", pause_s=0.2)
    place.elect("shared")
    place.wait_for("topic", "former", "Synced")
    made = place.client.exists(path).czxid
    # Who only observes neither owns the topic, nor is held up by who does, nor keeps it.
    place.kubectl.apply(place.topic("watched", **wanted, management="Observe"))
    place.wait_for("topic", "watched", "Synced")
    # As GitOps does it: what is new first, then what is not there any more.
    place.kubectl.apply(place.topic("renamed", **wanted, deletionPolicy="Delete"))
    place.kubectl("delete", "topic", "former", "--timeout=120s")
    told = eventually(lambda: place.events("TopicAbandoned"), "an Event", pause_s=0.2) or []
    (message,) = [one["message"] for one in told]
    assert message == "topic shared was not deleted: Topic renamed has the same topic"
    place.wait_for("topic", "renamed", "Synced")
    assert place.client.exists(request) is None
    assert place.client.exists(path).czxid == made
    place.kubectl("delete", "topic", "renamed", "--wait=false")
    eventually(lambda: place.client.exists(request), "a deletion request", pause_s=0.2)


def test_operator_killed_at_any_moment_ends_with_one_topic_and_no_finalizer_left(
    place: Place, operator: Operator
) -> None:
    place.create_cluster(1)
    names = [f"t{number}" for number in range(6)]
    extra = {"partitions": 1, "replicationFactor": 1, "deletionPolicy": "Delete"}
    place.kubectl.apply(*(place.topic(name, **extra, adoption="Never") for name in names))
    eventually(lambda: place.client.get_children(znodes.TOPICS_PATH), "a topic", pause_s=0.05)
    operator.kill()
    operator.start()
    for name in names:
        path = znodes.topic_path(name)
        eventually(partial(place.client.exists, path), "the topic", pause_s=0.2)
        place.elect(name)
    for name in names:
        place.wait_for("topic", name, "Synced")
    operator.kill()
    # Resources that are deleted while nobody looks are held by the finalizer.
    place.kubectl("delete", "topic", "--all", "--wait=false")
    operator.start()
    for name in names:
        path = znodes.delete_topic_path(name)
        eventually(partial(place.client.exists, path), "a request", pause_s=0.2)
        place.finish_deletion(name)
    place.kubectl("wait", "--for=delete", "topic", "--all", "--timeout=120s")


def test_topics_are_let_go_when_their_cluster_and_namespace_go(
    place: Place, operator: Operator
) -> None:
    place.create_cluster(1)
    place.kubectl.apply(
        place.topic("t", partitions=1, replicationFactor=1, deletionPolicy="Delete")
    )
    eventually(lambda: place.client.exists(znodes.topic_path("t")), "the topic", pause_s=0.2)
    place.elect("t")
    place.wait_for("topic", "t", "Synced")
    place.kubectl("delete", "kafkacluster", "main")
    place.kubectl("delete", "topic", "t", "--timeout=120s")
    eventually(lambda: place.events("TopicAbandoned"), "an Event", pause_s=0.2)
    assert place.client.exists(znodes.topic_path("t"))


def test_operator_that_goes_with_its_namespace_leaves_no_finalizer_there(
    place: Place, operator: Operator
) -> None:
    place.create_cluster(1)
    place.kubectl.apply(
        place.topic("t", partitions=1, replicationFactor=1, deletionPolicy="Delete")
    )
    eventually(lambda: place.client.exists(znodes.topic_path("t")), "the topic", pause_s=0.2)
    place.elect("t")
    place.wait_for("topic", "t", "Synced")
    assert operator.end() == 0
    kept = place.kubectl.get("topic", "t")["metadata"]
    assert kept["finalizers"] == ["odradek.io/finalizer"]
    operator.start()
    eventually(lambda: operator.page("/readyz") == 200, "the Lease", pause_s=0.2)
    # Its pods go first: what it looks after is not being deleted yet.
    place.kubectl("delete", "namespace", place.namespace, "--wait=false")
    assert operator.end() == 0
    left = place.kubectl.get("topic", "t")["metadata"]
    assert "deletionTimestamp" not in left
    assert "finalizers" not in left
    assert place.client.exists(znodes.topic_path("t"))


def test_topic_whose_znode_others_have_secured_says_so_until_it_is_open(
    place: Place, operator: Operator
) -> None:
    place.create_cluster()
    place.make("t", (0,))
    place.kubectl.apply(place.topic("t", partitions=1))
    place.wait_for("topic", "t", "Synced")
    path = znodes.topic_config_path("t")
    place.client.set_acls(path, [make_acl("world", "anyone", read=True, admin=True)])
    place.kubectl.apply(place.topic("t", partitions=1, config={"retention.ms": "5"}))
    refused = place.wait_for("topic", "t", "ZooKeeperRefuses")
    assert path in refused["message"]
    assert refused["status"] == "False"
    place.client.set_acls(path, OPEN_ACL_UNSAFE)
    place.wait_for("topic", "t", "Synced")
    assert znodes.decode_config(path, place.client.get(path)[0]) == {"retention.ms": "5"}
