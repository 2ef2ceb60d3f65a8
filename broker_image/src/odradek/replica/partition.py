"""One replica on this broker: its role, its epochs and, as leader, the progress of its followers.

LeaderAndIsr requests of the controller make a replica leader or follower of a leader epoch. Every
change of role goes through `lead`, `follow` and `retire`. The log holds the bytes; the partition
decides who may read them: consumers below the high watermark, which a follower knows from its
leader, followers up to the log end.

A change of the in-sync set is proposed here (`propose_shrink`, `propose_join`), written to
ZooKeeper by the `IsrWriter`, and settled here (`confirm`). At most one is pending. A new leader
epoch drops it, because the epoch brings the in-sync set that ZooKeeper holds. A change that
ZooKeeper refused stays pending until that epoch comes: the znode is newer than our state, so a
controller may already have elected a leader from the set that we proposed, and nothing may be
committed without that set.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from odradek.protocol.errors import NO_ERROR, ErrorCode, KafkaError
from odradek.replica import isr as rules
from odradek.replica.isr import FollowerProgress, Isr, SessionClock
from odradek.replica.registrations import Registered
from odradek.values import NO_LEADER, TopicPartition

if TYPE_CHECKING:
    from odradek.log.partition.log import Log
    from odradek.protocol.messages.control import LeaderAndIsrPartitionState

NO_EPOCH = -1
NEVER = -1


@dataclass(frozen=True, slots=True)
class IsrChange:
    """A proposed in-sync set, valid for one leader epoch and one version of the znode."""

    key: TopicPartition
    leader: int
    leader_epoch: int
    controller_epoch: int
    zk_version: int
    isr: tuple[int, ...]
    previous: tuple[int, ...]
    # The replica that joins, as it was registered when it proved that it lives.
    joins: Registered | None = None


@dataclass(frozen=True, slots=True)
class PostponedRole:
    """A role that came while the log was truncated, and what takes it."""

    leader_epoch: int
    take: Callable[[], object]


@dataclass(frozen=True, slots=True)
class LagLimits:
    """When a follower is out of sync: after milliseconds, or messages where that is set."""

    time_max_ms: int
    messages_max: int | None = None


class FormerLeadership(NamedTuple):
    """The high watermark and the number of in-sync replicas with which a leadership ended."""

    generation: int
    high_watermark: int
    in_sync: int


class Partition:
    """The state of one replica. The `ReplicaManager` owns it; only the event loop uses it.

    `log` is another object after a move to another log directory. Code that awaits must look again.

    Invariants at the end of every method:

    - log start <= high watermark <= log end. `Log` keeps the mark in this range, and asserts its
      upper end: retention raises the log start in a thread of its own, and while a follower
      truncates (under `truncation_lock`) its mark may lie above the log end.
    - The high watermark of a leader never falls. That of a follower may: a new leader can have a
      lower one.
    - The leader epoch never falls.
    - `followers` are the other replicas, and whatever else the in-sync set named, if this broker is
      leader; else there are none.

    `adding` are those of the replicas that a reassignment adds (KIP-455). LeaderAndIsr names them
    since version 3.
    """

    __slots__ = (
        "adding",
        "broker_id",
        "clock_ms",
        "controller_epoch",
        "followers",
        "former_leadership",
        "high_watermark",
        "isr",
        "key",
        "leader",
        "leader_epoch",
        "leader_epoch_start",
        "leadership_generation",
        "limits",
        "log",
        "offline",
        "postponed",
        "replicas",
        "role_failed",
        "told_in_session",
        "truncation_lock",
        "zk_version",
    )

    def __init__(
        self,
        key: TopicPartition,
        broker_id: int,
        log: Log,
        high_watermark: int,
        limits: LagLimits,
        clock_ms: Callable[[], int],
    ) -> None:
        self.key = key
        self.broker_id = broker_id
        self.log = log
        self.limits = limits
        self.clock_ms = clock_ms
        self.leader: int = NO_LEADER
        self.leader_epoch = NO_EPOCH
        self.controller_epoch = NO_EPOCH
        self.zk_version = -1
        self.replicas: tuple[int, ...] = ()
        self.adding: tuple[int, ...] = ()
        self.isr = Isr(())
        self.followers: dict[int, FollowerProgress] = {}
        self.leader_epoch_start = 0
        self.offline = False
        # The role of `leader_epoch` was not taken whole: a request may ask for it again.
        self.role_failed = False
        # Held while a thread truncates the log. A new role is postponed until then.
        self.truncation_lock = asyncio.Lock()
        self.postponed: PostponedRole | None = None
        # The generation of the ZooKeeper session in which the controller last confirmed this role.
        self.told_in_session = NEVER
        # How often leadership was lost. Within one generation nothing is cut from the log, also
        # over several epochs.
        self.leadership_generation = 0
        self.former_leadership: FormerLeadership | None = None
        self.high_watermark = 0
        self._set_high_watermark(high_watermark)

    @contextlib.asynccontextmanager
    async def truncating(self) -> AsyncIterator[None]:
        """Hold `truncation_lock`; then let the role be taken that came meanwhile."""
        try:
            async with self.truncation_lock:
                yield
        except asyncio.CancelledError:
            self.postponed = None  # the broker stops, and the thread may still truncate
            raise
        finally:
            postponed, self.postponed = self.postponed, None
            if postponed is not None:
                postponed.take()

    @property
    def is_leader(self) -> bool:
        """Return whether this broker is the partition's leader."""
        return self.leader == self.broker_id

    @property
    def is_follower(self) -> bool:
        """Return whether another broker is the partition's leader."""
        return self.leader not in (self.broker_id, NO_LEADER)

    @property
    def is_under_replicated(self) -> bool:
        """Return whether this broker is leader and the committed in-sync set is too small.

        As in Kafka, it is to be as large as the replicas without those that a reassignment adds.
        """
        lasting = sum(one not in self.adding for one in self.replicas)
        return self.is_leader and len(self.isr.committed) < lasting

    def lead(self, state: LeaderAndIsrPartitionState) -> None:
        """Become leader of a new leader epoch.

        The positions of the followers are unknown until they fetch. Raises KafkaError if the epoch
        cannot be written, or is below one in the log; then nothing changed.
        """
        self._check_epoch(state)
        self.log.assign_epoch(state.leader_epoch)
        self._take(state)
        now = self.clock_ms()
        self.leader_epoch_start = self.log.log_end_offset
        self.followers = {
            replica: FollowerProgress(
                last_caught_up_ms=now if replica in state.isr else rules.NEVER_MS
            )
            # A broker in the in-sync set that is no replica never fetches, and so leaves the set.
            for replica in dict.fromkeys((*state.replicas, *state.isr))
            if replica != self.broker_id
        }
        self.advance_high_watermark()
        self._check_role()

    def follow(self, state: LeaderAndIsrPartitionState) -> None:
        """Become follower of a new leader epoch; from then on a fetcher truncates and copies.

        Raises KafkaError if the epoch is below one in the log; then nothing changed.
        """
        self._check_epoch(state)
        self._note_leadership()
        self._take(state)
        self.leadership_generation += 1
        self.followers = {}
        self._check_role()

    def retire(self) -> None:
        """Give up every role: the replica moved to another broker or its topic is deleted."""
        self._note_leadership()
        self.leader = NO_LEADER
        self.leadership_generation += 1
        self.followers = {}
        self._check_role()

    def _check_epoch(self, state: LeaderAndIsrPartitionState) -> None:
        """Raise KafkaError FENCED_LEADER_EPOCH for an epoch below those in the log, as after
        ZooKeeper went back to an older copy: its records would not fit behind those.

        The controller raises the epoch then.
        """
        latest = self.log.latest_epoch
        if state.leader_epoch < latest:
            raise KafkaError(
                ErrorCode.FENCED_LEADER_EPOCH, f"its log has records of leader epoch {latest}"
            )

    def _note_leadership(self) -> None:
        if self.is_leader:
            self.former_leadership = FormerLeadership(
                self.leadership_generation, self.high_watermark, len(self.isr.committed)
            )

    def had_committed(self, generation: int, end_offset: int, minimum: int) -> bool:
        """Return whether a leadership that has ended had committed all below `end_offset`, with
        `minimum` replicas in sync. Only the last one is known.
        """
        former = self.former_leadership
        return (
            former is not None
            and former.generation == generation
            and former.high_watermark >= end_offset
            and former.in_sync >= minimum
        )

    def _check_role(self) -> None:
        others = {*self.replicas, *self.isr.committed} - {self.broker_id}
        others = others if self.is_leader else set()
        assert self.followers.keys() == others, f"{self.key}: followers {list(self.followers)}"

    def _take(self, state: LeaderAndIsrPartitionState) -> None:
        assert self.leader_epoch == NO_EPOCH or self.leader_epoch <= state.leader_epoch, (
            f"{self.key}: leader epoch falls to {state.leader_epoch}"
        )
        self.leader = state.leader
        self.leader_epoch = state.leader_epoch
        self.controller_epoch = state.controller_epoch
        self.zk_version = state.zk_version
        self.replicas = tuple(state.replicas)
        self.adding = tuple(state.adding_replicas)
        self.isr = Isr(tuple(state.isr))

    def check_leader(self, current_leader_epoch: int = NO_EPOCH) -> ErrorCode:
        """Return why this broker may not serve a request as leader, or NONE (KIP-320).

        `current_leader_epoch` is the epoch that the request expects, -1 where it names none.
        """
        if self.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if current_leader_epoch != NO_EPOCH:
            if current_leader_epoch < self.leader_epoch:
                return ErrorCode.FENCED_LEADER_EPOCH
            if current_leader_epoch > self.leader_epoch:
                return ErrorCode.UNKNOWN_LEADER_EPOCH
        if self.leader != self.broker_id:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return NO_ERROR

    def record_fetch(self, replica: int, fetch_offset: int, start_offset: int) -> bool:
        """Record that a follower has everything below `fetch_offset`.

        Return whether the high watermark rose.
        """
        progress = self.followers[replica]
        rules.record_fetch(
            progress, fetch_offset, start_offset, self.log.log_end_offset, self.clock_ms()
        )
        return self.advance_high_watermark()

    def enter_session(self, replica: int, clock: SessionClock) -> FollowerProgress | None:
        """Count each fetch of a session as one of this follower at the log end.

        Return its progress, or None unless that changes nothing else: it has everything, all of
        it is committed, and it is in sync. Else its fetches may raise the high watermark, or let
        it join.
        """
        progress = self.followers.get(replica)
        end = self.log.log_end_offset
        if (
            progress is None
            or progress.end_offset != end
            or self.high_watermark != end
            or replica not in self.isr.committed
        ):
            return None
        rules.enter_session(progress, clock)
        return progress

    def forget_departed(self, departed: Collection[int]) -> bool:
        """Wait no longer for followers to join the in-sync set: their brokers are gone.

        One that left in a controlled shutdown may have caught up with us until its end. Return
        whether the high watermark rose.
        """
        waited_for = False
        for replica in departed:
            progress = self.followers.get(replica)
            if progress is not None and replica not in self.isr.committed:
                progress.last_caught_up_ms = rules.NEVER_MS
                waited_for = True
        return waited_for and self.advance_high_watermark()

    def advance_high_watermark(self) -> bool:
        """Recompute the high watermark of a leader; return whether it rose."""
        mark = self.log.committable_end
        if self.followers:
            mark = rules.high_watermark(
                self.high_watermark,
                self.isr,
                self.broker_id,
                self.followers,
                mark,
                self.clock_ms(),
                self.limits.time_max_ms,
            )
        if mark <= self.high_watermark:
            return False
        self._set_high_watermark(mark)
        return True

    def follow_high_watermark(self, leaders_mark: int) -> bool:
        """Take the leader's high watermark, up to the end of the own log.

        Return whether it rose.
        """
        former = self.high_watermark
        self._set_high_watermark(leaders_mark)
        return self.high_watermark > former

    def _set_high_watermark(self, mark: int) -> None:
        """Set the mark, which the log keeps within itself; its retention and compaction stop
        there.
        """
        log = self.log
        log.high_watermark = mark
        self.high_watermark = log.high_watermark

    def low_watermark(self, alive: Container[int]) -> int:
        """Return the least log start that is durable on the replicas that are in sync or alive.

        One that is in sync can become leader, also if its broker just went.
        """
        in_sync = self.isr.maximal
        started = [
            one.start_offset
            for broker, one in self.followers.items()
            if broker in alive or broker in in_sync
        ]
        return min([*started, self.log.durable_log_start])

    def has_enough_replicas(self, minimum: int) -> bool:
        """Return whether the committed in-sync set has `minimum` members (min.insync.replicas)."""
        return len(self.isr.committed) >= minimum

    def is_followed(self, since_ms: int) -> bool:
        """Return whether every other in-sync replica surely fetched from us since `since_ms`.

        A new leader comes from the in-sync set: while all of it follows us, there is none.
        """
        others = self.isr.maximal - {self.broker_id}
        if not others:
            return len(self.replicas) == 1
        return all(
            other in self.followers and rules.vouched_ms(self.followers[other]) >= since_ms
            for other in others
        )

    def vouched_by_others(self) -> bool:
        """Return whether an acknowledgement rests on more than this broker's own state.

        While the ZooKeeper session is uncertain, the controller may have elected another leader.
        Followers that still fetch from us rule that out, and so does a partition without any other
        replica.
        """
        return len(self.isr.maximal) > 1 or len(self.replicas) == 1

    def propose_shrink(self) -> IsrChange | None:
        """Return the change that removes lagging replicas, None if none lags or one is pending."""
        if not self.is_leader or self.offline or self.isr.pending is not None:
            return None
        slow = rules.lagging(
            self.isr.committed,
            self.broker_id,
            self.followers,
            self.log.log_end_offset,
            self.clock_ms(),
            self.limits.time_max_ms,
            self.limits.messages_max,
        )
        if not slow:
            return None
        return self._propose(tuple(r for r in self.isr.committed if r not in slow))

    def may_join(self, replica: int) -> bool:
        """Return whether a follower is caught up and may join the in-sync set now."""
        progress = self.followers.get(replica)
        return (
            progress is not None
            and replica not in self.isr.committed
            and rules.may_join(
                self.isr,
                replica,
                self.replicas,
                progress.end_offset,
                self.high_watermark,
                self.leader_epoch_start,
            )
        )

    def propose_join(self, registered: Registered, connection_id: int) -> IsrChange | None:
        """Return the change that adds a follower that `may_join`.

        None if this fetch, on this connection, does not prove yet that it lives under this
        registration. The next one does, after an answer to this one.
        """
        progress = self.followers[registered.broker_id]
        if progress.answered != (connection_id, registered):
            progress.answered = connection_id, registered
            return None
        return self._propose((*self.isr.committed, registered.broker_id), registered)

    def propose_removal(self, replica: int) -> IsrChange | None:
        """Return the change that removes a follower, None if a change is pending."""
        if self.isr.pending is not None:
            return None
        return self._propose(tuple(one for one in self.isr.committed if one != replica))

    def _propose(self, members: tuple[int, ...], joins: Registered | None = None) -> IsrChange:
        change = IsrChange(
            self.key,
            self.broker_id,
            self.leader_epoch,
            self.controller_epoch,
            self.zk_version,
            members,
            self.isr.committed,
            joins,
        )
        self.isr = Isr(self.isr.committed, members)
        return change

    def expects(self, change: IsrChange) -> bool:
        """Return whether the change is still pending: no newer leader epoch came since."""
        return (
            self.is_leader
            and self.leader_epoch == change.leader_epoch
            and self.zk_version == change.zk_version
            and self.isr.pending == change.isr
        )

    def withdraw(self, change: IsrChange) -> None:
        """Drop a change of which ZooKeeper was not told."""
        if self.expects(change):
            self.isr = Isr(self.isr.committed)

    def confirm(self, change: IsrChange, zk_version: int) -> bool:
        """Settle a change that ZooKeeper holds as version `zk_version`.

        Return whether that raised the high watermark.
        """
        if not self.expects(change):
            return False
        self.isr = Isr(change.isr)
        self.zk_version = zk_version
        return self.advance_high_watermark()
