"""The operator with real brokers: groups in both stores, their resets and their jobs."""

import json
import time
from collections.abc import Iterator
from random import Random
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from odradek.zk import consumers, znodes
from odradek_operator.shared import zookeeper
from tests.reconcile import kills, real_brokers
from tests.reconcile.conftest import once_reachable
from tests.reconcile.drivers import reporting
from tests.reconcile.kills import Fuse
from tests.reconcile.lag_canary import LagCanary
from tests.reconcile.real_brokers import (
    Running,
    settle,
    status,
)
from tests.support.apiserver import ApiServer
from tests.support.clients import QUIET, await_leaders, create_topic, produce_all
from tests.support.kubectl import eventually
from tests.support.ports import own_address
from tests.support.sampling import FULL, some_of

JOB = {"sink": {"console": {}}, "volume": {"size": "1Gi"}}
# Four processes start first.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def running(api: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with real_brokers.run(api, tmp_path_factory.mktemp("brokers"), "groups-with-brokers") as place:
        yield place


def group(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "odradek.io/v1alpha1",
        "kind": "ConsumerGroup",
        "metadata": {"name": name},
        "spec": {"clusterRef": {"name": "main"}, **spec},
    }


def consumer(bootstrap: str, name: str) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "enable.auto.commit": False,
            "session.timeout.ms": 30_000,
            **QUIET,
        }
    )


def commit(bootstrap: str, name: str, topic: str, *offsets: int) -> None:
    """Commit offsets for a group that nobody is a member of."""
    client = consumer(bootstrap, name)
    places = [
        confluent_kafka.TopicPartition(topic, partition, offset)
        for partition, offset in enumerate(offsets)
    ]

    def stored() -> bool:
        try:
            return bool(client.commit(offsets=places, asynchronous=False))
        except confluent_kafka.KafkaException as error:
            # The first commit of all makes the topic that it goes to.
            raise AssertionError(str(error)) from error

    eventually(stored, "the commit", pause_s=0.5)
    client.close()


def committed(bootstrap: str, name: str, topic: str, partitions: int) -> list[int]:
    client = consumer(bootstrap, name)
    places = [confluent_kafka.TopicPartition(topic, one) for one in range(partitions)]
    found = [one.offset for one in client.committed(places, timeout=120)]
    client.close()
    return found


def test_group_in_both_stores_tells_its_lag_and_is_reset_once(running: Running) -> None:
    bootstrap = running.cluster.bootstrap
    create_topic(bootstrap, "reset", partitions=2, replicas=1)
    produce_all(bootstrap, "reset", [b"%d" % one for one in range(40)], partitions=2)
    commit(bootstrap, "g", "reset", 5, 20)
    znode = consumers.offset_path("g", "reset", 0)
    running.client.create(znode, b"12", makepath=True)
    wanted = group("g", topics=["reset"], offsetStore="Both", deletionPolicy="Delete")
    running.kubectl.apply(wanted)
    running.wait_for("consumergroup", "g", "Observed")
    eventually(lambda: status(running, "g").get("totalLag"), "the lag", pause_s=0.3)
    # Partition 0 is at 12 in the znode and at 5 in the brokers: the larger counts.
    seen = status(running, "g")
    assert (seen["totalLag"], seen["members"], seen["verdict"]) == (8, 0, "STOP")
    (worst,) = seen["worstPartitions"]
    assert (worst["topic"], worst["partition"], worst["lag"]) == ("reset", 0, 8)

    of_group = f'cluster="main",consumergroup="g",namespace="{running.namespace}"'
    told = running.operator.series("kafka_consumergroup_lag{")
    (first,) = [one for one in told if 'consumergroup="g"' in one and 'partition="0"' in one]
    assert first == f'kafka_consumergroup_lag{{{of_group},partition="0",topic="reset"}} 8.0'
    read_at = f"odradek_consumergroup_lag_read_timestamp_seconds{{{of_group}}}"
    assert len(running.operator.series(read_at)) == 1
    assert running.operator.metric(read_at) <= time.time()

    def reset(**fields: Any) -> dict[str, Any]:
        return {**wanted, "spec": {**wanted["spec"], "reset": {"requestId": "a", **fields}}}

    def last(phase: str) -> dict[str, Any]:
        found = status(running, "g").get("lastReset", {})
        assert found.get("phase") == phase, found
        return dict(found)

    def is_looked_at() -> bool:
        body = running.kubectl.get("consumergroup", "g")
        return bool(body["status"]["observedGeneration"] == body["metadata"]["generation"])

    back = {"strategy": "Shift", "value": "-3"}
    running.kubectl.apply(reset(**back, dryRun=True))
    shown = eventually(lambda: last("DryRun"), "the dry run", pause_s=0.3)
    assert shown["before"] == {"reset-0": "12", "reset-1": "20"}
    assert shown["after"] == {"reset-0": "9", "reset-1": "17"}
    assert committed(bootstrap, "g", "reset", 2) == [5, 20]

    member = consumer(bootstrap, "g")
    member.subscribe(["reset"])

    def has_read() -> bool:
        message = member.poll(0.5)
        return message is not None and message.error() is None

    eventually(has_read, "a member", pause_s=0)
    running.kubectl.apply(reset(**back))
    waiting = running.wait_for("consumergroup", "g", "ResetWaiting")
    assert "1 members" in waiting["message"]
    member.close()
    running.kubectl("annotate", "consumergroup", "g", "touched=1")
    eventually(lambda: last("Done"), "the reset", pause_s=0.3)
    assert committed(bootstrap, "g", "reset", 2) == [9, 17]
    assert running.client.get(znode)[0] == b"9"
    # The same request is not carried out again, whatever else changes.
    running.kubectl("annotate", "consumergroup", "g", "touched=2", "--overwrite")
    running.wait_for("consumergroup", "g", "Observed")
    assert committed(bootstrap, "g", "reset", 2) == [9, 17]
    # Nor once the manifests of before are applied again, one after the other.
    for again in (reset(**back, dryRun=True), reset(**back)):
        running.kubectl.apply(again)
        eventually(is_looked_at, "the operator has looked", pause_s=0.3)
        assert last("Done")["after"] == {"reset-0": "9", "reset-1": "17"}
    assert committed(bootstrap, "g", "reset", 2) == [9, 17]

    running.kubectl("delete", "consumergroup", "g", "--timeout=120s")
    assert committed(bootstrap, "g", "reset", 2) == [-1001, -1001]
    assert running.client.exists(consumers.group_path("g")) is None


