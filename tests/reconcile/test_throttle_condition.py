"""What a Reassignment says of its throttle, held against what ZooKeeper holds at that moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from kazoo.exceptions import BadVersionError

from odradek.values import BrokerId, ControllerEpoch, LeaderEpoch
from odradek.zk import znodes
from odradek.zk.operations import Create, Operation, SetData, TransactionFailedError
from odradek_operator.reassignment import reconcile as reassignment_reconcile
from odradek_operator.reassignment import throttle
from odradek_operator.reassignment.reconcile import ReassignmentContext
from odradek_operator.shared.kube import KubeError
from odradek_operator.shared.spec import FINALIZER
from odradek_operator.shared.status import condition_of
from odradek_operator.shared.views import ClusterState, Owner
from odradek_operator.shared.zookeeper import UnreachableError
from tests.support.memory import MemoryKube, MemoryZooKeeper, context

BROKERS = tuple(map(BrokerId, range(3)))
RATE = 5000
LARGER = 9000
KEPT = {"retention.ms": "5"}
LOST_RACE = TransactionFailedError(SetData("/config", b""), 0, BadVersionError())


class JudgedKube(MemoryKube):
    """Looks at each status when it is written."""

    judge: Callable[[Mapping[str, Any]], None]

    def apply_status(self, body: Mapping[str, Any], status: Mapping[str, Any]) -> dict[str, Any]:
        self.judge(status)
        return super().apply_status(body, status)


class HeldZooKeeper(MemoryZooKeeper):
    """Does what is committed, until `failure` is set: then it fails after so many `writes`."""

    failure: Exception | None = None
    writes = 0

    def commit(self, wanted: Sequence[Operation]) -> None:
        if self.failure is not None and not self.writes:
            raise self.failure
        self.writes = max(0, self.writes - 1)
        super().commit(wanted)
        for one in wanted:
            if isinstance(one, Create | SetData):
                self.put(one.path, one.data)

    def config(self, path: str) -> dict[str, str]:
        found = self.read([path])[path]
        return {} if found is None else znodes.decode_config(path, found.data)


class Move:
    """A Reassignment that moves partition 0 of topic t from brokers 0 and 1 to 2 and 1."""

    def __init__(self) -> None:
        assignment = znodes.TopicAssignment({0: BROKERS[:2]})
        state = znodes.PartitionState(BROKERS[0], LeaderEpoch(0), BROKERS[:2], ControllerEpoch(1))
        self.zookeeper = HeldZooKeeper(
            {
                znodes.topic_path("t"): znodes.encode_topic(assignment),
                znodes.topic_config_path("t"): znodes.encode_config(KEPT),
                znodes.state_path("t", 0): znodes.encode_state(state),
            }
        )
        self.kube = JudgedKube(
            {
                "apiVersion": "odradek.io/v1alpha1",
                "kind": "Reassignment",
                "metadata": {
                    "name": "r",
                    "namespace": "n",
                    "uid": "u",
                    "generation": 1,
                    "creationTimestamp": "2026-11-21T11:00:00Z",
                    "finalizers": [FINALIZER],
                },
                "spec": {
                    "clusterRef": {"name": "c"},
                    "mode": "Explicit",
                    "moves": [{"topic": "t", "partition": 0, "replicas": [2, 1]}],
                    "throttleBytesPerSec": RATE,
                },
            }
        )
        self.kube.judge = self.judge
        self.owner = Owner.PRESENT
        self.answers = True
        self.registered = BROKERS

    def judge(self, status: Mapping[str, Any]) -> None:
        """Hold a status that is about to be written against what ZooKeeper holds."""
        told = condition_of(status, "ThrottleApplied")
        assert told is not None
        if told["status"] == "True":
            assert self.applied == self.body["spec"]["throttleBytesPerSec"]

    @property
    def body(self) -> dict[str, Any]:
        found = self.kube.get("", "Reassignment", "n", "r")
        assert found is not None
        return found

    def change(self, **spec: Any) -> None:
        meta = {**self.body["metadata"], "generation": self.body["metadata"]["generation"] + 1}
        self.kube.create({**self.body, "metadata": meta, "spec": {**self.body["spec"], **spec}})

    def look(self) -> None:
        """Reconcile once."""
        around = ReassignmentContext(
            ClusterState(self.owner, brokers=dict.fromkeys(BROKERS)),
            self.zookeeper if self.answers else None,  # type: ignore[arg-type]
            {int(one): ("127.0.0.1", 1) for one in self.registered},
            lambda: None,
        )
        reassignment_reconcile.reconcile(context(self.kube), self.body, around)

    @property
    def said(self) -> str:
        return str(self.condition("ThrottleApplied").get("status"))

    def condition(self, kind: str) -> dict[str, Any]:
        return dict(condition_of(self.body.get("status", {}), kind) or {})

    @property
    def applied(self) -> int | None:
        """Return the rate that all brokers have, if the topic's replicas are throttled, too."""
        rates = {
            self.zookeeper.config(znodes.broker_config_path(str(one))).get(name)
            for one in BROKERS
            for name in throttle.RATES
        }
        topic = self.zookeeper.config(znodes.topic_config_path("t"))
        (rate,) = rates if len(rates) == 1 else (None,)
        complete = {throttle.LEADERS, throttle.FOLLOWERS} <= set(topic)
        return int(rate) if rate is not None and complete else None

    def look_until(self, said: str, reason: str) -> None:
        for _ in range(6):
            self.look()
            found = self.condition("ThrottleApplied")
            if (found.get("status"), found.get("reason")) == (said, reason):
                return
        raise AssertionError(self.condition("ThrottleApplied"))


