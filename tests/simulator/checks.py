"""The invariants of every schedule, checked while it runs and at its end.

A record is committed if its producer got an acknowledgement, or if it is below a high watermark
that a leader returned. From then on its offset always has this value, and every in-sync replica has
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.control import LeaderAndIsrRequest
from odradek.values import NO_LEADER, TopicPartition
from odradek.zk import znodes
from odradek.zk.znodes import PartitionState
from tests.simulator.batches import Batch
from tests.simulator.broker import Broker
from tests.simulator.simulated_log import SimulatedLog
from tests.simulator.world import World

# Two empty fetches of a follower, what the product allows on top, and delays of the network.
VOUCHED_S = 2.5


class BrokenPromiseError(AssertionError):
    """An invariant was broken; the schedule ends."""


class Checks:
    """Checks the invariants on what brokers, clients and ZooKeeper report."""

    def __init__(self, world: World, brokers: Mapping[int, Broker]) -> None:
        self.brokers = brokers
        self.acknowledged: list[tuple[TopicPartition, int, tuple[str, ...]]] = []
        self.states: dict[TopicPartition, PartitionState] = {}
        self._world = world
        self._keys: dict[str, TopicPartition] = {}
        self._committed: dict[TopicPartition, list[str | None]] = {}
        self._leaders: dict[tuple[TopicPartition, int], int] = {}
        # The highest high watermark per replica and process that was compared.
        self._compared: dict[tuple[int, TopicPartition], tuple[object, int]] = {}
        self._controllers: dict[object, int] = {}
        self._seen: dict[tuple[TopicPartition, int, object], int] = {}
        # Replicas that lost unflushed records, until they are out of the ISR.
        self.robbed: set[tuple[TopicPartition, int]] = set()
        self._deposed_at: dict[tuple[TopicPartition, int], float] = {}
        self.failure: BrokenPromiseError | None = None

    def watch(self, keys: Iterable[TopicPartition]) -> None:
        """Check these partitions."""
        self._keys = {znodes.state_path(*key): key for key in keys}
        self._committed = {key: [] for key in self._keys.values()}

    def fail(self, what: str) -> None:
        """Record the first broken invariant."""
        if self.failure is None:
            self._world.say(f"VIOLATION: {what}")
            self.failure = BrokenPromiseError(what)

    # --- committed records --------------------------------------------------------------------

    def commit(self, key: TopicPartition, offset: int, value: str, who: str) -> None:
        """Record that the offset has this value for ever."""
        known = self._committed[key]
        if offset >= len(known):
            known.extend([None] * (offset + 1 - len(known)))
        if known[offset] is None:
            known[offset] = value
        elif known[offset] != value:
            self.fail(f"{key}@{offset} was {known[offset]}, and is {value} to {who}")

    def acknowledge(self, key: TopicPartition, offset: int, values: tuple[str, ...]) -> None:
        """Check an acknowledgement to a producer."""
        self.acknowledged.append((key, offset, values))
        for at, value in enumerate(values, offset):
            self.commit(key, at, value, "its producer")
        self._check_in_sync(key, offset, "acknowledged")

    def served(self, broker: Broker) -> None:
        """Compare the records that a broker newly shows as committed."""
        for key, partition in broker.replicas.partitions.items():
            life, mark = self._compared.get((broker.broker_id, key), (None, 0))
            if life is not partition:
                life, mark = partition, 0
            if partition.high_watermark > mark:
                log: Any = partition.log
                for at, value in log.values(mark, partition.high_watermark):
                    self.commit(key, at, value, broker.name)
                mark = partition.high_watermark
                self._compared[broker.broker_id, key] = life, mark
                if partition.is_leader:
                    self._check_in_sync(key, mark - 1, "shown as committed")

    def _check_in_sync(self, key: TopicPartition, offset: int, what: str) -> None:
        """Check that every replica in ZooKeeper's ISR has the record on its disk."""
        state = self.states.get(key)
        for member in state.isr if state is not None else ():
            self._check_holds(self.brokers[member], key, offset, what)

    def lost_power(self, broker_id: int) -> None:
        """Record that a broker lost unflushed records."""
        self.robbed |= {(key, broker_id) for key in self._keys.values()}

    def _check_holds(self, broker: Broker, key: TopicPartition, offset: int, what: str) -> None:
        if (key, broker.broker_id) in self.robbed:
            return
        log: SimulatedLog | None = broker.disk.get(*key)
        if log is None or log.log_end_offset <= offset:
            end = None if log is None else log.log_end_offset
            self.fail(
                f"{key}@{offset} is {what}; {broker.name} is in sync and its log ends at {end}"
            )

    def cut(self, broker_id: int, log: SimulatedLog, end: int) -> None:
        """Check that a replica truncates no committed records while it is in sync."""
        key = TopicPartition(log.topic, log.partition)
        state = self.states.get(key)
        if state is None or broker_id not in state.isr:
            return
        known = self._committed[key]
        for at, value in log.values(end, len(known)):
            if known[at] == value:
                self.fail(
                    f"broker {broker_id} is in sync and cuts {value}, committed at {key}@{at}"
                )

    # --- epochs -------------------------------------------------------------------------------

    def wrote(self, path: str, data: bytes) -> None:
        """Check a changed znode."""
        key = self._keys.get(path)
        if key is None:
            return
        state = znodes.decode_state(path, data)
        before = self.states.get(key)
        if before is not None and state.leader_epoch < before.leader_epoch:
            self.fail(f"{key}: leader epoch fell from {before.leader_epoch}")
        if not state.isr:
            self.fail(f"{key}: nobody is in sync")
        self._note_leader(key, state.leader_epoch, state.leader)
        self.robbed = {one for one in self.robbed if one[0] != key or one[1] in state.isr}
        if before is not None and before.leader != state.leader:
            self._deposed_at[key, before.leader] = self._world.now
        self.states[key] = state
        self._world.say(
            f"ZooKeeper: {key} led by {state.leader} in epoch {state.leader_epoch}, "
            f"in sync {state.isr}"
        )
        committed = len(self._committed[key])
        for member in state.isr if committed else ():
            self._check_holds(self.brokers[member], key, committed - 1, "committed")

    def _note_leader(self, key: TopicPartition, epoch: int, leader: int) -> None:
        first = self._leaders.setdefault((key, epoch), leader)
        if first != leader:
            self.fail(f"{key}: leaders {first} and {leader} in epoch {epoch}")

    def asked(self, broker: Broker, request: Any) -> int:
        """Note a controller's request to a broker; return the controller epoch that it obeys."""
        if self._world.trace is not None:
            told = ", ".join(
                f"{one.partition_index}: leader {one.leader} epoch {one.leader_epoch}"
                for topic in getattr(request, "topic_states", ())
                for one in topic.partition_states
            )
            self._world.say(
                f"{broker.name} gets {type(request).__name__} of controller epoch "
                f"{request.controller_epoch}: {told}"
            )
        return self._controllers.get(broker.process, -1)

    def obeyed(self, broker: Broker, request: Any, response: Any, before: int) -> None:
        """Check the answer to a controller's request; it came while the broker obeyed `before`.

        What was accepted before another controller was heard may take until after that.
        """
        if response.error_code != ErrorCode.NONE:
            return
        process = broker.process
        if request.controller_epoch < before:
            self.fail(
                f"{broker.name} obeyed controller epoch {request.controller_epoch} after {before}"
            )
        known = self._controllers.get(process, -1)
        self._controllers[process] = max(known, request.controller_epoch)
        if isinstance(request, LeaderAndIsrRequest):
            for key, partition in broker.replicas.partitions.items():
                if partition.leader != NO_LEADER:  # it may have stepped down in its epoch
                    self._note_leader(key, partition.leader_epoch, partition.leader)

    def misled(self, broker_id: int, key: TopicPartition, what: str) -> None:
        """Check a wrong answer that only a confirmed leader may give.

        A former leader may be wrong as long as followers still fetch from it.
        """
        since = self._deposed_at.get((key, broker_id), float("inf"))
        if self.states[key].leader == broker_id or self._world.now - since > VOUCHED_S:
            self.fail(f"{broker_id} answers for {key}: {what}")

    # --- consumers ----------------------------------------------------------------------------

    def fetched(self, key: TopicPartition, epoch: int, leader: int, mark: int) -> None:
        """Check that the high watermark that consumers receive never falls in a leader epoch.

        A restarted leader may continue its epoch, and starts with a lower high watermark.
        """
        life = key, epoch, self.brokers[leader].process
        before = self._seen.get(life, 0)
        if mark < before:
            self.fail(f"high watermark of {key} fell from {before} to {mark} in epoch {epoch}")
        self._seen[life] = mark

    # --- the end ------------------------------------------------------------------------------

    def check_end(self, positions: Mapping[TopicPartition, int]) -> None:
        """Check, after healing, that all replicas have the same records, and all committed ones."""
        for key in self._keys.values():
            contents = {
                broker_id: broker.disk.get(*key).batches
                for broker_id, broker in self.brokers.items()
                if broker_id in self.states[key].isr
            }
            first, *others = contents.values()
            if any(one != first for one in others):
                self.fail(f"replicas of {key} differ at the end: {_difference(contents)}")
            held = {
                at: value for one in first for at, value in enumerate(one.values, one.base_offset)
            }
            for place, offset, values in self.acknowledged:
                for at, value in enumerate(values, offset):
                    if place == key and held.get(at) != value:
                        self.fail(f"{value} was acknowledged at {key}@{at}: {held.get(at)}")
            for at, committed in enumerate(self._committed[key]):
                if committed is not None and held.get(at) != committed:
                    self.fail(f"{committed} was committed at {key}@{at}: {held.get(at)}")
            sent = [value for one in first if one.is_from_client for value in one.values]
            if len(set(sent)) != len(sent):
                self.fail(f"{key} holds a value twice")
            if positions[key] != len(held):
                self.fail(f"the consumer of {key} came to {positions[key]} of {len(held)}")
        for broker in self.brokers.values():
            for key, state in self.states.items():
                info = broker.metadata.partition(*key)
                if info is None or (info.leader, info.leader_epoch) != (
                    state.leader,
                    state.leader_epoch,
                ):
                    self.fail(f"{broker.name} believes of {key}: {info}; there stands {state}")


def _difference(contents: Mapping[int, list[Batch]]) -> str:
    for at in range(max(map(len, contents.values()))):
        there = {who: one[at] if at < len(one) else None for who, one in contents.items()}
        if len(set(there.values())) > 1:
            return f"{there}"
    return ""
