"""Reassignments through the real operator process, the real API server and the real ZooKeeper.

The test does the controller's part where it must stand still to be looked at.
"""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from odradek.values import BrokerId, TopicPartition
from odradek.zk import znodes
from odradek_operator.reassignment import throttle
from tests.reconcile.conftest import Operator, Place
from tests.support.kubectl import eventually


def reassignment(name: str, mode: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "odradek.io/v1alpha1",
        "kind": "Reassignment",
        "metadata": {"name": name},
        "spec": {"clusterRef": {"name": "main"}, "mode": mode, **spec},
    }


def move(topic: str, partition: int, *replicas: int) -> dict[str, Any]:
    return {"topic": topic, "partition": partition, "replicas": list(replicas)}


def wait_for_request(place: Place) -> dict[TopicPartition, tuple[int, ...]]:
    return eventually(place.requested, "a request to the controller", pause_s=0.1)


def config(place: Place, kind: str, name: str) -> dict[str, str]:
    path = znodes.config_path(kind, name)
    return znodes.decode_config(path, place.client.get(path)[0])


def is_requested(place: Place, wanted: Mapping[TopicPartition, tuple[int, ...]]) -> bool:
    return place.requested() == wanted


def is_throttled(place: Place) -> bool:
    return bool(place.kubectl.condition("reassignment", "r", "ThrottleApplied")["status"] == "True")


def test_approved_plan_runs_in_throttled_batches_and_leaves_no_throttle(
    place: Place, operator: Operator
) -> None:
    place.create_cluster()
    place.make("t", (0, 1), (1, 2))
    theirs = {throttle.RATES[1]: "77"}
    place.client.create(znodes.broker_config_path("2"), znodes.encode_config(theirs), makepath=True)
    wanted = reassignment(
        "r",
        "Explicit",
        moves=[move("t", 0, 2, 1), move("t", 1, 0, 2)],
        approval="Manual",
        throttleBytesPerSec=5000,
        maxConcurrentPartitions=1,
    )
    place.kubectl.apply(wanted)
    asked = place.wait_for("reassignment", "r", "AwaitingApproval")
    status = place.kubectl.get("reassignment", "r")["status"]
    assert status["planHash"] in asked["message"]
    plan = place.kubectl.get("configmap", status["planRef"]["name"])["data"]
    assert json.loads(plan[status["planRef"]["key"]])["partitions"] == wanted["spec"]["moves"]
    before = json.loads(plan[status["rollbackRef"]["key"]])["partitions"]
    assert before == [move("t", 0, 0, 1), move("t", 1, 1, 2)]
    assert place.requested() == {}

    wanted["spec"]["approvedPlanHash"] = status["planHash"]
    place.kubectl.apply(wanted)
    assert wait_for_request(place) == {TopicPartition("t", 0): (2, 1)}
    assert config(place, "topics", "t")[throttle.FOLLOWERS] == "0:2,1:0"
    assert {config(place, "brokers", one)[throttle.RATES[0]] for one in "012"} == {"5000"}
    eventually(partial(is_throttled, place), "the throttle in the status", pause_s=0.1)
    # Somebody removes what the operator has set.
    place.client.set(znodes.broker_config_path("1"), znodes.encode_config({}))
    eventually(lambda: place.events("ThrottleRestored"), "an Event", pause_s=0.2)
    # The status is True until the removal is found out, also for a moment after the Event.
    eventually(
        lambda: config(place, "brokers", "1").get(throttle.RATES[0]) == "5000",
        "the throttle again",
        pause_s=0.1,
    )
    eventually(partial(is_throttled, place), "the throttle in the status again", pause_s=0.1)

    # The operator dies in the middle, and the rate changes while it is away.
    operator.kill()
    place.finish_moves()
    wanted["spec"]["throttleBytesPerSec"] = 9000
    place.kubectl.apply(wanted)
    operator.start()
    assert wait_for_request(place) == {TopicPartition("t", 1): (0, 2)}
    assert config(place, "brokers", "1")[throttle.RATES[0]] == "9000"
    place.finish_moves()
    place.wait_for("reassignment", "r", "Completed")
    status = place.kubectl.get("reassignment", "r")["status"]
    assert status["partitions"] == {"total": 2, "done": 2, "failed": 0}
    assert (status["percent"], place.read("t").partitions) == (100, {0: (2, 1), 1: (0, 2)})
    phases = [one["phase"] for one in status["history"]]
    assert phases == ["AwaitingApproval", "Running", "Completed"]
    assert config(place, "topics", "t") == {}
    assert [config(place, "brokers", one) for one in "012"] == [{}, {}, theirs]
    # It is let go once its status says that it has ended.
    eventually(
        lambda: not place.kubectl.get("reassignment", "r")["metadata"].get("finalizers"),
        "no finalizer",
        pause_s=0.2,
    )


