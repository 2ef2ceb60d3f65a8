"""One partition on this broker: its role, its epochs and, where it leads, how far its followers
are.

The controller's LeaderAndIsr makes a replica a leader or a follower of a leader epoch; every change
of role goes through `lead` and `follow`. The log holds the bytes, the partition decides who may see
them: consumers below the high watermark, followers up to the log end.

A change of the in-sync set is proposed here (`propose_shrink`, `propose_join`), written to
ZooKeeper by the manager, and settled here (`confirm`). At most one is under way, and a new leader
epoch forgets it: what ZooKeeper then holds came with the epoch. A change that ZooKeeper refused
stays under way until that epoch comes: the znode is newer than what we know, so a controller may
already have chosen a leader from the set that we proposed, and nothing may be committed without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import TYPE_CHECKING

from odradek.protocol.errors import ErrorCode
from odradek.replica import isr as rules
from odradek.replica.isr import FollowerProgress, Isr
from odradek.values import NO_LEADER, TopicPartition

if TYPE_CHECKING:
    from odradek.log.partition.log import Log
    from odradek.protocol.messages.control import LeaderAndIsrPartitionState

NO_EPOCH = -1
NEVER = -1


@dataclass(frozen=True, slots=True)
class IsrChange:
    """A proposed in-sync set, bound to the leader epoch and the znode version that it was decided
    on.
    """

    key: TopicPartition
    leader: int
    leader_epoch: int
    controller_epoch: int
    zk_version: int
    isr: tuple[int, ...]
    previous: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LagLimits:
    """When a follower counts as out of sync: milliseconds, and messages where that is set."""

    time_max_ms: int
    messages_max: int | None = None


class Partition:
    """State of one replica; mutable, used from the event loop only. Its owner is the
    `ReplicaManager`.
    """

    __slots__ = (
        "broker_id",
        "clock_ms",
        "controller_epoch",
        "followers",
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
        "replicas",
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
        self.isr = Isr(())
        self.followers: dict[int, FollowerProgress] = {}
        self.leader_epoch_start = 0
        self.offline = False
        # Held while a thread cuts the log: a new role waits for it.
        self.truncation_lock = asyncio.Lock()
        # The generation of the ZooKeeper session in which the controller last told us this role.
        self.told_in_session = NEVER
        # How often leadership was lost. Within one generation nothing is cut from the log, also
        # over several epochs.
        self.leadership_generation = 0
        self.high_watermark = 0
        self._set_high_watermark(high_watermark)

    @property
    def is_leader(self) -> bool:
        """Whether this broker is the partition's leader."""
        return self.leader == self.broker_id

    def lead(self, state: LeaderAndIsrPartitionState) -> None:
        """Become leader of a new leader epoch.

        Nothing is known of the followers until they fetch from us.
        """
        self._take(state)
        now = self.clock_ms()
        self.leader_epoch_start = self.log.log_end_offset
        self.log.assign_epoch(state.leader_epoch)
        self.followers = {
            replica: FollowerProgress(
                last_caught_up_ms=now if replica in state.isr else rules.NEVER_MS
            )
            # An in-sync replica that is none of the replicas never fetches, and so leaves the set.
            for replica in dict.fromkeys((*state.replicas, *state.isr))
            if replica != self.broker_id
        }
        self.advance_high_watermark()

    def follow(self, state: LeaderAndIsrPartitionState) -> None:
        """Become follower of a new leader epoch; the fetcher truncates and copies from then on."""
        self._take(state)
        self.leadership_generation += 1
        self.followers = {}

    def retire(self) -> None:
        """Leave service: the replica moves away or its topic is deleted."""
        self.leader = NO_LEADER
        self.leadership_generation += 1
        self.followers = {}

    def _take(self, state: LeaderAndIsrPartitionState) -> None:
        self.leader = state.leader
        self.leader_epoch = state.leader_epoch
        self.controller_epoch = state.controller_epoch
        self.zk_version = state.zk_version
        self.replicas = tuple(state.replicas)
        self.isr = Isr(tuple(state.isr))

    def check_leader(self, current_leader_epoch: int = NO_EPOCH) -> ErrorCode:
        """Whether a request that believes in `current_leader_epoch` (-1: does not say) may be
        served here (KIP-320).
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
        return ErrorCode.NONE

    def record_fetch(self, replica: int, fetch_offset: int, start_offset: int) -> bool:
        """Note that a follower holds everything below `fetch_offset`.

        True when the high watermark moved.
        """
        progress = self.followers[replica]
        rules.record_fetch(
            progress, fetch_offset, start_offset, self.log.log_end_offset, self.clock_ms()
        )
        return self.advance_high_watermark()

    def advance_high_watermark(self) -> bool:
        """Recompute the high watermark of a leader. True when it moved."""
        mark = rules.high_watermark(
            self.high_watermark,
            self.isr,
            self.broker_id,
            self.followers,
            self.log.committable_end,
            self.clock_ms(),
            self.limits.time_max_ms,
        )
        if mark == self.high_watermark:
            return False
        self._set_high_watermark(mark)
        return True

    def follow_high_watermark(self, leaders_mark: int) -> None:
        """Take the leader's high watermark as far as the own log reaches."""
        self._set_high_watermark(leaders_mark)

    def _set_high_watermark(self, mark: int) -> None:
        """Keep the mark within the log, and tell the log: retention and compaction stop there."""
        log = self.log
        self.high_watermark = max(min(mark, log.log_end_offset), log.log_start_offset)
        log.high_watermark = self.high_watermark

    def low_watermark(self, alive: Container[int]) -> int:
        """Where the log starts on every replica whose broker is alive, as far as they told."""
        started = [one.start_offset for broker, one in self.followers.items() if broker in alive]
        return min([*started, self.log.log_start_offset])

    def has_enough_replicas(self, minimum: int) -> bool:
        """Whether the confirmed in-sync set has `minimum` members (min.insync.replicas)."""
        return len(self.isr.committed) >= minimum

    def is_followed(self, since_ms: int) -> bool:
        """Whether every other in-sync replica surely followed us at `since_ms` or later.

        Another leader comes from the in-sync set: as long as all of it follows us, there is none.
        """
        others = self.isr.maximal - {self.broker_id}
        if not others:
            return len(self.replicas) == 1
        return all(
            other in self.followers and self.followers[other].vouched_ms >= since_ms
            for other in others
        )

    def vouched_by_others(self) -> bool:
        """Whether an acknowledgement would rest on more than this broker's own word.

        With an uncertain ZooKeeper session the controller may have deposed us. Followers that still
        fetch from us answer that; so does a partition that has no other replica.
        """
        return len(self.isr.maximal) > 1 or len(self.replicas) == 1

    def propose_shrink(self) -> IsrChange | None:
        """The change that removes those who lag, if any does and no other change is under way."""
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

    def propose_join(self, replica: int) -> IsrChange | None:
        """The change that lets a caught-up follower in, if it may enter now."""
        progress = self.followers.get(replica)
        if (
            progress is None
            or replica in self.isr.committed
            or not rules.may_join(
                self.isr,
                replica,
                self.replicas,
                progress.end_offset,
                self.high_watermark,
                self.leader_epoch_start,
            )
        ):
            return None
        return self._propose((*self.isr.committed, replica))

    def _propose(self, members: tuple[int, ...]) -> IsrChange:
        change = IsrChange(
            self.key,
            self.broker_id,
            self.leader_epoch,
            self.controller_epoch,
            self.zk_version,
            members,
            self.isr.committed,
        )
        self.isr = Isr(self.isr.committed, members)
        return change

    def expects(self, change: IsrChange) -> bool:
        """Whether the change is still the one under way (no newer leader epoch came between)."""
        return (
            self.is_leader
            and self.leader_epoch == change.leader_epoch
            and self.zk_version == change.zk_version
            and self.isr.pending == change.isr
        )

    def confirm(self, change: IsrChange, zk_version: int) -> bool:
        """ZooKeeper holds the change, as version `zk_version`.

        True when the high watermark moved by it.
        """
        if not self.expects(change):
            return False
        self.isr = Isr(change.isr)
        self.zk_version = zk_version
        return self.advance_high_watermark()