def test_reset_to_a_time_that_a_leader_cannot_tell_leaves_the_offsets(running: Running) -> None:
    create_topic(running.cluster.bootstrap, "timeless", config={"message.format.version": "0.9.0"})
    znode = consumers.offset_path("old", "timeless", 0)
    running.client.create(znode, b"4", makepath=True)

    def apply(**fields: Any) -> None:
        reset = {"requestId": "a", **fields}
        running.kubectl.apply(group("old", topics=["timeless"], reset=reset))

    def says_why() -> bool:
        # Of a broker that stands still the operator says only that it does not answer.
        waiting = running.wait_for("consumergroup", "old", "BrokersUnreachable")
        return "timeless-0" in waiting["message"] and "formats before 0.10" in waiting["message"]

    apply(strategy="Timestamp", value="2020-01-01T00:00:00Z")
    eventually(says_why, "why the reset waits", pause_s=0.3)
    assert (status(running, "old").get("lastReset"), running.client.get(znode)[0]) == (None, b"4")
    apply(strategy="Earliest")
    eventually(lambda: running.client.get(znode)[0] == b"0", "the reset", pause_s=0.3)
    running.kubectl("delete", "consumergroup", "old")


def test_lag_of_a_group_is_not_told_without_that_of_a_topic_that_cannot_be_read(
    running: Running,
) -> None:
    create_topic(running.cluster.bootstrap, "readable")
    produce_all(running.cluster.bootstrap, "readable", [b"%d" % one for one in range(9)])
    running.client.create(znodes.topic_path("unreadable"), b"{")
    for topic in ("readable", "unreadable"):
        running.client.create(consumers.offset_path("both", topic, 0), b"4", makepath=True)

    def seen() -> tuple[int | None, int]:
        told = status(running, "both")
        return told.get("totalLag"), sum(one["lag"] for one in told.get("worstPartitions", ()))

    running.kubectl.apply(group("both"))
    eventually(lambda: seen() == (None, 5), "the part of the lag that is known", pause_s=0.3)
    running.client.delete(znodes.topic_path("unreadable"))
    running.kubectl("annotate", "consumergroup", "both", "touched=1")
    eventually(lambda: seen() == (5, 5), "the lag", pause_s=0.3)
    running.kubectl("delete", "consumergroup", "both")


