"""One ConsumerGroup without a job: its members and lag, and a reset of its offsets.

With `offsetStore: Both`, znodes and coordinator are merged: members of either count, and of two
offsets of a partition the larger is used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from odradek import lag as rule
from odradek.values import NO_LEADER, TopicPartition
from odradek.zk import consumers
from odradek_operator.group import conditions as group_conditions
from odradek_operator.group import coordinator, reset
from odradek_operator.group import lag as group_lag
from odradek_operator.group.driver_objects import Addresses
from odradek_operator.group.group_spec import GroupSpec
from odradek_operator.group.lag import Sample
from odradek_operator.group.reset import Reset
from odradek_operator.group.reset_step import ResetStep
from odradek_operator.group.znodes import ObservedGroup, read_group
from odradek_operator.shared import metrics, observe, spec, status, status_update, topic_patterns
from odradek_operator.shared.apply import ReconcileContext
from odradek_operator.shared.broker_client import BrokerError, OperatorClient
from odradek_operator.shared.broker_security import OperatorSecurity
from odradek_operator.shared.cluster_access import ClusterAccess
from odradek_operator.shared.spec import Body
from odradek_operator.shared.status import Condition
from odradek_operator.shared.views import ClusterState, Owner, TopicView
from odradek_operator.shared.zookeeper import RefusedError, UnreachableError, ZooKeeper
from odradek_operator.shared.zookeeper_login import ClientFiles

OBSERVE_SECONDS: Final = 15.0
WAIT_SECONDS: Final = 3.0
# What the status of a group keeps whatever happens.
REMEMBERED: Final = ("lastReset", "topics")


@dataclass(frozen=True, slots=True)
class GroupContext:
    """What a group needs of its cluster. `addresses` is None while no broker is registered.

    `windows` keeps the last samples of each resource, by uid. `access` is how pods reach the
    brokers of a cluster with listeners, which is in `namespace`, and `security` how the operator
    does. `authority` counts the CAs that brokers had. Drivers connect to ZooKeeper with
    `zookeeper_files`.
    """

    cluster: ClusterState
    zookeeper: ZooKeeper | None
    addresses: Addresses | None = None
    endpoints: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    windows: dict[str, tuple[Sample, ...]] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    access: ClusterAccess | None = None
    namespace: str = ""
    security: OperatorSecurity | None = None
    authority: int = 0
    zookeeper_files: ClientFiles = field(default_factory=ClientFiles)


@dataclass(frozen=True, slots=True)
class _Seen:
    view: ObservedGroup
    leaders: Mapping[TopicPartition, int]
    sample: Sample
    topics: Mapping[str, int]


def reconcile(
    context: ReconcileContext,
    body: Body,
    wanted: GroupSpec,
    request: Reset | None,
    around: GroupContext,
) -> float:
    """Report the state of a group, and execute its reset."""
    cluster = around.cluster
    if cluster.owner is not Owner.PRESENT:
        told = group_conditions.judge_absent(wanted, cluster.owner)
        return _waits(context, body, wanted, told, OBSERVE_SECONDS)
    try:
        if around.zookeeper is None:
            raise UnreachableError(cluster.away)
        with OperatorClient(around.endpoints, around.security) as brokers:
            uid = body["metadata"]["uid"]
            recorded = _recorded(body, wanted)
            seen = _look(around.zookeeper, brokers, wanted, around.clock(), recorded)
            window = group_lag.extend(around.windows.get(uid, ()), seen.sample)
            around.windows[uid] = window
            metrics.GROUP_LAGS.put(uid, _series(context, body, wanted, window))
            fields = _fields(body, seen, window, wanted)
            if request is not None and not reset.done(request, body):
                step = ResetStep(
                    context, around.zookeeper, brokers, wanted, request, seen.view, seen.leaders
                )
                outcome = step.run(body, cluster.paused)
                done = group_conditions.judge_observed(seen.view)
                told = (*(outcome.problem or done), status.paused(cluster.paused))
                if outcome.last is not None:
                    fields["lastReset"] = outcome.last
                status_update.write_status(context, body, told, fields, outcome.events)
                return OBSERVE_SECONDS if outcome.problem else 0.0
    except RefusedError as error:
        refused = status.stalled("ZooKeeperRefuses", str(error))
        return _waits(context, body, wanted, refused, WAIT_SECONDS)
    except UnreachableError as error:
        waiting = status.progressing("ZooKeeperUnreachable", str(error))
        return _waits(context, body, wanted, waiting, WAIT_SECONDS)
    except BrokerError as error:
        waiting = status.progressing("BrokersUnreachable", str(error))
        return _waits(context, body, wanted, waiting, WAIT_SECONDS)
    conditions = (*group_conditions.judge_observed(seen.view), status.paused(cluster.paused))
    status_update.write_status(context, body, conditions, fields)
    return OBSERVE_SECONDS


def _waits(
    context: ReconcileContext,
    body: Body,
    wanted: GroupSpec,
    told: tuple[Condition, ...],
    requeue_after: float,
) -> float:
    metrics.GROUP_LAGS.put(body["metadata"]["uid"], _series(context, body, wanted, ()))
    kept = status_update.remembered(body, REMEMBERED)
    status_update.write_status(context, body, told, kept)
    return requeue_after


def _recorded(body: Body, wanted: GroupSpec) -> dict[str, int]:
    """Return the topics in which the group had commits, by the transactions that created them."""
    found = body.get("status", {}).get("topics", {})
    if wanted.topics:
        found = {topic: text for topic, text in found.items() if topic in wanted.topics}
    elif wanted.topic_pattern is not None:
        pattern = topic_patterns.compile_pattern(wanted.topic_pattern)
        found = {topic: found[topic] for topic in consumers.topics_matched(pattern, found)}
    return {topic: int(text) for topic, text in found.items()}


def _look(
    zookeeper: ZooKeeper,
    brokers: OperatorClient,
    wanted: GroupSpec,
    clock: float,
    recorded: Mapping[str, int],
) -> _Seen:
    view = view_group(zookeeper, brokers, wanted)
    # Read topics after commits: where these went with a topic, it is gone by now, or about to go.
    topics = observe.topics(zookeeper, sorted({*_topics(zookeeper, wanted, view), *recorded}))
    leaders = _leaders(topics, view)
    present = {
        name: one.incarnation
        for name, one in topics.items()
        if one.incarnation is not None and not one.deletion_requested
    }
    view = view.of_topics(present)
    former = group_lag.of_former_topics(view.committed, view.written, recorded, present, leaders)
    committed = {
        one: view.committed.get(one, 0) for one in leaders if one in view.committed or one in former
    }
    # Read log ends after commits: otherwise a busy group would show a negative lag.
    asked = {one: leaders[one] for one in committed}
    ends = coordinator.find_offsets(brokers, asked, reset.LATEST)
    undecided = {
        one: leader
        for one, leader in asked.items()
        if rule.needs_start(committed[one], ends.get(one), is_former=one in former)
    }
    starts = coordinator.find_offsets(brokers, undecided, reset.EARLIEST)
    sample = Sample(clock, view.members, committed, ends, starts, frozenset(former), view.simple)
    return _Seen(view, leaders, sample, group_lag.record(sample, recorded, present, leaders))


def view_group(zookeeper: ZooKeeper, brokers: OperatorClient, wanted: GroupSpec) -> ObservedGroup:
    """Return a group as its offset stores hold it. Raises BrokerError."""
    view = ObservedGroup(False, 0, {})
    if wanted.offset_store != "Kafka":
        view = read_group(zookeeper, wanted.group)
    if wanted.offset_store == "ZooKeeper":
        return view
    found = coordinator.describe(brokers, wanted.group)
    both = set(view.committed) | set(found.committed)
    return ObservedGroup(
        exists=view.exists or found.state != "Dead",
        members=view.members + found.members,
        committed={
            one: max(view.committed.get(one, -1), found.committed.get(one, -1)) for one in both
        },
        written=view.written,
        coordinated=found.committed,
        simple=found.simple and not view.exists,
    )


def find_leaders(
    zookeeper: ZooKeeper, wanted: GroupSpec, view: ObservedGroup
) -> dict[TopicPartition, int]:
    """Return the partitions of a group's topics with their leaders, NO_LEADER for unknown ones."""
    return _leaders(observe.topics(zookeeper, _topics(zookeeper, wanted, view)), view)


