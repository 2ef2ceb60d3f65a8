"""The next step of a running Reassignment: a pure function of its plan and of what was observed.

    plan, view, previous decisions -> ReassignmentDecision: what to submit or to stop, or the end

A plan holds the old and the new replicas per partition. Going forward, the goal is the new ones;
once rolling back (by `cancel`, or since a destination is dead or leaders are lost) the goal is the
old ones. One batch at a time is submitted through the controller's znode, which is created only if
it does not exist: a znode that is not of this plan belongs to another client and is waited for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from itertools import islice
from types import MappingProxyType
from typing import Final

from odradek.values import NO_LEADER, BrokerId, TopicPartition
from odradek.zk import znodes
from odradek_operator.reassignment import placement
from odradek_operator.reassignment.placement import Layout, Replicas
from odradek_operator.reassignment.reassignment_spec import ReassignmentSpec
from odradek_operator.shared.views import TopicView

# A restarting broker is back before this.
DEAD_AFTER: Final = timedelta(seconds=90)


@dataclass(frozen=True, slots=True)
class ReassignmentPlan:
    """New and original replicas; the incarnation per topic; bytes per partition.

    `leaderless` are the partitions that had no leader before anything was moved. `unknown` are
    brokers to be removed that are not there and hold nothing, which no plan that is kept has.
    """

    targets: Layout
    originals: Layout
    incarnations: Mapping[str, int]
    sizes: Mapping[TopicPartition, int] = field(default_factory=dict)
    leaderless: frozenset[TopicPartition] = frozenset()
    unknown: tuple[int, ...] = ()

    @property
    def hash(self) -> str:
        """What a user approves: it covers the replicas before and after, and nothing else."""
        text = b"\n".join(
            (znodes.encode_reassignment(self.targets), znodes.encode_reassignment(self.originals))
        )
        return hashlib.sha256(text).hexdigest()[:16]

    def added(self, partition: TopicPartition, *, back: bool = False) -> frozenset[int]:
        """Return the brokers that must copy a partition, forward or on the way back."""
        before, after = self.originals[partition], self.targets[partition]
        return frozenset(before) - set(after) if back else frozenset(after) - set(before)

    @property
    def total_bytes(self) -> int:
        """Bytes to copy, as of when the plan was made."""
        return sum(len(self.added(one)) * self.sizes.get(one, 0) for one in self.targets)


def make_plan(
    spec: ReassignmentSpec,
    topics: Mapping[str, TopicView],
    brokers: Mapping[BrokerId, str | None],
    nodes: Mapping[int, str] = MappingProxyType({}),
    others: frozenset[int] = frozenset(),
) -> ReassignmentPlan:
    """Return the plan of a Reassignment for these topics; `brokers` may get replicas.

    `others` are further brokers, which get none.

    Where brokers share nodes, `nodes` has these, and no partition gets two replicas on one.

    Sizes are left for who can ask for them. Raises placement.PlanError, also for a topic of its own
    that cannot be read. A partition that is being moved already is planned without what that adds.
    """
    replicas: dict[TopicPartition, Replicas] = {}
    leaders: dict[TopicPartition, int] = {}
    in_sync: dict[TopicPartition, frozenset[int]] = {}
    named = {one.topic for one in spec.moves} or spec.topics
    for topic, view in topics.items():
        if topic in spec.excluded:
            continue
        if view.unreadable is not None and (named is None or topic in named):
            text = f"{view.unreadable}; mend it, or make a Reassignment without topic {topic}"
            raise placement.PlanError("ZnodeUnreadable", text)
        if view.assignment is None:
            continue
        for number, held in view.assignment.partitions.items():
            if not held:
                # Nobody has it, and nothing of it can be moved.
                continue
            partition = TopicPartition(topic, number)
            adding = set(view.assignment.adding.get(number, ()))
            replicas[partition] = tuple(one for one in held if one not in adding)
            state = view.states.get(number)
            if state is not None:
                leaders[partition], in_sync[partition] = state.leader, frozenset(state.isr)
    racks = {int(one): rack for one, rack in brokers.items()}
    seen = placement.Seen(replicas, racks, leaders, in_sync, nodes, others)
    chosen = spec.topics if spec.topics is not None else {one.topic for one in replicas}
    unknown: list[int] = []
    match spec.mode:
        case "Explicit":
            targets = placement.plan_explicit(seen, spec.moves)
        case "AddBrokers":
            targets = placement.plan_added(seen, spec.brokers)
        case "RemoveBrokers":
            targets = placement.plan_removed(seen, spec.brokers)
            unknown = placement.unknown_brokers(seen, spec.brokers)
        case "ReplicationFactor":
            assert spec.replication_factor is not None
            targets = placement.plan_factor(seen, chosen, spec.replication_factor)
        case _:
            targets = placement.plan_preferred(seen, chosen)
    incarnations = {one.topic: topics[one.topic].incarnation or 0 for one in targets}
    leaderless = frozenset(one for one in targets if leaders.get(one, NO_LEADER) < 0)
    originals = {one: replicas[one] for one in targets}
    return ReassignmentPlan(
        targets, originals, incarnations, leaderless=leaderless, unknown=tuple(unknown)
    )


def arriving(spec: ReassignmentSpec, topics: Mapping[str, TopicView]) -> list[TopicPartition]:
    """Return the partitions that others are moving to brokers which this one is to empty."""
    if spec.mode != "RemoveBrokers":
        return []
    return sorted(
        TopicPartition(name, number)
        for name, view in topics.items()
        if view.assignment is not None and name not in spec.excluded
        for number, added in view.assignment.adding.items()
        if not set(spec.brokers).isdisjoint(added)
    )


@dataclass(frozen=True, slots=True)
class PartitionView:
    """The observed state of a partition. `adding` and `removing`: a move in progress."""

    replicas: Replicas
    in_sync: frozenset[int] = frozenset()
    leader: int = -1
    adding: frozenset[int] = frozenset()
    removing: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ReassignmentView:
    """Partitions of a plan as they are; one that is gone, or is of another topic now, is missing.

    `requested` is what `/admin/reassign_partitions` (or for preferred leaders
    `/admin/preferred_replica_election`) asks for, None where there is no such znode.
    """

    partitions: Mapping[TopicPartition, PartitionView]
    brokers: frozenset[int]
    requested: Layout | None


class MoveState(Enum):
    """How far one partition is."""

    DONE = "done"
    MOVING = "moving"
    WAITING = "waiting"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ReassignmentDecision:
    """What to do now. At most one of `submit`, `stop` and `ended` is set.

    `missing` are the destinations without which it cannot go on, `absent` the brokers that keep
    replicas and that everything left to do waits for, `offline` the partitions that have lost their
    leaders meanwhile; `foreign` says whose move is waited for. `rolling_back` is the reason, once
    there is one.
    """

    states: Mapping[TopicPartition, MoveState]
    rolling_back: str | None = None
    submit: Layout = field(default_factory=dict)
    stop: tuple[TopicPartition, ...] = ()
    ended: str | None = None
    missing: frozenset[int] = frozenset()
    offline: frozenset[TopicPartition] = frozenset()
    foreign: str | None = None
    failures: tuple[str, ...] = ()
    absent: frozenset[int] = frozenset()

    def count(self, state: MoveState) -> int:
        """Return how many partitions are in this state."""
        return sum(one is state for one in self.states.values())


def look(
    plan: ReassignmentPlan,
    topics: Mapping[str, TopicView],
    brokers: frozenset[int],
    requested: Layout | None,
) -> ReassignmentView:
    """Return the observed state of a plan's partitions."""
    found: dict[TopicPartition, PartitionView] = {}
    for partition in plan.targets:
        topic = topics[partition.topic]
        replicas = topic.assignment.partitions.get(partition.partition) if topic.assignment else ()
        if not replicas or topic.incarnation != plan.incarnations[partition.topic]:
            continue
        assert topic.assignment is not None
        state = topic.states.get(partition.partition)
        found[partition] = PartitionView(
            replicas=tuple(replicas),
            in_sync=frozenset(state.isr) if state else frozenset(),
            leader=state.leader if state else NO_LEADER,
            adding=frozenset(topic.assignment.adding.get(partition.partition, ())),
            removing=frozenset(topic.assignment.removing.get(partition.partition, ())),
        )
    return ReassignmentView(found, brokers, requested)


