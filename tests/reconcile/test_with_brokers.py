"""The operator with real brokers: groups in both stores, and data that really moves."""

import json
import signal
import time
from collections.abc import Iterator
from random import Random
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from odradek.zk import consumers, znodes
from odradek_operator.reassignment import throttle
from odradek_operator.reassignment.decide import DEAD_AFTER
from odradek_operator.shared import zookeeper
from odradek_operator.shared.views import FINISHED_PHASES
from tests.reconcile import kills
from tests.reconcile.conftest import Operator, Place, once_reachable
from tests.reconcile.kills import Fuse
from tests.reconcile.test_reassignment_flow import config, move, reassignment
from tests.support.apiserver import ApiServer
from tests.support.broker import STEADY, Broker, Cluster
from tests.support.clients import QUIET, consume_all, create_topic, produce_all
from tests.support.kubectl import eventually
from tests.support.sampling import FULL

NAMESPACE = "with-brokers"
# A broker that is stopped must still be registered when the operator next looks.
SETTINGS = {**STEADY, "offsets.topic.num.partitions": "3"}
JOB = {"sink": {"console": {}}, "volume": {"size": "1Gi"}}
# Four processes start first.
pytestmark = pytest.mark.timeout(900)


class Running(Place):
    """Three brokers with ids 1 to 3, and a KafkaCluster that tells where their znodes are."""

    cluster: Cluster
    operator: Operator


