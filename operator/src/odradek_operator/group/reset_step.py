"""One step of an offset reset: compute the offsets, write them down, commit them.

A step returns its outcome and leaves the status to the caller, since groups with and without a job
report different things besides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from odradek.values import NO_LEADER, TopicPartition
from odradek.zk import consumers, operations, znodes
from odradek_operator.group import coordinator, reset
from odradek_operator.group.coordinator import GroupBusyError
from odradek_operator.group.group_spec import GroupSpec
from odradek_operator.group.reset import Reset
from odradek_operator.group.znodes import ObservedGroup
from odradek_operator.shared import apply, status
from odradek_operator.shared.apply import ReconcileContext
from odradek_operator.shared.broker_client import OperatorClient
from odradek_operator.shared.spec import Body
from odradek_operator.shared.status import Condition, Event
from odradek_operator.shared.zookeeper import UnreachableError, ZooKeeper

_COMMIT_BATCH: Final = 100


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a step. `last` is the new status.lastReset; None leaves it unchanged.

    `problem` are the conditions of a reset that waits, or with `refused` of one that cannot be.
    """

    last: Mapping[str, Any] | None = None
    events: tuple[Event, ...] = ()
    problem: tuple[Condition, ...] = ()
    refused: bool = False


def waits(reason: str, text: str) -> Outcome:
    """Return the outcome of a step that is retried."""
    return Outcome(problem=status.progressing(reason, text))


def _refused(reason: str, text: str) -> Outcome:
    return Outcome(problem=status.stalled(reason, text), refused=True)


@dataclass(frozen=True, slots=True)
class ResetStep:
    """A reset request and the current state of its group; `leaders` are per partition to reset."""

    context: ReconcileContext
    zookeeper: ZooKeeper
    brokers: OperatorClient
    wanted: GroupSpec
    request: Reset
    view: ObservedGroup
    leaders: Mapping[TopicPartition, int]

    def run(self, body: Body, paused: bool) -> Outcome:
        """Execute the next step. Raises BrokerError, UnreachableError."""
        request, members = self.request, self.view.members
        if paused and not request.dry_run:
            return waits("Paused", "the KafkaCluster is paused; the reset is pending")
        if members and not request.dry_run:
            return _waits_for(f"{members} members")
        targets = reset.begun(request, body)
        if targets is None:
            return self.begin()
        kept = reset.of_same_topics(targets, body, self._incarnations(targets))
        if len(kept) < len(targets):
            return self.begin(kept)
        if not apply.still_wanted(self.context, body):
            return Outcome()
        try:
            self._commit(targets)
        except GroupBusyError:
            return _waits_for("its members")
        last = {**body["status"]["lastReset"], "phase": reset.DONE}
        event = Event("OffsetsReset", f"request {request.request_id}: {len(targets)} partitions")
        return Outcome(last, (event,))

    def begin(self, kept: Mapping[TopicPartition, int] | None = None) -> Outcome:
        """Compute the target offsets, but for those `kept`, without changing anything.

        Raises BrokerError, UnreachableError.
        """
        # Before the logs: if a topic is made anew in between, the next step sees that.
        incarnations = self._incarnations(self.leaders)
        if len(self.leaders) > reset.LARGEST:
            text = f"at most {reset.LARGEST} per reset: set spec.topics, or use odradek groups"
            return _refused("ResetTooLarge", f"{len(self.leaders)} partitions; {text}")
        questions = {reset.EARLIEST, reset.LATEST, self.request.question}
        answers = {
            question: coordinator.find_offsets(self.brokers, self.leaders, question)
            for question in sorted(questions)
        }
        for question, answered in answers.items():
            if missing := self.leaders.keys() - answered.keys():
                return waits("BrokersUnreachable", self._why_missing(min(missing), question))
        begins, ends = answers[reset.EARLIEST], answers[reset.LATEST]
        found = answers[self.request.question]
        committed = self.view.committed
        targets = {**reset.compute(self.request, committed, begins, ends, found), **(kept or {})}
        if not targets:
            why = "set spec.topics, or commit offsets first"
            if self.wanted.topics and not self.leaders:
                why = "no topic of spec.topics exists"
            return _refused("ResetWithoutPartitions", f"the reset has no partitions: {why}")
        phase = reset.DRY_RUN if self.request.dry_run else reset.APPLYING
        now = self.context.now()
        last = reset.fields(self.request, phase, committed, targets, incarnations, now)
        return Outcome(last)

    def _why_missing(self, partition: TopicPartition, question: int) -> str:
        """Return why an offset of a partition is not known."""
        if self.leaders[partition] == NO_LEADER:
            return f"no leader of {partition} is known"
        text = f"the leader of {partition} does not answer"
        if question >= 0:
            text = f"{text}, or has no times: records of message formats before 0.10 have none"
        return text

    def _incarnations(self, partitions: Iterable[TopicPartition]) -> dict[str, int]:
        """Return the transactions that created the present topics of these partitions."""
        paths = {znodes.topic_path(one.topic): one.topic for one in partitions}
        found = self.zookeeper.read(paths)
        return {paths[path]: one.created for path, one in found.items() if one is not None}

    def _commit(self, targets: Mapping[TopicPartition, int]) -> None:
        if self.wanted.offset_store != "ZooKeeper":
            coordinator.commit(self.brokers, self.wanted.group, targets)
        if self.wanted.offset_store != "Kafka":
            _commit_znodes(self.zookeeper, self.wanted.group, targets)
        _note_reset(self.zookeeper, self.wanted.group, self.request.request_id)


def _waits_for(whom: str) -> Outcome:
    text = f"waiting for {whom} to leave the group, as Kafka's own reset requires"
    return waits("ResetWaiting", text)


def _commit_znodes(zookeeper: ZooKeeper, group: str, targets: Mapping[TopicPartition, int]) -> None:
    """Write offsets into a group's znodes, creating missing parents.

    Raises UnreachableError if another client writes there at the same time: retry then.
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
        # Also the same offset: an older znode than its topic would be of a former topic.
        wanted.append(
            operations.Create(path, data)
            if there is None
            else operations.SetData(path, data, there.version)
        )
    _commit_all(zookeeper, group, wanted)


def _note_reset(zookeeper: ZooKeeper, group: str, request_id: str) -> None:
    """Tell the group's drivers that its offsets are of the present topics, after they are.

    Raises UnreachableError if another client writes there at the same time.
    """
    path = consumers.incarnations_path(group)
    there = zookeeper.read([path])[path]
    if there is not None:
        _commit_all(
            zookeeper, group, [operations.SetData(path, request_id.encode(), there.version)]
        )


def _commit_all(zookeeper: ZooKeeper, group: str, wanted: Sequence[operations.Operation]) -> None:
    for first in range(0, len(wanted), _COMMIT_BATCH):
        try:
            zookeeper.commit(wanted[first : first + _COMMIT_BATCH])
        except operations.TransactionFailedError as error:
            raise UnreachableError(f"offsets of {group} changed meanwhile: {error}") from error