def is_stale(plan: ReassignmentPlan, view: ReassignmentView) -> bool:
    """Return whether the replicas changed since the plan was made, before its start."""
    return any(
        partition not in view.partitions or view.partitions[partition].replicas != before
        for partition, before in plan.originals.items()
    )


def decide_moves(
    plan: ReassignmentPlan,
    view: ReassignmentView,
    *,
    cancel: bool,
    deleting: bool,
    rolling_back: str | None,
    missing_since: datetime | None,
    offline_since: datetime | None,
    at_once: int,
    now: datetime,
) -> ReassignmentDecision:
    """Return the next step. The two times are when a destination, and a leader, was first missed.

    A resource that is deleted stops what moves and leaves what is done.
    """
    offline = _offline(plan, view)
    lost = offline if _lasts(offline_since, now) else frozenset[TopicPartition]()
    if rolling_back is None:
        missing = _missing(plan, view)
        if cancel or deleting:
            rolling_back = "Cancelled"
        elif missing and _lasts(missing_since, now):
            rolling_back = "DestinationDead"
        elif lost:
            rolling_back = "PartitionsOffline"
        else:
            forward = _go(plan, view, plan.targets, None, missing, at_once)
            # Submit nothing while leaders are missing.
            return replace(forward, offline=offline, submit={} if offline else forward.submit)
    return replace(
        _go_back(plan, view, rolling_back, deleting, at_once, offline, lost), offline=offline
    )


