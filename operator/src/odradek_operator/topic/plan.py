"""What to do about a Topic: a pure function of its spec and of what was observed.

    spec (TopicSpec) + observed (TopicView, ClusterState) -> TopicPlan: steps, conditions, events

A topic belongs to a resource once the resource's status holds the topic's incarnation, the
ZooKeeper transaction that created `/brokers/topics/T`. An existing topic with another incarnation
belongs to somebody else, and `adoption` decides. Before a topic is created, incarnation 0 is
written to the status, so that after a crash in between the new topic is recognised.

Steps are idempotent and conditional on the versions seen; if one loses a race, the Topic is planned
again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from typing import Any, Final

from odradek import assignment, properties, topic_config
from odradek.properties import ConfigError
from odradek.protocol.errors import KafkaError
from odradek.zk import admin
from odradek.zk.znodes import PartitionState, TopicAssignment
from odradek_operator.shared import status
from odradek_operator.shared.cluster_spec import MIN_INSYNC
from odradek_operator.shared.spec import TERMINATING_TIMEOUT, Body, ResourceMeta, parse_time
from odradek_operator.shared.status import Condition, Event
from odradek_operator.shared.views import ClusterState, Owner, TopicView
from odradek_operator.topic import drift, reassign
from odradek_operator.topic.state import (
    CREATING,
    STEADY_SECONDS,
    CreateTopic,
    GrowTopic,
    OwnMove,
    RequestDeletion,
    SetConfig,
    SetFinalizer,
    StartMove,
    Step,
    TopicPlan,
)
from odradek_operator.topic.topic_spec import TopicSpec, topic_name

# How long an incomplete set of brokers must have stayed as it is before a new topic is laid out on
# it: brokers that start together register within seconds of each other.
SETTLE_SECONDS: Final = 15.0
SOON_SECONDS: Final = 2.0
# Somebody has to change an ACL of ZooKeeper first.
REFUSED_SECONDS: Final = 10.0
# Between requests to delete a topic that the controller drops: a quarter of the deletion's age.
FIRST_ASKED_SECONDS: Final = 1.0
LAST_ASKED_SECONDS: Final = 15.0
# By then the controller has elected leaders for a new topic, unless it is busy.
CREATED_SECONDS: Final = 0.5
# After this, missing leaders are reported.
FIRST_LEADERS_TIMEOUT: Final = timedelta(seconds=5)
_NO_LEADERS: Final = "WaitingForLeaders"


def plan(
    meta: ResourceMeta,
    spec: TopicSpec,
    view: TopicView,
    cluster: ClusterState,
    known_incarnation: int | None,
    conflict: str | None,
    random: Random,
    moves: Sequence[OwnMove] = (),
) -> TopicPlan:
    """Plan a Topic that is not being deleted.

    `known_incarnation` is status.incarnation; `conflict` names an older resource of the same topic;
    `moves` are the Reassignments that this resource made.
    """
    shown = seen_fields(spec.topic, view, known_incarnation)
    if conflict is not None:
        return _blocked("ResourceConflict", f"Topic {conflict} is older and owns this topic", shown)
    early = _before_looking(spec, cluster)
    if early is not None:
        return replace(early, fields=shown)
    if view.unreadable is not None:
        return _unseen(status.stalled("ZnodeUnreadable", view.unreadable), shown, STEADY_SECONDS)
    if spec.managed and not spec.paused:
        finalizer = _finalizer_step(meta, spec)
        if finalizer:
            # The finalizer is set before the topic exists, so that no deletion is missed.
            return TopicPlan((finalizer,), (), shown, requeue_after=0.0)
    if view.deletion_requested:
        return _waiting("TopicDeleting", "the topic is being deleted", shown)
    if view.assignment is None:
        return _plan_absent(spec, view, cluster, known_incarnation, shown, random)
    owned = {**shown, "incarnation": view.incarnation}
    if not spec.managed or view.incarnation == known_incarnation:
        return _plan_existing(meta, spec, view, view.assignment, cluster, shown, moves)
    if not is_own(spec, view, view.assignment, known_incarnation):
        return _plan_adoption(spec, view, view.assignment, cluster, shown)
    existing = _plan_existing(meta, spec, view, view.assignment, cluster, owned, moves)
    # A topic is not changed before the status claims it.
    return replace(existing, steps=(), events=(), requeue_after=0.0) if existing.steps else existing


def _before_looking(spec: TopicSpec, cluster: ClusterState) -> TopicPlan | None:
    if cluster.owner is not Owner.PRESENT:
        text = f"KafkaCluster {spec.cluster} is {cluster.owner.value}"
        return _unseen(status.progressing(cluster.owner.reason, text), {}, 10.0)
    if not cluster.reachable:
        return _unseen(status.progressing("ZooKeeperUnreachable", cluster.away), {}, 5.0)
    return None


def _finalizer_step(meta: ResourceMeta, spec: TopicSpec) -> SetFinalizer | None:
    wanted = spec.deletion_policy == "Delete"
    return SetFinalizer(wanted) if wanted != meta.has_finalizer else None


def _plan_absent(
    spec: TopicSpec,
    view: TopicView,
    cluster: ClusterState,
    known: int | None,
    shown: Mapping[str, Any],
    random: Random,
) -> TopicPlan:
    if not spec.managed:
        return _waiting("TopicNotFound", "the topic does not exist", shown, requeue_after=30.0)
    if spec.paused or cluster.paused:
        absent = Condition("Synced", False, "Paused", "the topic does not exist")
        return _paused(spec, absent, shown)
    written = spec.replication_factor or len(spec.assignment.get(0, ()))
    factor = written or cluster.default_replication_factor
    partitions = spec.partitions or cluster.default_partitions
    if factor is None or partitions is None:
        text = f"the spec of KafkaCluster {spec.cluster} is invalid, so its defaults are unknown"
        return _waiting("ClusterInvalid", text, shown, requeue_after=10.0)
    refusal = _refuse_layout(spec, cluster, factor)
    if refusal:
        return _blocked(*refusal, shown)
    try:
        admin.check_collision(spec.topic, view.others)
    except KafkaError as error:
        return _blocked("TopicCollision", str(error), shown)
    needed = len({one for replicas in spec.assignment.values() for one in replicas}) or factor
    settled = cluster.settled_seconds >= SETTLE_SECONDS
    have, expected = len(cluster.brokers), len(cluster.wanted)
    if have < needed or cluster.places < factor or (have < expected and not settled):
        text = f"{have} of {expected} brokers are registered"
        return _waiting("WaitingForBrokers", text, shown)
    if view.preceding is not None:
        text = f"an older Topic may create {view.preceding}, which has the same name in metrics"
        return _waiting(status.CREATING, text, shown)
    try:
        replicas = _lay_out(spec, cluster, partitions, factor, random)
    except KafkaError as error:
        return _blocked("InvalidReplicaAssignment", str(error), shown)
    try:
        admin.check_topic_size(TopicAssignment(replicas))
    except KafkaError as error:
        return _blocked("TooManyPartitions", str(error), shown)
    noted = {**shown, "incarnation": CREATING}
    creating = _waiting(status.CREATING, "the topic is being created", noted)
    config_version = None if view.config is None else view.config_version
    step = CreateTopic(spec.topic, TopicAssignment(replicas), spec.config, config_version)
    text = f"created with {len(replicas)} partitions and replication factor {len(replicas[0])}"
    event = Event("TopicCreated", text)
    status_first = known != CREATING
    return replace(
        creating,
        steps=(step,),
        events=(event,),
        requeue_after=CREATED_SECONDS,
        status_first=status_first,
    )


def _refuse_layout(spec: TopicSpec, cluster: ClusterState, factor: int) -> tuple[str, str] | None:
    if spec.assignment:
        known = {*cluster.wanted, *cluster.brokers}
        named = {one for replicas in spec.assignment.values() for one in replicas}
        unknown = sorted(named - known)
        return ("InvalidReplicaAssignment", f"brokers {unknown} do not exist") if unknown else None
    if factor > cluster.most_replicas:
        what = "nodes" if cluster.wanted.share_nodes else "brokers"
        return (
            "InvalidReplicationFactor",
            f"replication factor {factor} is larger than the number of {what}, "
            f"{cluster.most_replicas}",
        )
    return None


def _lay_out(
    spec: TopicSpec, cluster: ClusterState, partitions: int, factor: int, random: Random
) -> assignment.Replicas:
    if spec.assignment:
        return assignment.check_manual(spec.assignment, cluster.brokers, nodes=cluster.nodes)
    return assignment.assign_replicas(
        assignment.forget_partial_racks(cluster.brokers),
        partitions,
        factor,
        assignment.Start.draw(random, len(cluster.brokers)),
        nodes=cluster.nodes,
    )


def is_own(
    spec: TopicSpec, view: TopicView, actual: TopicAssignment, known_incarnation: int | None
) -> bool:
    """Return whether the topic that exists is the one this resource created or adopted."""
    if known_incarnation == CREATING:
        return not drift.of_shape(spec, view, actual)
    return view.incarnation == known_incarnation


def _plan_adoption(
    spec: TopicSpec,
    view: TopicView,
    actual: TopicAssignment,
    cluster: ClusterState,
    shown: Mapping[str, Any],
) -> TopicPlan:
    adopted = {**shown, "incarnation": view.incarnation}
    if spec.paused or cluster.paused:
        stranger = Condition("Synced", None, "Paused", "the existing topic is not adopted")
        return _paused(spec, stranger, shown)
    if spec.adoption == "Never":
        return _blocked("TopicExists", "the topic already exists and spec.adoption is Never", shown)
    differences = drift.of_shape(spec, view, actual)
    if spec.adoption == "IfMatching" and differences:
        text = f"the existing topic does not match: {drift.describe(differences)}"
        return _blocked("AdoptionRefused", text, {**shown, "drift": list(differences)})
    event = Event("TopicAdopted", f"adopted the existing topic {spec.topic}")
    return TopicPlan((), (), adopted, (event,), requeue_after=0.0)


def _plan_existing(
    meta: ResourceMeta,
    spec: TopicSpec,
    view: TopicView,
    actual: TopicAssignment,
    cluster: ClusterState,
    shown: Mapping[str, Any],
    moves: Sequence[OwnMove],
) -> TopicPlan:
    differences = drift.find(spec, view, actual)
    shown = {**shown, "drift": list(differences)}
    leaders = _leader_conditions(actual, view.states)
    told = (_synced(differences), _drift_condition(differences), status.paused(False))
    if not spec.managed:
        return TopicPlan((), (*leaders, *told), shown)
    if spec.paused or cluster.paused:
        return _paused(spec, _synced(differences), shown, differences, leaders)
    steps: list[Step] = []
    if any(one["field"].startswith("config.") for one in differences):
        version = None if view.config is None else view.config_version
        steps.append(SetConfig(spec.topic, drift.wanted_config(spec, view.config or {}), version))
    grown = _grow(spec, view, actual, cluster)
    if isinstance(grown, tuple):
        return replace(_blocked(*grown, shown), steps=tuple(steps))
    if grown is not None:
        steps.append(grown)
    if steps:
        text = ", ".join(one["field"] for one in differences if one["field"] not in _MOVED)
        waiting = _waiting("Updating", f"updating {text}", shown)
        event = Event("TopicUpdated", f"updated {text}")
        return replace(waiting, steps=tuple(steps), events=(event,), requeue_after=0.2)
    moved = _plan_moves(meta, spec, actual, cluster, shown, moves)
    if moved is not None:
        return moved
    if _wants_more(spec, actual):
        text = "partitions are added once the topic's reassignment has completed"
        return _waiting("Updating", text, shown, requeue_after=10.0)
    if differences:
        blocked = _blocked("PartitionDecreaseUnsupported", drift.describe(differences), shown)
        mended = (*blocked.conditions, _drift_condition(differences))
        return replace(blocked, conditions=mended)
    if not leaders[0].status:
        conditions = (*leaders, *told)
        return TopicPlan((), conditions, shown, requeue_after=SOON_SECONDS, awaits_leaders=True)
    return TopicPlan((), (*leaders, *told), shown)


# Fields that a Reassignment changes.
_MOVED: Final = frozenset({"replicationFactor", "replicaAssignment"})


def _plan_moves(
    meta: ResourceMeta,
    spec: TopicSpec,
    actual: TopicAssignment,
    cluster: ClusterState,
    shown: Mapping[str, Any],
    moves: Sequence[OwnMove],
) -> TopicPlan | None:
    """Plan the move of the replicas to where the spec wants them; None if they are there."""
    under_way = reassign.running(moves)
    if under_way is not None:
        text = f"Reassignment {under_way.name}: {under_way.outcome}"
        reference = {**shown, "reassignmentRef": {"name": under_way.name}}
        return _waiting("Reassigning", text, reference, requeue_after=10.0)
    wanted = reassign.needed(meta, spec, actual, moves)
    if wanted is None:
        return None
    refusal = _refuse_layout(spec, cluster, spec.replication_factor or 0)
    if refusal is not None:
        return _blocked(*refusal, shown)
    if actual.adding or actual.removing:
        text = "the replicas are moved once another reassignment of the topic has completed"
        return _waiting("Reassigning", text, shown, requeue_after=10.0)
    reference = {**shown, "reassignmentRef": {"name": wanted["metadata"]["name"]}}
    ended = reassign.outcome(wanted, moves)
    if ended is not None:
        text = f"{ended}; delete that Reassignment to try again, or set the spec back"
        return _blocked("ReassignmentFailed", text, reference)
    text = f"Reassignment {wanted['metadata']['name']} moves the replicas"
    waiting = _waiting("Reassigning", text, reference)
    event = Event("ReassignmentCreated", text)
    return replace(waiting, steps=(StartMove(wanted),), events=(event,))


def _wants_more(spec: TopicSpec, actual: TopicAssignment) -> bool:
    return spec.partitions is not None and spec.partitions > len(actual.partitions)


def _grow(
    spec: TopicSpec, view: TopicView, actual: TopicAssignment, cluster: ClusterState
) -> GrowTopic | tuple[str, str] | None:
    if not _wants_more(spec, actual) or actual.adding or actual.removing:
        return None
    if spec.assignment and not drift.has_factor(actual, len(spec.assignment[0])):
        # Partitions of a topic have as many replicas each: first those that there are get theirs.
        return None
    assert spec.partitions is not None
    have = len(actual.partitions)
    try:
        if spec.assignment:
            wanted = {one: spec.assignment[one] for one in range(have, spec.partitions)}
            added = assignment.check_manual(
                wanted, cluster.brokers, have, drift.replication_factor(actual), cluster.nodes
            )
        else:
            brokers = assignment.forget_partial_racks(cluster.brokers)
            added = assignment.add_partitions(
                actual.partitions, brokers, spec.partitions, cluster.nodes
            )
        grown = replace(actual, partitions={**actual.partitions, **added})
        admin.check_topic_size(grown)
    except KafkaError as error:
        return "PartitionsNotAdded", str(error)
    return GrowTopic(spec.topic, grown, view.version)


def _leader_conditions(
    actual: TopicAssignment, states: Mapping[int, PartitionState]
) -> tuple[Condition, ...]:
    missing = sorted(
        one for one in actual.partitions if one not in states or states[one].leader < 0
    )
    if not missing:
        return status.ready("Synced")
    shown = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
    text = f"{len(missing)} of {len(actual.partitions)} partitions have no leader: {shown}"
    return status.progressing(_NO_LEADERS, text)


def was_just_created(body: Body, now: datetime) -> bool:
    """Return whether the status has said Creating for a short time only.

    When a thousand topics are created at once, reporting each step of each would cost more than
    their creation.
    """
    ready = status.condition_of(body.get("status", {}), "Ready")
    if ready is None or ready["reason"] != status.CREATING:
        return False
    return abs(now - parse_time(ready["lastTransitionTime"])) < FIRST_LEADERS_TIMEOUT


def _synced(differences: drift.Drift) -> Condition:
    if differences:
        return Condition("Synced", False, "OutOfSync", f"{len(differences)} fields differ")
    return Condition("Synced", True, "Synced")


def _drift_condition(differences: drift.Drift) -> Condition:
    if differences:
        text = ", ".join(one["field"] for one in differences)
        return Condition("DriftDetected", True, "DriftDetected", text)
    return Condition("DriftDetected", False, "NoDrift")


def _paused(
    spec: TopicSpec,
    synced: Condition,
    shown: Mapping[str, Any],
    differences: drift.Drift | None = None,
    leaders: Sequence[Condition] = (),
) -> TopicPlan:
    """Return the plan of a Topic that is paused, or whose cluster is.

    `differences` None: the topic is not compared. `leaders` are the conditions of its leaders.
    """
    why = "spec.paused is true" if spec.paused else "the KafkaCluster is paused"
    health: Sequence[Condition] = status.stalled("Paused", f"{why}; changes are pending")
    if synced.status:
        lacking = leaders and not leaders[0].status
        health = leaders if lacking else status.ready("Paused", why)
    drifted = Condition("DriftDetected", None, "Paused")
    if differences is not None:
        drifted = _drift_condition(differences)
    return TopicPlan((), (*health, synced, drifted, status.paused(True)), shown)


def refused(plan: TopicPlan, reason: str, why: str) -> TopicPlan:
    """Return the plan of a Topic for which the operator may not write what it must."""
    blocked = _blocked(reason, why, plan.fields)
    differences = plan.fields.get("drift", ())
    told = (_drift_condition(differences),) if differences else ()
    conditions = (*blocked.conditions, *told)
    return replace(blocked, conditions=conditions, requeue_after=REFUSED_SECONDS)


def _waiting(
    reason: str, message: str, shown: Mapping[str, Any], requeue_after: float = 2.0
) -> TopicPlan:
    synced = Condition("Synced", False, reason, message)
    return TopicPlan(
        (),
        (*status.progressing(reason, message), synced, status.paused(False)),
        shown,
        requeue_after=requeue_after,
    )


def _unseen(
    health: tuple[Condition, ...], shown: Mapping[str, Any], requeue_after: float
) -> TopicPlan:
    """Return the plan of a Topic of which nobody knows whether it is as the spec says."""
    synced = Condition("Synced", None, health[0].reason, health[0].message)
    return TopicPlan(
        (), (*health, synced, status.paused(False)), shown, requeue_after=requeue_after
    )


def with_pause(plan: TopicPlan, spec: TopicSpec, cluster: ClusterState) -> TopicPlan:
    """Return the plan with what is true of the pause, whatever else there is to say."""
    if not (spec.paused or cluster.paused):
        return plan
    paused = status.paused(True)
    told = tuple(paused if one.type == paused.type else one for one in plan.conditions)
    return replace(plan, conditions=told)


def with_warning(
    plan: TopicPlan, spec: TopicSpec, view: TopicView, cluster: ClusterState
) -> TopicPlan:
    """Return the plan with what is wrong with a topic that is as its spec says."""
    if not plan.conditions or view.assignment is None or not cluster.reachable:
        return plan
    factor = drift.replication_factor(view.assignment)
    min_insync = _min_insync(view, cluster)
    if min_insync <= factor:
        return plan
    where, whose = f"set {MIN_INSYNC} in spec.config", "spec.replicationFactor"
    if not spec.managed:
        where = f"this Topic only observes: where the topic is managed, set {MIN_INSYNC}"
        whose = "the replication factor"
    elif MIN_INSYNC in spec.unmanaged:
        where = f"spec.unmanagedConfig leaves {MIN_INSYNC} to others: there, set it"
    warning = Condition(
        "ConfigWarning",
        True,
        "MinInsyncReplicas",
        f"{MIN_INSYNC} {min_insync} is larger than the replication factor {factor}: what producers "
        f"send with acks=all is refused; {where} to {factor} or less, or raise {whose}",
    )
    return replace(plan, conditions=(*plan.conditions, warning))


def _min_insync(view: TopicView, cluster: ClusterState) -> int:
    """Return the setting that counts: brokers ignore an entry that they cannot read."""
    text = (view.config or {}).get(MIN_INSYNC)
    if text is None:
        return cluster.min_insync
    try:
        return int(properties.parse_value(topic_config.TOPIC_KEYS[MIN_INSYNC], MIN_INSYNC, text))
    except ConfigError:
        return cluster.min_insync


def _blocked(reason: str, message: str, shown: Mapping[str, Any]) -> TopicPlan:
    synced = Condition("Synced", False, reason, message)
    return TopicPlan((), (*status.stalled(reason, message), synced, status.paused(False)), shown)


def seen_fields(topic: str, view: TopicView, known: int | None) -> dict[str, Any]:
    """Return what the status says of a topic, whatever is wanted of it."""
    shown: dict[str, Any] = {"topicName": topic, "incarnation": known}
    if view.assignment is not None:
        shown["partitions"] = len(view.assignment.partitions)
        shown["replicationFactor"] = drift.replication_factor(view.assignment)
    return shown


def plan_deletion(
    meta: ResourceMeta,
    spec: TopicSpec,
    view: TopicView,
    cluster: ClusterState,
    known_incarnation: int | None,
    heir: str | None,
    namespace_terminating: bool,
    now: datetime,
    asked: bool = False,
) -> TopicPlan:
    """Plan a Topic that is being deleted. `heir` names another resource of the topic, which stays.

    `asked` says that the brokers were asked to delete it (`was_asked_for`).

    The finalizer goes when the topic is gone, when there is nobody left to delete it, when it is
    not this resource's topic, or not its alone, or when a terminating namespace has waited long
    enough. Whatever it waits for, the status keeps the incarnation: without it the topic would be
    a stranger's.
    """
    if not meta.has_finalizer:
        return TopicPlan()
    shown = seen_fields(spec.topic, view, known_incarnation)
    release = (SetFinalizer(False),)
    if spec.deletion_policy != "Delete" or not spec.managed:
        left = retained(spec.topic)
        if view.deletion_requested:
            left = _abandoned(spec, "the brokers have not ended its deletion")
        return TopicPlan(release, events=(left,), requeue_after=0.0)
    if cluster.owner is not Owner.PRESENT:
        return TopicPlan(
            release, events=(_abandoned(spec, f"its cluster is {cluster.owner.value}"),)
        )
    assert meta.deleted is not None
    if namespace_terminating and now - meta.deleted > TERMINATING_TIMEOUT:
        return TopicPlan(release, events=(_abandoned(spec, "its namespace is being deleted"),))
    if spec.paused or cluster.paused:
        pending = Condition("Synced", False, "Paused", "deletion is pending")
        return _paused(spec, pending, shown)
    if not cluster.reachable:
        text = f"{cluster.away}; {_OR_RETAIN}"
        return _unseen(status.progressing("ZooKeeperUnreachable", text), shown, 5.0)
    if view.unreadable is not None:
        text = f"{view.unreadable}; mend it, or {_OR_RETAIN}"
        return _unseen(status.stalled("ZnodeUnreadable", text), shown, STEADY_SECONDS)
    if view.assignment is None and not view.deletion_requested:
        owned = known_incarnation is not None
        event = Event("TopicDeleted", f"deleted topic {spec.topic} and its data")
        return TopicPlan(release, events=(event,) if owned else ())
    if view.assignment is not None and not is_own(spec, view, view.assignment, known_incarnation):
        return TopicPlan(release, events=(_abandoned(spec, "it does not belong to this resource"),))
    waiting = _waiting("Deleting", _how_it_goes(view, cluster), shown, requeue_after=1.0)
    if view.deletion_requested:
        return waiting
    if heir is not None:
        return TopicPlan(release, events=(_abandoned(spec, f"Topic {heir} has the same topic"),))
    if not cluster.deletes_topics:
        text = f"delete.topic.enable is false in spec.brokers.config of KafkaCluster {spec.cluster}"
        return _blocked("TopicDeletionDisabled", f"{text}: set it to true; {_OR_RETAIN}", shown)
    if asked:
        # Brokers take settings of a pod's file when they start.
        text = (
            "the controller dropped the request to delete the topic: delete.topic.enable is false "
            f"until its broker is restarted; the operator goes on asking; {_OR_RETAIN}"
        )
        age = (now - meta.deleted).total_seconds()
        pause = min(max(FIRST_ASKED_SECONDS, age / 4), LAST_ASKED_SECONDS)
        waiting = _waiting("Deleting", text, shown, requeue_after=pause)
    else:
        waiting = replace(waiting, requeue_after=0.5)
    return replace(waiting, steps=(RequestDeletion(spec.topic, view.version),))


def was_asked_for(body: Body) -> bool:
    """Return whether the status says that the brokers were asked to delete the topic."""
    ready = status.condition_of(body.get("status", {}), "Ready")
    return ready is not None and ready["reason"] == "Deleting"


def _how_it_goes(view: TopicView, cluster: ClusterState) -> str:
    """Return how far a deletion is: it ends with the last replica, wherever that is."""
    text = "the brokers are deleting the topic"
    replicas = view.assignment.partitions.values() if view.assignment else ()
    away = sorted({one for ids in replicas for one in ids} - set(cluster.brokers))
    if not away:
        return text
    return f"{text}, which ends once brokers {away} are back: they hold replicas; {_OR_RETAIN}"


_OR_RETAIN: Final = (
    "to let the resource go without waiting for its topic, set spec.deletionPolicy to Retain"
)


def retained(topic: str) -> Event:
    """Return the Event that says that the data outlives the resource."""
    return Event("TopicRetained", f"topic {topic} and its data are retained in the cluster")


def leaves_data(body: Body) -> str | None:
    """Return the topic that outlives a resource which is gone; None: it had none, or deleted it."""
    wanted = body["spec"]
    owned = body.get("status", {}).get("incarnation") is not None
    if not owned or wanted.get("deletionPolicy") == "Delete" or observes(wanted):
        return None
    return topic_name(body)


def observes(wanted: Body) -> bool:
    """Return whether a spec asks for reports only."""
    return bool(wanted.get("management") == "Observe")


def _abandoned(spec: TopicSpec, why: str) -> Event:
    return Event("TopicAbandoned", f"topic {spec.topic} was not deleted: {why}", warning=True)