@pytest.mark.full(
    "tests/reconcile/test_groups_with_brokers.py::test_group_in_both_stores_tells_its_lag_and_is_reset_once"
)
def test_canary_of_known_lag(running: Running) -> None:
    """Exporter, ConsumerGroup and `odradek groups` tell the true lag of groups in either store."""
    bootstrap, topic = running.cluster.bootstrap, "canary"
    kafka, zookeeper = "canary-kafka", "canary-zookeeper"
    client = AdminClient({"bootstrap.servers": bootstrap, **QUIET})

    def produce(partition: int, count: int) -> None:
        # A producer that knows the topic learns late of new partitions.
        producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, **QUIET})
        for _ in range(count):
            producer.produce(topic, b"x", partition=partition)
        assert producer.flush(120) == 0

    def commit_both(*offsets: int) -> None:
        commit(bootstrap, kafka, topic, *offsets)
        for partition, offset in enumerate(offsets):
            path = consumers.offset_path(zookeeper, topic, partition)
            running.client.ensure_path(path)
            running.client.set(path, b"%d" % offset)

    def make_anew() -> None:
        client.delete_topics([topic])[topic].result(60)
        gone = znodes.topic_path(topic)
        eventually(lambda: running.client.exists(gone) is None, "the topic is gone", pause_s=0.3)
        no_commit = [confluent_kafka.OFFSET_INVALID] * 2
        eventually(lambda: committed(bootstrap, kafka, topic, 2) == no_commit, "commits, too")
        create_topic(bootstrap, topic, partitions=2, replicas=1)
        produce(0, 20)
        produce(1, 10)

    create_topic(bootstrap, topic, partitions=2, replicas=1)
    produce(0, 10)
    produce(1, 10)
    commit_both(4, 10)
    wanted = [group(kafka, topics=[topic], offsetStore="Kafka"), group(zookeeper, topics=[topic])]
    canary = LagCanary(running, running.cluster, topic, wanted)
    # Nobody is a member: the groups have stopped.
    canary.require({kafka: {0: 6, 1: 0}, zookeeper: {0: 6, 1: 0}})

    members = [consumer(bootstrap, kafka) for _ in range(2)]
    for member in members:
        member.subscribe([topic])

    def are_balanced() -> bool:
        for member in members:
            member.poll(0.05)
        return all(len(member.assignment()) == 1 for member in members)

    eventually(are_balanced, "each member has a partition", pause_s=0)
    ends = [confluent_kafka.TopicPartition(topic, number, 10) for number in range(2)]
    for member in members:
        mine = {one.partition for one in member.assignment()}
        member.commit(offsets=[ends[number] for number in mine], asynchronous=False)
    canary.require({kafka: {0: 0, 1: 0}, zookeeper: {0: 6, 1: 0}})
    produce(0, 3)
    produce(1, 3)
    canary.require({kafka: {0: 3, 1: 3}, zookeeper: {0: 9, 1: 3}})
    for member in members:
        member.close()

    # A partition is added: where no group has committed, nobody knows.
    client.create_partitions([NewPartitions(topic, 3)])[topic].result(60)
    await_leaders(bootstrap, topic, 3)
    produce(2, 5)
    canary.require({kafka: {0: 3, 1: 3}, zookeeper: {0: 9, 1: 3}})
    commit_both(10, 10, 1)
    canary.require({kafka: {0: 3, 1: 3, 2: 4}, zookeeper: {0: 3, 1: 3, 2: 4}})

    # Deletion overtakes the groups.
    for place in (TopicPartition(topic, 0, 12), TopicPartition(topic, 1, 13)):
        client.delete_records([place])[place].result(60)
    canary.require({kafka: {0: 1, 1: 0, 2: 4}, zookeeper: {0: 1, 1: 0, 2: 4}})

    # A coordinator deletes the commits of a topic with it. Its ConsumerGroup knows that it read it.
    whole, unread = {kafka: {}, zookeeper: {0: 20, 1: 10}}, {kafka: 30, zookeeper: 30}
    assert running.operator.end() == 0
    make_anew()
    canary.restart_exporter()
    running.operator.start()
    canary.require(whole, unread)
    commit_both(20, 4)
    canary.require({kafka: {0: 0, 1: 6}, zookeeper: {0: 0, 1: 6}})
    make_anew()
    canary.require(whole, unread)
    # As far as in the former topic.
    commit_both(20, 4)
    canary.require({kafka: {0: 0, 1: 6}, zookeeper: {0: 0, 1: 6}})
    canary.close()
    running.kubectl("delete", "consumergroup", kafka, zookeeper, "--timeout=120s")