def _lasts(since: datetime | None, now: datetime) -> bool:
    return since is not None and now - since >= DEAD_AFTER


def _offline(plan: ReassignmentPlan, view: ReassignmentView) -> frozenset[TopicPartition]:
    """Return the partitions that had a leader when this was planned, and have none now."""
    return frozenset(
        partition
        for partition, seen in view.partitions.items()
        if seen.leader < 0 and partition not in plan.leaderless
    )


def _go_back(
    plan: ReassignmentPlan,
    view: ReassignmentView,
    rolling_back: str,
    deleting: bool,
    at_once: int,
    offline: frozenset[TopicPartition],
    lost: frozenset[TopicPartition],
) -> ReassignmentDecision:
    goal = plan.originals
    toward_target = [one for one in plan.targets if _moves_forward(plan, view, one)]
    if toward_target:
        states, failures = _classify(plan, view, goal)
        return ReassignmentDecision(
            states, rolling_back, stop=tuple(toward_target), failures=failures
        )
    if deleting:
        states, failures = _classify(plan, view, goal)
        return ReassignmentDecision(states, rolling_back, ended="Cancelled", failures=failures)
    return _go(plan, view, goal, rolling_back, frozenset(), at_once, offline, lost)


def _missing(plan: ReassignmentPlan, view: ReassignmentView) -> frozenset[int]:
    """Return the destinations of unfinished moves that are not registered."""
    needed: set[int] = set()
    for partition, target in plan.targets.items():
        seen = view.partitions.get(partition)
        if seen is not None and (seen.adding or seen.removing or seen.replicas != target):
            needed |= plan.added(partition) - seen.in_sync
    return frozenset(needed - view.brokers)


def _moves_forward(
    plan: ReassignmentPlan, view: ReassignmentView, partition: TopicPartition
) -> bool:
    seen = view.partitions.get(partition)
    target = plan.targets[partition]
    if seen is None or target == plan.originals[partition]:
        return False
    if (view.requested or {}).get(partition) == target:
        return True
    # Only what this plan adds: it must not stop the move of another client.
    return bool(seen.adding or seen.removing) and _leads_to(seen, target)


def _leads_to(seen: PartitionView, goal: Replicas) -> bool:
    return set(seen.replicas) - seen.removing == set(goal)


def _go(
    plan: ReassignmentPlan,
    view: ReassignmentView,
    goal: Layout,
    rolling_back: str | None,
    missing: frozenset[int],
    at_once: int,
    offline: frozenset[TopicPartition] = frozenset(),
    lost: frozenset[TopicPartition] = frozenset(),
) -> ReassignmentDecision:
    """Return the next step toward `goal`. What is `offline` waits, and what is `lost` is given up:
    nobody can copy a partition that has no leader.
    """
    states, failures = _classify(plan, view, goal)
    foreign = _foreign(plan, view, goal)
    ready: dict[TopicPartition, Replicas] = {}
    absent: set[int] = set()
    for partition, state in states.items():
        if state is not MoveState.WAITING:
            continue
        if partition in lost:
            states[partition] = MoveState.FAILED
            failures = (*failures, f"{partition} has no leader and is not moved")
        if partition in offline:
            continue
        needed = set(goal[partition]) - view.partitions[partition].in_sync - view.brokers
        if not needed:
            ready[partition] = goal[partition]
        elif rolling_back is not None:
            # Replicas on a dead broker cannot be restored.
            states[partition] = MoveState.FAILED
            failures = (*failures, f"{partition} cannot go back to brokers {sorted(needed)}")
        else:
            absent |= needed
    result = ReassignmentDecision(
        states, rolling_back, missing=missing, foreign=foreign, failures=failures
    )
    under_way = view.requested is not None or result.count(MoveState.MOVING)
    if foreign is not None or under_way:
        return result
    if ready:
        return replace(result, submit=dict(islice(ready.items(), at_once)))
    if result.count(MoveState.WAITING):
        return replace(result, absent=frozenset(absent))
    return replace(result, ended=_ending(result))


