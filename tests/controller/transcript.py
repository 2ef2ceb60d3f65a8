"""Replays a text file of events against the controller's pure core.

A line `> EVENT` steps the core; the indented lines below it are the expected actions. Writes
succeed at once, and the actions that follow from the result come after `= written`. A line
`! conflict t-0 leader=3 epoch=4 isr=3,1 version=9` before an event makes its write of that
partition fail with this present state. Lines with `#` are comments.
"""

import json
from collections.abc import Iterable, Mapping

from odradek.controller import candidacy, events, reassignment, replica_assignment
from odradek.controller.context import ControllerContext, ControllerSettings
from odradek.controller.events import Leadership, LiveBroker
from odradek.controller.step import broker_events, step
from odradek.protocol.errors import KafkaError
from odradek.values import BrokerId, ControllerEpoch, TopicPartition
from odradek.zk.znodes import BrokerEndpoint, BrokerRegistration, TopicAssignment
from tests.controller.values import broker_ids, partition_state, topic_assignment


def replay(text: str) -> str:
    """Return the transcript with the actions of the present code."""
    replayer = Replayer()
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(">"):
            lines += [line, *(f"  {one}" for one in replayer.event(line[1:].split()))]
        elif line.startswith("!"):
            lines.append(line)
            replayer.conflict(line.split()[2:])
        elif line.startswith("#") or not line.strip():
            lines.append(line)
    return "\n".join(lines) + "\n"