@pytest.fixture
def move() -> Move:
    return Move()


def test_throttle_is_said_to_be_applied_only_once_it_is(move: Move) -> None:
    move.look_until("False", "Applying")
    assert move.applied is None
    assert move.zookeeper.committed == []
    move.look_until("True", "Applied")
    assert move.applied == RATE
    moved = znodes.REASSIGN_PARTITIONS_PATH
    assert moved in move.zookeeper.created()


@pytest.mark.parametrize("failure", [LOST_RACE, UnreachableError("no answer")])
@pytest.mark.parametrize("writes", [0, 1, 3])
def test_throttle_that_cannot_be_written_is_not_said_to_be_applied(
    move: Move, failure: Exception, writes: int
) -> None:
    move.look_until("False", "Applying")
    move.zookeeper.failure, move.zookeeper.writes = failure, writes
    for _ in range(2):
        if isinstance(failure, UnreachableError):
            with pytest.raises(UnreachableError):
                move.look()
        else:
            move.look()
        assert move.said == "False"
    # Nothing is moved without the throttle.
    assert znodes.REASSIGN_PARTITIONS_PATH not in move.zookeeper.created()
    move.zookeeper.failure = None
    move.look_until("True", "Applied")


def test_throttle_that_somebody_removed_is_missed_and_set_again(move: Move) -> None:
    move.look_until("True", "Applied")
    move.zookeeper.put(znodes.broker_config_path("1"), znodes.encode_config({}))
    move.zookeeper.failure = LOST_RACE
    move.look()
    assert (move.said, move.applied) == ("False", None)
    assert [one.reason for one in move.kube.told] == ["ThrottleRestored"]
    move.look()
    assert move.said == "False"
    move.zookeeper.failure = None
    move.look_until("True", "Applied")
    assert move.applied == RATE
    # Told once, and not of what the user changes in the spec.
    move.change(throttleBytesPerSec=LARGER)
    move.look_until("True", "Applied")
    assert move.applied == LARGER
    assert [one.reason for one in move.kube.told] == ["ThrottleRestored"]


def test_a_rate_of_the_spec_is_not_said_to_be_applied_before_it_is(move: Move) -> None:
    move.look_until("True", "Applied")
    move.change(throttleBytesPerSec=LARGER)
    move.zookeeper.failure = LOST_RACE
    move.look_until("False", "Applying")
    assert move.applied == RATE
    move.zookeeper.failure = None
    move.look_until("True", "Applied")
    move.change(throttleBytesPerSec=None)
    move.zookeeper.failure = LOST_RACE
    move.look_until("False", "Removing")
    assert move.applied == LARGER
    move.zookeeper.failure = None
    move.look_until("False", "NotApplied")
    assert move.zookeeper.config(znodes.topic_config_path("t")) == KEPT


