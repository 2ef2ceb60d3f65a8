"""Fetch: regions of segment files for consumers and followers, and the wait for more.

A consumer reads below the high watermark, one of committed records below the last stable offset, a
follower up to the log end. The fetch position of a follower also reports what it has. Followers
serve consumers below the high watermark that they know, and leaders may send consumers to them
(KIP-392, see `read_replicas`).

One pass plans a region per partition without reading records. If the pass finds less than
`min_bytes` and no error, the fetch waits until one of its partitions advances, then plans again. As
in Kafka, it does not wait where a partition has more in later segments. A partition whose reader is
at the end costs one comparison. The wait ends early if the client asks something else behind the
fetch, which would wait as long.

A fetch of up to `PARTITIONS_AT_ONCE` partitions does not give the event loop back between its plan
and its wait, so nothing advances in between. A larger one plans in slices. It begins to watch its
partitions before each plan: what advances after its partition was planned ends the wait, even if
that happens before the wait begins.

A fetch of a session (KIP-227) looks at what is marked in it, in the same way: when it comes, and
again after each wake. Its wait has no keys: whatever marks a partition of the session ends it. One
of a follower that is at the log end of all that is marked looks only once the wait is over.

Ranges that the log has to verify before they are served (see `odradek.log.segment.integrity`) are
verified in a thread once the answer is final, which also reads them from the disk into memory.
Readers at or near the log end need no verification.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from odradek import slices
from odradek.log.segment.files import FileRetiredError
from odradek.net.next_request import NextRequest
from odradek.protocol.errors import NO_ERROR, ErrorCode, KafkaError
from odradek.replica import gathered_appends, read_replicas
from odradek.replica.fetch_sessions import FetchSession, SessionPartition
from odradek.replica.fetch_specs import NO_PREFERENCE, FetchLimits, FetchResult, FetchSpec
from odradek.replica.hosted import HostedPartitions
from odradek.replica.partition import NO_EPOCH, Partition
from odradek.replica.quota import ReplicationQuota
from odradek.values import TopicPartition

if TYPE_CHECKING:
    from odradek.log.partition.reading import LogReader, LogSlice
    from odradek.replica.isr_writer import IsrWriter
    from odradek.replica.purgatory import Watch
    from odradek.replica.registrations import FollowerRegistrations

CONSUMER = -1
# Reads any replica, leader or not, below its high watermark: for tools that compare replicas.
DEBUGGING_CONSUMER = -2
NO_CONNECTION = -1
PARTITIONS_AT_ONCE: Final = 1000
"""Partitions of a fetch that is planned without a pause, which takes some ten milliseconds."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Found:
    """The plan of one pass; `settled` if waiting cannot improve the answer."""

    results: list[FetchResult]
    unverified: list[tuple[FetchResult, LogReader, LogSlice]]
    size: int = 0
    settled: bool = False


_InThread = Callable[[Callable[[], None]], Awaitable[None]]