class Replayer:
    """One context, and the candidate states of the brokers."""

    def __init__(self) -> None:
        self.context = ControllerContext(BrokerId(1), ControllerEpoch(1))
        self.conflicts: dict[TopicPartition, Leadership] = {}
        self.candidates: dict[str, candidacy.CandidateState] = {}
        self.refused: dict[TopicPartition, KafkaError] = {}

    def event(self, words: list[str]) -> list[str]:
        kind, words = words[0], words[1:]
        options = dict(word.split("=", 1) for word in words if "=" in word)
        if kind == "candidate":
            return self.candidate(*words)
        if kind == "brokers":
            found = broker_events(self.context, brokers(words))
            return [line for one in found for line in self.advance(one)]
        return self.advance(getattr(self, f"on_{kind.replace('-', '_')}")(words, options))

    # --- the election of the controller ---

    def candidate(self, broker: str, event: str) -> list[str]:
        before = self.candidates.get(broker, candidacy.CandidateState.UNREGISTERED)
        transition = candidacy.transition(before, candidacy.CandidateEvent(event))
        self.candidates[broker] = transition.state
        actions = " ".join(action.value for action in transition.actions)
        return [f"broker {broker}: {before.value} -> {transition.state.value} {actions}".rstrip()]

    # --- events ---

    def on_load(self, words: list[str], options: dict[str, str]) -> events.Event:
        settings = ControllerSettings(
            options.get("unclean") == "true",
            options.get("delete", "true") == "true",
        )
        self.context = ControllerContext(
            BrokerId(1), ControllerEpoch(int(options.get("epoch", "1"))), settings
        )
        topics = {
            name: assignment(found)
            for name, found in json.loads(options.get("topics", "{}")).items()
        }
        for entry in filter(None, options.get("moving", "").split(";")):
            name, adding, removing = entry.split("/")
            one = partition(name)
            found = replica_assignment.of(topics[one.topic], one.partition)
            moving = replica_assignment.ReplicaAssignment(
                found.replicas, numbers(adding), numbers(removing)
            )
            topics[one.topic] = replica_assignment.with_changes(
                topics[one.topic], {one.partition: moving}
            )
        states: dict[TopicPartition, Leadership] = {}
        for entry in options.get("states", "").split(";"):
            if entry:
                name, leader, epoch, isr, version = entry.split("/")
                states[partition(name)] = leadership(leader, epoch, isr, version)
        return events.ContextLoaded(
            brokers(options["brokers"].split(",")),
            topics,
            states,
            deletions=frozenset(filter(None, options.get("deletions", "").split(","))),
        )

    def on_topic(self, words: list[str], options: dict[str, str]) -> events.Event:
        return events.TopicsChanged({words[0]: assignment(json.loads(options["partitions"]))})

    def on_vanished(self, words: list[str], options: dict[str, str]) -> events.Event:
        return events.TopicsChanged({}, frozenset(words))

    def on_grow(self, words: list[str], options: dict[str, str]) -> events.Event:
        return events.PartitionsChanged(words[0], assignment(json.loads(options["partitions"])))

    def on_delete(self, words: list[str], options: dict[str, str]) -> events.Event:
        return events.DeletionsRequested(frozenset(words))

    def on_stopped(self, words: list[str], options: dict[str, str]) -> events.Event:
        done = frozenset(map(partition, filter(None, options.get("deleted", "").split(","))))
        failed = frozenset(map(partition, filter(None, options.get("failed", "").split(","))))
        return events.ReplicasStopped(BrokerId(int(words[0])), done, failed)

    def on_removed(self, words: list[str], options: dict[str, str]) -> events.Event:
        return events.TopicRemoved(words[0])

    def on_isr(self, words: list[str], options: dict[str, str]) -> events.Event:
        found = leadership(options["leader"], options["epoch"], options["isr"], options["version"])
        return events.IsrChanged({partition(words[0]): found})

    def on_preferred(self, words: list[str], options: dict[str, str]) -> events.Event:
        return events.PreferredRequested(tuple(map(partition, words)))

    def on_reassign(self, words: list[str], options: dict[str, str]) -> events.Event:
        """Read `reassign t-0=1,2`: the entries of /admin/reassign_partitions."""
        return events.ReassignmentRequested(targets(options), by_znode=True)

    def on_alter(self, words: list[str], options: dict[str, str]) -> events.Event:
        """Read `alter t-0=1,2 t-1=back`: the targets of a request; `back` cancels."""
        asked = events.ReassignmentRequested(targets(options), by_znode=False)
        self.refused = reassignment.refusals(self.context, asked)
        accepted = {one: to for one, to in asked.wanted.items() if one not in self.refused}
        return events.ReassignmentRequested(accepted, by_znode=False)

    def on_rebalance(self, words: list[str], options: dict[str, str]) -> events.Event:
        return events.RebalanceDue()

    def on_shutdown(self, words: list[str], options: dict[str, str]) -> events.Event:
        return events.ShutdownRequested(BrokerId(int(words[0])))

    def on_log_dir_failed(self, words: list[str], options: dict[str, str]) -> events.Event:
        return events.LogDirFailed(BrokerId(int(words[0])))

    def on_replicas_failed(self, words: list[str], options: dict[str, str]) -> events.Event:
        return events.ReplicasFailed(BrokerId(int(words[0])), frozenset(map(partition, words[1:])))

    def on_replicas_answered(self, words: list[str], options: dict[str, str]) -> events.Event:
        answered = frozenset(map(partition, words[1:]))
        return events.ReplicasAnswered(BrokerId(int(words[0])), answered)

    def on_unclean(self, words: list[str], options: dict[str, str]) -> events.Event:
        topic = None if words[0] == "default" else words[0]
        return events.UncleanChanged(topic, words[1] == "true")

    def on_resend(self, words: list[str], options: dict[str, str]) -> events.Event:
        return events.ResendRequired(BrokerId(int(words[0])))

    def conflict(self, words: list[str]) -> None:
        options = dict(word.split("=") for word in words[1:])
        self.conflicts[partition(words[0])] = leadership(
            options["leader"], options["epoch"], options["isr"], options["version"]
        )

    # --- the core ---

    def advance(self, event: events.Event) -> list[str]:
        lines = [f"refused {one}: {error.code.name}" for one, error in self.refused.items()]
        self.refused = {}
        queue: list[events.Event] = [event]
        while queue:
            self.context, actions = step(self.context, queue.pop(0))
            for action in actions:
                lines += render(action)
                if isinstance(action, events.WriteStates):
                    queue.append(self.write(action))
                elif isinstance(action, events.WriteAssignments):
                    queue.append(events.AssignmentsWritten(action.assignments))
            if queue:
                conflicts = isinstance(queue[0], events.StatesWritten) and queue[0].conflicts
                lines.append("= written, with conflicts" if conflicts else "= written")
        return lines or ["nothing"]

    def write(self, action: events.WriteStates) -> events.StatesWritten:
        written: dict[TopicPartition, Leadership] = {}
        conflicts: dict[TopicPartition, Leadership] = {}
        for one, state in action.creates.items():
            written[one] = Leadership(state, 0)
        for one, wanted in action.updates.items():
            if one in self.conflicts:
                conflicts[one] = self.conflicts.pop(one)
            else:
                written[one] = Leadership(wanted.state, wanted.zk_version + 1)
        return events.StatesWritten(written, conflicts)


