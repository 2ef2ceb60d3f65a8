"""One ConsumerGroup without a job: its members and lag, and a reset of its offsets.

With `offsetStore: Both`, znodes and coordinator are merged: members of either count, and of two
offsets of a partition the larger is used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from odradek.values import TopicPartition
from odradek.zk import consumers
from odradek_operator.group import conditions as group_conditions
from odradek_operator.group import coordinator, reset
from odradek_operator.group import lag as group_lag
from odradek_operator.group.driver_objects import Addresses
from odradek_operator.group.lag import Sample
from odradek_operator.group.reset import Reset
from odradek_operator.group.reset_step import ResetStep
from odradek_operator.group.znodes import ObservedGroup, read_group
from odradek_operator.shared import metrics, observe, spec, status, status_update
from odradek_operator.shared.apply import ReconcileContext
from odradek_operator.shared.broker_client import BrokerError, OperatorClient
from odradek_operator.shared.spec import Body, GroupSpec
from odradek_operator.shared.status import Condition
from odradek_operator.shared.views import ClusterState, Owner
from odradek_operator.shared.zookeeper import UnreachableError, ZooKeeper

OBSERVE_SECONDS: Final = 15.0
WAIT_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class GroupContext:
    """What a group needs of its cluster. `addresses` is None while no broker is registered.

    `windows` keeps the last samples of each resource, by uid.
    """

    cluster: ClusterState
    zookeeper: ZooKeeper | None
    addresses: Addresses | None = None
    endpoints: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    windows: dict[str, tuple[Sample, ...]] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True)
class _Seen:
    view: ObservedGroup
    leaders: Mapping[TopicPartition, int]
    sample: Sample


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
        text = f"KafkaCluster {wanted.cluster} is {cluster.owner.value}"
        return _waits(context, body, wanted, cluster.owner.reason, text, OBSERVE_SECONDS)
    try:
        if around.zookeeper is None:
            raise UnreachableError("ZooKeeper does not answer")
        with OperatorClient(around.endpoints) as brokers:
            seen = _look(around.zookeeper, brokers, wanted, around.clock())
            uid = body["metadata"]["uid"]
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
                told = (*(outcome.problem or done), _paused(cluster.paused))
                if outcome.last is not None:
                    fields["lastReset"] = outcome.last
                status_update.write_status(context, body, told, fields, outcome.events)
                return OBSERVE_SECONDS if outcome.problem else 0.0
    except UnreachableError as error:
        return _waits(context, body, wanted, "ZooKeeperUnreachable", str(error), WAIT_SECONDS)
    except BrokerError as error:
        return _waits(context, body, wanted, "BrokersUnreachable", str(error), WAIT_SECONDS)
    conditions = (*group_conditions.judge_observed(seen.view), _paused(cluster.paused))
    status_update.write_status(context, body, conditions, fields)
    return OBSERVE_SECONDS


def _waits(
    context: ReconcileContext,
    body: Body,
    wanted: GroupSpec,
    reason: str,
    text: str,
    requeue_after: float,
) -> float:
    metrics.GROUP_LAGS.put(body["metadata"]["uid"], _series(context, body, wanted, ()))
    kept = {"lastReset": body.get("status", {}).get("lastReset")}
    status_update.write_status(context, body, status.progressing(reason, text), kept)
    return requeue_after


def _paused(paused: bool) -> Condition:
    return Condition("Paused", paused, "Paused" if paused else "NotPaused")


def _look(zookeeper: ZooKeeper, brokers: OperatorClient, wanted: GroupSpec, clock: float) -> _Seen:
    view = view_group(zookeeper, brokers, wanted)
    leaders = find_leaders(zookeeper, wanted, view)
    committed = {one: offset for one, offset in view.committed.items() if one in leaders}
    # Read log ends after commits: otherwise a busy group would show a negative lag.
    ends = coordinator.find_offsets(brokers, {one: leaders[one] for one in committed}, reset.LATEST)
    return _Seen(view, leaders, Sample(clock, view.members, committed, ends))


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
    )


def find_leaders(
    zookeeper: ZooKeeper, wanted: GroupSpec, view: ObservedGroup
) -> dict[TopicPartition, int]:
    """Return the partitions of a group's topics with their leaders."""
    names = _topics(zookeeper, wanted, view)
    return {
        TopicPartition(name, partition): int(state.leader)
        for name, topic in observe.topics(zookeeper, names).items()
        for partition, state in topic.states.items()
        if topic.assignment is not None and partition in topic.assignment.partitions
    }


def _topics(zookeeper: ZooKeeper, wanted: GroupSpec, view: ObservedGroup) -> list[str]:
    """Return the topics of a group: those of its spec, or those with committed offsets."""
    if wanted.topics:
        return sorted(wanted.topics)
    if wanted.topic_pattern is not None:
        pattern = spec.compile_pattern(wanted.topic_pattern)
        return consumers.topics_matched(pattern, observe.topic_names(zookeeper))
    return sorted({one.topic for one in view.committed})


def _fields(
    body: Body, seen: _Seen, window: tuple[Sample, ...], wanted: GroupSpec
) -> dict[str, Any]:
    lags = sorted(seen.sample.lags.items(), key=lambda one: (-one[1], one[0]))
    seconds = [group_lag.seconds_behind(window, one) for one, _ in lags]
    known = [one for one in seconds if one is not None]
    return {
        "state": group_conditions.state_of(seen.view),
        "members": seen.view.members,
        "totalLag": seen.sample.total,
        "maxLagSeconds": max(known) if known else None,
        "verdict": group_lag.verdict(window, wanted.max_lag, wanted.max_lag_seconds),
        "worstPartitions": [
            {"topic": one.topic, "partition": one.partition, "lag": lag}
            for one, lag in lags[:10]
            if lag
        ],
        "lastReset": body.get("status", {}).get("lastReset"),
    }


def _series(
    context: ReconcileContext, body: Body, wanted: GroupSpec, window: tuple[Sample, ...]
) -> metrics.GroupLag:
    """Return the series for Prometheus; an empty window means that the lag is unknown."""
    records = window[-1].lags if window else {}
    behind = {one: group_lag.seconds_behind(window, one) for one in records}
    complete = bool(window) and len(records) == len(window[-1].committed)
    return metrics.GroupLag(
        namespace=body["metadata"]["namespace"],
        cluster=wanted.cluster,
        group=wanted.group,
        records=records,
        seconds={one: value for one, value in behind.items() if value is not None},
        read_at=context.now().timestamp() if complete else None,
    )