@pytest.fixture(scope="module")
def running(api: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("with-brokers")
    api.call("create", "namespace", NAMESPACE)
    with Cluster(folder, 3, SETTINGS) as cluster, cluster.zookeeper.client() as client:
        place = Running(api, cluster.zookeeper, client, NAMESPACE)
        place.cluster = cluster
        place.kubectl.apply(
            {
                "apiVersion": "odradek.io/v1alpha1",
                "kind": "KafkaCluster",
                "metadata": {"name": "main"},
                "spec": {
                    "zookeeper": {"connect": cluster.zookeeper.connect},
                    # Ids begin at 0 on Kubernetes.
                    "brokers": {"replicas": 4},
                },
            }
        )
        log = folder / "operator.log"
        with Operator(api, NAMESPACE, log, "operator-0") as place.operator:
            yield place
        print(log.read_text())


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


def status(place: Place, name: str) -> dict[str, Any]:
    return dict(place.kubectl.get("consumergroup", name)["status"])


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
    assert seen["worstPartitions"] == [{"topic": "reset", "partition": 0, "lag": 8}]

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

    running.kubectl("delete", "consumergroup", "g", "--timeout=120s")
    assert committed(bootstrap, "g", "reset", 2) == [-1001, -1001]
    assert running.client.exists(consumers.group_path("g")) is None


def settle(running: Running, api: ApiServer, namespace: str) -> kills.FusedKube:
    """Make a namespace for operators that live in this process, with the same brokers."""
    kube = kills.client(api.kubeconfig)
    meta = {"name": namespace, "namespace": ""}
    kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    (cluster,) = running.kubectl.get("kafkacluster")["items"]
    kube.create(
        {
            "apiVersion": kills.API,
            "kind": "KafkaCluster",
            "metadata": {"name": "main", "namespace": namespace},
            "spec": cluster["spec"],
        }
    )
    return kube


def test_destination_that_dies_is_given_up_and_everything_goes_back(
    running: Running, api: ApiServer
) -> None:
    bootstrap, name = running.cluster.bootstrap, "dead-destination"
    kube = settle(running, api, name)
    made = NewTopic("dying", 2, replica_assignment=[[1, 2]] * 2)
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    admin.create_topics([made], operation_timeout=60)["dying"].result(120)
    produce_all(bootstrap, "dying", [b"x"] * 100, partitions=2)
    moves = [move("dying", one, 3, 2) for one in range(2)]
    wanted = reassignment("r", "Explicit", moves=moves, throttleBytesPerSec=5000)
    wanted["metadata"]["namespace"] = name
    kube.create(wanted)
    session = zookeeper.ZooKeeper(running.cluster.zookeeper.connect, lambda: None)
    lives = kills.Lives(kube, session, name)
    registered = True

    def react() -> bool:
        nonlocal registered
        time.sleep(0.3)
        status = (kube.get(kills.API, "Reassignment", name, "r") or {}).get("status", {})
        conditions = {one["type"]: one["status"] for one in status.get("conditions", ())}
        if running.read("dying").adding and registered:
            running.cluster.zookeeper.end_session_of(znodes.broker_path(3))
            registered = False
        if conditions.get("DestinationMissing") == "True":
            lives.ahead = DEAD_AFTER
        return bool(status.get("phase") in FINISHED_PHASES)

    dead = running.cluster.brokers[3]
    once_reachable(session.require)
    # It is registered when the move begins, and its session runs out while it copies nothing.
    dead.signal(signal.SIGSTOP)
    try:
        assert lives.live(Fuse(), react)
    finally:
        dead.signal(signal.SIGCONT)
        session.close()
    found = kube.get(kills.API, "Reassignment", name, "r") or {}
    assert kills.summary(found) == ("RolledBack", "RolledBack")
    left = running.read("dying")
    assert (set(left.partitions.values()), left.adding, left.removing) == ({(1, 2)}, {}, {})
    assert running.client.exists(znodes.REASSIGN_PARTITIONS_PATH) is None
    assert throttle.FOLLOWERS not in config(running, "topics", "dying")
    assert config(running, "brokers", "3") == {}
    running.cluster.wait_for_members()


def test_settings_reach_running_brokers_and_are_taken_back_without_a_restart(
    running: Running,
) -> None:
    admin = AdminClient({"bootstrap.servers": running.cluster.bootstrap, **QUIET})

    def configure(**config: str | None) -> None:
        patch = json.dumps({"spec": {"brokers": {"config": config}}})
        running.kubectl("patch", "kafkacluster", "main", "--type=merge", "--patch", patch)

    def template() -> Any:
        return running.kubectl.get("statefulset", "main-broker")["spec"]["template"]

    def of_brokers(name: str) -> set[str]:
        found = set()
        for broker_id in running.cluster.brokers:
            asked = ConfigResource("broker", str(broker_id))
            (answer,) = admin.describe_configs([asked], request_timeout=30).values()
            found.add(str(answer.result(120)[name].value))
        return found

    def become(name: str, value: str) -> None:
        eventually(lambda: of_brokers(name) == {value}, f"{name} {value}", pause_s=0.5)

    def named() -> list[str]:
        return list(running.kubectl.get("kafkacluster", "main")["status"].get("dynamicConfig", []))

    eventually(template, "the brokers' template", pause_s=0.5)
    # Somebody else's setting for every broker.
    theirs = znodes.encode_config({"log.retention.bytes": "5000000"})
    running.client.create(znodes.broker_config_path("<default>"), theirs)
    before, kept = template(), of_brokers("log.retention.ms")
    configure(**{"log.retention.ms": "86400000", "log.cleaner.delete.retention.ms": "7000"})
    become("log.retention.ms", "86400000")
    become("log.cleaner.delete.retention.ms", "7000")
    eventually(lambda: len(named()) == 2, "both names in the status", pause_s=0.5)
    configure(**{"log.retention.ms": None, "log.cleaner.delete.retention.ms": "8000"})
    become("log.cleaner.delete.retention.ms", "8000")
    assert of_brokers("log.retention.ms") == kept
    assert template() == before
    assert len(named()) == 2
    assert config(running, "brokers", "<default>")["log.retention.bytes"] == "5000000"


def test_leaders_that_are_lost_during_a_move_end_it_and_everything_is_where_it_was(
    running: Running, api: ApiServer
) -> None:
    bootstrap, name = running.cluster.bootstrap, "lost-leaders"
    kube = settle(running, api, name)
    made = NewTopic("darkening", 2, replica_assignment=[[1], [1]])
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    admin.create_topics([made], operation_timeout=30)["darkening"].result(60)
    values = [b"%6d" % one * 10_000 for one in range(100)]
    produce_all(bootstrap, "darkening", values, partitions=2)
    # More than one fetch brings, and so slow that its only source is gone before the second.
    moves = [move("darkening", one, 3) for one in range(2)]
    wanted = reassignment("r", "Explicit", moves=moves, throttleBytesPerSec=1024)
    wanted["metadata"]["namespace"] = name
    kube.create(wanted)
    session = zookeeper.ZooKeeper(running.cluster.zookeeper.connect, lambda: None)
    lives = kills.Lives(kube, session, name)
    source, stopped = running.cluster.brokers[1], False

    def react() -> bool:
        nonlocal stopped
        time.sleep(0.3)
        status = (kube.get(kills.API, "Reassignment", name, "r") or {}).get("status", {})
        conditions = {one["type"]: one["status"] for one in status.get("conditions", ())}
        if running.read("darkening").adding and not stopped:
            source.signal(signal.SIGSTOP)
            running.cluster.zookeeper.end_session_of(znodes.broker_path(1))
            stopped = True
        if conditions.get("PartitionsOffline") == "True":
            lives.ahead = DEAD_AFTER
        if conditions.get("RollingBack") == "True" and running.read("darkening").removing:
            # The controller has taken it back, and ends that once there is a leader again.
            source.signal(signal.SIGCONT)
        return bool(status.get("phase") in FINISHED_PHASES)

    try:
        once_reachable(session.require)
        assert lives.live(Fuse(), react)
    finally:
        source.signal(signal.SIGCONT)
        session.close()
    assert stopped
    found = kube.get(kills.API, "Reassignment", name, "r") or {}
    assert kills.summary(found) == ("RolledBack", "RolledBack")
    left = running.read("darkening")
    assert (set(left.partitions.values()), left.adding, left.removing) == ({(1,)}, {}, {})
    assert throttle.FOLLOWERS not in config(running, "topics", "darkening")
    running.cluster.wait_for_members()
    found_values = consume_all(bootstrap, "darkening", 2, len(values))
    assert sorted(found_values) == sorted(values)


def test_a_new_broker_gets_its_share_with_all_the_data(running: Running) -> None:
    bootstrap = running.cluster.bootstrap
    made = NewTopic("spread", 6, replica_assignment=[[1, 2], [2, 3], [3, 1]] * 2)
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    admin.create_topics([made], operation_timeout=60)["spread"].result(120)
    values = [b"%d" % one * 200 for one in range(3000)]
    produce_all(bootstrap, "spread", values, partitions=6)
    newcomer = Broker(running.cluster.directory, 0, running.cluster.zookeeper.connect, {})
    others = [one for one in running.client.get_children(znodes.TOPICS_PATH) if one != "spread"]
    try:
        newcomer.start()
        running.kubectl.apply(
            reassignment(
                "fill",
                "AddBrokers",
                brokers=[0],
                excludedTopics=others,
                throttleBytesPerSec=50_000_000,
            )
        )
        running.wait_for("reassignment", "fill", "Completed")
        layout = running.read("spread").partitions
        assert sum(0 in replicas for replicas in layout.values()) == 3
        assert all(len(set(replicas)) == 2 for replicas in layout.values())
        assert {len(newcomer.partition_folders("spread"))} == {3}
        assert sorted(consume_all(bootstrap, "spread", 6, len(values))) == sorted(values)
        assert config(running, "brokers", "0") == {}
        assert throttle.FOLLOWERS not in config(running, "topics", "spread")
        # And away again: a broker may go once it holds nothing.
        running.kubectl.apply(
            reassignment("empty", "RemoveBrokers", brokers=[0], excludedTopics=others)
        )
        running.wait_for("reassignment", "empty", "Completed")
        layout = running.read("spread").partitions
        assert not any(0 in replicas for replicas in layout.values())
        assert sorted(consume_all(bootstrap, "spread", 6, len(values))) == sorted(values)
    finally:
        newcomer.kill()
        # Until its session has ended, new partitions are placed on it, too.
        running.cluster.wait_for_members()


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

    apply(requestId="a", strategy="Shift", value="-2")
    # The driver's registration outlives its pod, as it does until its session has ended.
    running.wait_for("consumergroup", "counting", "ResetWaiting")
    assert "counting-driver" not in running.kubectl("get", "pods", "-o", "name")
    assert [running.client.get(one)[0] for one in znodes_of] == [b"12", b"20"]
    running.client.delete(member)
    eventually(lambda: last("a", "Done"), "the reset", pause_s=0.5)
    assert eventually(pod, "the next driver", pause_s=0.5) != first
    assert [running.client.get(one)[0] for one in znodes_of] == [b"10", b"18"]
    running.kubectl("delete", "consumergroup", "counting", "--timeout=120s")


@pytest.mark.parametrize("fields", [{}, {"job": JOB}], ids=["observed", "job"])
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


def test_data_moves_and_a_move_that_is_cancelled_leaves_everything_as_it_was(
    running: Running,
) -> None:
    bootstrap = running.cluster.bootstrap
    wanted = NewTopic("moved", 4, replica_assignment=[[1, 2]] * 4)
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    admin.create_topics([wanted], operation_timeout=60)["moved"].result(120)
    values = [b"%d" % one * 200 for one in range(4000)]
    produce_all(bootstrap, "moved", values, partitions=4)
    away = [move("moved", one, 3, 2) for one in range(4)]
    running.kubectl.apply(
        reassignment(
            "away",
            "Explicit",
            moves=away,
            throttleBytesPerSec=50_000_000,
            maxConcurrentPartitions=2,
        )
    )
    running.wait_for("reassignment", "away", "Completed")
    done = running.kubectl.get("reassignment", "away")["status"]
    assert done["partitions"] == {"total": 4, "done": 4, "failed": 0}
    assert done["bytes"]["moved"] == done["bytes"]["total"] > sum(map(len, values)) * 0.9
    assert set(running.read("moved").partitions.values()) == {(3, 2)}
    assert sorted(consume_all(bootstrap, "moved", 4, len(values))) == sorted(values)
    assert throttle.FOLLOWERS not in config(running, "topics", "moved")
    assert config(running, "brokers", "3") == {}

    # The destination stops answering in the middle, so that only a cancel can end it.
    stopped = running.cluster.brokers[1]
    stopped.signal(signal.SIGSTOP)
    try:
        back = [move("moved", one, 1, 2) for one in range(4)]
        running.kubectl.apply(reassignment("back", "Explicit", moves=back))
        eventually(lambda: running.read("moved").adding, "a move that does not end", pause_s=0.1)
        running.kubectl.apply(reassignment("back", "Explicit", moves=back, cancel=True))
        running.wait_for("reassignment", "back", "Cancelled")
    finally:
        stopped.signal(signal.SIGCONT)
    left = running.read("moved")
    assert (set(left.partitions.values()), left.adding, left.removing) == ({(3, 2)}, {}, {})
    assert running.client.exists(znodes.REASSIGN_PARTITIONS_PATH) is None
    assert sorted(consume_all(bootstrap, "moved", 4, len(values))) == sorted(values)
