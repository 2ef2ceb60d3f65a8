"""The rules of the in-sync replica set, as pure functions.

A follower is in sync while it is at the leader's log end, or was there less than
`replica.lag.time.max.ms` ago. Only its fetch requests report its position: a fetch at offset N says
that everything below N is on its disk. A follower that is slower than the producers never reaches
the present log end. So a fetch at or above the log end *of its previous fetch* counts as having
caught up at the time of that previous fetch (Kafka's rule since KIP-16).

A follower with a fetch session (KIP-227) names only what changed. Its fetch is one of every other
partition of the session, too, at the offset that it named last. Where that is the log end, nothing
is recorded per fetch: the progress shares the `SessionClock` of the session until something changes
(`enter_session`, `leave_session`), and reads the same as if each fetch had been recorded.

While a change of the set waits for ZooKeeper, the leader works with two sets: `committed`, which
ZooKeeper held last, and `maximal`, the union with the proposed set. The high watermark waits for
the maximal set: whichever of the two a controller reads, each member has every committed record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from odradek.replica.registrations import Registered

UNKNOWN_OFFSET = -1
NEVER_MS = -(1 << 62)
# How long a process that resumes may take to read what arrived while it was stopped.
BACKLOG_MS = 250


@dataclass(slots=True)
class SessionClock:
    """The fetches of one follower's session; `vouched_ms` is as that of `FollowerProgress`."""

    last_fetch_ms: int = NEVER_MS
    vouched_ms: int = NEVER_MS
    next_vouched_ms: int = NEVER_MS

    def tick(self, now_ms: int) -> None:
        """Note a fetch of the session, after what it names or forgets has left the clock."""
        if now_ms - self.next_vouched_ms >= BACKLOG_MS:
            self.vouched_ms, self.next_vouched_ms = self.next_vouched_ms, now_ms
        self.last_fetch_ms = now_ms


@dataclass(slots=True)
class FollowerProgress:
    """The progress of one follower. Offsets are exclusive ends; times are monotonic milliseconds.

    The leader's `Partition` owns it and changes it through `record_fetch` only.
    """

    end_offset: int = UNKNOWN_OFFSET
    start_offset: int = UNKNOWN_OFFSET
    last_caught_up_ms: int = NEVER_MS
    last_fetch_ms: int = NEVER_MS
    leader_end_at_last_fetch: int = UNKNOWN_OFFSET
    # The follower surely fetched from us after `vouched_ms`; `next_vouched_ms` is its candidate
    # successor. If this process was stopped, a fetch is older than it seems, and several may be.
    vouched_ms: int = NEVER_MS
    next_vouched_ms: int = NEVER_MS
    # While it may join the in-sync set: the connection of its last fetch, and its registration as
    # known by then (see `registrations`).
    answered: tuple[int, Registered] | None = None
    # While each fetch of a session finds the follower at the log end: its clock, and the time of
    # the first such fetch.
    clock: SessionClock | None = None
    in_session_since_ms: int = NEVER_MS


@dataclass(frozen=True, slots=True)
class Isr:
    """The in-sync set: `committed` by ZooKeeper, `pending` while a change waits for it."""

    committed: tuple[int, ...]
    pending: tuple[int, ...] | None = None
    # Every replica that ZooKeeper may now list as in sync. Every append needs it.
    maximal: frozenset[int] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        maximal = frozenset(self.committed).union(self.pending or ())
        object.__setattr__(self, "maximal", maximal)


def record_fetch(
    progress: FollowerProgress, fetch_offset: int, start_offset: int, leader_end: int, now_ms: int
) -> None:
    """Record a fetch of a follower at `fetch_offset`; `leader_end` is the present log end."""
    if fetch_offset >= leader_end:
        progress.last_caught_up_ms = max(progress.last_caught_up_ms, now_ms)
    elif fetch_offset >= progress.leader_end_at_last_fetch >= 0:
        progress.last_caught_up_ms = max(progress.last_caught_up_ms, progress.last_fetch_ms)
    progress.leader_end_at_last_fetch = leader_end
    if now_ms - progress.next_vouched_ms >= BACKLOG_MS:
        progress.vouched_ms, progress.next_vouched_ms = progress.next_vouched_ms, now_ms
    progress.last_fetch_ms = now_ms
    progress.end_offset = fetch_offset
    progress.start_offset = start_offset


