"""One pass over a ConsumerGroup without a job: its members and lag, and a reset of its offsets.

What the group's znodes say and what its coordinator says are one group here where `offsetStore` is
Both: members of either count, and of two offsets of a partition the larger.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from odradek.zk import consumers, operations
from odradek.zk.znodes import TopicPartition
from odradek_operator import (
    apply,
    group_brokers,
    group_lag,
    group_reset,
    groups,
    metrics,
    observe,
    status,
)
from odradek_operator.apply import Context
from odradek_operator.broker_client import BrokerError, Brokers
from odradek_operator.driver_objects import Addresses
from odradek_operator.group_brokers import GroupBusyError
from odradek_operator.group_lag import Sample
from odradek_operator.group_reset import Reset
from odradek_operator.groups import GroupView
from odradek_operator.spec import Body, GroupSpec
from odradek_operator.status import Condition, Event
from odradek_operator.topic_state import ClusterState, Owner
from odradek_operator.zookeeper import UnreachableError, ZooKeeper

OBSERVE_SECONDS: Final = 15.0
WAIT_SECONDS: Final = 3.0
_COMMIT_BATCH: Final = 100


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a group sees of its cluster. `addresses` is None while no broker is known.

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
    view: GroupView
    leaders: Mapping[TopicPartition, int]
    sample: Sample


def reconcile(
    context: Context,
    body: Body,
    wanted: GroupSpec,
    request: Reset | None,
    around: Surroundings,
) -> float:
    """Tell how a group is, and carry out its reset."""
    cluster = around.cluster
    if cluster.owner is not Owner.PRESENT:
        text = f"KafkaCluster {wanted.cluster} is {cluster.owner.value}"
        return _waits(context, body, cluster.owner.reason, text, OBSERVE_SECONDS)
    try:
        if around.zookeeper is None:
            raise UnreachableError("ZooKeeper does not answer")
        with Brokers(around.endpoints) as brokers:
            seen = _look(around.zookeeper, brokers, wanted, around.clock())
            uid = body["metadata"]["uid"]
            window = group_lag.extend(around.windows.get(uid, ()), seen.sample)
            around.windows[uid] = window
            metrics.GROUP_LAGS.put(uid, _series(body, window, wanted))
            fields = _fields(body, seen, window, wanted)
            if request is not None and not group_reset.done(request, body):
                paused = cluster.paused
                step = _Step(context, around.zookeeper, brokers, wanted, request, seen, paused)
                return step.run(body, fields)
    except UnreachableError as error:
        return _waits(context, body, "ZooKeeperUnreachable", str(error), WAIT_SECONDS)
    except BrokerError as error:
        return _waits(context, body, "BrokersUnreachable", str(error), WAIT_SECONDS)
    conditions = (*groups.judge_observed(seen.view), _paused(cluster.paused))
    apply.write_status(context, body, conditions, fields)
    return OBSERVE_SECONDS


def _waits(context: Context, body: Body, reason: str, text: str, again: float) -> float:
    kept = {"lastReset": body.get("status", {}).get("lastReset")}
    apply.write_status(context, body, status.progressing(reason, text), kept)
    return again


def _paused(paused: bool) -> Condition:
    return Condition("Paused", paused, "Paused" if paused else "NotPaused")


def _look(zookeeper: ZooKeeper, brokers: Brokers, wanted: GroupSpec, clock: float) -> _Seen:
    view = view_group(zookeeper, brokers, wanted)
    names = _topics(zookeeper, wanted, view)
    leaders = {
        TopicPartition(name, partition): int(state.leader)
        for name, topic in observe.topics(zookeeper, names).items()
        for partition, state in topic.states.items()
        if topic.assignment is not None and partition in topic.assignment.partitions
    }
    committed = {one: offset for one, offset in view.committed.items() if one in leaders}
    # Ends are asked for after the commits were read, or a busy group would show a negative lag.
    ends = group_brokers.find_offsets(
        brokers, {one: leaders[one] for one in committed}, group_reset.LATEST
    )
    return _Seen(view, leaders, Sample(clock, view.members, committed, ends))


def view_group(zookeeper: ZooKeeper, brokers: Brokers, wanted: GroupSpec) -> GroupView:
    """Return a group as the stores of its offsets have it. Raises BrokerError."""
    view = GroupView(False, 0, {})
    if wanted.offset_store != "Kafka":
        view = observe.group(zookeeper, wanted.group)
    if wanted.offset_store == "ZooKeeper":
        return view
    found = group_brokers.describe(brokers, wanted.group)
    both = set(view.committed) | set(found.committed)
    return GroupView(
        exists=view.exists or found.state != "Dead",
        members=view.members + found.members,
        committed={
            one: max(view.committed.get(one, -1), found.committed.get(one, -1)) for one in both
        },
    )


def _topics(zookeeper: ZooKeeper, wanted: GroupSpec, view: GroupView) -> list[str]:
    """Return the topics of a group: as its spec has them, or those that it has offsets of."""
    if wanted.topics:
        return sorted(wanted.topics)
    if wanted.topic_pattern is not None:
        pattern = re.compile(wanted.topic_pattern)
        return [one for one in observe.topic_names(zookeeper) if pattern.fullmatch(one)]
    return sorted({one.topic for one in view.committed})


def _fields(
    body: Body, seen: _Seen, window: tuple[Sample, ...], wanted: GroupSpec
) -> dict[str, Any]:
    lags = sorted(seen.sample.lags.items(), key=lambda one: (-one[1], one[0]))
    seconds = [group_lag.seconds_behind(window, one) for one, _ in lags]
    known = [one for one in seconds if one is not None]
    return {
        "state": groups.state_of(seen.view),
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


def _series(body: Body, window: tuple[Sample, ...], wanted: GroupSpec) -> metrics.GroupLag:
    records = window[-1].lags
    behind = {one: group_lag.seconds_behind(window, one) for one in records}
    seconds = {one: value for one, value in behind.items() if value is not None}
    cluster = f"{body['metadata']['namespace']}/{wanted.cluster}"
    return metrics.GroupLag(cluster, wanted.group, records, seconds)


class _Step:
    """One step of a reset: work the offsets out, write them down, commit them."""

    def __init__(
        self,
        context: Context,
        zookeeper: ZooKeeper,
        brokers: Brokers,
        wanted: GroupSpec,
        request: Reset,
        seen: _Seen,
        paused: bool,
    ) -> None:
        self._context = context
        self._zookeeper = zookeeper
        self._brokers = brokers
        self._wanted = wanted
        self._request = request
        self._seen = seen
        self._paused = paused

    def run(self, body: Body, fields: dict[str, Any]) -> float:
        request, members = self._request, self._seen.view.members
        if self._paused and not request.dry_run:
            text = "the reset waits, since the KafkaCluster is paused"
            return self._wait(body, fields, "Paused", text)
        if members and not request.dry_run:
            text = f"the reset waits until {members} members have left, as Kafka's own does"
            return self._wait(body, fields, "ResetWaiting", text)
        targets = group_reset.begun(request, body)
        if targets is None:
            return self._begin(body, fields)
        if not apply.still_wanted(self._context, body):
            return 0.0
        try:
            self._commit(targets)
        except GroupBusyError:
            text = "the reset waits until its members have left, as Kafka's own does"
            return self._wait(body, fields, "ResetWaiting", text)
        last = {**body["status"]["lastReset"], "phase": group_reset.DONE}
        event = Event("OffsetsReset", f"request {request.request_id}: {len(targets)} partitions")
        self._write(body, {**fields, "lastReset": last}, (event,))
        return 0.0

    def _begin(self, body: Body, fields: dict[str, Any]) -> float:
        leaders = self._seen.leaders
        if len(leaders) > group_reset.LARGEST:
            text = f"{len(leaders)} partitions; at most {group_reset.LARGEST} at once, name topics"
            return self._refuse(body, fields, "ResetTooLarge", text)
        begins = group_brokers.find_offsets(self._brokers, leaders, group_reset.EARLIEST)
        ends = group_brokers.find_offsets(self._brokers, leaders, group_reset.LATEST)
        found = group_brokers.find_offsets(self._brokers, leaders, self._request.question)
        missing = set(leaders) - set(begins) | set(leaders) - set(ends)
        if missing:
            text = f"the leader of {min(missing)} does not answer"
            return self._wait(body, fields, "BrokersUnreachable", text)
        committed = self._seen.view.committed
        targets = group_reset.compute(self._request, committed, begins, ends, found)
        if not targets:
            text = "the reset has no partitions: name topics, or see that the group has offsets"
            return self._refuse(body, fields, "ResetWithoutPartitions", text)
        phase = group_reset.DRY_RUN if self._request.dry_run else group_reset.APPLYING
        now = self._context.now()
        last = group_reset.fields(self._request, phase, committed, targets, now)
        self._write(body, {**fields, "lastReset": last}, ())
        return 0.0

    def _commit(self, targets: Mapping[TopicPartition, int]) -> None:
        if self._wanted.offset_store != "ZooKeeper":
            group_brokers.commit(self._brokers, self._wanted.group, targets)
        if self._wanted.offset_store != "Kafka":
            commit_znodes(self._zookeeper, self._wanted.group, targets)

    def _write(self, body: Body, fields: dict[str, Any], events: tuple[Event, ...]) -> None:
        conditions = (*groups.judge_observed(self._seen.view), _paused(self._paused))
        apply.write_status(self._context, body, conditions, fields, events)

    def _wait(self, body: Body, fields: dict[str, Any], reason: str, text: str) -> float:
        conditions = (*status.progressing(reason, text), _paused(self._paused))
        apply.write_status(self._context, body, conditions, fields)
        return OBSERVE_SECONDS

    def _refuse(self, body: Body, fields: dict[str, Any], reason: str, text: str) -> float:
        conditions = (*status.stalled(reason, text), _paused(self._paused))
        apply.write_status(self._context, body, conditions, fields)
        return OBSERVE_SECONDS


def commit_znodes(zookeeper: ZooKeeper, group: str, targets: Mapping[TopicPartition, int]) -> None:
    """Write offsets into a group's znodes, with the parents that are missing.

    Raises UnreachableError where somebody else writes there at the same time: look again then.
    """
    paths = {
        consumers.offset_path(group, one.topic, one.partition): offset
        for one, offset in targets.items()
    }
    parents = {consumers.group_path(group), f"{consumers.group_path(group)}/offsets"}
    parents |= {consumers.offsets_path(group, one.topic) for one in targets}
    found = zookeeper.read([*sorted(parents), *paths])
    wanted: list[operations.Operation] = [
        operations.Create(path) for path in sorted(parents) if found[path] is None
    ]
    for path, offset in paths.items():
        data, there = consumers.encode_offset(offset), found[path]
        if there is None:
            wanted.append(operations.Create(path, data))
        elif there.data != data:
            wanted.append(operations.SetData(path, data, there.version))
    for first in range(0, len(wanted), _COMMIT_BATCH):
        try:
            zookeeper.commit(wanted[first : first + _COMMIT_BATCH])
        except operations.TransactionFailedError as error:
            raise UnreachableError(f"offsets of {group} changed meanwhile: {error}") from error
