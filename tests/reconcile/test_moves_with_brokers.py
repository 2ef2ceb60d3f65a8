"""The operator with real brokers: moves of replicas, brokers that die or are new, settings."""

import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from odradek.values import TopicPartition
from odradek.zk import znodes
from odradek_operator.reassignment import requests, throttle
from odradek_operator.reassignment.decide import (
    DEAD_AFTER,
    MoveState,
    ReassignmentDecision,
    ReassignmentPlan,
)
from odradek_operator.shared import zookeeper
from odradek_operator.shared.views import FINISHED_PHASES
from tests.reconcile import kills, real_brokers
from tests.reconcile.conftest import once_reachable
from tests.reconcile.in_memory import NOBODY_LISTENS
from tests.reconcile.kills import Fuse
from tests.reconcile.real_brokers import (
    Running,
    settle,
)
from tests.reconcile.test_reassignment_flow import config, move, reassignment
from tests.support.apiserver import ApiServer
from tests.support.broker import Broker
from tests.support.clients import QUIET, consume_all, produce_all
from tests.support.kubectl import eventually

# Four processes start first.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def running(api: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with real_brokers.run(api, tmp_path_factory.mktemp("brokers"), "moves-with-brokers") as place:
        yield place


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

    # How much there is, and how much was copied, is told only once all who know it have said so.
    first, second = (TopicPartition("moved", one) for one in range(2))
    plan = ReassignmentPlan({first: (1, 2), second: (1, 2)}, {first: (3,), second: (3,)}, {})
    listening = {one.broker_id: ("127.0.0.1", one.port) for one in running.cluster.brokers.values()}
    unheard = listening | {3: ("127.0.0.1", NOBODY_LISTENS)}
    # A broker that stands still has not said so.
    sizes = eventually(lambda: requests.sizes(listening, plan), "the sizes", pause_s=0.3)
    assert sizes.keys() == {first, second}
    assert requests.sizes(unheard, plan) == requests.sizes({}, plan) == {}
    states = {first: MoveState.DONE, second: MoveState.MOVING}
    to_third = ReassignmentPlan(plan.originals, plan.targets, {}, sizes)
    decision = ReassignmentDecision(states)
    copied = eventually(
        lambda: requests.moved(listening, to_third, decision), "what was copied", pause_s=0.3
    )
    assert copied == sizes[first] + sizes[second]
    assert requests.moved(unheard, to_third, decision) is None
