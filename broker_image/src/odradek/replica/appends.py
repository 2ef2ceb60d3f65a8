"""Produce: append to the leader's log, and with acks=all wait for the in-sync replicas.

With acks=all an append is acknowledged once the high watermark has passed it. The in-sync set must
have `min.insync.replicas` members before the append (else error 19, and nothing is written) and
after it (else error 20). A broker whose leadership is not confirmed acknowledges only what another
replica confirms: a follower that fetches from us takes us for the leader, but an in-sync set of
this broker alone may be out of date.

The first batch of a transaction is `Unverified`: see `verified_appends`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from odradek.log.partition.verification import Verification, VerificationNeededError
from odradek.log.records.contents import RecordError, RecordsRefusedError
from odradek.properties import LONG_MAX
from odradek.protocol.errors import NO_ERROR, ErrorCode, KafkaError
from odradek.replica.hosted import HostedPartitions
from odradek.replica.partition import Partition
from odradek.replica.purgatory import AllOf, Purgatory
from odradek.values import TopicPartition

if TYPE_CHECKING:
    from odradek.log.partition.appending import AppendInfo
    from odradek.log.partition.log import Log
    from odradek.log.partition.validation import Prepared
    from odradek.log.records.batch import Origin
    from odradek.protocol.regions import Buffer

ACKS_ALL = -1

logger = logging.getLogger(__name__)

_new = object.__new__


@dataclass(slots=True)
class AppendOutcome:
    """The outcome for one partition.

    `log_append_time_ms` is -1 unless the topic uses log append time.
    """

    key: TopicPartition
    error: ErrorCode
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_count: int = 0
    message: str | None = None
    record_errors: Sequence[RecordError] = ()


@dataclass(slots=True)
class Unverified(AppendOutcome):
    """Nothing was appended: the coordinator of the transaction is to be asked before. The error is
    for a client that is not to wait for that: it sends the batch again.
    """

    batch: Buffer | Prepared = b""
    verification: Verification | None = None


class _Unacknowledged(NamedTuple):
    outcome: AppendOutcome
    partition: Partition
    leadership_generation: int
    end_offset: int

    def settled(self) -> bool:
        """Return whether the high watermark has passed the append, or the wait is in vain."""
        partition = self.partition
        return (
            self.outcome.error is not NO_ERROR
            or partition.high_watermark >= self.end_offset
            or partition.leadership_generation != self.leadership_generation
            or not partition.is_leader
            or partition.offline
        )


class Appended:
    """What an append with acks=all waits for; nothing with other acks."""

    __slots__ = ("_acknowledgements", "_until_s", "_waiting", "outcomes")

    def __init__(
        self,
        outcomes: list[AppendOutcome],
        waiting: Sequence[_Unacknowledged],
        timeout_ms: int,
        acknowledgements: Purgatory[TopicPartition],
    ) -> None:
        self.outcomes = outcomes
        self._waiting = waiting
        self._acknowledgements = acknowledgements
        self._until_s = _loop_time_s() + timeout_ms / 1000 if waiting else 0.0

    def add(self, others: Appended) -> None:
        """Wait for others, too, whose outcomes this one has."""
        self._waiting = [*self._waiting, *others._waiting]
        self._until_s = max(self._until_s, others._until_s)

    @property
    def is_settled(self) -> bool:
        """Return whether there is nothing to wait for."""
        return all(one.settled() for one in self._waiting)

    async def acknowledged(self) -> None:
        """Complete the outcomes once the appends are settled or the time is over."""
        if not self.is_settled:
            await self._acknowledgements.wait(
                {one.outcome.key for one in self._waiting},
                1000 * (self._until_s - _loop_time_s()),
                AllOf([one.settled for one in self._waiting]),
            )
        for one in self._waiting:
            partition = one.partition
            minimum = partition.log.config.min_insync_replicas
            if one.outcome.error is not NO_ERROR:
                continue
            if partition.offline:
                one.outcome.error = ErrorCode.KAFKA_STORAGE_ERROR
            elif (
                not partition.is_leader
                or partition.leadership_generation != one.leadership_generation
            ):
                # As in Kafka, what was committed by then is acknowledged, also if it had to wait
                # for other partitions.
                if not partition.had_committed(one.leadership_generation, one.end_offset, minimum):
                    one.outcome.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif partition.high_watermark < one.end_offset:
                one.outcome.error = ErrorCode.REQUEST_TIMED_OUT
            elif not partition.has_enough_replicas(minimum):
                one.outcome.error = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


def _loop_time_s() -> float:
    return asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True)
class _Refused:
    """Why a batch was not prepared.

    The exception itself is not kept: its frames would keep the unpacked records in memory until the
    next garbage collection.
    """

    code: ErrorCode
    message: str | None
    record_errors: Sequence[RecordError]

    @classmethod
    def of(cls, refusal: KafkaError) -> _Refused:
        """Keep what the answer tells of a refusal."""
        errors = refusal.record_errors if isinstance(refusal, RecordsRefusedError) else ()
        return cls(refusal.code, refusal.message or None, errors)

    def outcome(self, partition: Partition) -> AppendOutcome:
        """Return the outcome of the append. Kafka tells the log start where records are named."""
        outcome = AppendOutcome(partition.key, self.code, message=self.message)
        if self.record_errors:
            outcome.record_errors = self.record_errors
            outcome.log_start_offset = partition.log.log_start_offset
        return outcome


class Appender:
    """Appends to the partitions that this broker leads.

    `prepare` runs `Log.prepare` in a thread, `flush` an fsync of a log.
    """

    def __init__(
        self,
        hosted: HostedPartitions,
        prepare: Callable[[Log, Buffer, Origin], Awaitable[Prepared]],
        flush: Callable[[Log], Awaitable[None]],
        leadership_confirmed: Callable[[Partition], bool],
        end_offset_confirmed: Callable[[Partition], bool],
    ) -> None:
        self._hosted = hosted
        self._prepare = prepare
        self._flush = flush
        self._leadership_confirmed = leadership_confirmed
        self._end_offset_confirmed = end_offset_confirmed

    async def append(
        self,
        entries: Iterable[tuple[TopicPartition, Buffer]],
        acks: int,
        timeout_ms: int,
        origin: Origin,
    ) -> list[AppendOutcome]:
        """Append each entry and return one outcome per entry, in their order."""
        appended = await self.begin(entries, acks, timeout_ms, origin)
        await appended.acknowledged()
        return appended.outcomes

    async def begin(
        self,
        entries: Iterable[tuple[TopicPartition, Buffer | Prepared]],
        acks: int,
        timeout_ms: int,
        origin: Origin,
    ) -> Appended:
        """Append each entry; with acks=all, the outcomes hold once that is acknowledged.

        They are written in their order, and before the first await if no record has to be read:
        requests that begin in order are written in order. What `flush.messages` requires is on the
        disk before it is acknowledged.
        """
        outcomes: list[AppendOutcome] = []
        flushing: list[tuple[AppendOutcome, Partition]] = []
        waiting: list[_Unacknowledged] = []
        try:
            for key, records in entries:
                appended = self._append_one(key, records, acks, origin)
                if appended is None:
                    assert not isinstance(records, tuple)
                    appended = await self._append_inspected(key, records, acks, origin)
                outcome, partition = appended
                outcomes.append(outcome)
                if partition is None:
                    continue
                if partition.log.config.flush_messages < LONG_MAX:
                    flushing.append((outcome, partition))
                if acks == ACKS_ALL:
                    end_offset = outcome.base_offset + outcome.record_count
                    waiting.append(
                        _Unacknowledged(
                            outcome, partition, partition.leadership_generation, end_offset
                        )
                    )
        finally:
            # Also where the wait for a thread broke off: what is written is to be committed.
            if flushing:
                await self._flush_where_owed(flushing)
        return Appended(outcomes, waiting, timeout_ms, self._hosted.for_acknowledgement)

    async def _append_inspected(
        self, key: TopicPartition, records: Buffer, acks: int, origin: Origin
    ) -> tuple[AppendOutcome, Partition | None]:
        """As `_append_one`, after the records were read off the event loop."""
        log = self._hosted.partitions[key].log
        try:
            batch: Prepared | _Refused = await self._prepare(log, records, origin)
        except KafkaError as refusal:
            batch = _Refused.of(refusal)
        appended = self._append_one(key, batch, acks, origin)
        assert appended is not None
        return appended

    async def _flush_where_owed(self, appended: Sequence[tuple[AppendOutcome, Partition]]) -> None:
        """Flush the logs that flush.messages requires to be on the disk."""
        for outcome, partition in appended:
            try:
                await self._flush_partition(partition)
            except KafkaError as refusal:
                outcome.error, outcome.message = refusal.code, refusal.message or None
                continue
            if partition.is_leader and partition.advance_high_watermark():
                self._hosted.wake_high_watermark(outcome.key)

    async def _flush_partition(self, partition: Partition) -> None:
        """Flush a log if that is due; again where it moved to another log directory meanwhile."""
        while (log := partition.log).flush_required:
            try:
                await self._flush(log)
            except KafkaError:
                if partition.log is log:
                    raise
            if partition.log is log:
                return

    def _append_one(
        self, key: TopicPartition, batch: Buffer | Prepared | _Refused, acks: int, origin: Origin
    ) -> tuple[AppendOutcome, Partition | None] | None:
        """Return the outcome, and the partition if it now has the records; None, with nothing
        written, where the records have to be read, which takes long.
        """
        partition, error = self._hosted.leader_or_error(key)
        if partition is not None and acks == ACKS_ALL:
            error = self._may_acknowledge(partition)
        if partition is None or error is not NO_ERROR:
            return AppendOutcome(key, error), None
        if isinstance(batch, _Refused):
            return batch.outcome(partition), None
        log = partition.log
        appended: AppendInfo | None
        try:
            if isinstance(batch, tuple):
                appended = log.append_as_leader(batch, partition.leader_epoch, origin=origin)
            else:
                appended = log.append_at_once(batch, partition.leader_epoch, origin)
        except VerificationNeededError as needed:
            unverified = Unverified(key, ErrorCode.NOT_ENOUGH_REPLICAS)
            unverified.batch, unverified.verification = batch, needed.verification
            return unverified, None
        except KafkaError as refusal:
            out_of_order = refusal.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            if out_of_order and not self._end_offset_confirmed(partition):
                # A newer leader may have the missing records; producers take a gap as final.
                return AppendOutcome(key, ErrorCode.NOT_LEADER_OR_FOLLOWER), None
            return _Refused.of(refusal).outcome(partition), None
        except BaseException:
            # It may have broken off behind its write. Fetch sessions would never look.
            self._hosted.wake_log_end(key)
            raise
        if appended is None:
            return None
        base, last, time_ms, log_start, _, _ = appended
        hosted = self._hosted
        hosted.wake_log_end(key)
        if partition.advance_high_watermark():
            hosted.wake_high_watermark(key)
        # As a decoder makes one: a constructor takes longer.
        outcome = _new(AppendOutcome)
        outcome.key = key
        outcome.error = NO_ERROR
        outcome.base_offset = base
        outcome.log_append_time_ms = time_ms
        outcome.log_start_offset = log_start
        outcome.record_count = last - base + 1
        outcome.message = None
        outcome.record_errors = ()
        return outcome, partition

    def _may_acknowledge(self, partition: Partition) -> ErrorCode:
        if not partition.has_enough_replicas(partition.log.config.min_insync_replicas):
            return ErrorCode.NOT_ENOUGH_REPLICAS
        if not partition.vouched_by_others() and not self._leadership_confirmed(partition):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return NO_ERROR