def test_approval_holds_for_a_topic_made_anew_with_the_same_replicas(
    place: Place, operator: Operator
) -> None:
    place.create_cluster()
    place.make("t", (0, 1))
    moves = [move("t", 0, 2, 1)]
    wanted = reassignment("r", "Explicit", moves=moves, approval="Manual")
    place.kubectl.apply(wanted)
    place.wait_for("reassignment", "r", "AwaitingApproval")
    status = place.kubectl.get("reassignment", "r")["status"]
    place.client.delete(znodes.topic_path("t"), recursive=True)
    place.client.delete(znodes.topic_config_path("t"))
    place.make("t", (0, 1))

    wanted["spec"]["approvedPlanHash"] = status["planHash"]
    place.kubectl.apply(wanted)
    assert wait_for_request(place) == {TopicPartition("t", 0): (2, 1)}
    place.finish_moves()
    place.wait_for("reassignment", "r", "Completed")
    assert place.kubectl.get("reassignment", "r")["status"]["planRef"] != status["planRef"]


def test_foreign_request_is_waited_for_and_cancel_takes_everything_back(
    place: Place, operator: Operator
) -> None:
    place.create_cluster()
    place.make("t", (0,), (1,))
    place.make("other", (0,))
    theirs = {TopicPartition("other", 0): (2,)}
    place.client.create(znodes.REASSIGN_PARTITIONS_PATH, znodes.encode_reassignment(theirs))
    moves = [move("t", 0, 1), move("t", 1, 2)]
    wanted = reassignment("r", "Explicit", moves=moves, maxConcurrentPartitions=1)
    place.kubectl.apply(wanted)
    place.wait_for("reassignment", "r", "Blocked")
    assert place.requested() == theirs
    place.finish_moves()
    mine = {TopicPartition("t", 0): (1,)}
    eventually(lambda: place.requested() == mine, "the first batch", pause_s=0.1)
    place.finish_moves()
    second = {TopicPartition("t", 1): (2,)}
    eventually(lambda: place.requested() == second, "the second batch", pause_s=0.1)

    place.kubectl.apply({**wanted, "spec": {**wanted["spec"], "cancel": True}})
    place.wait_for("reassignment", "r", "RollingBack")
    # What this controller cannot stop ends, and then goes back like the rest.
    place.finish_moves()
    for back in ({TopicPartition("t", 0): (0,)}, {TopicPartition("t", 1): (1,)}):
        eventually(partial(is_requested, place, back), "the way back", pause_s=0.1)
        place.finish_moves()
    place.wait_for("reassignment", "r", "Cancelled")
    assert place.read("t").partitions == {0: (0,), 1: (1,)}


def test_modes_plan_from_what_is_there_and_finished_ones_go_when_their_time_is_over(
    place: Place, operator: Operator
) -> None:
    place.create_cluster()
    place.make("t", (0, 1), (1, 0))
    place.kubectl.apply(
        reassignment("wider", "ReplicationFactor", replicationFactor=3, topics=["t"])
    )
    wait_for_request(place)
    place.finish_moves()
    place.wait_for("reassignment", "wider", "Completed")
    assert all(len(one) == 3 for one in place.read("t").partitions.values())
    place.kubectl.apply(
        reassignment("nothing", "AddBrokers", brokers=[2], ttlSecondsAfterFinished=1),
        reassignment("absent", "AddBrokers", brokers=[7]),
        reassignment("narrow", "RemoveBrokers", brokers=[1]),
        reassignment("unknown", "PreferredLeader", topics=["no-such-topic"]),
        reassignment("typo", "RemoveBrokers", brokers=[1, 7]),
        reassignment("gone", "RemoveBrokers", brokers=[7]),
    )
    typo = place.wait_for("reassignment", "typo", "UnknownBroker")
    assert typo["message"].startswith("brokers [7] are none of [0, 1, 2]")
    # Applied again after they went, as GitOps does, it asks for what is so already.
    gone = place.wait_for("reassignment", "gone", "Completed")
    assert gone["message"].endswith("they have gone, or never were; look at the ids")
    warning = place.kubectl.condition("reassignment", "gone", "ConfigWarning")
    assert (warning["status"], warning["reason"]) == ("True", "UnknownBroker")
    # A ConfigMap is named after it, and where the name is cut there is a dot.
    long, fewer = f"{'a' * 199}.{'b' * 53}", {"replicationFactor": 2, "approval": "Manual"}
    place.kubectl.apply(reassignment(long, "ReplicationFactor", **fewer))
    place.wait_for("reassignment", long, "AwaitingApproval")
    place.wait_for("reassignment", "absent", "BrokerUnavailable")
    place.wait_for("reassignment", "narrow", "NotEnoughBrokers")
    place.wait_for("reassignment", "unknown", "UnknownTopic")
    place.kubectl("wait", "--for=delete", "reassignment/nothing", "--timeout=120s")
    assert place.requested() == {}