def enter_session(progress: FollowerProgress, clock: SessionClock) -> None:
    """Count each fetch of a session as one at the log end, where the follower is, from its present
    fetch on.
    """
    progress.clock = clock
    progress.in_session_since_ms = clock.last_fetch_ms


def leave_session(progress: FollowerProgress, clock: SessionClock) -> None:
    """Record the fetches of a session since `enter_session`, and count no more of them.

    Nothing happens if the progress is that of another session by now.
    """
    if progress.clock is not clock:
        return
    progress.vouched_ms = vouched_ms(progress)
    if clock.next_vouched_ms >= progress.in_session_since_ms:
        progress.next_vouched_ms = max(progress.next_vouched_ms, clock.next_vouched_ms)
    progress.last_caught_up_ms = max(progress.last_caught_up_ms, clock.last_fetch_ms)
    progress.last_fetch_ms = max(progress.last_fetch_ms, clock.last_fetch_ms)
    progress.clock = None


def vouched_ms(progress: FollowerProgress) -> int:
    """Return a time after which the follower surely fetched from us."""
    clock = progress.clock
    if clock is None or clock.next_vouched_ms < progress.in_session_since_ms:
        return progress.vouched_ms
    return max(progress.vouched_ms, clock.vouched_ms)


def caught_up_ms(progress: FollowerProgress) -> int:
    """Return when the follower was last known to be at the log end."""
    if progress.clock is None:
        return progress.last_caught_up_ms
    return max(progress.last_caught_up_ms, progress.clock.last_fetch_ms)


def lagging(
    in_sync: Iterable[int],
    leader: int,
    followers: Mapping[int, FollowerProgress],
    leader_end: int,
    now_ms: int,
    lag_time_max_ms: int,
    lag_messages_max: int | None = None,
) -> frozenset[int]:
    """Return the replicas of `in_sync` that have to leave (R3).

    A follower at the log end never lags, even if it stops fetching.
    """
    slow: set[int] = set()
    for replica in in_sync:
        if replica == leader:
            continue
        progress = followers[replica]
        behind = leader_end - max(progress.end_offset, 0)
        if progress.end_offset == leader_end:
            continue
        if now_ms - progress.last_caught_up_ms > lag_time_max_ms or (
            lag_messages_max is not None and behind > lag_messages_max
        ):
            slow.add(replica)
    return frozenset(slow)


def may_join(
    isr: Isr,
    replica: int,
    replicas: Iterable[int],
    end_offset: int,
    high_watermark: int,
    leader_epoch_start: int,
) -> bool:
    """Return whether a follower with log end `end_offset` may join the set.

    It needs every committed record, and must have reached the start of this leader's epoch: below
    it the follower may still have records of a previous leader that differ from ours (KAFKA-7128).
    """
    return (
        isr.pending is None
        and replica not in isr.committed
        and replica in replicas
        and end_offset >= high_watermark
        and end_offset >= leader_epoch_start
    )


def high_watermark(
    current: int,
    isr: Isr,
    leader: int,
    followers: Mapping[int, FollowerProgress],
    leader_end: int,
    now_ms: int,
    lag_time_max_ms: int,
) -> int:
    """Return the least log end of the maximal set and of followers about to join; never falls.

    Waiting for a caught-up follower outside the set lets it join. Otherwise the high watermark of a
    set of one would rise as fast as the leader writes, and the follower could never reach it.
    """
    least = leader_end
    maximal = isr.maximal
    for replica, progress in followers.items():
        if (
            progress.end_offset < least
            and replica != leader
            and (replica in maximal or now_ms - progress.last_caught_up_ms <= lag_time_max_ms)
        ):
            least = progress.end_offset
            if least <= current:
                return current
    return max(current, least)
