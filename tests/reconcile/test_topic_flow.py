"""Topics through the real operator process, the real API server and the real ZooKeeper."""

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
    eventually(lambda: place.client.exists(request), "a deletion request", 30, 0.2)
    assert place.kubectl.get("topic", "views")["metadata"]["finalizers"] == ["odradek.io/finalizer"]
    place.finish_deletion("page_views")
    place.kubectl("wait", "--for=delete", "topic/views", "--timeout=30s")
    assert place.events("TopicDeleted")
