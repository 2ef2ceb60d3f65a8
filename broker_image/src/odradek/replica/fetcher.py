"""Copies from leaders: `num.replica.fetchers` tasks per source broker, each with its partitions.

A partition first agrees with its leader where its log diverges (`agreement`); then it is part of
every Fetch request to that broker. Batches are appended unchanged: the leader has checked them and
assigned the offsets. The requests are in `leader_requests`; which partitions a round looks at, and
what delays them, is in `followed_partitions`.

A broken connection delays the whole source. An unexpected exception that concerns no single
partition starts the fetcher anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING

from odradek.log.partition.appending import UnexpectedOffsetError
from odradek.protocol.errors import NO_ERROR, ErrorCode, KafkaError, name_of
from odradek.protocol.messages.fetch import FetchPartition
from odradek.protocol.regions import IN_MEMORY
from odradek.quarantine import Quarantines, Work
from odradek.replica import leader_requests
from odradek.replica.agreement import InThread, LeaderAgreement, TruncationFailed
from odradek.replica.followed_partitions import (
    FIRST_RETRY_MS,
    NOT_ASKED,
    FollowedPartition,
    FollowedPartitions,
)
from odradek.replica.hosted import HostedPartitions
from odradek.replica.leader_session import LeaderSession, SessionRequest
from odradek.replica.partition import Partition
from odradek.replica.quota import ReplicationQuota
from odradek.values import TopicPartition

if TYPE_CHECKING:
    from odradek.config import BrokerConfig
    from odradek.log.partition.log import Log
    from odradek.net.client import PeerClient
    from odradek.protocol.messages.fetch import FetchablePartitionResponse, FetchResponse

HELD_BACK_MS = 100

logger = logging.getLogger(__name__)


# Makes a client of a broker; None while its address is unknown.
Connect = Callable[[int], "PeerClient | None"]
# Makes the log start offsets of logs durable.
CheckpointStarts = Callable[[Collection["Log"]], Awaitable[None]]


class SourceFetcher:
    """Copies from one broker. The event loop may call `add` and `remove` at any time."""

    def __init__(
        self,
        source: int,
        config: BrokerConfig,
        connect: Connect,
        hosted: HostedPartitions,
        quota: ReplicationQuota,
        in_thread: InThread,
        checkpoint_starts: CheckpointStarts,
        clock_ms: Callable[[], int],
        quarantines: Quarantines,
        truncation_failed: TruncationFailed,
    ) -> None:
        self.source = source
        self.name = f"broker {source}"  # in logs
        self._config = config
        self._connect = connect
        self._hosted = hosted
        self._quota = quota
        self._in_thread = in_thread
        self._checkpoint_starts = checkpoint_starts
        self._checkpointing: asyncio.Task[None] | None = None
        self._checkpoint_after_ms = 0
        self._clock_ms = clock_ms
        self._quarantines = quarantines
        self._session = LeaderSession()
        self._followed = FollowedPartitions(source, config, self._session, clock_ms, quarantines)
        self._agreement = LeaderAgreement(
            source, config, self._followed, in_thread, truncation_failed
        )
        self._ended = False
        self._client: PeerClient | None = None

    def __len__(self) -> int:
        return len(self._followed.by_key)

    def partitions(self) -> list[Partition]:
        """Return the partitions that are copied."""
        return [one.partition for one in self._followed.by_key.values()]

    def add(self, partition: Partition) -> None:
        """Copy a partition, under its present leader epoch."""
        self._followed.add(partition)

    def remove(self, key: TopicPartition) -> None:
        """Stop copying a partition. A pending answer for it is dropped."""
        self._followed.remove(key)

    def look_at(self, key: TopicPartition) -> None:
        """Have the next round look at a partition: its log is another one, for instance."""
        self._followed.look_at(key)

    def end(self) -> None:
        """Let `run` return after what is under way."""
        self._ended = True
        self._followed.changed.set()

    async def run(self) -> None:
        """Copy until `end` or cancelled. After an unexpected exception it may be called again."""
        self._session.end()
        followed = self._followed
        try:
            while not self._ended:
                ready = followed.ready()
                if not ready and not self._session.fetches_unnamed:
                    await followed.rest()
                    continue
                try:
                    await self._round(ready)
                except (OSError, TimeoutError) as failure:
                    logger.info(
                        "failed to fetch from broker %d: %s; retrying", self.source, failure
                    )
                    await self._drop_client()
                    followed.delay_all()
                else:
                    self._quarantines.release(Work.SOURCE, self.name)
        finally:
            if self._checkpointing is not None:
                self._checkpointing.cancel()
                await asyncio.wait((self._checkpointing,))
            await self._drop_client()

    async def _round(self, ready: list[FollowedPartition]) -> None:
        client = self._client or self._connect(self.source)
        if client is None:
            raise ConnectionError(f"broker {self.source} is not alive")
        self._client = client
        followed = self._followed
        truncating = [one for one in ready if one.truncating]
        if truncating:
            await self._agreement.truncate(client, truncating)
            for one in truncating:
                if one.truncating:
                    followed.put_back(one)
                else:
                    self._hosted.wake_high_watermark(one.partition.key)
        fetching = [
            one
            for one in ready
            if not one.truncating and followed.is_current(one) and not self._is_held_back(one)
        ]
        flushed = await self._flush_where_owed(fetching)
        if flushed or self._session.fetches_unnamed:
            await self._fetch(client, flushed)

    def _is_held_back(self, one: FollowedPartition) -> bool:
        """Return whether copying the partition is throttled now (KIP-73); if so, retry soon."""
        if one.caught_up or not self._quota.holds_back(one.partition.key):
            return False
        self._followed.postpone(one, self._clock_ms() + HELD_BACK_MS)
        return True

    async def _drop_client(self) -> None:
        self._session.end()
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _fetch(self, client: PeerClient, some: list[FollowedPartition]) -> None:
        wanted: dict[TopicPartition, FetchPartition] = {}
        fetching: list[FollowedPartition] = []
        followed = self._followed
        for one in some:
            key = one.partition.key
            if followed.by_key.get(key) is not one:
                continue  # a session must not have what nobody copies
            try:
                log = one.partition.log
                offset = log.log_end_offset
                wanted[key] = FetchPartition(
                    partition=key.partition,
                    current_leader_epoch=one.leader_epoch,
                    fetch_offset=offset,
                    log_start_offset=log.durable_log_start,
                    partition_max_bytes=self._config.replica_fetch_max_bytes,
                )
            except Exception as error:
                followed.leave_out(one, error)
                continue
            one.asked_offset = offset
            fetching.append(one)
        request = self._session.request(wanted)
        if not wanted and not self._session.fetches_unnamed:
            self._session.end()
            return
        response = await client.call(
            leader_requests.fetch(self._config, request),
            leader_requests.FETCH_VERSION,
            self._config.replica_socket_timeout_ms,
        )
        if response.error_code != NO_ERROR:
            self._session_refused(request, response.error_code)
            return
        self._session.answered(response.session_id)
        copied = await self._take_answers(client, response)
        for one in fetching:
            if one.partition.key in followed.due:
                continue
            if not one.caught_up or self._owes_start(one):
                followed.put_back(one)
        raised = [one.partition.log for one in followed.due.values() if self._owes_start(one)]
        if raised:
            await self._checkpoint(raised, wait=not copied)

    def _session_refused(self, request: SessionRequest, code: int) -> None:
        """Fetch all partitions next: the leader restarted, or needed the room for others."""
        logger.info(
            "broker %d refused fetch session %d: %s; fetching all partitions",
            self.source,
            request.session_id,
            name_of(code),
        )
        was_full = not self._session.is_open
        self._session.end()
        if was_full:
            self._followed.delay_all()

    async def _take_answers(self, client: PeerClient, response: FetchResponse) -> bool:
        """Append what was answered; return whether that was anything."""
        copied = False
        followed = self._followed
        by_key, due, delayed = followed.by_key, followed.due, followed.delayed
        out_of_range: list[FollowedPartition] = []
        for answered in response.responses:
            for data in answered.partition_responses:
                key = TopicPartition(answered.topic, data.partition)
                one = by_key.get(key)
                if one is None or one.asked_offset == NOT_ASKED:
                    continue
                offset = one.asked_offset
                if key not in delayed:
                    due[key] = one
                try:
                    log = one.partition.log
                    if offset != log.log_end_offset:
                        continue
                    if data.error_code == NO_ERROR:
                        self._append(one, data)
                        copied = copied or log.log_end_offset > offset
                        one.leaders_start = data.log_start_offset
                        if one.failed:
                            one.failed = False
                            self._quarantines.release(Work.COPYING, one.partition.key)
                    elif data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                        out_of_range.append(one)
                    else:
                        followed.refused(one, data.error_code)
                except Exception as error:
                    followed.leave_out(one, error)
        # Not before: the next request ends the use of the records in the answer.
        for one in out_of_range:
            if followed.is_current(one):
                try:
                    await self._agreement.find_range(client, one)
                    self._hosted.wake_high_watermark(one.partition.key)
                except (ConnectionError, TimeoutError):
                    raise
                except Exception as error:
                    followed.leave_out(one, error)
        return copied

    async def _checkpoint(self, raised: list[Log], *, wait: bool) -> None:
        """Make log start offsets durable, so that the next request may report them.

        A deletion waits for that, if it was no retention that raised them. Copying goes on
        meanwhile; only where there was nothing to copy does the next request wait.
        """
        under_way = self._checkpointing is not None and not self._checkpointing.done()
        if not under_way and self._clock_ms() >= self._checkpoint_after_ms:
            self._checkpointing = asyncio.create_task(self._checkpoint_once(raised))
        if wait and self._checkpointing is not None:
            await asyncio.wait((self._checkpointing,))

    async def _checkpoint_once(self, raised: list[Log]) -> None:
        with self._quarantines.guard(Work.CHECKPOINT, f"log starts of followers of {self.name}"):
            await self._checkpoint_starts(raised)
        if any(log.durable_log_start < log.log_start_offset for log in raised):
            # Failed, which was logged, or raised meanwhile: not again with the very next answer.
            self._checkpoint_after_ms = self._clock_ms() + self._config.replica_fetch_backoff_ms

    async def _flush_where_owed(self, some: list[FollowedPartition]) -> list[FollowedPartition]:
        """Flush before a request reports our log end (flush.messages); return the partitions of
        which it may.
        """
        flushed = []
        for one in some:
            if one.partition.log.flush_required:
                try:
                    await self._in_thread(one.partition.log.flush)
                except KafkaError as refusal:
                    self._followed.reject(one, refusal)
                    continue
                except Exception as error:
                    self._followed.leave_out(one, error)
                    continue
                if not self._followed.is_current(one):
                    continue
            flushed.append(one)
        return flushed

    def _append(self, one: FollowedPartition, data: FetchablePartitionResponse) -> None:
        partition = one.partition
        one.retry_ms = FIRST_RETRY_MS
        try:
            records = data.record_set
            log = partition.log
            if isinstance(records, IN_MEMORY) and records:
                log.append_as_follower(records)
                self._quota.record(partition.key, len(records))
                self._hosted.wake_log_end(partition.key)
                # Served partitions go to the end of the next request. A session does that itself.
                if not self._session.is_open and self._followed.is_current(one):
                    by_key = self._followed.by_key
                    by_key[partition.key] = by_key.pop(partition.key)
            one.caught_up = data.high_watermark <= log.log_end_offset
            if partition.follow_high_watermark(data.high_watermark):
                self._hosted.wake_high_watermark(partition.key)
            if data.log_start_offset > log.log_start_offset:
                log.advance_log_start(min(data.log_start_offset, partition.high_watermark))
        except (KafkaError, UnexpectedOffsetError) as refusal:
            self._followed.reject(one, refusal)

    def _owes_start(self, one: FollowedPartition) -> bool:
        """Return whether the leader waits for our log start offset, which is not durable yet.

        A leader that sends consumers to us has to know what our retention deleted, too.
        """
        log = one.partition.log
        return log.durable_log_start < log.log_start_offset and (
            one.leaders_start > log.durable_log_start
            or self._config.replica_selector_class is not None
        )
