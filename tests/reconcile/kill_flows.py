"""Flows of the operator: what a user asks for, and what the world does in answer.

A flow begins by creating something and returns `react`: the world outside, called between passes.
It does what controllers and brokers would do, asks for the next thing when the one before is there,
and says when all is over. What may be seen in between is asserted there.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from odradek.dynamic_config import CLUSTER_DEFAULT
from odradek.security.acls import (
    AclEntry,
    AclOperation,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from odradek.values import BrokerId, ControllerEpoch, LeaderEpoch, Principal, TopicPartition
from odradek.zk import consumers, znodes
from odradek_operator.reassignment import throttle
from odradek_operator.shared import user_znodes
from tests.reconcile import kills
from tests.reconcile.conftest import Place
from tests.reconcile.kills import API, Lives

React = Callable[[], bool]


class World(Place):
    """A namespace, its znodes, and the resources of one flow."""

    lives: Lives

    def __init__(self, *place: Any) -> None:
        super().__init__(*place)
        # What a flow saw on its way and must see whenever the operator died.
        self.seen: list[object] = []

    def register_all(self) -> None:
        """A cluster of three brokers that are registrations only."""
        place = {"connect": self.zookeeper, "chroot": f"/{self.namespace}"}
        body = self._body("KafkaCluster", "main", {})
        wanted = {"zookeeper": place, "brokers": {"replicas": 3}}
        self.lives.kube.create({**body, "spec": wanted})
        for path in znodes.PERSISTENT_PATHS:
            self.client.ensure_path(path)
        for broker_id in range(3):
            self.register(broker_id)

    def create(self, kind: str, name: str, **wanted: Any) -> None:
        self.lives.kube.create(self._body(kind, name, wanted))

    def _body(self, kind: str, name: str, wanted: dict[str, Any]) -> dict[str, Any]:
        return {
            "apiVersion": API,
            "kind": kind,
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"clusterRef": {"name": "main"}, **wanted},
        }

    def change(self, kind: str, name: str, **wanted: Any) -> None:
        self.lives.kube.apply(self._body(kind, name, wanted))

    def body(self, kind: str, name: str) -> dict[str, Any] | None:
        return self.lives.kube.get(API, kind, self.namespace, name)

    def reason(self, kind: str, name: str) -> str:
        body = self.body(kind, name)
        conditions = (body or {}).get("status", {}).get("conditions", ())
        return next((one["reason"] for one in conditions if one["type"] == "Ready"), "")

    def settled(self, kind: str, name: str, reason: str) -> bool:
        """Whether the present generation of a resource is Ready for this reason."""
        body = self.body(kind, name) or {"metadata": {"generation": 0}}
        current = body.get("status", {}).get("observedGeneration") == body["metadata"]["generation"]
        return current and self.reason(kind, name) == reason

    def config(self, path: str) -> dict[str, str]:
        if not self.client.exists(path):
            return {}
        return znodes.decode_config(path, self.client.get(path)[0])

    def snapshot(self) -> dict[str, Any]:
        """Everything that must be the same whenever the operator died."""
        topics = self.client.get_children(znodes.TOPICS_PATH)
        resources = {
            kind: sorted(kills.summary(body) for body in self.lives.listed(kind))
            for kind in ("Topic", "Reassignment", "ConsumerGroup")
        }
        plans = self.lives.kube.select("v1", "ConfigMap", self.namespace)
        return {
            **resources,
            "plans": sum("plan.json" in one.get("data", {}) for one in plans),
            "topics": {one: self.read(one).partitions for one in topics},
            "configs": {one: self.config(znodes.topic_config_path(one)) for one in topics},
            "brokers": [self.config(znodes.broker_config_path(str(one))) for one in range(3)],
            "asked": self.requested(),
            "seen": self.seen,
        }


def create_and_delete(world: World) -> React:
    """A topic is made, grows, is configured anew and goes with its data."""
    one = {"replicationFactor": 1, "deletionPolicy": "Delete", "adoption": "Never"}
    world.create("Topic", "t", partitions=1, config={"retention.ms": "5"}, **one)

    def react() -> bool:
        if world.client.exists(znodes.delete_topic_path("t")):
            world.finish_deletion("t")
            return False
        exists = world.client.exists(znodes.topic_path("t"))
        if exists:
            world.elect("t")
        if world.body("Topic", "t") is None:
            return True
        if exists and world.reason("Topic", "t") == "Synced":
            if len(world.read("t").partitions) == 1:
                world.change("Topic", "t", partitions=2, config={"retention.ms": "6"}, **one)
            else:
                body = world.body("Topic", "t")
                assert body is not None
                assert world.config(znodes.topic_config_path("t")) == {"retention.ms": "6"}
                world.lives.kube.delete(body)
        return False

    return react


MOVES = [
    {"topic": "t", "partition": 0, "replicas": [2, 1]},
    {"topic": "t", "partition": 1, "replicas": [0, 2]},
]
WANTED: dict[str, Any] = {
    "mode": "Explicit",
    "moves": MOVES,
    "throttleBytesPerSec": 5000,
    "maxConcurrentPartitions": 1,
}


def finished(world: World, name: str) -> bool:
    body = world.body("Reassignment", name)
    done = body is not None and body.get("status", {}).get("phase") in ("Completed", "Cancelled")
    return done and not (body or {})["metadata"].get("finalizers")


def move(world: World) -> React:
    """Two batches under a throttle."""
    world.make("t", (0, 1), (1, 2))
    world.create("Reassignment", "r", **WANTED)

    def react() -> bool:
        if world.requested():
            assert world.config(znodes.topic_config_path("t"))[throttle.FOLLOWERS]
            world.finish_moves()
        return finished(world, "r")

    return react


def move_and_cancel(world: World) -> React:
    """The first batch is done and the second asked for when everything shall go back."""
    world.make("t", (0, 1), (1, 2))
    world.create("Reassignment", "r", **WANTED)

    def react() -> bool:
        if world.requested():
            second = TopicPartition("t", 1) in world.requested()
            if second:
                world.change("Reassignment", "r", **WANTED, cancel=True)
            world.finish_moves()
        return finished(world, "r")

    return react


def move_and_delete(world: World) -> React:
    """The resource is deleted while its second batch is under way."""
    world.make("t", (0, 1), (1, 2))
    world.create("Reassignment", "r", **WANTED)

    def react() -> bool:
        body = world.body("Reassignment", "r")
        if body is None:
            return True
        if world.requested():
            if TopicPartition("t", 1) in world.requested():
                world.lives.kube.delete(body)
            world.finish_moves()
        return False

    return react


def widen(world: World) -> React:
    """A Topic asks for more replicas, and makes one Reassignment for it."""
    world.make("t", (0,), (1,))
    world.create("Topic", "t", partitions=2, replicationFactor=2, adoption="Force")
    world.create("Topic", "other", partitions=1, replicationFactor=1, adoption="Never")

    def react() -> bool:
        if world.client.exists(znodes.topic_path("other")):
            world.elect("other")
        if world.requested():
            world.finish_moves()
        made = [one["metadata"]["name"] for one in world.lives.listed("Reassignment")]
        synced = {world.reason("Topic", one) for one in ("t", "other")} == {"Synced"}
        return synced and bool(made) and all(finished(world, one) for one in made)

    return react


def adopt_and_leave(world: World) -> React:
    """A topic that exists is taken over, grows, is configured anew and outlives its resource."""
    world.make("t", (0,))
    one = {"replicationFactor": 1, "deletionPolicy": "Retain", "adoption": "Force"}
    world.create("Topic", "t", partitions=2, config={"retention.ms": "5"}, **one)

    def react() -> bool:
        world.elect("t")
        body = world.body("Topic", "t")
        if body is None:
            return True
        if world.settled("Topic", "t", "Synced"):
            config = world.config(znodes.topic_config_path("t"))
            assert len(world.read("t").partitions) == 2
            if config == {"retention.ms": "5"}:
                world.change("Topic", "t", partitions=2, config={"retention.ms": "6"}, **one)
            else:
                world.lives.kube.delete(body)
        return False

    return react


def land_in_a_table(world: World) -> React:
    """A topic lands in one table, then in another one, then in none."""
    world.make("t", (0,))
    one = {"partitions": 1, "replicationFactor": 1, "adoption": "Force"}

    def table(path: str) -> dict[str, Any]:
        return {"table": {"format": "delta", "path": path, "suspend": True}}

    # Applied as it is changed, so that what it had goes.
    world.change("Topic", "t", **one, **table("s3a://lake/a"))
    groups: list[str] = []

    def react() -> bool:
        found = world.body("ConsumerGroup", "t-table")
        told = (world.body("Topic", "t") or {}).get("status", {})
        if found is None:
            return len(groups) == 2 and "table" not in told
        assert len(world.lives.listed("ConsumerGroup")) == 1
        if found["spec"]["group"] in groups or _table_reason(told) != "Suspended":
            return False
        groups.append(found["spec"]["group"])
        world.change("Topic", "t", **one, **(table("s3a://lake/b") if len(groups) == 1 else {}))
        return False

    return react


def _table_reason(told: dict[str, Any]) -> str | None:
    conditions = told.get("conditions", ())
    return next((one["reason"] for one in conditions if one["type"] == "TableReady"), None)


def empty_a_broker(world: World) -> React:
    """A plan to remove a broker waits for its approval."""
    world.make("t", (2, 1), (1, 2), (0, 1))
    wanted = {"mode": "RemoveBrokers", "brokers": [2], "approval": "Manual"}
    world.create("Reassignment", "r", **wanted)

    def react() -> bool:
        body = world.body("Reassignment", "r") or {}
        waits = body.get("status", {}).get("phase") == "AwaitingApproval"
        if waits and "approvedPlanHash" not in body["spec"]:
            assert not world.requested()
            approved = body["status"]["planHash"]
            world.change("Reassignment", "r", **wanted, approvedPlanHash=approved)
        if world.requested():
            world.finish_moves()
        return finished(world, "r")

    return react


def add_a_broker(world: World) -> React:
    """A new broker gets its share."""
    world.make("t", (0, 1), (1, 0), (0, 1))
    world.create("Reassignment", "r", mode="AddBrokers", brokers=[2])

    def react() -> bool:
        if world.requested():
            world.finish_moves()
        return finished(world, "r")

    return react


def prefer(world: World) -> React:
    """Leadership goes back to the preferred replicas."""
    world.make("t", (0, 1), (1, 2))
    path = znodes.state_path("t", 0)
    follower = znodes.PartitionState(
        BrokerId(1),
        LeaderEpoch(1),
        world.read("t").partitions[0],
        ControllerEpoch(1),
    )
    world.client.set(path, znodes.encode_state(follower))
    world.create("Reassignment", "r", mode="PreferredLeader")

    def react() -> bool:
        asked = znodes.PREFERRED_ELECTION_PATH
        if world.client.exists(asked):
            world.client.delete(path)
            world.elect("t")
            world.client.delete(asked)
        return finished(world, "r")

    return react


def elect_controller(world: World) -> None:
    claim = znodes.encode_controller(znodes.ControllerClaim(BrokerId(0), 1))
    world.client.create(znodes.CONTROLLER_PATH, claim, ephemeral=True, makepath=True)


def change_brokers(world: World, spec: dict[str, Any], brokers: dict[str, Any]) -> None:
    """Apply the KafkaCluster with other brokers; what an earlier one had and this has not goes."""
    meta = {"name": "main", "namespace": world.namespace}
    changed = {"zookeeper": spec["zookeeper"], "brokers": brokers}
    world.lives.kube.apply(
        {"apiVersion": API, "kind": "KafkaCluster", "metadata": meta, "spec": changed}
    )


def grow_and_shrink(world: World) -> React:
    """A broker comes and goes again, and with it a setting that brokers take while they run."""
    elect_controller(world)
    spec = (world.body("KafkaCluster", "main") or {})["spec"]
    setting = {"config": {"log.retention.ms": "5"}}
    steps: list[dict[str, Any]] = [{"replicas": 4, **setting}, {"replicas": 3, **setting}, {}]

    def react() -> bool:
        for one in start_brokers(world):
            if one == 3:
                world.register(one)
        stop_broker_beyond(world)
        if not world.settled("KafkaCluster", "main", "BrokersReady"):
            return False
        done = len(world.seen)
        ids = sorted(world.client.get_children(znodes.BROKER_IDS_PATH))
        world.seen.append((ids, world.config(znodes.broker_config_path(CLUSTER_DEFAULT))))
        if done == len(steps):
            return True
        change_brokers(world, spec, {**spec["brokers"], **steps[done]})
        return False

    return react


def stop_broker_beyond(world: World) -> None:
    """Do what Kubernetes does with the pod that is one too many, and the broker that ends."""
    kube, namespace, name = world.lives.kube, world.namespace, "main-broker"
    found = kube.get("apps/v1", "StatefulSet", namespace, name)
    pod = kube.get("v1", "Pod", namespace, f"{name}-3")
    if found is not None and found["spec"]["replicas"] == 3 and pod is not None:
        kube.delete(pod)
        world.client.delete(znodes.broker_path(3))


def roll(world: World) -> React:
    """Brokers take a new configuration one by one, the controller last."""
    world.make("t", (0, 1), (1, 2))
    elect_controller(world)
    spec = (world.body("KafkaCluster", "main") or {})["spec"]
    brokers = {**spec["brokers"], "config": {"replica.fetch.backoff.ms": "999"}}

    def react() -> bool:
        started = start_brokers(world)
        assert len(started) <= 1 or len(started) == brokers["replicas"], started
        if not world.settled("KafkaCluster", "main", "BrokersReady"):
            world.seen += [one for one in started if world.seen]
            return False
        if world.seen:
            return True
        world.seen.append("changed")
        change_brokers(world, spec, brokers)
        return False

    return react


def start_brokers(world: World) -> list[int]:
    """Do what Kubernetes does for the StatefulSet; return the ids whose pods were missing."""
    kube, namespace, name = world.lives.kube, world.namespace, "main-broker"
    found = kube.get("apps/v1", "StatefulSet", namespace, name)
    if found is None:
        return []
    template = found["spec"]["template"]
    revision = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]
    count = found["spec"]["replicas"]
    status = {
        "replicas": count,
        "observedGeneration": found["metadata"]["generation"],
        "updateRevision": revision,
    }
    kube.apply_status(found, status)
    started = []
    for one in range(count):
        if kube.get("v1", "Pod", namespace, f"{name}-{one}") is None:
            labels = {**template["metadata"]["labels"], "controller-revision-hash": revision}
            run_pod(world, f"{name}-{one}", labels)
            started.append(one)
    return started


def run_pod(world: World, name: str, labels: dict[str, str]) -> None:
    """Make a pod that is ready at once."""
    container = {"name": "c", "image": "i"}
    made = world.lives.kube.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": world.namespace, "labels": labels},
            "spec": {"containers": [container]},
        }
    )
    make_ready(world, made)


def run_driver(world: World, drivers: set[str]) -> dict[str, Any] | None:
    """Make the driver of group g ready if it is not among `drivers`, the uids so far; return it."""
    pod = world.lives.kube.get("v1", "Pod", world.namespace, "g-driver")
    if pod is not None and pod["metadata"]["uid"] not in drivers:
        drivers.add(pod["metadata"]["uid"])
        make_ready(world, pod)
    return pod


def make_ready(world: World, pod: dict[str, Any]) -> None:
    """Do what a kubelet does with a pod whose containers run."""
    _report(world, pod, "Running", {"ready": True})


def finish(world: World, pod: dict[str, Any]) -> None:
    """Do what a kubelet does with a pod whose containers ended well."""
    ended = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    _report(world, pod, "Succeeded", {"ready": False, "state": ended})


def _report(world: World, pod: dict[str, Any], phase: str, container: dict[str, Any]) -> None:
    containers = [
        {
            "name": one["name"],
            "image": one["image"],
            "imageID": "",
            "restartCount": 0,
            **container,
        }
        for one in pod["spec"]["containers"]
    ]
    status = {
        "phase": phase,
        "conditions": [{"type": "Ready", "status": str(container["ready"])}],
        "containerStatuses": containers,
    }
    world.lives.kube.apply_status({"apiVersion": "v1", "kind": "Pod", **pod}, status)


# Reason of a job whose pod is ready, where no driver is in it that the operator could ask.
NO_DRIVER = "DriverUnreachable"


def run_a_job(world: World) -> React:
    """A job starts, changes, rests, starts again, is taken away, and its group goes."""
    world.client.create(consumers.offset_path("g", "t", 0), b"5", makepath=True)
    group = {"topics": ["t"], "deletionPolicy": "Delete"}
    job = {"sink": {"console": {}}, "trigger": "10s", "volume": {"size": "1Gi"}}
    changed = {**job, "trigger": "20s"}
    resting = {**changed, "suspend": True}
    # Applied and not created, so that what a later apply leaves out goes.
    world.change("ConsumerGroup", "g", **group, job=job)
    steps: list[tuple[str, dict[str, Any] | None]] = [
        (NO_DRIVER, {**group, "job": changed}),
        (NO_DRIVER, {**group, "job": resting}),
        ("Suspended", {**group, "job": changed}),
        (NO_DRIVER, group),
        ("Observed", None),
    ]
    drivers: set[str] = set()

    def react() -> bool:
        pod = run_driver(world, drivers)
        body = world.body("ConsumerGroup", "g")
        if body is None:
            world.seen.append((len(drivers), world.client.exists(consumers.group_path("g"))))
            return True
        done = sum(isinstance(one, str) for one in world.seen)
        if done == len(steps):
            return False
        reason, wanted = steps[done]
        if not world.settled("ConsumerGroup", "g", reason):
            return False
        world.seen.append(reason)
        # Nothing here failed, so nothing may count as a restart.
        world.seen.append(body["status"].get("job", {}).get("restarts", {}).copy())
        if wanted is None:
            assert pod is None
            world.lives.kube.delete(body)
        else:
            world.change("ConsumerGroup", "g", **wanted)
        return False

    return react


def run_a_job_on_schedule(world: World) -> React:
    """A job waits for its due time, runs, rests, and runs once more; the clock is the test's."""
    job = {"sink": {"console": {}}, "trigger": "availableNow", "volume": {"size": "1Gi"}}
    world.change("ConsumerGroup", "g", topics=["t"], job={**job, "schedule": "@hourly"})
    drivers: set[str] = set()

    def react() -> bool:
        pod = run_driver(world, drivers)
        body = world.body("ConsumerGroup", "g")
        assert body is not None
        seen = len(world.seen)
        if seen % 2 == 0 and world.settled("ConsumerGroup", "g", "Scheduled"):
            # Each run is the first of its due time, and none failed.
            told = body["status"]["job"]
            world.seen.append((len(drivers), told["phase"], told["restarts"]))
            if len(drivers) == 2:
                return True
            due = datetime.fromisoformat(told["nextScheduleTime"])
            world.lives.ahead = max(world.lives.ahead, due - datetime.now(UTC))
        elif seen % 2 == 1 and world.settled("ConsumerGroup", "g", NO_DRIVER):
            assert pod is not None
            last = datetime.fromisoformat(body["status"]["job"]["lastScheduleTime"])
            world.seen.append((last.minute, last.second))
            finish(world, pod)
        return False

    return react