def _ending(decision: ReassignmentDecision) -> str:
    if decision.rolling_back not in (None, "Cancelled"):
        return "RolledBack"
    if decision.count(MoveState.FAILED):
        return "Failed"
    return "Cancelled" if decision.rolling_back else "Completed"


def _classify(
    plan: ReassignmentPlan, view: ReassignmentView, goal: Layout
) -> tuple[dict[TopicPartition, MoveState], tuple[str, ...]]:
    states: dict[TopicPartition, MoveState] = {}
    failures: list[str] = []
    requested = view.requested or {}
    for partition in plan.targets:
        seen = view.partitions.get(partition)
        if seen is None:
            states[partition] = MoveState.FAILED
            failures.append(f"{partition} is gone")
        elif partition in requested or seen.adding or seen.removing:
            states[partition] = MoveState.MOVING
        elif seen.replicas == goal[partition]:
            states[partition] = MoveState.DONE
        elif set(seen.replicas) in (set(plan.targets[partition]), set(plan.originals[partition])):
            # In another order, as Kafka leaves the replicas of a move that it has stopped.
            states[partition] = MoveState.WAITING
        else:
            states[partition] = MoveState.FAILED
            failures.append(f"{partition} was moved by another client to {list(seen.replicas)}")
    return states, tuple(failures)


def _foreign(plan: ReassignmentPlan, view: ReassignmentView, goal: Layout) -> str | None:
    """Return a description of a move in progress that is not this plan's."""
    for partition, replicas in (view.requested or {}).items():
        known = (plan.targets.get(partition), plan.originals.get(partition))
        if replicas not in known:
            return f"{znodes.REASSIGN_PARTITIONS_PATH} requests {partition} on {list(replicas)}"
    for partition in plan.targets:
        seen = view.partitions.get(partition)
        if seen is None or not (seen.adding or seen.removing):
            continue
        if not (_leads_to(seen, plan.targets[partition]) or _leads_to(seen, goal[partition])):
            return f"{partition} is being moved to {sorted(set(seen.replicas) - seen.removing)}"
    return None


def decide_preferred(
    plan: ReassignmentPlan, view: ReassignmentView, *, cancel: bool, at_once: int
) -> ReassignmentDecision:
    """Return the next step of mode PreferredLeader: elections, which cannot be rolled back."""
    states: dict[TopicPartition, MoveState] = {}
    failures: list[str] = []
    requested = view.requested or {}
    for partition in plan.targets:
        seen = view.partitions.get(partition)
        if seen is None:
            states[partition] = MoveState.FAILED
            failures.append(f"{partition} is gone")
        elif partition in requested:
            states[partition] = MoveState.MOVING
        elif seen.leader == seen.replicas[0]:
            states[partition] = MoveState.DONE
        elif seen.replicas[0] in seen.in_sync and seen.replicas[0] in view.brokers:
            states[partition] = MoveState.WAITING
        else:
            states[partition] = MoveState.FAILED
            failures.append(f"the preferred replica of {partition} is not in sync")
    waiting = [one for one, state in states.items() if state is MoveState.WAITING]
    result = ReassignmentDecision(states, "Cancelled" if cancel else None, failures=tuple(failures))
    if view.requested is not None:
        foreign = set(requested) - set(plan.targets)
        if foreign:
            path = znodes.PREFERRED_ELECTION_PATH
            return replace(result, foreign=f"{path} requests {min(foreign)}")
        return result
    if waiting and not cancel:
        return replace(result, submit={one: plan.targets[one] for one in waiting[:at_once]})
    # A cancelled election leaves nothing to be taken back, so nothing can have failed.
    return replace(result, ended="Cancelled" if cancel else _ending(result))


def percent(decision: ReassignmentDecision, moved: int | None, total: int) -> int:
    """Return how much is done: by bytes where they are known, otherwise by partitions."""
    if decision.ended == "Completed":
        return 100
    done = decision.count(MoveState.DONE)
    share = moved / total if moved is not None and total else done / max(1, len(decision.states))
    # 100 only at the end: the last byte is copied before the last step.
    return min(99, int(share * 100))


def arrival(started: datetime, now: datetime, moved: int | None, total: int) -> datetime | None:
    """Return the estimated end at the pace so far; None while it is unknown."""
    if not moved or total <= moved:
        return None
    return now + (now - started) * ((total - moved) / moved)
