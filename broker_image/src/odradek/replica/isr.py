"""The rules of the in-sync replica set, as pure functions over values.

A follower is in sync while it stands at the leader's log end, or stood there less than
`replica.lag.time.max.ms` ago. Where it stood is told by its fetch requests alone: a fetch at offset
N says that everything below N is on its disk. A follower that is slower than the producers never
reaches the present log end, so a fetch at or above the log end *of the moment of its previous
fetch* counts as having caught up at that moment (Kafka's rule since KIP-16).

Between the wish to change the set and ZooKeeper's confirmation the leader works with two sets:
`committed`, what ZooKeeper surely holds, and `maximal`, the union with what it may hold. The high
watermark waits for the maximal set, so that whichever of the two a controller reads, each of its
members has every committed record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

UNKNOWN_OFFSET = -1
NEVER_MS = -(1 << 62)
# How long a process that goes on may take to read what came while it was stopped.
BACKLOG_MS = 250


@dataclass(slots=True)
class FollowerProgress:
    """What a leader knows of one follower. Offsets are exclusive ends; times are monotonic
    milliseconds.

    Owned by the leader's `Partition`, which changes it through `record_fetch` only.
    """

    end_offset: int = UNKNOWN_OFFSET
    start_offset: int = UNKNOWN_OFFSET
    last_caught_up_ms: int = NEVER_MS
    last_fetch_ms: int = NEVER_MS
    leader_end_at_last_fetch: int = UNKNOWN_OFFSET
    # A moment since which it surely fetched from us, and the one that is to be the next. A fetch
    # is older than it looks when this process was stopped meanwhile, and so may be several at once.
    vouched_ms: int = NEVER_MS
    next_vouched_ms: int = NEVER_MS


@dataclass(frozen=True, slots=True)
class Isr:
    """The in-sync set: `committed` by ZooKeeper, `pending` while a change is under way."""

    committed: tuple[int, ...]
    pending: tuple[int, ...] | None = None
    # Every replica that ZooKeeper may at this moment list as in sync. Every append asks for it.
    maximal: frozenset[int] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        maximal = frozenset(self.committed).union(self.pending or ())
        object.__setattr__(self, "maximal", maximal)


def record_fetch(
    progress: FollowerProgress, fetch_offset: int, start_offset: int, leader_end: int, now_ms: int
) -> None:
    """Take in one fetch of a follower at `fetch_offset`, with the leader's log end of now."""
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


def lagging(
    in_sync: Iterable[int],
    leader: int,
    followers: Mapping[int, FollowerProgress],
    leader_end: int,
    now_ms: int,
    lag_time_max_ms: int,
    lag_messages_max: int | None = None,
) -> frozenset[int]:
    """Those of `in_sync` that have to leave (R3).

    A follower at the log end never lags, however silent.
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
    """Whether a follower that stands at `end_offset` may enter the set.

    It needs every committed record, and must have reached this leader's own epoch: below its start
    the follower may still hold records of a former leader that differ from ours (KAFKA-7128).
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
    """The least log end of the maximal set and of those just about to enter it; it never falls.

    Waiting for a caught-up follower that is not in the set yet lets it join: with a set of one, the
    mark would otherwise run at the leader's own pace and the follower would chase it forever.
    """
    least = leader_end
    maximal = isr.maximal
    for replica, progress in followers.items():
        if (
            replica != leader
            and progress.end_offset < least
            and (replica in maximal or now_ms - progress.last_caught_up_ms <= lag_time_max_ms)
        ):
            least = progress.end_offset
    return max(current, least)
