"""What a Topic needs, as a pure function; and that carrying the plan out always comes to an end."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.values import BrokerId, ControllerEpoch, LeaderEpoch
from odradek.zk import znodes
from odradek.zk.znodes import PartitionState, TopicAssignment
from odradek_operator.shared import spec, status, status_update
from odradek_operator.shared.broker_sets import BrokerSets
from odradek_operator.shared.spec import FINALIZER
from odradek_operator.shared.views import ClusterState, Owner, TopicView
from odradek_operator.shared.zookeeper import ZooKeeper
from odradek_operator.topic import drift, topic_spec
from odradek_operator.topic import plan as topic_plan
from odradek_operator.topic import reconcile as topic_reconcile
from odradek_operator.topic.state import (
    CREATING,
    CreateTopic,
    GrowTopic,
    OwnMove,
    RequestDeletion,
    SetConfig,
    SetFinalizer,
    StartMove,
    TopicPlan,
)
from tests.support import yaml_text
from tests.support.memory import MemoryKube, MemoryZooKeeper, context

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
CLUSTER = ClusterState(
    Owner.PRESENT,
    brokers={BrokerId(one): None for one in range(3)},
    wanted=BrokerSets((3,)),
    settled_seconds=60,
)


def body(deleted: bool = False, finalizer: bool = False, **fields: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": "t",
        "namespace": "n",
        "uid": "u",
        "generation": 1,
        "creationTimestamp": "2026-11-21T11:00:00Z",
        "finalizers": [FINALIZER] if finalizer else [],
    }
    if deleted:
        metadata["deletionTimestamp"] = NOW.strftime("%Y-%m-%dT%H:%M:%SZ")
    wanted = {"clusterRef": {"name": "c"}, **fields}
    return {"kind": "Topic", "metadata": metadata, "spec": wanted}


def plan(
    resource: dict[str, Any],
    view: TopicView,
    cluster: ClusterState = CLUSTER,
    known: int | None = None,
    moves: tuple[OwnMove, ...] = (),
) -> TopicPlan:
    meta, wanted = spec.parse_meta(resource), topic_spec.parse_topic(resource)
    if meta.deleting:
        return topic_plan.plan_deletion(meta, wanted, view, cluster, known, None, False, NOW)
    return topic_plan.plan(meta, wanted, view, cluster, known, None, Random(1), moves)


def existing(partitions: int, factor: int = 1, config: dict[str, str] | None = None) -> TopicView:
    replicas = {one: tuple(map(BrokerId, range(factor))) for one in range(partitions)}
    return TopicView(TopicAssignment(replicas), 0, 77, config or {}, 0)


def reason(done: TopicPlan) -> str:
    return done.conditions[0].reason


def test_nothing_is_planned_while_zookeeper_or_the_cluster_is_away() -> None:
    for cluster in (
        replace(CLUSTER, reachable=False),
        ClusterState(Owner.GONE),
        replace(CLUSTER, owner=Owner.TERMINATING),
    ):
        for resource in (body(), body(deletionPolicy="Delete")):
            assert plan(resource, TopicView(), cluster).steps == ()


GOING: dict[str, Any] = {"deleted": True, "finalizer": True, "deletionPolicy": "Delete"}


@pytest.mark.parametrize(
    ("resource", "view", "cluster"),
    [
        (body(), TopicView(), replace(CLUSTER, reachable=False)),
        (body(**GOING), TopicView(), replace(CLUSTER, reachable=False)),
        (body(), TopicView(), ClusterState(Owner.GONE)),
        (body(), TopicView(unreadable="znode t: is not JSON"), CLUSTER),
        (body(**GOING), TopicView(unreadable="znode t: is not JSON"), CLUSTER),
    ],
)
def test_nothing_is_said_of_a_topic_that_nobody_sees(
    resource: dict[str, Any], view: TopicView, cluster: ClusterState
) -> None:
    done = plan(resource, view, cluster, known=77)
    told = {one.type: one.status for one in done.conditions}
    assert (told["Ready"], told["Synced"]) == (False, None)
    assert (done.steps, done.events) == ((), ())
    assert "drift" not in done.fields
    assert done.fields["incarnation"] == 77


def test_deletion_names_the_brokers_that_it_waits_for() -> None:
    requested = replace(existing(2), deletion_requested=True)
    told = {}
    for brokers in (CLUSTER.brokers, {}):
        done = plan(body(**GOING), requested, replace(CLUSTER, brokers=brokers), known=77)
        assert (reason(done), done.steps) == ("Deleting", ())
        told[len(brokers)] = done.conditions[0].message
    assert told[len(CLUSTER.brokers)] == "the brokers are deleting the topic"
    assert told[0] == (
        "the brokers are deleting the topic, which ends once brokers [0] are back: "
        "they hold replicas; to let the resource go without waiting for its topic, set "
        "spec.deletionPolicy to Retain"
    )
    for view, cluster in (
        (TopicView(), replace(CLUSTER, reachable=False)),
        (TopicView(unreadable="znode t: is not JSON"), CLUSTER),
    ):
        done = plan(body(**GOING), view, cluster, known=77)
        assert done.conditions[0].message.endswith("set spec.deletionPolicy to Retain")
    # Which a user may do, also to a resource that is going.
    for view, event in ((TopicView(), "TopicRetained"), (requested, "TopicAbandoned")):
        done = plan(body(**{**GOING, "deletionPolicy": "Retain"}), view, CLUSTER, known=77)
        assert (done.steps, [one.reason for one in done.events]) == (
            (SetFinalizer(False),),
            [event],
        )


def test_deletion_that_the_controller_drops_is_asked_for_less_and_less_often() -> None:
    resource = body(**GOING)
    meta, wanted = spec.parse_meta(resource), topic_spec.parse_topic(resource)

    def after(seconds: float, *, asked: bool) -> TopicPlan:
        now = NOW + timedelta(seconds=seconds)
        return topic_plan.plan_deletion(
            meta, wanted, existing(1), CLUSTER, 77, None, False, now, asked
        )

    # However long it had to wait before.
    assert after(3600, asked=False).requeue_after == 0.5
    done = [after(seconds, asked=True) for seconds in (-5, 10, 40, 3600)]
    assert [one.requeue_after for one in done] == [1.0, 2.5, 10.0, 15.0]
    for one in done:
        assert one.steps == (RequestDeletion("t", 0),)
        assert reason(one) == "Deleting"
        assert "delete.topic.enable is false until its broker" in one.conditions[0].message


def test_topic_that_is_not_adopted_shows_in_what_it_differs() -> None:
    done = plan(body(partitions=3, replicationFactor=1), existing(2))
    assert reason(done) == "AdoptionRefused"
    assert [one["field"] for one in done.fields["drift"]] == ["partitions"]


@pytest.mark.parametrize("of_cluster", [False, True])
@pytest.mark.parametrize("why", ["ClusterNotFound", "ZooKeeperUnreachable", "Paused"])
def test_a_pause_is_told_whatever_else_there_is_to_say(why: str, of_cluster: bool) -> None:
    cluster = replace(
        CLUSTER,
        paused=of_cluster,
        reachable=why != "ZooKeeperUnreachable",
        owner=Owner.TERMINATING if why == "ClusterNotFound" else Owner.PRESENT,
    )
    resource = body(paused=not of_cluster)
    planned = plan(resource, TopicView(), cluster)
    done = topic_plan.with_pause(planned, topic_spec.parse_topic(resource), cluster)
    assert reason(done) == why
    assert {one.type: one.status for one in done.conditions}["Paused"] is True


@pytest.mark.parametrize("of_cluster", [False, True])
@pytest.mark.parametrize("leader", [0, -1])
def test_topic_that_is_paused_is_ready_only_with_its_leaders(of_cluster: bool, leader: int) -> None:
    state = PartitionState(BrokerId(leader), LeaderEpoch(0), (BrokerId(0),), ControllerEpoch(1))
    view = replace(existing(1), states={0: state})
    resource = body(partitions=1, paused=not of_cluster)
    done = plan(resource, view, replace(CLUSTER, paused=of_cluster), known=77)
    told = {one.type: one.status for one in done.conditions}
    assert told["Ready"] is (leader == 0)
    assert (told["Synced"], told["DriftDetected"], told["Paused"]) == (True, False, True)
    if leader == 0:
        why = "the KafkaCluster is paused" if of_cluster else "spec.paused is true"
        assert done.conditions[0].message == why
    else:
        assert reason(done) == "WaitingForLeaders"


def test_drift_of_a_paused_topic_that_is_not_compared_is_unknown() -> None:
    done = plan(body(partitions=2, paused=True), existing(2))
    told = {one.type: one.status for one in done.conditions}
    assert (told["Ready"], told["Synced"], told["DriftDetected"]) == (False, None, None)


def test_creation_is_noted_before_it_is_done() -> None:
    for known in (None, CREATING):
        done = plan(body(partitions=2), TopicView(), known=known)
        (step,) = done.steps
        assert isinstance(step, CreateTopic)
        assert (done.fields["incarnation"], done.status_first) == (CREATING, known is None)


def test_topic_found_after_a_noted_creation_is_its_own_even_if_adoption_is_never() -> None:
    resource = body(partitions=2, replicationFactor=1, adoption="Never")
    done = plan(resource, existing(2), known=CREATING)
    assert (done.steps, done.fields["incarnation"], done.events) == ((), 77, ())
    # What differs is mended once it is noted as this resource's.
    changed = body(partitions=2, replicationFactor=1, config={"retention.ms": "5"})
    noted = plan(changed, existing(2), known=CREATING)
    assert (noted.steps, noted.fields["incarnation"]) == ((), 77)
    (step,) = plan(changed, existing(2), known=77).steps
    assert isinstance(step, SetConfig)


@pytest.mark.parametrize(
    ("seconds", "elected", "told"),
    [(1, False, []), (6, False, ["WaitingForLeaders"]), (1, True, ["Synced"])],
)
def test_first_leaders_are_awaited_for_a_while_before_that_is_told(
    seconds: int, elected: bool, told: list[str]
) -> None:
    begun = status_update.build(body(), status.progressing(status.CREATING, "made"), {}, NOW)
    resource = {**body(), "status": {**begun, "incarnation": CREATING}}
    view = existing(1)
    if elected:
        leader = (BrokerId(0),)
        state = PartitionState(leader[0], LeaderEpoch(0), leader, ControllerEpoch(1))
        view = replace(view, states={0: state})
    kube, later = MemoryKube(resource), NOW + timedelta(seconds=seconds)
    effects = context(kube, now=lambda: later)
    topic_reconcile.reconcile(effects, None, resource, view, CLUSTER, None)
    written = [status.condition_of(one, "Ready") for one in kube.statuses]
    assert [one and one["reason"] for one in written] == told


def test_incomplete_set_of_brokers_is_waited_for_until_it_has_settled() -> None:
    two = {BrokerId(0): None, BrokerId(1): None}
    fresh = replace(CLUSTER, brokers=two, settled_seconds=1)
    resource = body(replicationFactor=2)
    assert reason(plan(resource, TopicView(), fresh, CREATING)) == "WaitingForBrokers"
    settled = replace(fresh, settled_seconds=topic_plan.SETTLE_SECONDS)
    assert plan(resource, TopicView(), settled, CREATING).steps
    three = body(replicationFactor=3)
    assert reason(plan(three, TopicView(), settled, CREATING)) == "WaitingForBrokers"


def test_defaults_of_a_cluster_whose_spec_is_invalid_are_waited_for_and_not_guessed() -> None:
    unknown = replace(CLUSTER, default_partitions=None, default_replication_factor=None)
    too_few: tuple[dict[str, Any], ...] = ({}, {"partitions": 2}, {"replicationFactor": 2})
    for fields in too_few:
        assert reason(plan(body(**fields), TopicView(), unknown, CREATING)) == "ClusterInvalid"
    enough: tuple[dict[str, Any], ...] = (
        {"partitions": 2, "replicationFactor": 2},
        {"replicaAssignment": {"0": [1, 2]}},
    )
    for fields in enough:
        assert plan(body(**fields), TopicView(), unknown, CREATING).steps


def test_finalizer_stands_before_a_topic_that_shall_be_deleted_exists() -> None:
    assert plan(body(deletionPolicy="Delete"), TopicView()).steps == (SetFinalizer(True),)
    kept = body(finalizer=True, deletionPolicy="Retain")
    assert plan(kept, existing(1), known=77).steps == (SetFinalizer(False),)


def test_replicas_change_only_through_a_reassignment_of_its_own() -> None:
    wanted = body(replicationFactor=3)
    done = plan(wanted, existing(2, 1), known=77)
    assert reason(done) == "Reassigning"
    (step,) = done.steps
    assert isinstance(step, StartMove)
    made = step.wanted
    assert made["metadata"]["ownerReferences"][0]["uid"] == "u"
    spec_of_move = {"mode": "ReplicationFactor", "topics": ["t"], "replicationFactor": 3}
    assert spec_of_move.items() <= made["spec"].items()
    # The same need makes the same one; while one runs there is no other, and a failure stays.
    assert plan(wanted, existing(2, 1), known=77).steps == done.steps
    name = made["metadata"]["name"]
    runs = plan(wanted, existing(2, 2), known=77, moves=(OwnMove(name, False, "Running: 1 of 2"),))
    assert (runs.steps, reason(runs)) == ((), "Reassigning")
    assert runs.fields["reassignmentRef"] == {"name": name}
    failed = OwnMove(name, True, "RolledBack: broker 3 died")
    ended = plan(wanted, existing(2, 1), known=77, moves=(failed,))
    assert (ended.steps, reason(ended)) == ((), "ReassignmentFailed")
    assert "; delete that Reassignment to try again" in ended.conditions[0].message
    assert "broker 3 died" in ended.conditions[0].message
    again = plan(wanted, existing(2, 2), known=77, moves=(failed,))
    assert reason(again) == "Reassigning"
    # Somebody has taken back what one of them completed.
    done_before = OwnMove(name, True, "Completed: 2 of 2 partitions done", completed=True)
    repeated = plan(wanted, existing(2, 1), known=77, moves=(done_before,))
    (step,) = repeated.steps
    assert isinstance(step, StartMove)
    assert step.wanted["metadata"]["name"] != name
    # Others move them just now.
    moving = TopicAssignment({0: (BrokerId(0), BrokerId(1))}, adding={0: (BrokerId(1),)})
    held = plan(wanted, TopicView(moving, 0, 77, {}, 0), known=77)
    assert (held.steps, reason(held)) == ((), "Reassigning")
    much = plan(body(replicationFactor=9), existing(1, 1), known=77)
    assert (much.steps, reason(much)) == ((), "InvalidReplicationFactor")


def test_topic_has_one_replica_per_node_and_no_more() -> None:
    nodes = {one: f"n{one % 100}" for one in (0, 1, 100, 101)}
    shared = replace(
        CLUSTER,
        brokers={BrokerId(one): None for one in nodes},
        wanted=BrokerSets((2, 2)),
        nodes=nodes,
    )
    (step,) = plan(body(partitions=8, replicationFactor=2), TopicView(), shared, CREATING).steps
    assert isinstance(step, CreateTopic)
    laid = step.assignment.partitions.values()
    assert all({nodes[one] for one in replicas} == {"n0", "n1"} for replicas in laid)
    much = plan(body(replicationFactor=3), TopicView(), shared)
    assert "larger than the number of nodes, 2" in much.conditions[0].message
    together = plan(body(replicaAssignment={"0": [0, 100]}), TopicView(), shared)
    assert reason(together) == "InvalidReplicaAssignment"
    assert "brokers 0 and 100 are on n0" in together.conditions[0].message
    # A node without a registered broker has no place yet.
    away = {one: rack for one, rack in shared.brokers.items() if one % 100 == 0}
    waiting = plan(body(replicationFactor=2), TopicView(), replace(shared, brokers=away))
    assert reason(waiting) == "WaitingForBrokers"


def test_placement_by_hand_moves_only_what_is_elsewhere() -> None:
    wanted = body(replicaAssignment={"0": [0], "1": [2]})
    (step,) = plan(wanted, existing(2, 1), known=77).steps
    assert isinstance(step, StartMove)
    assert step.wanted["spec"]["moves"] == [{"topic": "t", "partition": 1, "replicas": [2]}]


def test_placement_by_hand_with_more_replicas_moves_first_and_grows_then() -> None:
    wanted = body(replicaAssignment={"0": [0, 1], "1": [0, 1], "2": [2, 0]})
    (step,) = plan(wanted, existing(2, 1), known=77).steps
    assert isinstance(step, StartMove)
    assert [one["partition"] for one in step.wanted["spec"]["moves"]] == [0, 1]
    (step,) = plan(wanted, existing(2, 2), known=77).steps
    assert isinstance(step, GrowTopic)
    assert step.assignment.partitions[2] == (2, 0)


def test_topic_that_others_grew_is_reported_and_left() -> None:
    done = plan(body(partitions=2), existing(4), known=77)
    assert (done.steps, reason(done)) == ((), "PartitionDecreaseUnsupported")


def test_drift_fits_into_the_status_whatever_others_wrote() -> None:
    crd = Path(__file__).parents[2] / "crds/topics.yaml"
    (version,) = yaml_text.load(crd.read_text())["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["drift"]
    have = {f"{number:03}{'k' * 300}": "v" * 5000 for number in range(schema["maxItems"] + 1)}
    view = existing(1, config=have)
    assert view.assignment is not None
    found = drift.find(topic_spec.parse_topic(body()), view, view.assignment)
    assert len(found) == schema["maxItems"]
    for name, limit in schema["items"]["properties"].items():
        assert max(len(one[name]) for one in found) <= limit["maxLength"]
    assert found[0]["actual"].endswith("v...")


def test_topic_that_fits_no_znode_is_refused_before_it_is_made_or_grown() -> None:
    many = body(partitions=100_000, replicationFactor=3)
    refused = plan(many, TopicView())
    assert (reason(refused), refused.steps) == ("TooManyPartitions", ())
    not_grown = plan(many, existing(3, 3), known=77)
    assert (reason(not_grown), not_grown.steps) == ("PartitionsNotAdded", ())


def test_growth_waits_while_somebody_else_moves_the_topic() -> None:
    moved = TopicAssignment(
        {0: (BrokerId(1), BrokerId(0))}, adding={0: (BrokerId(1),)}, removing={0: (BrokerId(0),)}
    )
    wanted = body(partitions=2)
    waits = plan(wanted, replace(existing(1), assignment=moved), known=77)
    assert (waits.steps, reason(waits)) == ((), "Updating")
    stalled = [one.status for one in waits.conditions if one.type == "Stalled"]
    assert stalled == [False]
    (step,) = plan(wanted, existing(1), known=77).steps
    assert isinstance(step, GrowTopic)


def test_throttles_of_a_reassignment_and_unmanaged_keys_are_left_alone() -> None:
    have = {"leader.replication.throttled.replicas": "0:1", "retention.ms": "5", "flush.ms": "9"}
    resource = body(unmanagedConfig=["retention.ms"], config={"segment.ms": "7"})
    (step,) = plan(resource, existing(1, config=have), known=77).steps
    assert isinstance(step, SetConfig)
    kept = {name: text for name, text in have.items() if name != "flush.ms"}
    assert step.config == {**kept, "segment.ms": "7"}


def test_observed_and_paused_topics_are_never_written() -> None:
    differing = existing(2, config={"flush.ms": "9"})
    for fields in ({"management": "Observe"}, {"paused": True}):
        for view in (TopicView(), differing):
            for known in (None, CREATING, 77):
                resource = body(partitions=3, deletionPolicy="Delete", **fields)
                assert plan(resource, view, known=known).steps == ()
                assert plan(body(True, True, **resource["spec"]), view, known=known).steps in (
                    (),
                    (SetFinalizer(False),),
                )


@pytest.mark.parametrize(
    ("fields", "remedy"),
    [
        ({}, "set min.insync.replicas in spec.config to 1 or less, or raise spec.replication"),
        ({"unmanagedConfig": ["min.insync.replicas"]}, "leaves min.insync.replicas to others"),
        ({"management": "Observe"}, "this Topic only observes: where the topic is managed, set"),
    ],
)
def test_warning_names_a_place_where_the_setting_can_be_changed(
    fields: dict[str, Any], remedy: str
) -> None:
    resource = body(partitions=1, replicationFactor=1, **fields)
    view = existing(1, config={"min.insync.replicas": "2"})
    wanted = topic_spec.parse_topic(resource)
    told = topic_plan.with_warning(plan(resource, view, known=77), wanted, view, CLUSTER)
    warning = told.conditions[-1]
    assert (warning.type, warning.reason) == ("ConfigWarning", "MinInsyncReplicas")
    assert remedy in warning.message
    assert ("spec.config" in warning.message) == (not fields)


@pytest.mark.parametrize("text", ["", "x", "0", "1_000", "3000000000", "9" * 5000, "\u0663"])
def test_of_a_setting_that_brokers_cannot_read_the_default_counts(text: str) -> None:
    resource = body(partitions=1, replicationFactor=1, management="Observe")
    view = existing(1, config={"min.insync.replicas": text})
    wanted, done = topic_spec.parse_topic(resource), plan(resource, view, known=77)
    assert topic_plan.with_warning(done, wanted, view, CLUSTER) == done
    told = topic_plan.with_warning(done, wanted, view, replace(CLUSTER, min_insync=2))
    assert told.conditions[-1].message.startswith("min.insync.replicas 2 is larger than")


def test_only_its_own_topic_is_ever_deleted() -> None:
    resource = body(True, True, deletionPolicy="Delete")
    (step,) = plan(resource, existing(1), known=77).steps
    assert isinstance(step, RequestDeletion)
    for known in (None, 76):
        done = plan(resource, existing(1), known=known)
        assert done.steps == (SetFinalizer(False),)
        assert done.events[0].reason == "TopicAbandoned"


@pytest.mark.parametrize(
    "cluster", [replace(CLUSTER, reachable=False), replace(CLUSTER, paused=True)]
)
def test_deletion_that_had_to_wait_still_deletes_its_own_topic(cluster: ClusterState) -> None:
    resource = body(True, True, deletionPolicy="Delete")
    waiting = plan(resource, existing(1), cluster, known=77)
    assert waiting.steps == ()
    (step,) = plan(resource, existing(1), known=waiting.fields["incarnation"]).steps
    assert isinstance(step, RequestDeletion)


def test_conflict_with_an_older_resource_does_not_forget_the_topic() -> None:
    resource = body()
    meta, wanted = spec.parse_meta(resource), topic_spec.parse_topic(resource)
    done = topic_plan.plan(meta, wanted, existing(1), CLUSTER, 77, "older", Random(1))
    assert (reason(done), done.fields["incarnation"]) == ("ResourceConflict", 77)


@pytest.mark.parametrize(
    "fields", [{"config": {"retention.ms": "a week"}}, {"replicaAssignment": {"1": [0]}}]
)
def test_topic_is_deleted_even_if_its_spec_became_invalid(fields: dict[str, Any]) -> None:
    resource = body(True, True, deletionPolicy="Delete", **fields)
    with pytest.raises(spec.InvalidSpec):
        topic_spec.parse_topic(resource)
    kube, zookeeper = MemoryKube(resource), MemoryZooKeeper()
    resource["status"] = {"incarnation": 77}
    client = cast("ZooKeeper", zookeeper)
    topic_reconcile.reconcile(context(kube), client, resource, existing(1), CLUSTER, None)
    assert zookeeper.created() == [znodes.delete_topic_path("t")]


def test_invalid_spec_does_not_forget_the_topic() -> None:
    resource = {**body(config={"retention.ms": "a week"}), "status": {"incarnation": 77}}
    kube = MemoryKube(resource)
    topic_reconcile.reconcile(context(kube), None, resource, existing(1), CLUSTER, None)
    (written,) = kube.statuses
    assert written["incarnation"] == 77
    assert written["conditions"][0]["reason"] == "InvalidConfig"


def test_terminating_namespace_is_held_for_a_bounded_time_only() -> None:
    resource = body(True, True, deletionPolicy="Delete")
    meta, wanted = spec.parse_meta(resource), topic_spec.parse_topic(resource)
    away = replace(CLUSTER, reachable=False)
    late = NOW + spec.TERMINATING_TIMEOUT + timedelta(seconds=1)
    early = topic_plan.plan_deletion(meta, wanted, TopicView(), away, 77, None, True, NOW)
    assert early.steps == ()
    done = topic_plan.plan_deletion(meta, wanted, TopicView(), away, 77, None, True, late)
    assert done.steps == (SetFinalizer(False),)


@pytest.mark.parametrize(
    "fields",
    [{"replicaAssignment": {"0": [0], "2": [1]}}, {"replicaAssignment": {"0": [0], "1": [1, 2]}}],
)
def test_assignments_with_holes_or_mixed_sizes_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(spec.InvalidSpec):
        topic_spec.parse_topic(body(**fields))


configs = st.dictionaries(
    st.sampled_from(["retention.ms", "segment.ms", "flush.ms"]), st.sampled_from(["1", "2"])
)
wanted_fields = st.fixed_dictionaries(
    {
        "config": configs,
        "adoption": st.sampled_from(["IfMatching", "Force", "Never"]),
        "deletionPolicy": st.sampled_from(["Delete", "Retain", "Protect"]),
    },
    optional={"partitions": st.integers(1, 5), "replicationFactor": st.integers(1, 4)},
)
views = st.one_of(
    st.just(TopicView()), st.builds(existing, st.integers(1, 5), st.integers(1, 3), configs)
)


def simulate(step: object, view: TopicView, resource: dict[str, Any]) -> TopicView:
    """What ZooKeeper holds after a step, and after the controller has elected leaders."""
    match step:
        case SetFinalizer(present):
            resource["metadata"]["finalizers"] = [FINALIZER] if present else []
            return view
        case CreateTopic(_, assignment, config, _):
            view = TopicView(assignment, 0, 99, config, 0)
        case GrowTopic(_, assignment, version):
            assert version == view.version
            assert view.assignment is not None
            old = view.assignment.partitions
            assert {one: assignment.partitions[one] for one in old} == old
            view = replace(view, assignment=assignment, version=version + 1)
        case StartMove(wanted):
            assert view.assignment is not None
            replicas = tuple(map(BrokerId, range(wanted["spec"]["replicationFactor"])))
            moved = TopicAssignment(dict.fromkeys(view.assignment.partitions, replicas))
            view = replace(view, assignment=moved, version=view.version + 1)
        case SetConfig(_, config, version):
            assert version == (None if view.config is None else view.config_version)
            view = replace(view, config=config, config_version=view.config_version + 1)
        case _:
            raise AssertionError(step)
    assert view.assignment is not None
    states = {
        one: PartitionState(replicas[0], LeaderEpoch(0), replicas, ControllerEpoch(1))
        for one, replicas in view.assignment.partitions.items()
    }
    return replace(view, states=states)


@settings(deadline=None)
@given(wanted_fields, views, st.sampled_from([None, CREATING, 77]))
def test_every_topic_comes_to_rest_and_what_is_done_is_not_done_again(
    fields: dict[str, Any], view: TopicView, known: int | None
) -> None:
    resource = body(**fields)
    for _ in range(12):
        done = plan(resource, view, known=known)
        known_after = done.fields.get("incarnation", known)
        if not done.steps and known_after == known and done.conditions:
            break
        known = known_after
        for step in done.steps:
            view = simulate(step, view, resource)
    else:
        pytest.fail("the plan never comes to an end")
    assert plan(resource, view, known=known) == done
    if done.conditions[0].status:
        assert view.assignment is not None
        assert view.config == fields["config"]
        assert len(view.assignment.partitions) == fields.get(
            "partitions", len(view.assignment.partitions)
        )