class FetchReader:
    """Serves fetches from the hosted partitions.

    `in_thread` runs what reads from the disk, `quota` throttles followers, and `damaged` counts
    results with CORRUPT_MESSAGE.
    """

    def __init__(
        self,
        hosted: HostedPartitions,
        isr_writer: IsrWriter,
        registrations: FollowerRegistrations,
        clock_ms: Callable[[], int],
        in_thread: _InThread,
        end_offset_confirmed: Callable[[Partition], bool],
        quota: ReplicationQuota,
    ) -> None:
        self._hosted = hosted
        self._isr_writer = isr_writer
        self._registrations = registrations
        self._clock_ms = clock_ms
        self._in_thread = in_thread
        self.damaged = 0
        self._end_offset_confirmed = end_offset_confirmed
        self._quota = quota

    async def fetch(
        self,
        specs: Sequence[FetchSpec],
        replica_id: int,
        limits: FetchLimits,
        connection_id: int = NO_CONNECTION,
        next_request: NextRequest | None = None,
    ) -> list[FetchResult]:
        """Return one result per spec, in their order.

        It waits neither longer than the limits say, nor while that holds up the next request.
        """
        if len(specs) > PARTITIONS_AT_ONCE:
            return await self._fetch_in_slices(
                specs, replica_id, limits, connection_id, next_request
            )
        deadline_ms = self._clock_ms() + limits.max_wait_ms
        follower = replica_id >= 0
        refused: dict[TopicPartition, ErrorCode] = {}
        if follower:
            refused, proof_wanted, _ = self._record_follower(specs, replica_id, connection_id)
            if proof_wanted:
                deadline_ms = 0
        waiting = self._hosted.for_log_end if follower else self._hosted.for_high_watermark
        while True:
            found = _Found([], [])
            self._plan(specs, replica_id, limits, refused, found)
            left_ms = deadline_ms - self._clock_ms()
            if found.settled or found.size >= limits.min_bytes or not specs or left_ms <= 0:
                results = await self._verified(found)
                if follower:
                    self._record_traffic(results)
                return results
            release(found.results)
            keys = {spec.key for spec in specs}
            if not await waiting.wait(keys, left_ms, next_request=next_request):
                deadline_ms = 0

    async def _fetch_in_slices(
        self,
        specs: Sequence[FetchSpec],
        replica_id: int,
        limits: FetchLimits,
        connection_id: int,
        next_request: NextRequest | None,
    ) -> list[FetchResult]:
        """As `fetch`, for many partitions: others run between the slices."""
        deadline_ms = self._clock_ms() + limits.max_wait_ms
        follower = replica_id >= 0
        refused: dict[TopicPartition, ErrorCode] = {}
        keys: set[TopicPartition] = set()
        for few in slices.cut(specs):
            keys.update([spec.key for spec in few])
            if follower:
                refused_here, proof_wanted, _ = self._record_follower(
                    few, replica_id, connection_id
                )
                refused |= refused_here
                if proof_wanted:
                    deadline_ms = 0
            await slices.pause()
        waiting = self._hosted.for_log_end if follower else self._hosted.for_high_watermark
        while True:
            with waiting.watch(keys) as watch:
                found = await self._plan_in_slices(specs, replica_id, limits, refused)
                left_ms = deadline_ms - self._clock_ms()
                if found.settled or found.size >= limits.min_bytes or left_ms <= 0:
                    break
                release(found.results)
                if not await watch.woken(left_ms, next_request):
                    deadline_ms = 0
        results = await self._verified(found)
        if follower:
            self._record_traffic(results)
        slices.discard(keys, refused)
        return results

    async def fetch_session(
        self,
        session: FetchSession,
        limits: FetchLimits,
        refused: dict[TopicPartition, ErrorCode] | None = None,
        connection_id: int = NO_CONNECTION,
        next_request: NextRequest | None = None,
    ) -> tuple[list[SessionPartition], list[FetchResult]]:
        """Return the partitions of a session that were looked at, and the result of each.

        The caller calls `settle_fetch`, or marks each of them again. `refused` are the partitions
        that the client may not read now, which are marked. As in Kafka, the wait for the others
        does not end because of them.
        """
        now, epoch = self._clock_ms(), session.epoch
        deadline_ms = now + limits.max_wait_ms
        errors: dict[TopicPartition, ErrorCode] = {}
        at_end = False
        if session.is_privileged:
            # What has no mark is where it was: the clock is all that there is to record.
            session.clock.tick(now)
            if len(session.marked) <= PARTITIONS_AT_ONCE:
                errors, proof_wanted, at_end = self._record_follower(
                    [one.spec for one in session.marked], session.replica_id, connection_id
                )
            else:
                errors, proof_wanted = await self._record_session(session, connection_id)
            if proof_wanted:
                deadline_ms = 0
        if refused and len(refused) == len(session.partitions):
            deadline_ms = 0
        looked: list[SessionPartition] = []
        withheld: dict[SessionPartition, None] = {}
        found = _Found([], [])
        watch: Watch[TopicPartition] | None = None
        try:
            # Nothing to read: what is marked stays marked until the wait is over.
            if (
                at_end
                and deadline_ms
                and limits.min_bytes > 0
                and not await self._has_news(
                    session, session.begin_wait(), limits.max_wait_ms, next_request
                )
            ):
                deadline_ms = 0
            # What is marked is for the fetch that overtakes this one.
            while session.epoch == epoch:
                is_large = len(session.marked) > PARTITIONS_AT_ONCE
                # What is marked while others run between the slices ends the wait, too.
                watch = session.begin_wait() if is_large else None
                looked = session.take_marked()
                if refused:
                    withheld |= {one: None for one in looked if one.spec.key in refused}
                    looked = [one for one in looked if one not in withheld]
                specs = [one.spec for one in looked]
                if is_large:
                    found = await self._plan_in_slices(specs, session.replica_id, limits, errors)
                else:
                    self._plan(specs, session.replica_id, limits, errors, found)
                if found.settled or found.size >= limits.min_bytes or session.epoch != epoch:
                    break
                left_ms = deadline_ms - self._clock_ms()
                if left_ms <= 0:
                    break
                release(found.results)
                if watch is None:
                    watch = session.begin_wait()
                for one, result in zip(looked, found.results, strict=True):
                    if one.is_news(result):
                        session.mark(one)
                    else:
                        self._settle(one, result)
                looked, found = [], _Found([], [])
                if not await self._has_news(session, watch, left_ms, next_request):
                    deadline_ms = 0
            if found.unverified or found.settled:
                await self._verified(found)
        except BaseException:
            session.mark_each([*looked, *withheld])
            raise
        finally:
            if watch is not None:
                watch.resolve(False)  # it may have begun without a wait
        if session.is_privileged:
            self._record_traffic(found.results)
        if refused:
            looked += withheld
            found.results += [FetchResult(one.spec.key, refused[one.spec.key]) for one in withheld]
        return looked, found.results

    async def _has_news(
        self,
        session: FetchSession,
        watch: Watch[TopicPartition],
        timeout_ms: float,
        next_request: NextRequest | None,
    ) -> bool:
        """Wait for news of a session; return False if there is nothing more to wait for."""
        if not await watch.woken(timeout_ms, next_request):
            return False
        if session.is_privileged:
            await gathered_appends.gather(self._hosted.sessions)
        return session.is_open

    async def _record_session(
        self, session: FetchSession, connection_id: int
    ) -> tuple[dict[TopicPartition, ErrorCode], bool]:
        """As `_record_follower`, for many marked partitions of a session."""
        refused: dict[TopicPartition, ErrorCode] = {}
        proof_wanted = False
        specs = [one.spec for one in session.marked]
        for few in slices.cut(specs, PARTITIONS_AT_ONCE):
            refused_here, wanted, _ = self._record_follower(few, session.replica_id, connection_id)
            refused |= refused_here
            proof_wanted = proof_wanted or wanted
            if len(few) == PARTITIONS_AT_ONCE:
                await slices.pause()
        return refused, proof_wanted

    def settle_fetch(
        self, looked: Sequence[SessionPartition], results: Sequence[FetchResult]
    ) -> None:
        """Note that a client gets these results of its session.

        Partitions with records come last in the next fetch: no partition starves where an answer
        has no room for all.
        """
        served: list[SessionPartition] = []
        for one, result in zip(looked, results, strict=True):
            one.note_answered(result)
            if result.region is not None:
                served.append(one)
            else:
                self._settle(one, result)
        for one in served:
            if not one.is_marked:
                one.session.mark(one)

    def _settle(self, one: SessionPartition, result: FetchResult) -> None:
        """Mark a partition again unless there is nothing to say of it before its next change."""
        if one.is_marked:
            return
        session = one.session
        if one.is_read(result):
            if not session.is_privileged:
                return
            partition, _ = self._hosted.leader_or_error(one.spec.key, one.spec.leader_epoch)
            if partition is not None:
                one.progress = partition.enter_session(session.replica_id, session.clock)
                if one.progress is not None:
                    return
        session.mark(one)

    async def _plan_in_slices(
        self,
        specs: Sequence[FetchSpec],
        replica_id: int,
        limits: FetchLimits,
        refused: dict[TopicPartition, ErrorCode],
    ) -> _Found:
        found = _Found([], [])
        try:
            for few in slices.cut(specs):
                self._plan(few, replica_id, limits, refused, found)
                await slices.pause()
        except BaseException:
            release(found.results)
            raise
        return found

    def _record_traffic(self, results: Sequence[FetchResult]) -> None:
        for result in results:
            if result.region is not None:
                self._quota.record(result.key, result.region.length)

    def _record_follower(
        self, specs: Sequence[FetchSpec], replica_id: int, connection_id: int
    ) -> tuple[dict[TopicPartition, ErrorCode], bool, bool]:
        """Record the positions of a follower.

        Return the partitions that it may not fetch, each with the error, whether its next fetch is
        wanted soon, because a partition waits for it to let the follower join, and whether it is at
        the log end of all partitions, so that there is nothing to read.
        """
        refused: dict[TopicPartition, ErrorCode] = {}
        proof_wanted = False
        at_end = True
        for spec in specs:
            key = spec.key
            partition, error = self._hosted.leader_or_error(key, spec.leader_epoch)
            if partition is None:
                refused[key] = error
                continue
            progress = partition.followers.get(replica_id)
            if progress is None:
                refused[key] = ErrorCode.REPLICA_NOT_AVAILABLE
                continue
            log = partition.log
            end = log.log_end_offset
            if (
                not log.log_start_offset <= spec.offset <= end
                # A diverging follower is about to truncate: its position does not count.
                or _divergence(partition, spec) is not None
            ):
                at_end = False
                continue
            at_end = at_end and spec.offset == end
            if progress.clock is not None:
                # Another session of the follower has it, perhaps of its former life.
                self._hosted.sessions.changed(key, wakes=False)
            started = progress.start_offset
            if partition.record_fetch(replica_id, spec.offset, spec.start_offset):
                self._hosted.wake_high_watermark(key)
            if spec.start_offset > started:
                self._hosted.wake_low_watermark(key)
            if partition.may_join(replica_id):
                registered = self._registrations.known(replica_id)
                if registered is None:
                    continue
                change = partition.propose_join(registered, connection_id)
                if change is None:
                    proof_wanted = True
                else:
                    self._isr_writer.submit(change)
        return refused, proof_wanted, at_end and not refused

    async def _verified(self, found: _Found) -> list[FetchResult]:
        """Verify what the plan requires, and return the results."""
        if found.unverified:
            try:
                await self._in_thread(lambda: _verify(found.unverified))
            except BaseException:
                release(found.results)
                raise
        results = found.results
        for start in range(0, len(results), slices.KEYS_AT_ONCE):
            if start:
                try:
                    await slices.pause()
                except BaseException:
                    release(results)
                    raise
            for one in results[start : start + slices.KEYS_AT_ONCE]:
                if one.error is ErrorCode.CORRUPT_MESSAGE:
                    self.damaged += 1
        return found.results

    def _plan(
        self,
        specs: Sequence[FetchSpec],
        replica_id: int,
        limits: FetchLimits,
        refused: dict[TopicPartition, ErrorCode],
        found: _Found,
    ) -> None:
        """Add one result per spec to what was found."""
        for spec in specs:
            error = refused.get(spec.key) if refused else None
            if error is not None:
                result = FetchResult(spec.key, error)
            else:
                result = self._read(spec, replica_id, limits, found)
            if (
                result.error is not NO_ERROR
                or result.diverging is not None
                or result.preferred_read_replica != NO_PREFERENCE
            ):
                found.settled = True
            elif result.region is not None:
                found.size += result.region.length
            found.results.append(result)

    def _read(
        self, spec: FetchSpec, replica_id: int, limits: FetchLimits, found: _Found
    ) -> FetchResult:
        room = min(spec.max_bytes, limits.max_bytes - found.size)
        whole_batch = not limits.strict and found.size == 0
        if replica_id == DEBUGGING_CONSUMER:
            partition = self._hosted.partitions.get(spec.key)
            error = NO_ERROR if partition else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            partition, error = self._hosted.leader_or_error(spec.key, spec.leader_epoch)
            if limits.any_replica and error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                # The leader epoch is right, else there would be another error.
                partition = self._hosted.follower(spec.key)
        if partition is None:
            return FetchResult(spec.key, error)
        log, high_watermark = partition.log, partition.high_watermark
        start, log_end = log.log_start_offset, log.log_end_offset
        if partition.leader != partition.broker_id and partition.truncation_lock.locked():
            # What is decided of transactions is not known until the log is truncated.
            return FetchResult(spec.key, NO_ERROR, high_watermark, start, start)
        stable = log.last_stable_offset(high_watermark)
        end = high_watermark
        if replica_id >= 0:
            end = log_end
        elif limits.committed:
            end = stable
        result = FetchResult(spec.key, NO_ERROR, high_watermark, start, stable)
        if limits.location is not None and partition.is_leader:
            result.preferred_read_replica = read_replicas.preferred(
                partition, spec.offset, limits.location, self._hosted.metadata.brokers
            )
            if result.preferred_read_replica != NO_PREFERENCE:
                return result
        diverging = _divergence(partition, spec)
        if diverging is not None:
            if diverging[0] == NO_EPOCH:
                result.error = ErrorCode.OFFSET_OUT_OF_RANGE
            else:
                result.diverging = diverging
        elif (
            spec.offset > log_end
            and partition.is_leader
            and not self._end_offset_confirmed(partition)
        ):
            # A newer leader may have served the reader; "out of range" would reset it.
            result.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif spec.offset < start or spec.offset > log_end:
            result.error = ErrorCode.OFFSET_OUT_OF_RANGE
        elif replica_id >= 0 and self._is_held_back(partition, replica_id):
            pass
        elif spec.offset < end and (room > 0 or whole_batch):
            try:
                piece = log.reader.plan(
                    spec.offset,
                    max(room, 0),
                    end,
                    min_one=whole_batch,
                    committed=limits.committed and replica_id < 0,
                )
            except KafkaError as refusal:
                result.error = refusal.code
            else:
                result.region, result.aborted = piece.region, piece.aborted
                if piece.more_segments:
                    # A fetch reads one segment, and nothing is appended to an older one.
                    found.settled = True
                if not piece.whole and not limits.strict:
                    # A reader takes an incomplete batch for one too large for it (KIP-74).
                    release([result])
                    found.settled = True
                elif piece.unverified:
                    found.unverified.append((result, log.reader, piece))
        return result

    def _is_held_back(self, partition: Partition, replica_id: int) -> bool:
        """Return whether a follower is throttled now (KIP-73)."""
        return replica_id not in partition.isr.committed and self._quota.holds_back(partition.key)


def _verify(unverified: Sequence[tuple[FetchResult, LogReader, LogSlice]]) -> None:
    """Verify planned ranges; remove from the results what cannot be served."""
    for result, reader, piece in unverified:
        try:
            reader.verify(piece)
        except KafkaError as refusal:
            result.error, result.region = refusal.code, None
        except FileRetiredError:
            result.region = None  # truncated or compacted meanwhile: the reader retries


def _divergence(partition: Partition, spec: FetchSpec) -> tuple[int, int] | None:
    """Return where the reader must truncate its log, as (epoch, end offset) (KIP-595).

    (-1, -1) if its epoch is unknown here; None if its log agrees with ours or it names no epoch.
    """
    if spec.last_fetched_epoch == NO_EPOCH:
        return None
    epoch, end = partition.log.end_offset_for_epoch(spec.last_fetched_epoch)
    if epoch < spec.last_fetched_epoch or end < spec.offset:
        return epoch, end
    return None


def release(results: Sequence[FetchResult]) -> None:
    """Close planned regions that will not be sent."""
    for result in results:
        if result.region is not None:
            result.region.close()
            result.region = None