def anywhere(world: World) -> dict[str, Any]:
    """Where new replicas land is of no matter, nor which plan says so."""
    found = world.snapshot()
    sizes = {
        name: sorted(map(len, replicas.values())) for name, replicas in found["topics"].items()
    }
    return {**found, "topics": sizes}


# What each flow begins with, and what must be the same in the end.
OWN_RIGHT = AclEntry(Principal("User", "u"), PermissionType.ALLOW, AclOperation.READ)
BY_HAND = OWN_RIGHT._replace(operation=AclOperation.WRITE)


def make_a_user(world: World) -> React:
    """A user gets a Secret, rights and a quota, then others, and takes away only its own."""

    def wanted(kind: str, right: str, rate: int) -> dict[str, Any]:
        acl = {"resource": {"type": "topic", "name": "t"}, "operations": [right]}
        return {
            "authentication": {"type": kind},
            "authorization": {"acls": [acl]},
            "quotas": {"producerByteRate": rate},
        }

    pattern = ResourcePattern(ResourceType.TOPIC, "t")
    user_znodes.update_acls(world.lives.session, pattern, [BY_HAND])
    world.create("User", "u", **wanted("scram-sha-512", "Read", 5))

    def expect(mechanism: str, rate: str, *own: AclEntry) -> None:
        entries = world.config(user_znodes.user_path("u"))
        held = world.lives.kube.get("v1", "Secret", world.namespace, "u")
        assert held is not None
        password = base64.b64decode(held["data"]["password"]).decode()
        assert user_znodes.is_of_password(entries.pop(mechanism), mechanism, password)
        assert entries == {"producer_byte_rate": rate}
        acls = user_znodes.read_acls(world.lives.session, [pattern])[pattern]
        assert set(acls) == {BY_HAND, *own}

    def react() -> bool:
        body = world.body("User", "u")
        if body is None:
            entries = world.config(user_znodes.user_path("u"))
            world.seen.append((entries, world.client.get("/kafka-acl/Topic/t")[0]))
            return True
        if "deletionTimestamp" in body["metadata"] or not world.settled("User", "u", "Synced"):
            return False
        if body["metadata"]["generation"] == 1:
            expect("SCRAM-SHA-512", "5", OWN_RIGHT)
            world.change("User", "u", **wanted("scram-sha-256", "Describe", 6))
        else:
            changed = OWN_RIGHT._replace(operation=AclOperation.DESCRIBE)
            expect("SCRAM-SHA-256", "6", changed)
            world.lives.kube.delete(body)
        return False

    return react


FLOWS: dict[str, tuple[Callable[[World], React], Callable[[World], Any]]] = {
    "create and delete": (create_and_delete, World.snapshot),
    "adopt and leave": (adopt_and_leave, World.snapshot),
    "widen": (widen, anywhere),
    "land in a table": (land_in_a_table, World.snapshot),
    "move": (move, World.snapshot),
    "move and cancel": (move_and_cancel, World.snapshot),
    "move and delete": (move_and_delete, World.snapshot),
    "empty a broker": (empty_a_broker, anywhere),
    "add a broker": (add_a_broker, anywhere),
    "prefer": (prefer, World.snapshot),
    "run a job": (run_a_job, World.snapshot),
    "run a job on schedule": (run_a_job_on_schedule, World.snapshot),
    "roll": (roll, World.snapshot),
    "make a user": (make_a_user, World.snapshot),
    "grow and shrink": (grow_and_shrink, World.snapshot),
}
