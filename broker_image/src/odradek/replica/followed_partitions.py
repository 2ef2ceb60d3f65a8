"""The partitions that one fetcher copies, and which of them its next round looks at.

Where the leader has a session (`leader_session`), a round looks only at partitions that are due:
those that are new, that the last answer named, that wait for no delay any more or for their log
start to be durable, and those that a throttle may hold back because they are behind. All others are
fetched where they were, without being named.

An error of one partition delays that partition only. After an unexpected exception, it is left out
of the fetch, for longer each time, where Kafka marks it as failed. A partition whose leader answers
that our leader epoch is old (74) waits until the controller sends the new one. The controller
notifies all brokers at once, so we may know a new leader before that broker does. It is asked again
soon, then at growing intervals, because every produce with acks=all waits for this.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from odradek.protocol.errors import ErrorCode, name_of
from odradek.quarantine import Quarantines, Work
from odradek.replica.leader_session import LeaderSession
from odradek.replica.partition import Partition
from odradek.values import TopicPartition

if TYPE_CHECKING:
    from odradek.config import BrokerConfig

FIRST_RETRY_MS = 20
NOT_ASKED = -1
# The answers of a leader that the controller has not notified of its role yet.
_NOT_YET_LEADER = (
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
_IDLE_S = 3600.0

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class FollowedPartition:
    """One partition of a fetcher, valid for one leader epoch."""

    partition: Partition
    leader_epoch: int
    truncating: bool = True
    caught_up: bool = False  # had all committed records at the last answer
    failed: bool = False  # in quarantine
    leaders_start: int = 0  # log start offset of the leader at the last answer
    not_before_ms: int = 0
    retry_ms: int = FIRST_RETRY_MS
    asked_offset: int = NOT_ASKED  # where the last request, or its session, reads it


class FollowedPartitions:
    """The partitions copied from the broker `source`, each under one leader epoch.

    Who is delayed or removed leaves `session`.
    """

    def __init__(
        self,
        source: int,
        config: BrokerConfig,
        session: LeaderSession,
        clock_ms: Callable[[], int],
        quarantines: Quarantines,
    ) -> None:
        self._source = source
        self._config = config
        self._session = session
        self._clock_ms = clock_ms
        self._quarantines = quarantines
        # Each partition is due, delayed, or fetched by the session without being named.
        self.by_key: dict[TopicPartition, FollowedPartition] = {}
        self.due: dict[TopicPartition, FollowedPartition] = {}
        self.delayed: dict[TopicPartition, FollowedPartition] = {}
        self.changed = asyncio.Event()
        """Ends a `rest`."""

    def add(self, partition: Partition) -> None:
        """Add a partition, under its present leader epoch."""
        key = partition.key
        self.remove(key)
        self.by_key[key] = self.due[key] = FollowedPartition(partition, partition.leader_epoch)
        self.changed.set()

    def remove(self, key: TopicPartition) -> None:
        """Remove a partition, and release it from quarantine."""
        one = self.by_key.pop(key, None)
        self.due.pop(key, None)
        self.delayed.pop(key, None)
        self._session.leave(key)
        if one is not None and one.failed:
            self._quarantines.release(Work.COPYING, key)

    def look_at(self, key: TopicPartition) -> None:
        """Have the next round look at a partition: its log is another one, for instance."""
        one = self.by_key.get(key)
        if one is not None:
            self.put_back(one)

    def is_current(self, one: FollowedPartition) -> bool:
        """Return whether a partition is copied still, under the same leader epoch."""
        return self.by_key.get(one.partition.key) is one

    def ready(self) -> list[FollowedPartition]:
        """Return the partitions to look at in a round: without a session, all but the delayed."""
        if self.delayed:
            now = self._clock_ms()
            for one in [one for one in self.delayed.values() if one.not_before_ms <= now]:
                del self.delayed[one.partition.key]
                self.due[one.partition.key] = one
        if self._session.is_open:
            ready = list(self.due.values())
        else:
            ready = [one for one in self.by_key.values() if not self._waits(one)]
        self.due.clear()
        return ready

    def _waits(self, one: FollowedPartition) -> bool:
        return one.partition.key in self.delayed

    def put_back(self, one: FollowedPartition) -> None:
        """Have the next round look at a partition, unless it is delayed or somebody else's."""
        key = one.partition.key
        if self.by_key.get(key) is one and key not in self.delayed:
            self.due[key] = one

    def postpone(self, one: FollowedPartition, until_ms: int) -> None:
        """Fetch a partition no more until then."""
        one.not_before_ms = until_ms
        if self.is_current(one):
            key = one.partition.key
            self.due.pop(key, None)
            self.delayed[key] = one
            self._session.leave(key)

    async def rest(self) -> None:
        """Wait for a new partition, or for the first delay to end."""
        self.changed.clear()
        pause_s = _IDLE_S
        if self.delayed:
            first = min(one.not_before_ms for one in self.delayed.values())
            pause_s = max(0.001, (first - self._clock_ms()) / 1000)
        try:
            async with asyncio.timeout(pause_s):
                await self.changed.wait()
        except TimeoutError:
            return

    def delay(self, some: Iterable[FollowedPartition]) -> None:
        """Fetch partitions no more for `replica.fetch.backoff.ms`."""
        until = self._clock_ms() + self._config.replica_fetch_backoff_ms
        for one in list(some):
            self.postpone(one, until)

    def delay_all(self) -> None:
        """Delay all partitions but those that are delayed."""
        self.delay(one for one in self.by_key.values() if not self._waits(one))

    def leave_out(self, one: FollowedPartition, error: Exception) -> None:
        """Quarantine one partition after an unexpected exception; the others go on."""
        key = one.partition.key
        if not self.is_current(one):
            self._quarantines.note(Work.COPYING, key, error, "it has another role by now")
            return
        one.failed = True
        pause_s = self._quarantines.put(Work.COPYING, key, error, "left out, retrying")
        self.postpone(one, self._clock_ms() + int(pause_s * 1000))

    def _retry_soon(self, one: FollowedPartition) -> None:
        """Double the pause before the next attempt, up to the pause after other errors."""
        pause_ms = min(one.retry_ms, self._config.replica_fetch_backoff_ms)
        self.postpone(one, self._clock_ms() + pause_ms)
        one.retry_ms = 2 * pause_ms

    def reject(self, one: FollowedPartition, refusal: Exception) -> None:
        """Log a failed append or truncation, and retry later."""
        logger.error(
            "%s: failed to copy from leader %d of epoch %d at offset %d: %s; retrying",
            one.partition.key,
            self._source,
            one.leader_epoch,
            one.partition.log.log_end_offset,
            refusal,
        )
        self.delay((one,))

    def refused(self, one: FollowedPartition, code: int) -> None:
        """Retry later what the leader answered with an error, or wait for another role."""
        partition = one.partition
        if code == ErrorCode.FENCED_LEADER_EPOCH:
            logger.info(
                "%s: leader %d has a newer leader epoch than %d; waiting for the controller",
                partition.key,
                self._source,
                one.leader_epoch,
            )
            self.remove(partition.key)
            return
        if code in _NOT_YET_LEADER:
            self._retry_soon(one)
            return
        logger.warning(
            "%s: failed to fetch from leader %d of epoch %d: %s; retrying",
            partition.key,
            self._source,
            one.leader_epoch,
            name_of(code),
        )
        self.delay((one,))