def _leaders(topics: Mapping[str, TopicView], view: ObservedGroup) -> dict[TopicPartition, int]:
    """Return the leader per partition: NO_LEADER where there is none, or where that, or the topic
    itself, cannot be read. Left out, such partitions would count as read.
    """
    unreadable = {name for name, topic in topics.items() if topic.unreadable is not None}
    found: dict[TopicPartition, int] = {
        one: NO_LEADER for one in view.committed if one.topic in unreadable
    }
    for name, topic in topics.items():
        for partition in topic.assignment.partitions if topic.assignment is not None else ():
            state = topic.states.get(partition)
            leader = NO_LEADER if state is None else state.leader
            found[TopicPartition(name, partition)] = leader
    return found


def _topics(zookeeper: ZooKeeper, wanted: GroupSpec, view: ObservedGroup) -> list[str]:
    """Return the topics of a group: those of its spec, or those with committed offsets."""
    if wanted.topics:
        return sorted(wanted.topics)
    if wanted.topic_pattern is not None:
        pattern = topic_patterns.compile_pattern(wanted.topic_pattern)
        return consumers.topics_matched(pattern, observe.topic_names(zookeeper))
    return sorted({one.topic for one in view.committed})


def _fields(
    body: Body, seen: _Seen, window: tuple[Sample, ...], wanted: GroupSpec
) -> dict[str, Any]:
    lags = sorted(seen.sample.lags.items(), key=lambda one: (-one[1], one[0]))
    seconds = {one: group_lag.seconds_behind(window, one) for one, _ in lags}
    known = [one for one in seconds.values() if one is not None]
    return {
        "state": group_conditions.state_of(seen.view),
        "members": seen.view.members,
        "totalLag": seen.sample.total,
        "maxLagSeconds": max(known) if known else None,
        "verdict": group_lag.verdict(window, wanted.max_lag, wanted.max_lag_seconds),
        "worstPartitions": [
            _placed(one, lag, seconds[one]) for one, lag in lags[: rule.WORST_PARTITIONS] if lag
        ],
        "topics": {topic: str(created) for topic, created in seen.topics.items()},
        "lastReset": body.get("status", {}).get("lastReset"),
    }


def _placed(partition: TopicPartition, lag: int, seconds: int | None) -> dict[str, Any]:
    place: dict[str, Any] = {"topic": partition.topic, "partition": partition.partition, "lag": lag}
    return place if seconds is None else {**place, "lagSeconds": seconds}


def _series(
    context: ReconcileContext, body: Body, wanted: GroupSpec, window: tuple[Sample, ...]
) -> metrics.GroupLag:
    """Return the series for Prometheus; an empty window means that the lag is unknown."""
    records = window[-1].lags if window else {}
    behind = {one: group_lag.seconds_behind(window, one) for one in records}
    complete = bool(window) and len(records) == len(window[-1].committed)
    place = spec.cluster_of(body)
    return metrics.GroupLag(
        namespace=place.namespace,
        cluster=place.name,
        group=wanted.group,
        records=records,
        seconds={one: value for one, value in behind.items() if value is not None},
        read_at=context.now().timestamp() if complete else None,
    )
