"""Copies from leaders: `num.replica.fetchers` tasks per source broker, each with its partitions.

A partition first finds out where its log diverges from the leader's and truncates it
(OffsetForLeaderEpoch, see `truncation`); then it is part of every Fetch request to that broker.
Batches are appended unchanged: the leader has checked them and assigned the offsets. The requests
are in `leader_requests`.

Where the leader has a session (`leader_session`), a round looks only at partitions that are due:
those that are new, that the last answer named, that wait for no delay any more or for their log
start to be durable, and those that a throttle may hold back because they are behind. All others are
fetched where they were, without being named.

An error of one partition delays that partition only; a broken connection delays the whole source.
After an unexpected exception, the partition is left out of the fetch, for longer each time, where
Kafka marks it as failed; one that concerns no single partition starts the fetcher anew. A partition
whose leader answers that our leader epoch is old (74) waits until the controller sends
the new one. The controller notifies all brokers at once, so we may know a new leader before that
broker does. It is asked again soon, then at growing intervals, because every produce with acks=all
waits for this.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from odradek.log.partition.log import UnexpectedOffsetError
from odradek.log.segment.files import FileRetiredError
from odradek.protocol.errors import NO_ERROR, ErrorCode, KafkaError, name_of
from odradek.protocol.messages.fetch import FetchPartition
from odradek.protocol.regions import IN_MEMORY
from odradek.quarantine import Quarantines, Work
from odradek.replica import leader_requests, truncation
from odradek.replica.hosted import HostedPartitions
from odradek.replica.leader_session import LeaderSession, SessionRequest
from odradek.replica.partition import Partition
from odradek.replica.quota import ReplicationQuota
from odradek.replica.truncation import EpochEnd
from odradek.values import TopicPartition

if TYPE_CHECKING:
    from odradek.config import BrokerConfig
    from odradek.log.partition.log import Log
    from odradek.net.client import PeerClient
    from odradek.protocol.messages.fetch import FetchablePartitionResponse, FetchResponse

HELD_BACK_MS = 100
FIRST_RETRY_MS = 20
# The answers of a leader that the controller has not notified of its role yet.
_NOT_YET_LEADER = (
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
_IDLE_S = 3600.0
_NOT_ASKED = -1

logger = logging.getLogger(__name__)


# Makes a client of a broker; None while its address is unknown.
Connect = Callable[[int], "PeerClient | None"]
# Runs in a thread what may wait for the disk.
InThread = Callable[[Callable[[], object]], Awaitable[object]]
# Makes the log start offsets of logs durable.
CheckpointStarts = Callable[[Collection["Log"]], Awaitable[None]]
# Takes a partition offline whose truncation broke off.
TruncationFailed = Callable[[Partition, Exception], None]


@dataclass(slots=True)
class _Following:
    """One partition of a fetcher, valid for one leader epoch."""

    partition: Partition
    leader_epoch: int
    truncating: bool = True
    caught_up: bool = False  # had all committed records at the last answer
    failed: bool = False  # in quarantine
    leaders_start: int = 0  # log start offset of the leader at the last answer
    not_before_ms: int = 0
    retry_ms: int = FIRST_RETRY_MS
    asked_offset: int = _NOT_ASKED  # where the last request, or its session, reads it


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
        self._truncation_failed = truncation_failed
        # Each partition is due, delayed, or fetched by the session without being named.
        self._following: dict[TopicPartition, _Following] = {}
        self._due: dict[TopicPartition, _Following] = {}
        self._delayed: dict[TopicPartition, _Following] = {}
        self._session = LeaderSession()
        self._changed = asyncio.Event()
        self._ended = False
        self._client: PeerClient | None = None

    def __len__(self) -> int:
        return len(self._following)

    def partitions(self) -> list[Partition]:
        """Return the partitions that are copied."""
        return [one.partition for one in self._following.values()]

    def add(self, partition: Partition) -> None:
        """Copy a partition, under its present leader epoch."""
        key = partition.key
        self.remove(key)
        self._following[key] = self._due[key] = _Following(partition, partition.leader_epoch)
        self._changed.set()

    def remove(self, key: TopicPartition) -> None:
        """Stop copying a partition. A pending answer for it is dropped."""
        one = self._following.pop(key, None)
        self._due.pop(key, None)
        self._delayed.pop(key, None)
        self._session.leave(key)
        if one is not None and one.failed:
            self._quarantines.release(Work.COPYING, key)

    def look_at(self, key: TopicPartition) -> None:
        """Have the next round look at a partition: its log is another one, for instance."""
        one = self._following.get(key)
        if one is not None:
            self._put_back(one)

    def end(self) -> None:
        """Let `run` return after what is under way."""
        self._ended = True
        self._changed.set()

    async def run(self) -> None:
        """Copy until `end` or cancelled. After an unexpected exception it may be called again."""
        self._session.end()
        try:
            while not self._ended:
                ready = self._ready()
                if not ready and not self._session.fetches_unnamed:
                    await self._rest()
                    continue
                try:
                    await self._round(ready)
                except (OSError, TimeoutError) as failure:
                    logger.info(
                        "failed to fetch from broker %d: %s; retrying", self.source, failure
                    )
                    await self._drop_client()
                    self._delay(one for one in self._following.values() if not self._waits(one))
                else:
                    self._quarantines.release(Work.SOURCE, self.name)
        finally:
            if self._checkpointing is not None:
                self._checkpointing.cancel()
                await asyncio.wait((self._checkpointing,))
            await self._drop_client()

    async def _round(self, ready: list[_Following]) -> None:
        client = self._client or self._connect(self.source)
        if client is None:
            raise ConnectionError(f"broker {self.source} is not alive")
        self._client = client
        truncating = [one for one in ready if one.truncating]
        if truncating:
            await self._truncate(client, truncating)
            for one in truncating:
                if one.truncating:
                    self._put_back(one)
        fetching = [
            one
            for one in ready
            if not one.truncating and self._is_current(one) and not self._is_held_back(one)
        ]
        flushed = await self._flush_where_owed(fetching)
        if flushed or self._session.fetches_unnamed:
            await self._fetch(client, flushed)

    def _ready(self) -> list[_Following]:
        """Return the partitions to look at in a round: without a session, all but the delayed."""
        if self._delayed:
            now = self._clock_ms()
            for one in [one for one in self._delayed.values() if one.not_before_ms <= now]:
                del self._delayed[one.partition.key]
                self._due[one.partition.key] = one
        if self._session.is_open:
            ready = list(self._due.values())
        else:
            ready = [one for one in self._following.values() if not self._waits(one)]
        self._due.clear()
        return ready

    def _waits(self, one: _Following) -> bool:
        return one.partition.key in self._delayed

    def _put_back(self, one: _Following) -> None:
        """Have the next round look at a partition, unless it is delayed or somebody else's."""
        key = one.partition.key
        if self._following.get(key) is one and key not in self._delayed:
            self._due[key] = one

    def _postpone(self, one: _Following, until_ms: int) -> None:
        """Fetch a partition no more until then."""
        one.not_before_ms = until_ms
        if self._is_current(one):
            key = one.partition.key
            self._due.pop(key, None)
            self._delayed[key] = one
            self._session.leave(key)

    async def _rest(self) -> None:
        """Wait for a new partition, or for the first delay to end."""
        self._changed.clear()
        pause_s = _IDLE_S
        if self._delayed:
            first = min(one.not_before_ms for one in self._delayed.values())
            pause_s = max(0.001, (first - self._clock_ms()) / 1000)
        try:
            async with asyncio.timeout(pause_s):
                await self._changed.wait()
        except TimeoutError:
            return

    def _delay(self, some: Iterable[_Following]) -> None:
        until = self._clock_ms() + self._config.replica_fetch_backoff_ms
        for one in list(some):
            self._postpone(one, until)

    def _leave_out(self, one: _Following, error: Exception) -> None:
        """Quarantine one partition after an unexpected exception; the others go on."""
        key = one.partition.key
        if not self._is_current(one):
            self._quarantines.note(Work.COPYING, key, error, "it has another role by now")
            return
        one.failed = True
        pause_s = self._quarantines.put(Work.COPYING, key, error, "left out, retrying")
        self._postpone(one, self._clock_ms() + int(pause_s * 1000))

    def _retry_soon(self, one: _Following) -> None:
        """Double the pause before the next attempt, up to the pause after other errors."""
        pause_ms = min(one.retry_ms, self._config.replica_fetch_backoff_ms)
        self._postpone(one, self._clock_ms() + pause_ms)
        one.retry_ms = 2 * pause_ms

    def _is_held_back(self, one: _Following) -> bool:
        """Return whether copying the partition is throttled now (KIP-73); if so, retry soon."""
        if one.caught_up or not self._quota.holds_back(one.partition.key):
            return False
        self._postpone(one, self._clock_ms() + HELD_BACK_MS)
        return True

    def _is_current(self, one: _Following) -> bool:
        return self._following.get(one.partition.key) is one

    async def _drop_client(self) -> None:
        self._session.end()
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    # --- agreeing with the leader -------------------------------------------------------------

    async def _truncate(self, client: PeerClient, some: list[_Following]) -> None:
        asking: dict[TopicPartition, tuple[_Following, int]] = {}
        for one in some:
            try:
                latest = one.partition.log.latest_epoch
                if latest == truncation.UNDEFINED:
                    # The log has no epoch: keep what is committed.
                    await self._cut(
                        one, truncation.Truncation(one.partition.high_watermark, complete=True)
                    )
                else:
                    asking[one.partition.key] = (one, latest)
            except Exception as error:
                self._leave_out(one, error)
        if not asking:
            return
        epochs = {key: (one.leader_epoch, latest) for key, (one, latest) in asking.items()}
        response = await client.call(
            leader_requests.end_offsets(self._config.broker_id, epochs),
            leader_requests.OFFSET_FOR_LEADER_EPOCH_VERSION,
            self._config.replica_socket_timeout_ms,
        )
        for answered in response.topics:
            for end in answered.partitions:
                asked = asking.get(TopicPartition(answered.topic, end.partition))
                if asked is None or not self._is_current(asked[0]):
                    continue
                if end.error_code != NO_ERROR:
                    self._refused(asked[0], end.error_code)
                    continue
                try:
                    await self._cut_by(asked[0], EpochEnd(end.leader_epoch, end.end_offset))
                except Exception as error:
                    self._leave_out(asked[0], error)

    async def _cut_by(self, one: _Following, leaders: EpochEnd) -> None:
        partition = one.partition
        own = EpochEnd(*partition.log.end_offset_for_epoch(leaders.epoch))
        await self._cut(
            one,
            truncation.decide(leaders, own, partition.log.log_end_offset, partition.high_watermark),
        )

    async def _cut(self, one: _Following, cut: truncation.Truncation) -> None:
        partition = one.partition
        try:
            async with partition.truncating():
                if not self._is_current(one):
                    return
                log = partition.log  # not before: it may have moved to another directory meanwhile
                if cut.offset < log.log_end_offset:
                    logger.info(
                        "%s: truncating the log from %d to %d, as leader %d of epoch %d",
                        partition.key,
                        log.log_end_offset,
                        cut.offset,
                        self.source,
                        one.leader_epoch,
                    )
                # Even if nothing is truncated: this removes epochs that wrote no records.
                await self._change(partition, lambda: log.truncate_to(cut.offset))
                partition.follow_high_watermark(partition.high_watermark)
        except (KafkaError, FileRetiredError) as refusal:
            self._reject(one, refusal)
            return
        one.truncating = not cut.complete

    async def _change(self, partition: Partition, truncate: Callable[[], object]) -> None:
        try:
            await self._in_thread(truncate)
        except (KafkaError, FileRetiredError):
            raise
        except Exception as error:
            self._truncation_failed(partition, error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the truncation broke off") from error

    # --- copying ------------------------------------------------------------------------------

    async def _fetch(self, client: PeerClient, some: list[_Following]) -> None:
        wanted: dict[TopicPartition, FetchPartition] = {}
        fetching: list[_Following] = []
        for one in some:
            key = one.partition.key
            if self._following.get(key) is not one:
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
                self._leave_out(one, error)
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
            if one.partition.key in self._due:
                continue
            if not one.caught_up or _owes_start(one):
                self._put_back(one)
        raised = [one.partition.log for one in self._due.values() if _owes_start(one)]
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
            self._delay(one for one in self._following.values() if not self._waits(one))

    async def _take_answers(self, client: PeerClient, response: FetchResponse) -> bool:
        """Append what was answered; return whether that was anything."""
        copied = False
        out_of_range: list[_Following] = []
        for answered in response.responses:
            for data in answered.partition_responses:
                key = TopicPartition(answered.topic, data.partition)
                one = self._following.get(key)
                if one is None or one.asked_offset == _NOT_ASKED:
                    continue
                offset = one.asked_offset
                if key not in self._delayed:
                    self._due[key] = one
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
                        self._refused(one, data.error_code)
                except Exception as error:
                    self._leave_out(one, error)
        # Not before: the next request ends the use of the records in the answer.
        for one in out_of_range:
            if self._is_current(one):
                try:
                    await self._find_range(client, one)
                except (ConnectionError, TimeoutError):
                    raise
                except Exception as error:
                    self._leave_out(one, error)
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

    async def _flush_where_owed(self, some: list[_Following]) -> list[_Following]:
        """Flush before a request reports our log end (flush.messages); return the partitions of
        which it may.
        """
        flushed = []
        for one in some:
            if one.partition.log.flush_required:
                try:
                    await self._in_thread(one.partition.log.flush)
                except KafkaError as refusal:
                    self._reject(one, refusal)
                    continue
                except Exception as error:
                    self._leave_out(one, error)
                    continue
                if not self._is_current(one):
                    continue
            flushed.append(one)
        return flushed

    def _append(self, one: _Following, data: FetchablePartitionResponse) -> None:
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
                if not self._session.is_open and self._is_current(one):
                    self._following[partition.key] = self._following.pop(partition.key)
            one.caught_up = data.high_watermark <= log.log_end_offset
            partition.follow_high_watermark(data.high_watermark)
            if data.log_start_offset > log.log_start_offset:
                log.advance_log_start(min(data.log_start_offset, partition.high_watermark))
        except (KafkaError, UnexpectedOffsetError) as refusal:
            self._reject(one, refusal)

    def _reject(self, one: _Following, refusal: Exception) -> None:
        """Log a failed append or truncation, and retry later."""
        logger.error(
            "%s: failed to copy from leader %d of epoch %d at offset %d: %s; retrying",
            one.partition.key,
            self.source,
            one.leader_epoch,
            one.partition.log.log_end_offset,
            refusal,
        )
        self._delay((one,))

    def _refused(self, one: _Following, code: int) -> None:
        partition = one.partition
        if code == ErrorCode.FENCED_LEADER_EPOCH:
            logger.info(
                "%s: leader %d has a newer leader epoch than %d; waiting for the controller",
                partition.key,
                self.source,
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
            self.source,
            one.leader_epoch,
            name_of(code),
        )
        self._delay((one,))

    async def _find_range(self, client: PeerClient, one: _Following) -> None:
        """Start over within the leader's log, which does not contain our log end (R5).

        If our log ends below the leader's log start, it is of no use any more. If it ends above the
        leader's log end, there was an unclean election: the leader's log counts.
        """
        partition = one.partition
        leaders_end = await self._leaders_offset(client, one, leader_requests.LATEST_TIMESTAMP)
        if leaders_end is None:
            return
        if leaders_end < partition.log.log_end_offset:
            await self._cut(one, truncation.Truncation(leaders_end, complete=True))
            return
        leaders_start = await self._leaders_offset(client, one, leader_requests.EARLIEST_TIMESTAMP)
        if leaders_start is None or leaders_start <= partition.log.log_end_offset:
            return
        logger.warning(
            "%s: truncating the whole log, restarting at log start %d of leader %d",
            partition.key,
            leaders_start,
            self.source,
        )
        try:
            async with partition.truncating():
                if self._is_current(one):
                    log = partition.log
                    await self._change(
                        partition, lambda: log.truncate_fully_and_start_at(leaders_start)
                    )
                    partition.follow_high_watermark(leaders_start)
        except (KafkaError, FileRetiredError) as refusal:
            self._reject(one, refusal)

    async def _leaders_offset(
        self, client: PeerClient, one: _Following, timestamp: int
    ) -> int | None:
        response = await client.call(
            leader_requests.offset(
                self._config.broker_id, one.partition.key, one.leader_epoch, timestamp
            ),
            leader_requests.LIST_OFFSETS_VERSION,
            self._config.replica_socket_timeout_ms,
        )
        found = response.topics[0].partitions[0]
        if not self._is_current(one):
            return None
        if found.error_code != NO_ERROR:
            self._refused(one, found.error_code)
            return None
        return int(found.offset)


def _owes_start(one: _Following) -> bool:
    """Return whether the leader waits for our log start offset, which is not durable yet."""
    log = one.partition.log
    return one.leaders_start > log.durable_log_start < log.log_start_offset