def test_topic_changes_its_replicas_by_itself_and_brokers_go_only_when_empty(
    place: Place, operator: Operator
) -> None:
    place.create_cluster(config={"default.replication.factor": "3"})
    place.make("t", (0, 1), (1, 2))
    place.kubectl.apply(place.topic("t", partitions=2, replicationFactor=2))
    place.wait_for("topic", "t", "Synced")
    place.kubectl.apply(place.topic("t", partitions=2, replicationFactor=3))
    wait_for_request(place)
    place.wait_for("topic", "t", "Reassigning")
    (made,) = place.kubectl.get("reassignment")["items"]
    assert made["metadata"]["ownerReferences"][0]["kind"] == "Topic"
    reference = place.kubectl.get("topic", "t")["status"]["reassignmentRef"]
    assert reference == {"name": made["metadata"]["name"]}
    place.finish_moves()
    place.wait_for("topic", "t", "Synced")
    assert all(len(one) == 3 for one in place.read("t").partitions.values())
    place.kubectl.apply(place.topic("t", partitions=2, replicationFactor=1))
    wait_for_request(place)
    place.finish_moves()
    place.wait_for("topic", "t", "Synced")

    place.kubectl.apply(
        reassignment("onto-2", "Explicit", moves=[move("t", 0, 2), move("t", 1, 0)])
    )
    eventually(lambda: TopicPartition("t", 0) in place.requested(), "the move", pause_s=0.1)
    place.finish_moves()
    place.wait_for("reassignment", "onto-2", "Completed")
    place.kubectl("scale", "kafkacluster", "main", "--replicas=2")
    refused = place.wait_for("kafkacluster", "main", "ScaleDownBlocked")
    assert "RemoveBrokers" in refused["message"]
    assert "set default.replication.factor to 2 or less" in refused["message"]
    proposed = place.kubectl.get("kafkacluster", "main")["status"]["proposedReassignment"]
    assert place.kubectl.get("statefulset", "main-broker")["spec"]["replicas"] == 3
    place.kubectl.apply(reassignment("empty", proposed["mode"], brokers=proposed["brokers"]))
    moved = wait_for_request(place)
    assert set(moved) == {TopicPartition("t", 0)}
    place.finish_moves()
    place.wait_for("reassignment", "empty", "Completed")
    # The brokers could go now, and the defaults for new topics could not be kept.
    refused = place.wait_for("kafkacluster", "main", "InvalidConfig")
    assert place.kubectl.get("statefulset", "main-broker")["spec"]["replicas"] == 3
    fitting = {"spec": {"brokers": {"config": {"default.replication.factor": "2"}}}}
    patch = json.dumps(fitting)
    place.kubectl("patch", "kafkacluster", "main", "--type=merge", "--patch", patch)

    def smaller() -> bool:
        return bool(place.kubectl.get("statefulset", "main-broker")["spec"]["replicas"] == 2)

    eventually(smaller, "two brokers", pause_s=0.5)
    assert "proposedReassignment" not in place.kubectl.get("kafkacluster", "main")["status"]


def test_preferred_leaders_are_asked_for_and_a_deleted_resource_leaves_nothing_behind(
    place: Place, operator: Operator
) -> None:
    place.create_cluster()
    place.make("t", (0, 1))
    state_path = znodes.state_path("t", 0)
    state = znodes.decode_state(state_path, place.client.get(state_path)[0])
    led_by_other = znodes.PartitionState(
        BrokerId(1), state.leader_epoch, state.isr, state.controller_epoch
    )
    place.client.set(state_path, znodes.encode_state(led_by_other))
    place.kubectl.apply(reassignment("p", "PreferredLeader"))
    path = znodes.PREFERRED_ELECTION_PATH
    eventually(lambda: place.client.exists(path), "an election", pause_s=0.1)
    asked = znodes.decode_preferred_election(path, place.client.get(path)[0])
    assert asked == (TopicPartition("t", 0),)
    place.client.set(state_path, znodes.encode_state(state))
    place.client.delete(path)
    place.wait_for("reassignment", "p", "Completed")

    throttled = {"moves": [move("t", 0, 2, 1)], "throttleBytesPerSec": 5000}
    place.kubectl.apply(reassignment("gone", "Explicit", **throttled))
    wait_for_request(place)
    place.kubectl("delete", "reassignment", "gone", "--wait=false")
    place.finish_moves()
    place.kubectl("wait", "--for=delete", "reassignment/gone", "--timeout=120s")
    assert config(place, "topics", "t") == {}
    assert config(place, "brokers", "0") == {}