def partition(text: str) -> TopicPartition:
    topic, _, number = text.rpartition("-")
    return TopicPartition(topic, int(number))


def assignment(found: Mapping[str, list[int]]) -> TopicAssignment:
    return topic_assignment({int(number): replicas for number, replicas in found.items()})


def targets(options: Mapping[str, str]) -> dict[TopicPartition, tuple[BrokerId, ...] | None]:
    return {
        partition(name): None if found == "back" else numbers(found)
        for name, found in options.items()
    }


def numbers(text: str) -> tuple[BrokerId, ...]:
    return broker_ids(*map(int, filter(None, text.split(","))))


def leadership(leader: str, epoch: str, isr: str, version: str) -> Leadership:
    members = tuple(int(member) for member in isr.split(","))
    return Leadership(partition_state(int(leader), int(epoch), members, 1), int(version))


def brokers(words: Iterable[str]) -> dict[BrokerId, LiveBroker]:
    """Read `1 2 3@57`: ids, with epochs where they matter."""
    found: dict[BrokerId, LiveBroker] = {}
    for word in words:
        name, _, epoch = word.partition("@")
        registration = BrokerRegistration(
            BrokerId(int(name)), (BrokerEndpoint("PLAINTEXT", f"host{name}", 9092),)
        )
        found[BrokerId(int(name))] = LiveBroker(registration, int(epoch or name))
    return found


def ids(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers)) or "nobody"


def describe(found: Leadership) -> str:
    state = found.state
    return f"leader={state.leader} epoch={state.leader_epoch} isr={ids(state.isr)}"


def render(action: events.Action) -> list[str]:
    """Return the lines that show an action."""
    match action:
        case events.UpdateMetadata(to, living, partitions):
            alive = ids(one.registration.broker_id for one in living)
            return [f"update-metadata to {ids(to)}: brokers {alive}"] + [
                f"  {one.partition} {describe(one.leadership)}"
                + (f" offline={ids(one.offline_replicas)}" if one.offline_replicas else "")
                for one in partitions
            ]
        case events.LeaderAndIsr(to, roles, _):
            return [f"leader-and-isr to {to}:"] + [
                f"  {one.partition} {describe(one.leadership)} version={one.leadership.zk_version}"
                f" replicas={ids(one.replicas)}"
                + (f" adding={ids(one.adding)}" if one.adding else "")
                + (f" removing={ids(one.removing)}" if one.removing else "")
                + (" new" if one.is_new else "")
                for one in roles
            ]
        case events.StopReplicas(to, partitions, delete):
            names = " ".join(map(str, partitions))
            return [f"stop-replica to {to}{' with delete' if delete else ''}: {names}"]
        case events.WriteStates(creates, updates):
            return [
                *(f"create {one} {describe(Leadership(new, 0))}" for one, new in creates.items()),
                *(
                    f"update {one} {describe(new)} if version={new.zk_version}"
                    for one, new in updates.items()
                ),
            ]
        case events.WriteAssignments(assignments):
            return [
                f"assign {one} to {ids(found.replicas)}"
                + (f" adding {ids(found.adding)}" if found.adding else "")
                + (f" removing {ids(found.removing)}" if found.removing else "")
                for one, found in assignments.items()
            ]
        case events.RemoveReassignments(done):
            names = " ".join(
                str(one) if target is None else f"{one}={ids(target)}"
                for one, target in done.items()
            )
            return [f"remove reassignment {names or 'of nothing'}"]
        case events.WatchStates(partitions):
            return [f"watch {' '.join(map(str, partitions))}"]
        case events.RemoveTopic(topic):
            return [f"remove topic {topic}"]
        case events.RemoveDeletions(topics):
            return [f"remove deletion request of {' '.join(topics)}"]
        case events.FinishPreferredElection():
            return ["finish preferred election"]