@pytest.mark.parametrize("absent", ["zookeeper", "cluster"])
def test_what_nobody_can_see_is_unknown_and_remembered(move: Move, absent: str) -> None:
    move.look_until("True", "Applied")
    before = move.body["status"].get("ratesBefore")
    move.answers, reason = False, "ZooKeeperUnreachable"
    if absent == "cluster":
        move.owner, reason = Owner.GONE, "ClusterNotFound"
    move.look()
    for kind in ("ThrottleApplied", "Blocked", "DestinationMissing", "PartitionsOffline"):
        found = move.condition(kind)
        assert (found["status"], found["reason"]) == ("Unknown", reason), kind
    # Back again, it knows its throttle, which must go with it.
    move.answers, move.owner = True, Owner.PRESENT
    move.look()
    assert (move.said, move.condition("Blocked")["status"]) == ("True", "False")
    assert move.body["status"].get("ratesBefore") == before
    move.zookeeper.put(
        znodes.topic_path("t"),
        znodes.encode_topic(znodes.TopicAssignment({0: (BrokerId(2), BrokerId(1))})),
    )
    move.zookeeper.take(znodes.REASSIGN_PARTITIONS_PATH)
    move.look_until("False", "NotApplied")
    assert move.body["status"]["phase"] == "Completed"
    assert move.zookeeper.config(znodes.topic_config_path("t")) == KEPT
    assert {str(move.zookeeper.config(znodes.broker_config_path(str(one)))) for one in BROKERS} == {
        "{}"
    }


def test_request_that_cannot_be_read_is_told_with_a_way_out(move: Move) -> None:
    move.look_until("True", "Applied")
    move.zookeeper.put(znodes.REASSIGN_PARTITIONS_PATH, b"torn")
    move.look()
    ready = move.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "ZnodeUnreadable")
    assert ready["message"].startswith(f"znode {znodes.REASSIGN_PARTITIONS_PATH}: ")
    assert "delete it" in ready["message"]
    assert move.condition("Stalled")["status"] == "True"
    assert move.condition("Blocked")["status"] == "Unknown"
    assert move.body["status"]["phase"] == "Running"
    move.zookeeper.take(znodes.REASSIGN_PARTITIONS_PATH)
    move.look()
    assert move.condition("Ready")["reason"] == "Running"
    assert move.condition("Stalled")["status"] == "False"
    # It is asked for once more.
    request = move.zookeeper.read([znodes.REASSIGN_PARTITIONS_PATH])
    assert request[znodes.REASSIGN_PARTITIONS_PATH] is not None


def test_deletion_waits_for_zookeeper_until_its_policy_says_retain(move: Move) -> None:
    move.look_until("True", "Applied")
    meta = {**move.body["metadata"], "deletionTimestamp": "2026-11-21T12:00:00Z"}
    move.kube.create({**move.body, "metadata": meta})
    move.answers = False
    move.look()
    ready = move.condition("Ready")
    assert ready["reason"] == "ZooKeeperUnreachable"
    assert ready["message"].endswith("set spec.deletionPolicy to Retain")
    assert "Retain" not in move.condition("Blocked")["message"]
    assert move.body["metadata"]["finalizers"] == [FINALIZER]
    move.change(deletionPolicy="Retain")
    move.look()
    assert move.body["metadata"]["finalizers"] == []
    assert "Abandoned" in [one.reason for one in move.kube.told]


def test_topic_that_cannot_be_read_while_it_moves_is_not_called_gone(move: Move) -> None:
    move.look_until("True", "Applied")
    path = znodes.topic_config_path("t")
    before = move.zookeeper.config(path)
    move.zookeeper.put(path, b"torn")
    move.look()
    ready = move.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "ZnodeUnreadable")
    assert ready["message"].startswith(f"znode {path}: ")
    assert ready["message"].endswith("; mend it")
    assert (move.body["status"]["phase"], move.said) == ("Running", "Unknown")
    move.zookeeper.put(path, znodes.encode_config(before))
    move.look()
    assert (move.body["status"]["phase"], move.said) == ("Running", "True")


def test_plan_that_the_api_server_rejects_is_told(
    move: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = move.kube.create

    def create(wanted: Mapping[str, Any]) -> dict[str, Any]:
        if wanted["kind"] == "ConfigMap":
            raise KubeError(403, "exceeded quota")
        return known(wanted)

    with monkeypatch.context() as patched:
        patched.setattr(move.kube, "create", create)
        move.look()
    ready = move.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "ApplyRejected")
    assert (ready["message"], move.body["status"]["phase"]) == ("403: exceeded quota", "Pending")
    move.look_until("True", "Applied")


def test_move_that_waits_for_a_broker_whose_replica_stays_says_so(move: Move) -> None:
    state = znodes.PartitionState(BROKERS[0], LeaderEpoch(0), BROKERS[:1], ControllerEpoch(1))
    move.zookeeper.put(znodes.state_path("t", 0), znodes.encode_state(state))
    move.registered = (BROKERS[0], BROKERS[2])
    move.look_until("True", "Applied")
    ready = move.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "BrokerUnavailable")
    assert ready["message"].startswith("brokers [1] are not registered, and replicas that stay")
    assert znodes.REASSIGN_PARTITIONS_PATH not in move.zookeeper.created()