def test_job_is_stopped_for_its_reset_and_goes_on_from_there(running: Running) -> None:
    bootstrap = running.cluster.bootstrap
    create_topic(bootstrap, "counted", partitions=2, replicas=1)
    produce_all(bootstrap, "counted", [b"%d" % one for one in range(40)], partitions=2)
    znodes_of = [consumers.offset_path("counting", "counted", one) for one in range(2)]
    for znode, offset in zip(znodes_of, (b"12", b"20"), strict=True):
        running.client.create(znode, offset, makepath=True)

    def apply(**reset: Any) -> None:
        wanted = {"topics": ["counted"], "job": JOB}
        running.kubectl.apply(group("counting", **wanted, **({"reset": reset} if reset else {})))

    def pod() -> str:
        return str(running.kubectl.get("pod", "counting-driver")["metadata"]["uid"])

    def last(request: str, phase: str) -> dict[str, Any]:
        found = status(running, "counting").get("lastReset", {})
        assert (found.get("requestId"), found.get("phase")) == (request, phase)
        return dict(found)

    apply()
    first = eventually(pod, "a driver", pause_s=0.5)
    member = consumers.consumer_id_path("counting", "driver")
    running.client.create(member, b"{}", makepath=True)
    apply(requestId="a", strategy="Shift", value="-2", dryRun=True)
    shown = eventually(lambda: last("a", "DryRun"), "what would be", pause_s=0.5)
    assert shown["after"] == {"counted-0": "10", "counted-1": "18"}
    assert pod() == first

    # The driver refuses to go on without a reset.
    incarnations = consumers.incarnations_path("counting")
    running.client.create(incarnations)
    line = "odradek-spark: TopicRecreated: topic counted was made anew; apply spec.reset"
    terminated = {"exitCode": 2, "reason": "Error", "message": line}
    container = {"name": "driver", "image": "i", "imageID": "i", "ready": False, "restartCount": 0}
    ended = {
        "phase": "Failed",
        "containerStatuses": [{**container, "state": {"terminated": terminated}}],
    }
    patch = ("--subresource=status", "--type=merge", "--patch", json.dumps({"status": ended}))
    running.kubectl("patch", "pod", "counting-driver", *patch)
    running.wait_for("consumergroup", "counting", "TopicRecreated")
    told = status(running, "counting")
    assert (told["job"]["phase"], told["verdict"], pod()) == ("Stalled", "STOP", first)
    (stalled,) = [one for one in told["conditions"] if one["type"] == "Stalled"]
    assert stalled["message"] == "topic counted was made anew; apply spec.reset"

    apply(requestId="a", strategy="Shift", value="-2")
    # The driver's registration outlives its pod, as it does until its session has ended.
    running.wait_for("consumergroup", "counting", "ResetWaiting")
    assert "counting-driver" not in running.kubectl("get", "pods", "-o", "name")
    assert [running.client.get(one)[0] for one in znodes_of] == [b"12", b"20"]
    running.client.delete(member)
    eventually(lambda: last("a", "Done"), "the reset", pause_s=0.5)
    assert eventually(pod, "the next driver", pause_s=0.5) != first
    assert [running.client.get(one)[0] for one in znodes_of] == [b"10", b"18"]
    assert running.client.get(incarnations)[0] == b"a"
    running.kubectl("delete", "consumergroup", "counting", "--timeout=120s")


