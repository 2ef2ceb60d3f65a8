"""The controller's core in a cluster of any size, without brokers and ZooKeeper: its work, counted.

    python -m tests.simulator.large_cluster [brokers partitions]

The partitions have three replicas, in topics of 100. A new controller reads them; a broker dies and
comes back; another one asks to be shut down; one topic moves to other brokers; and one is created.
Writes succeed at once. What is counted is the same on every machine: steps of the core, states and
assignments that ZooKeeper must write, messages, and partitions that messages describe. `bounds`
says how much of it there may be; more is an AssertionError.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from odradek.controller import events
from odradek.controller.context import ControllerContext
from odradek.controller.events import Action, Event, Leadership, LiveBroker
from odradek.controller.step import step
from odradek.values import BrokerId, ControllerEpoch, TopicPartition
from odradek.zk.znodes import BrokerEndpoint, BrokerRegistration, PartitionState, TopicAssignment
from tests.controller.values import broker_ids, partition_state

BROKERS, PARTITIONS = 1000, 200_000
PER_TOPIC = 100
REPLICAS = 3


@dataclass
class Work:
    """What one change made the controller do. `described` are partitions in messages; those of a
    message that goes to many brokers count once, as they are held in memory once.
    """

    steps: int = 0
    states: int = 0
    assignments: int = 0
    messages: Counter[str] = field(default_factory=Counter)
    described: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        sent = ", ".join(
            f"{count} {kind} of {self.described[kind]} partitions"
            for kind, count in sorted(self.messages.items())
        )
        return (
            f"{self.steps} steps, {self.states} states, {self.assignments} assignments; "
            f"{sent or 'no messages'}"
        )


class LargeCluster:
    """A controller's core, and brokers that always do what it says."""

    def __init__(self, brokers: int, partitions: int) -> None:
        self.brokers = {one: _live(one, epoch=1) for one in broker_ids(*range(1, brokers + 1))}
        self.topics: dict[str, TopicAssignment] = {}
        self.partitions = partitions
        for first in range(0, partitions, PER_TOPIC):
            numbers = range(min(PER_TOPIC, partitions - first))
            self.topics[f"topic-{first // PER_TOPIC}"] = TopicAssignment(
                {number: self._spread(first + number) for number in numbers}
            )
        self.context = ControllerContext(BrokerId(1), ControllerEpoch(1))

    def _spread(self, number: int, by: int = 1) -> tuple[BrokerId, ...]:
        """Return replicas; each broker leads as many partitions as others, and follows all."""
        count = len(self.brokers)
        shift = number // count
        return broker_ids(
            *((number + at * (1 + shift % (count // REPLICAS)) * by) % count + 1 for at in range(3))
        )

    def load(self) -> Work:
        """Let a new controller read everything."""
        leaderships = {
            TopicPartition(topic, number): Leadership(
                partition_state(replicas[0], 0, replicas, 1), 0
            )
            for topic, assignment in self.topics.items()
            for number, replicas in assignment.partitions.items()
        }
        return self._advance(
            events.ContextLoaded(brokers=self.brokers, topics=self.topics, leaderships=leaderships)
        )

    def lose(self, broker_id: BrokerId) -> Work:
        """Let a broker die."""
        left = {one: live for one, live in self.context.brokers.items() if one != broker_id}
        return self._advance(events.BrokersChanged(left))

    def return_(self, broker_id: BrokerId) -> Work:
        """Let a broker that died come back."""
        again = {**self.context.brokers, broker_id: _live(broker_id, epoch=2)}
        return self._advance(events.BrokersChanged(again))

    def shut_down(self, broker_id: BrokerId) -> Work:
        """Let a broker ask for its controlled shutdown."""
        return self._advance(events.ShutdownRequested(broker_id))

    def reassign(self, topic: str) -> Work:
        """Move each partition of a topic to three other brokers, which are in sync at once."""
        count = len(self.brokers)
        wanted: dict[TopicPartition, tuple[BrokerId, ...] | None] = {
            TopicPartition(topic, number): broker_ids(
                *((one + at + count // 2) % count + 1 for at, one in enumerate(replicas))
            )
            for number, replicas in self.topics[topic].partitions.items()
        }
        work = self._advance(events.ReassignmentRequested(wanted, by_znode=False))
        joined = {
            one: Leadership(self._joined(one), self.context.leaderships[one].zk_version + 1)
            for one in wanted
        }
        return self._advance(events.IsrChanged(joined), work)

    def _joined(self, partition: TopicPartition) -> PartitionState:
        """Return the state in which all replicas are in sync."""
        state = self.context.leaderships[partition].state
        replicas = self.context.topics[partition.topic].partitions[partition.partition]
        return PartitionState(state.leader, state.leader_epoch, replicas, state.controller_epoch)

    def create(self, topic: str, partitions: int) -> Work:
        """Create a topic."""
        placed = TopicAssignment({number: self._spread(number) for number in range(partitions)})
        return self._advance(events.TopicsChanged({topic: placed}))

    def _advance(self, event: Event, work: Work | None = None) -> Work:
        """Step the core with an event and all that follow from it; return what was done."""
        work = work or Work()
        waiting = deque([event])
        while waiting:
            self.context, actions = step(self.context, waiting.popleft())
            work.steps += 1
            for action in actions:
                waiting.extend(self._carry_out(action, work))
        return work

    def _carry_out(self, action: Action, work: Work) -> Iterable[Event]:
        match action:
            case events.WriteStates(creates, updates):
                work.states += len(creates) + len(updates)
                written = {one: Leadership(state, 0) for one, state in creates.items()}
                written |= {
                    one: Leadership(wanted.state, wanted.zk_version + 1)
                    for one, wanted in updates.items()
                }
                yield events.StatesWritten(written)
            case events.WriteAssignments(assignments):
                work.assignments += len(assignments)
                yield events.AssignmentsWritten(assignments)
            case events.UpdateMetadata(to, _, partitions):
                work.messages["UpdateMetadata"] += len(to)
                work.described["UpdateMetadata"] += len(partitions)
            case events.LeaderAndIsr(_, roles):
                work.messages["LeaderAndIsr"] += 1
                work.described["LeaderAndIsr"] += len(roles)
            case events.StopReplicas(to, stopped, delete):
                work.messages["StopReplica"] += 1
                work.described["StopReplica"] += len(stopped)
                if delete:
                    yield events.ReplicasStopped(to, frozenset(stopped))


def _live(broker_id: BrokerId, epoch: int) -> LiveBroker:
    endpoint = BrokerEndpoint("PLAINTEXT", f"host-{broker_id}", 9092)
    return LiveBroker(BrokerRegistration(broker_id, (endpoint,)), epoch)


def bounds(brokers: int, partitions: int) -> Mapping[str, Work]:
    """Return the most work that each change may make."""
    # Some brokers have one replica more than others of each topic.
    mine = REPLICAS * partitions // brokers * 2
    moved = min(PER_TOPIC, partitions)
    return {
        "a new controller": _most(1, 0, 0, brokers, partitions, brokers, REPLICAS * partitions, 0),
        "a broker dies": _most(2, mine, 0, 2 * brokers, 2 * mine, brokers, REPLICAS * mine, 0),
        "it comes back": _most(
            2, mine, 0, 3 * brokers, partitions + 3 * mine, brokers, 2 * mine, 0
        ),
        "controlled shutdown": _most(2, mine, 0, brokers, mine, brokers, REPLICAS * mine, mine),
        "a topic moves": _most(
            12 + 2 * REPLICAS * moved,
            2 * moved,
            3 * moved,
            (4 + 2 * REPLICAS * moved) * brokers,
            6 * moved,
            4 * REPLICAS * moved,
            12 * REPLICAS * moved,
            REPLICAS * moved,
        ),
        "a topic is created": _most(2, moved, 0, brokers, moved, brokers, REPLICAS * moved, 0),
    }


def _most(
    steps: int,
    states: int,
    assignments: int,
    updates: int,
    updated: int,
    roles: int,
    given: int,
    stopped: int,
) -> Work:
    kinds = "UpdateMetadata", "LeaderAndIsr", "StopReplica"
    messages = dict(zip(kinds, (updates, roles, stopped), strict=True))
    described = dict(zip(kinds, (updated, given, stopped), strict=True))
    return Work(steps, states, assignments, Counter(messages), Counter(described))


def is_within(done: Work, most: Work) -> bool:
    """Return whether there was no more work than that, of each kind."""
    return (
        done.steps <= most.steps
        and done.states <= most.states
        and done.assignments <= most.assignments
        and done.messages <= most.messages
        and done.described <= most.described
    )


def run(brokers: int, partitions: int) -> dict[str, Work]:
    """Let everything happen to a cluster; return the work of each change. Raise AssertionError."""
    cluster = LargeCluster(brokers, partitions)
    one, two = broker_ids(2, 3)
    changes: dict[str, Callable[[], Work]] = {
        "a new controller": cluster.load,
        "a broker dies": lambda: cluster.lose(one),
        "it comes back": lambda: cluster.return_(one),
        "controlled shutdown": lambda: cluster.shut_down(two),
        "a topic moves": lambda: cluster.reassign("topic-0"),
        "a topic is created": lambda: cluster.create("new", min(PER_TOPIC, partitions)),
    }
    most = bounds(brokers, partitions)
    found = {}
    for what, change in changes.items():
        began = time.process_time()
        found[what] = change()
        if brokers == BROKERS:
            print(f"{what}, {time.process_time() - began:.1f} s: {found[what]}", flush=True)
        assert is_within(found[what], most[what]), f"{what}: {found[what]}, at most {most[what]}"
    assert not cluster.context.offline_partitions()
    assert not cluster.context.being_reassigned()
    return found


if __name__ == "__main__":
    given = [int(one) for one in sys.argv[1:]] or [BROKERS, PARTITIONS]
    run(*given)
    print(f"{given[0]} brokers with {given[1]} partitions: {os.path.basename(__file__)} PASS")
