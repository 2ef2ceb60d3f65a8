"""The side of a partition that readers see: published segments, planning of reads, lookups.

`_state_lock` guards the few fields readers need (segment list, offsets, published sizes) and is
never held across a disk call, so a read is planned without waiting for a slow write, roll or fsync.
A plan is a segment with a position and a length; only then is the file held. A segment that goes
away in between makes the read plan again.

Bytes of closed segments, and what was on the disk before this process started, are looked at each
time before they are served (`verify`, see `integrity`): damage is reported and never handed out.
Planning costs no disk time to speak of, verifying does: the replica layer does it in threads.
"""

import contextlib
import logging
import random
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from odradek.clock import wall_ms
from odradek.log.records import contents
from odradek.log.records.batch import CorruptBatchError
from odradek.log.segment import files, integrity
from odradek.log.segment.files import FileRetiredError, Region
from odradek.log.segment.integrity import Stretch, WrongIndexError
from odradek.log.segment.segment import Segment
from odradek.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a log needs of the process around it: clocks, chance, and whom to tell."""

    now_ms: Callable[[], int] = wall_ms
    monotonic: Callable[[], float] = time.monotonic
    chance: random.Random = field(default_factory=random.Random)
    producer_expiry_ms: int = 7 * 24 * 3_600_000
    on_failure: Callable[["ReadableLog", OSError], None] = lambda log, error: None
    on_truncate: Callable[["ReadableLog"], None] = lambda log: None


class LogSlice(NamedTuple):
    """What a read found: a piece of a segment file, or no region when nothing is there yet.

    `offset` is the one asked for; the region starts with the batch that holds it and may end inside
    a batch when max_bytes cut it, as Kafka's does. `more` tells that bytes below the bound follow.
    Whoever takes the slice closes the region. `unverified` is what `verify` has to look at before
    the slice is believed; `cuts` counts how often the log was cut before it was planned. `whole`
    is False when the region ends inside its very first batch.
    """

    offset: int
    region: Region | None
    more: bool
    unverified: tuple[Stretch, ...] = ()
    cuts: int = 0
    whole: bool = True

    @property
    def length(self) -> int:
        """Bytes of the region, 0 without one."""
        return self.region.length if self.region is not None else 0


@dataclass(frozen=True, slots=True)
class TimestampOffset:
    """Answer to a lookup by time."""

    offset: int
    timestamp: int
    leader_epoch: int


class Plan(NamedTuple):
    """Which bytes answer a read."""

    segment: Segment | None
    position: int
    length: int
    more: bool
    unverified: tuple[Stretch, ...] = ()
    cuts: int = 0
    whole: bool = True


_NOTHING = Plan(None, 0, 0, False)


class ReadableLog:
    """What a log shows to readers, and how it fails. `Log` adds writing."""

    def __init__(
        self, directory: str, topic: str, partition: int, surroundings: Surroundings
    ) -> None:
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.recovery_point = 0
        self.failure: OSError | None = None
        self.closed = False
        self._cuts = 0
        self._reported: set[tuple[int, int]] = set()
        self._surroundings = surroundings
        self._segments: list[Segment] = []
        self._bases: list[int] = []
        self._state_lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Log({self.topic}-{self.partition}, {self.log_start_offset}..{self.log_end_offset})"

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments as they are now, oldest first; never empty once the log is open."""
        with self._state_lock:
            return tuple(self._segments)

    @property
    def active(self) -> Segment:
        """The segment that is being written."""
        return self._segments[-1]

    @property
    def size(self) -> int:
        """Bytes in all segments."""
        return sum(segment.size for segment in self.segments)

    @property
    def cuts(self) -> int:
        """How often records at the end were taken away since the log was opened."""
        return self._cuts

    # -- reading --------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, upto: int | None = None, *, min_one: bool = True
    ) -> LogSlice:
        """Plan a read and verify it; blocks. Raises as both."""
        while True:
            piece = self.plan(offset, max_bytes, upto, min_one=min_one)
            if not piece.unverified:
                return piece
            try:
                self.verify(piece)
            except FileRetiredError:
                continue
            return piece

    def plan(
        self, offset: int, max_bytes: int, upto: int | None = None, *, min_one: bool = True
    ) -> LogSlice:
        """Plan a read from `offset`, of batches wholly below `upto` (default: the log end).

        With `min_one` the first batch goes out whole even if it is larger than `max_bytes`. Raises
        KafkaError OFFSET_OUT_OF_RANGE below the log start or above the log end, CORRUPT_MESSAGE
        where the log is damaged, KAFKA_STORAGE_ERROR when the disk failed.
        """
        while True:
            plan = self._plan(offset, max_bytes, upto, min_one)
            if plan.segment is None:
                return LogSlice(offset, None, False, plan.unverified, plan.cuts)
            try:
                region = Region(plan.segment.log, plan.position, plan.length)
            except FileRetiredError:
                continue  # deleted or replaced since: the next look sees it
            except OSError as error:
                raise self._storage_error(error) from error
            return LogSlice(offset, region, plan.more, plan.unverified, plan.cuts, plan.whole)

    def verify(self, piece: LogSlice) -> None:
        """Look at every byte of a slice that has to be looked at, and end it before the first
        damaged batch. Blocks.

        Raises KafkaError CORRUPT_MESSAGE when nothing sound is left, KAFKA_STORAGE_ERROR, and
        FileRetiredError when the plan does not hold any more; the region is closed then.
        """
        region = piece.region
        try:
            for stretch in piece.unverified:
                self._verify(piece, stretch)
        except BaseException:
            if region is not None:
                region.close()
            raise

    def _verify(self, piece: LogSlice, stretch: Stretch) -> None:
        segment, region = stretch.segment, piece.region
        try:
            sound, damage = integrity.damage(stretch)
        except WrongIndexError as error:
            self._rebuild_indexes(segment)
            raise FileRetiredError(segment.index.file.path) from error
        except OSError as error:
            raise self._storage_error(error) from error
        if damage is None:
            return
        if piece.cuts != self._cuts:
            raise FileRetiredError(segment.log.path)
        if region is None or stretch.end == stretch.position or sound == stretch.position:
            raise self._damaged(segment, damage) from damage
        region.length = sound - region.position

    def _rebuild_indexes(self, segment: Segment) -> None:
        """Make the indexes of a segment anew; a log that is written to keeps writers out."""
        segment.rebuild_indexes()

    def _plan(self, offset: int, max_bytes: int, upto: int | None, min_one: bool) -> Plan:
        self._refuse_if_gone()
        with self._state_lock:
            end, cuts = self.log_end_offset, self._cuts
            if not self.log_start_offset <= offset <= end:
                raise self._out_of_range(offset)
            bound = end if upto is None or upto > end else upto
            if offset >= bound:
                return _NOTHING
            number = max(bisect_right(self._bases, offset) - 1, 0)
            segment = self._segments[number]
            size, tail = segment.size, segment.tail
            last = number == len(self._segments) - 1
            next_base = end if last else self._bases[number + 1]
            around = (
                next_base,
                self._segments[number - 1] if number else None,
                None if last else self._segments[number + 1],
            )
            fresh = last
            first = tail.find(offset, size) if fresh else None
            limit: int | None = size
            if bound < next_base:
                near = tail.find(bound, size)
                limit = near[0] if near is not None else None
        try:
            if first is None:
                hit = segment.find(offset, size)
                if hit is None:  # compaction left nothing from `offset` to the end of the segment
                    gap = Stretch(segment, offset, size, size, size, *around)
                    if next_base >= bound:
                        return Plan(None, 0, 0, False, (gap,), cuts)
                    onward = self._plan(next_base, max_bytes, upto, min_one)
                    return onward._replace(unverified=(gap, *onward.unverified), cuts=cuts)
                first = hit[0], hit[0] + hit[1].size
                fresh = fresh and first[0] >= segment.trusted_from
            if limit is None:
                beyond = segment.find(bound, size)
                limit = beyond[0] if beyond is not None else size
        except FileRetiredError:
            return self._plan(offset, max_bytes, upto, min_one)
        except CorruptBatchError as error:
            raise self._damaged(segment, error) from error
        except OSError as error:
            raise self._storage_error(error) from error
        position, first_end = first
        length = min(max_bytes, limit - position)
        if min_one:
            length = max(length, min(first_end, limit) - position)
        if length <= 0:
            return _NOTHING
        piece_end = position + length
        unverified: tuple[Stretch, ...] = ()
        if not fresh:
            unverified = (Stretch(segment, offset, position, piece_end, size, *around),)
        more = piece_end < limit or bound > next_base
        whole = piece_end >= min(first_end, limit)
        return Plan(segment, position, length, more, unverified, cuts, whole)

    def _out_of_range(self, offset: int) -> KafkaError:
        return KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{offset} is not within {self.log_start_offset} and {self.log_end_offset} "
            f"of {self.topic}-{self.partition}",
        )

    def _damaged(self, segment: Segment, error: CorruptBatchError) -> KafkaError:
        reason = f"{self.topic}-{self.partition}: {segment.log.path} is damaged: {error}"
        where = segment.base_offset, error.position
        if where not in self._reported:  # readers ask again and again
            self._reported.add(where)
            logger.error("%s", reason)
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, reason)

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """First record not older than `timestamp` (ms), from the log start on; None when there is
        none. Blocks.
        """
        cuts = self._cuts
        with self._storage():
            for segment in self.segments:
                try:
                    if segment.max_timestamp < timestamp:
                        continue
                    for data, header in segment.batches_since(timestamp, self.log_start_offset):
                        hit = contents.first_since(header, data, timestamp, self.log_start_offset)
                        if hit is not None:
                            return TimestampOffset(hit[0], hit[1], header.leader_epoch)
                except FileRetiredError:
                    continue
                except CorruptBatchError as error:
                    if cuts != self._cuts:
                        return self.offset_for_timestamp(timestamp)
                    raise self._damaged(segment, error) from error
        return None

    # -- failure --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _storage(self) -> Iterator[None]:
        """Refuse work on a log that is gone, and turn a disk error into KAFKA_STORAGE_ERROR."""
        self._refuse_if_gone()
        try:
            yield
        except OSError as error:
            raise self._storage_error(error) from error

    def _refuse_if_gone(self) -> None:
        if self.failure is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(self.failure))
        if self.closed:  # the folder may be that of a new log of the name
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic}-{self.partition} is closed"
            )

    def _storage_error(self, error: OSError) -> KafkaError:
        # Once the log is deleted its paths are gone; the disk is not.
        if files.is_disk_failure(error) and self.failure is None and not self.closed:
            self.failure = error
            self._surroundings.on_failure(self, error)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))

    def fail(self, error: OSError) -> None:
        """Take the log offline because its directory failed elsewhere."""
        if self.failure is None:
            self.failure = error