def test_job_is_ready_only_while_it_works_and_rests_once_it_cannot(running: Running) -> None:
    create_topic(running.cluster.bootstrap, "worked", partitions=1, replicas=1)
    address, name = own_address(), "working-driver"

    def apply(more: dict[str, Any] | None = None, **fields: Any) -> None:
        wanted = {"topics": ["worked"], "job": {**JOB, **fields}}
        running.kubectl.apply(group("working", **wanted, **(more or {})))

    def pod_status(pod: str, **fields: Any) -> None:
        patch = json.dumps({"status": fields})
        running.kubectl("patch", "pod", pod, "--subresource=status", "--type=merge", f"-p={patch}")

    def container(**fields: Any) -> list[dict[str, Any]]:
        image = {"image": "i", "imageID": "", "restartCount": 0}
        return [{"name": "driver", "ready": False, **image, **fields}]

    def uid() -> str:
        return str(running.kubectl.get("pod", name)["metadata"]["uid"])

    def reports(reason: str, verdict: str) -> dict[str, Any]:
        said = running.wait_for("consumergroup", "working", reason)
        assert status(running, "working").get("verdict") == verdict
        return said

    apply()
    first = eventually(uid, "a driver", pause_s=0.5)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": first}
    executor = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "working-exec-1",
            "labels": {
                "app.kubernetes.io/component": "spark-executor",
                "odradek.io/group": "working",
            },
            "ownerReferences": [owner],
        },
        "spec": {"containers": [{"name": "executor", "image": "i"}]},
    }
    running.kubectl.apply(executor)
    why = "0/3 nodes are available: 3 Insufficient memory."
    unschedulable = {"status": "False", "reason": "Unschedulable", "message": why}
    pod_status("working-exec-1", conditions=[{"type": "PodScheduled", **unschedulable}])
    report = {"state": "Running", "executors": 0, "totalLag": 0, "batchRunningSeconds": 9}
    with reporting(address, report):
        pod_status(name, phase="Running", podIP=address, containerStatuses=container(ready=True))
        said = reports("ExecutorsPending", "STOP")
        assert said["message"] == f"0 of 1 executors run: {why}"
        report.update(executors=1, lastBatchId=0)
        reports("Running", "OK")
        report.update(batchRunningSeconds=3600)
        reports("BatchOverdue", "STALL")

    def end() -> None:
        ended = {"terminated": {"exitCode": 2, "reason": "Error", "message": line}}
        pod_status(name, phase="Failed", containerStatuses=container(state=ended))
        assert reports("TopicRecreated", "STOP")["message"] == "topic worked was made anew"
        job = status(running, "working")["job"]
        assert (job["phase"], job["message"]) == ("Stalled", line.removeprefix("odradek-spark: "))
        assert job["restarts"] == {"application": 0, "infrastructure": 0}

    line = "odradek-spark: TopicRecreated: topic worked was made anew"
    end()
    assert uid() == first

    def next_driver(other_than: str) -> str:
        assert uid() != other_than
        return uid()

    apply({"reset": {"requestId": "a", "strategy": "Earliest"}})
    second = eventually(lambda: next_driver(first), "a driver after the reset", pause_s=0.5)
    assert status(running, "working")["lastReset"]["phase"] == "Done"
    end()
    # Nothing is started, whether the pod is kept or not.
    running.kubectl("delete", "pod", name, "--force", "--grace-period=0")
    running.kubectl("annotate", "consumergroup", "working", "touched=1")
    reports("TopicRecreated", "STOP")
    assert name not in running.kubectl("get", "pods", "-o", "name")
    apply(trigger="20s")
    eventually(lambda: next_driver(second), "a driver of the next job", pause_s=0.5)
    running.kubectl("delete", "consumergroup", "working", "--timeout=120s")


@pytest.mark.parametrize("fields", some_of([{}, {"job": JOB}], [{"job": JOB}]))
def test_reset_of_an_operator_killed_at_any_call_shifts_once(
    running: Running, api: ApiServer, fields: dict[str, Any]
) -> None:
    bootstrap = running.cluster.bootstrap
    name, topic = ("resets-of-a-job", "job-shifted") if fields else ("resets", "shifted")
    create_topic(bootstrap, topic, partitions=1, replicas=1)
    produce_all(bootstrap, topic, [b"x"] * 30)
    kube = settle(running, api, name)
    session = zookeeper.ZooKeeper(running.cluster.zookeeper.connect, lambda: None)
    lives = kills.Lives(kube, session, name)

    def run(number: int, fuse: Fuse) -> int:
        mine = f"{topic}-{number}"
        commit(bootstrap, mine, topic, 20)
        znode = consumers.offset_path(mine, topic, 0)
        running.client.create(znode, b"20", makepath=True)
        reset = {"requestId": "a", "strategy": "Shift", "value": "-3"}
        wanted = group(mine, topics=[topic], offsetStore="Both", reset=reset, **fields)
        wanted["metadata"]["namespace"] = name
        made = kube.create(wanted)

        def react() -> bool:
            body = kube.get(kills.API, "ConsumerGroup", name, mine) or {}
            done = body.get("status", {}).get("lastReset", {}).get("phase") == "Done"
            return done and (
                not fields or kube.get("v1", "Pod", name, f"{mine}-driver") is not None
            )

        if not lives.live(fuse, react):
            assert lives.live(Fuse(), react)
        assert committed(bootstrap, mine, topic, 1) == [17]
        assert running.client.get(znode)[0] == b"17"
        kube.delete(made)
        return fuse.calls

    try:
        once_reachable(session.require)
        calls = run(0, Fuse())
        places = [(at, answered) for at in range(1, calls + 1) for answered in (False, True)]
        if not FULL:
            places = Random(7).sample(places, 3)
        for number, (at, answered) in enumerate(places, 1):
            run(number, Fuse(at, answered))
    finally:
        session.close()
