"""Fetch sessions (KIP-227): what a client fetches again and again, so that it names only changes.

A session has the partitions of a client, each with where to read next and what the client was last
told of it. It is not searched for news: whatever changes a partition marks it in the sessions that
have it (`SessionWatchers`). A fetch looks at the marked partitions only, so one without news costs
the same however many partitions its session has. A mark goes once an answer has left nothing to be
said of the partition before its next change: what has an error, more records, or a follower that
is not in sync yet stays marked.

Marked partitions are looked at in the order of their marks. One that was given records comes last,
so none starves where an answer has no room for all.

`FetchSessions` is Kafka's cache (`kafka.server.FetchSessionCache`): `slots` sessions, and a new
session may take the slot of another that is older than two minutes and smaller. Followers' sessions
go before those of consumers. One that was not used for two minutes, and whose fetch does not wait,
ends when another begins or grows. Kafka leaves it while slots are free, but clients that died would
cost each append a mark, and room. Beyond Kafka's bound, the sessions of consumers have at most
`PARTITIONS_PER_SLOT` partitions per slot in all, and those of followers as many, or twice the
replicas that follow this broker: without an authorizer, everybody may call himself a follower. Who
gets no session stays without, as the protocol allows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Iterator
from random import Random
from typing import TYPE_CHECKING, Final

from odradek import slices
from odradek.protocol.errors import NO_ERROR
from odradek.replica import isr as rules
from odradek.replica.fetch_specs import NO_PREFERENCE
from odradek.replica.isr import SessionClock
from odradek.replica.purgatory import Watch
from odradek.values import ANONYMOUS, Principal, TopicPartition

if TYPE_CHECKING:
    from odradek.replica.fetch_specs import FetchResult, FetchSpec
    from odradek.replica.isr import FollowerProgress

NO_SESSION: Final = 0
FINAL_EPOCH: Final = -1
"""The session epoch of a fetch without a session, which ends the one that it names."""
INITIAL_EPOCH: Final = 0
"""The session epoch of a full fetch that asks for a session."""
FIRST_EPOCH: Final = 1
MIN_EVICTION_MS: Final = 120_000
"""The age at which a session may lose its slot to a larger one, and the idle time that ends it."""
PARTITIONS_PER_SLOT: Final = 100
USED_AGAIN_MS: Final = 1000
"""How old the last use must be to note another one."""
_SEARCH_AGAIN_MS: Final = 1000
_LAST_EPOCH: Final = (1 << 31) - 1
_LAST_ID: Final = (1 << 31) - 1
_UNKNOWN: Final = -1


def is_full(epoch: int) -> bool:
    """Return whether a fetch of a session epoch names all its partitions: it continues none."""
    return epoch in (INITIAL_EPOCH, FINAL_EPOCH)


def next_epoch(epoch: int) -> int:
    """Return the session epoch of the next fetch."""
    return epoch + 1 if epoch != _LAST_EPOCH else FIRST_EPOCH


class SessionPartition:
    """One partition of a session; `high_watermark` and `log_start` are as last answered."""

    __slots__ = ("high_watermark", "is_marked", "log_start", "progress", "session", "spec")

    def __init__(self, session: FetchSession, spec: FetchSpec) -> None:
        self.session = session
        self.spec = spec
        self.high_watermark = _UNKNOWN
        self.log_start = _UNKNOWN
        self.is_marked = False
        # A follower's, while it has everything: then each fetch of the session is one of it.
        self.progress: FollowerProgress | None = None

    def is_news(self, result: FetchResult) -> bool:
        """Return whether an answer has to have this result."""
        return (
            result.region is not None
            or result.high_watermark != self.high_watermark
            or result.log_start_offset != self.log_start
            or result.error is not NO_ERROR
            or result.diverging is not None
            or result.preferred_read_replica != NO_PREFERENCE
        )

    def note_answered(self, result: FetchResult) -> None:
        """Note what the client is told; after an error it is told everything again."""
        self.high_watermark = result.high_watermark if result.error is NO_ERROR else _UNKNOWN
        self.log_start = result.log_start_offset

    def is_read(self, result: FetchResult) -> bool:
        """Return whether nothing is left to read below the high watermark of a sound result."""
        return (
            result.region is None
            and result.error is NO_ERROR
            and result.diverging is None
            and result.preferred_read_replica == NO_PREFERENCE
            and self.spec.offset >= result.high_watermark
        )


class FetchSession:
    """One session. `epoch` is that of the next fetch, which only `principal` may send."""

    __slots__ = (
        "cached_size",
        "clock",
        "created_ms",
        "epoch",
        "is_open",
        "is_privileged",
        "last_used_ms",
        "marked",
        "partitions",
        "principal",
        "replica_id",
        "session_id",
        "topics",
        "watch",
    )

    def __init__(self, replica_id: int, principal: Principal = ANONYMOUS) -> None:
        self.session_id = NO_SESSION
        self.epoch = FIRST_EPOCH
        self.replica_id = replica_id
        # Followers' sessions.
        self.is_privileged = replica_id >= 0
        self.principal = principal
        self.created_ms = self.last_used_ms = 0
        self.cached_size = 0
        self.is_open = True
        self.partitions: dict[TopicPartition, SessionPartition] = {}
        # How many partitions there are of each topic.
        self.topics: dict[str, int] = {}
        self.marked: dict[SessionPartition, None] = {}
        self.clock = SessionClock()
        self.watch: Watch[TopicPartition] | None = None

    def mark(self, one: SessionPartition, *, wakes: bool = False) -> None:
        """Have the next fetch look at a partition; `wakes` has one that waits do so now."""
        if not one.is_marked:
            one.is_marked = True
            self.marked[one] = None
            if one.progress is not None:
                rules.leave_session(one.progress, self.clock)
                one.progress = None
        if wakes and self.watch is not None:
            self.watch.resolve(True)
            self.watch = None  # nobody waits any more

    def mark_each(self, some: Iterable[SessionPartition]) -> None:
        """Have the next fetch look at partitions again, or the one that waits already."""
        for one in some:
            if not one.is_marked:
                self.mark(one, wakes=True)

    def take_marked(self) -> list[SessionPartition]:
        """Return the marked partitions, and begin to note new marks.

        Whoever takes them marks those again that he does not finish.
        """
        marked = self.marked
        if not marked:
            return []
        taken = list(marked)
        marked.clear()
        for one in taken:
            one.is_marked = False
        return taken

    def begin_fetch(self) -> int:
        """Begin the next fetch, which overtakes one that is still in progress; return the epoch
        that the session has until the fetch is overtaken itself.
        """
        self.epoch = epoch = next_epoch(self.epoch)
        if self.watch is not None:
            self.end_wait()
        return epoch

    def begin_wait(self) -> Watch[TopicPartition]:
        """Return the wait of the fetch in progress, which a mark ends from now on."""
        self.watch = Watch((), asyncio.get_running_loop().create_future())
        return self.watch

    @property
    def waits(self) -> bool:
        """Return whether its fetch waits for news now."""
        return self.watch is not None and not self.watch.is_resolved

    def end_wait(self) -> None:
        """End the wait of a fetch that is overtaken by another, or by the end of the session."""
        if self.watch is not None:
            self.watch.resolve(False)
            self.watch = None


class SessionWatchers:
    """The partitions of all sessions by key: whoever changes a partition marks it in them."""

    def __init__(self) -> None:
        self._followers: dict[TopicPartition, dict[SessionPartition, None]] = {}
        self._consumers: dict[TopicPartition, dict[SessionPartition, None]] = {}
        self.log_end_moves = 0
        """How many times followers were given something to fetch."""

    def _of(self, one: SessionPartition) -> dict[TopicPartition, dict[SessionPartition, None]]:
        return self._followers if one.session.is_privileged else self._consumers

    def add(self, one: SessionPartition) -> None:
        """Mark a partition of a session from now on."""
        self._of(one).setdefault(one.spec.key, {})[one] = None

    def discard(self, one: SessionPartition) -> None:
        """Mark a partition of a session no more."""
        watching = self._of(one)
        same_key = watching.get(one.spec.key)
        if same_key is not None:
            same_key.pop(one, None)
            if not same_key:
                del watching[one.spec.key]

    def log_end_moved(self, key: TopicPartition) -> None:
        """Note that followers have something to fetch."""
        followers = self._followers.get(key)
        if followers is not None:
            self.log_end_moves += 1
            for one in followers:
                if not one.is_marked or one.session.watch is not None:
                    one.session.mark(one, wakes=True)

    def high_watermark_moved(self, key: TopicPartition) -> None:
        """Note that consumers have something to fetch, and that followers will be told."""
        consumers = self._consumers.get(key)
        if consumers is not None:
            for one in consumers:
                if not one.is_marked or one.session.watch is not None:
                    one.session.mark(one, wakes=True)
        followers = self._followers.get(key)
        if followers is not None:
            for one in followers:
                if not one.is_marked:
                    one.session.mark(one)

    def changed(self, key: TopicPartition, *, wakes: bool) -> None:
        """Note that anything else is not as it was, a role or a log start for instance."""
        for watching in (self._consumers, self._followers):
            for one in watching.get(key, ()):
                one.session.mark(one, wakes=wakes)


class FetchSessions:
    """The sessions of a broker. Only the event loop uses it.

    `count_followers` counts the replicas that follow the partitions of this broker.
    """

    def __init__(
        self,
        slots: int,
        watchers: SessionWatchers,
        clock_ms: Callable[[], int],
        random: Random,
        count_followers: Callable[[], int],
    ) -> None:
        self._slots = slots
        self._watchers = watchers
        self._clock_ms = clock_ms
        self._random = random
        self._count_followers = count_followers
        # The one that was not used for longest comes first.
        self._sessions: dict[int, FetchSession] = {}
        self._consumers_partitions = 0
        self._closed = False
        # After a search in vain consumers get no slot for a while, unless one becomes free.
        self._searched_ms = -_SEARCH_AGAIN_MS
        self.cached_partitions = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[FetchSession]:
        return iter(tuple(self._sessions.values()))

    def has_room(self, size: int, *, privileged: bool) -> bool:
        """Return whether a session of so many partitions would get a slot."""
        self._close_idle()
        if self._closed or not self._fits(size, privileged):
            return False
        return len(self._sessions) < self._slots or self._victim(size, privileged) is not None

    def insert(self, session: FetchSession) -> bool:
        """Give a session a slot and an id; return False if there is no slot left for it."""
        size, privileged = len(session.partitions), session.is_privileged
        self._close_idle()
        if self._closed or not self._fits(size, privileged):
            return False
        now = self._clock_ms()
        if len(self._sessions) >= self._slots:
            victim = self._victim(size, privileged)
            if victim is None:
                return False
            self._evict(victim)
        session.session_id = self._new_id()
        session.created_ms = session.last_used_ms = now
        self._sessions[session.session_id] = session
        self.touch(session)
        return True

    def _close_idle(self) -> None:
        now = self._clock_ms()
        while self._sessions:
            oldest = next(iter(self._sessions.values()))
            if oldest.last_used_ms >= now - MIN_EVICTION_MS:
                return
            if oldest.waits:
                self._use(oldest, now)
            else:
                self._evict(oldest)

    def _use(self, session: FetchSession, now_ms: int) -> None:
        session.last_used_ms = now_ms
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)

    def _evict(self, session: FetchSession) -> None:
        self.evictions += 1
        self.close(session)

    def _fits(self, size: int, privileged: bool) -> bool:
        most = self._slots * PARTITIONS_PER_SLOT
        if not privileged:
            return self._consumers_partitions + size <= most
        wanted = self.cached_partitions - self._consumers_partitions + size
        # Twice, for a follower that restarts has two sessions for a while.
        return wanted <= most or wanted <= 2 * self._count_followers()

    def _new_id(self) -> int:
        while (found := self._random.randint(1, _LAST_ID)) in self._sessions:
            pass
        return found

    def _victim(self, size: int, privileged: bool) -> FetchSession | None:
        """Return the session whose slot a new one may take.

        A follower may take that of any consumer; else the new one must be at least as large.
        """
        now = self._clock_ms()
        if not privileged and now - self._searched_ms < _SEARCH_AGAIN_MS:
            return None
        least = min(
            (
                one
                for one in self._sessions.values()
                if now - one.created_ms > MIN_EVICTION_MS or (privileged and not one.is_privileged)
            ),
            key=_rank,
            default=None,
        )
        if least is None or (privileged, size) < _rank(least):
            self._searched_ms = now
            return None
        return least

    def touch(self, session: FetchSession) -> bool:
        """Note a use and the present size; return False if the session has ended, perhaps because
        it has become too large.
        """
        if not session.is_open:
            return False
        now = self._clock_ms()
        if now - session.last_used_ms >= USED_AGAIN_MS:
            self._use(session, now)
        grown = len(session.partitions) - session.cached_size
        if grown > 0:
            self._close_idle()
            if not self._fits(grown, session.is_privileged):
                self.close(session)
                return False
        if grown:
            session.cached_size += grown
            self.cached_partitions += grown
            if not session.is_privileged:
                self._consumers_partitions += grown
        return True

    def of_sender(
        self, session_id: int, replica_id: int, principal: Principal
    ) -> FetchSession | None:
        """Return a session, None if there is none or if it is somebody else's.

        Kafka does not ask whose it is.
        """
        session = self._sessions.get(session_id)
        if (
            session is None
            or session.replica_id != replica_id
            or (session.principal is not principal and session.principal != principal)
        ):
            return None
        return session

    def add(self, session: FetchSession, spec: FetchSpec) -> SessionPartition:
        """Add a partition, or change where it is read; the next fetch looks at it."""
        key = spec.key
        one = session.partitions.get(key)
        if one is None:
            one = session.partitions[key] = SessionPartition(session, spec)
            session.topics[key.topic] = session.topics.get(key.topic, 0) + 1
            self._watchers.add(one)
        else:
            if spec.leader_epoch != one.spec.leader_epoch:
                # A client drops the answer that its news of the epoch overtook.
                one.high_watermark = _UNKNOWN
            one.spec = spec
        if not one.is_marked:
            session.mark(one)
        return one

    def forget(self, session: FetchSession, key: TopicPartition) -> None:
        """Remove a partition from a session that has it."""
        one = session.partitions.pop(key, None)
        if one is None:
            return
        left = session.topics[key.topic] - 1
        if left:
            session.topics[key.topic] = left
        else:
            del session.topics[key.topic]
        self._watchers.discard(one)
        # From now on no fetch of the session is one of the partition. It stays marked, without
        # being looked at, so that nobody marks it again who had it in hand.
        session.mark(one)
        del session.marked[one]

    def close(self, session: FetchSession) -> None:
        """End a session: its next fetch gets error 70, and what it has is marked no more.

        A large one is emptied in slices. No fetch follows, so its clock says the same until then.
        """
        if not session.is_open:
            return
        session.is_open = False
        if self._sessions.pop(session.session_id, None) is not None:
            self._searched_ms -= _SEARCH_AGAIN_MS
            self.cached_partitions -= session.cached_size
            if not session.is_privileged:
                self._consumers_partitions -= session.cached_size
        session.end_wait()
        keys = list(session.partitions)
        if len(keys) > slices.KEYS_AT_ONCE:
            slices.run_in_background(self._emptied(session, keys))
        else:
            for key in keys:
                self.forget(session, key)

    def _emptied(
        self, session: FetchSession, keys: Iterable[TopicPartition]
    ) -> Generator[None, None, None]:
        for few in slices.cut(keys, slices.STEPS_PER_SLICE):
            for key in few:
                self.forget(session, key)
            yield

    def end(self) -> None:
        """End every wait, and begin no session any more: the broker stops."""
        self._closed = True
        for session in self:
            self.close(session)


def _rank(session: FetchSession) -> tuple[bool, int]:
    return session.is_privileged, session.cached_size
