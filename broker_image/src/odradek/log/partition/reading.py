"""The reader of a log: planning of reads, verification, lookup by timestamp.

A plan names a segment, a position and a length. It takes the state lock of the segment list for a
moment, and no disk time to speak of. Only then the file is held. When the segment goes away in
between, the read is planned again.

Bytes of closed segments, and bytes that were on the disk before this process started, are verified
each time before they are served (see `segment.integrity`): damage is reported and never handed out.
Verifying reads from the disk; the replica layer does it in threads.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from odradek.log.partition.failure import LogFailure
from odradek.log.partition.segments import SegmentList
from odradek.log.records import contents
from odradek.log.records.batch import CorruptBatchError
from odradek.log.segment import integrity
from odradek.log.segment.files import FileRetiredError, Region
from odradek.log.segment.integrity import UnverifiedRange, WrongIndexError
from odradek.log.segment.segment import Segment
from odradek.log.segment.transaction_index import AbortedTxn
from odradek.protocol.errors import ErrorCode, KafkaError


class LogSlice(NamedTuple):
    """Result of a read: a region of a log file, or no region when there is nothing yet.

    `offset` is the requested one. The region starts with the batch that holds it, and may end
    inside a batch where max_bytes cut it off, as in Kafka; `whole` is False when that is its very
    first batch. `more_segments` tells that bytes below the bound are in later segments. The
    receiver closes the region.

    `unverified` lists what `verify` has to check before the slice is served; `truncations` is the
    number of truncations of the log when the read was planned. `aborted` are the aborted
    transactions with offsets in the region, if they are asked for.
    """

    offset: int
    region: Region | None
    more_segments: bool
    unverified: tuple[UnverifiedRange, ...] = ()
    truncations: int = 0
    whole: bool = True
    aborted: Sequence[AbortedTxn] = ()

    @property
    def length(self) -> int:
        """Bytes of the region, 0 without one."""
        return self.region.length if self.region is not None else 0


@dataclass(frozen=True, slots=True)
class TimestampOffset:
    """Result of a lookup by timestamp."""

    offset: int
    timestamp: int
    leader_epoch: int


class ReadPlan(NamedTuple):
    """Which bytes answer a read. Their offsets are below `upto`; `later` are the segments from
    theirs on, if aborted transactions are asked for.
    """

    segment: Segment | None
    position: int
    length: int
    more_segments: bool
    unverified: tuple[UnverifiedRange, ...] = ()
    truncations: int = 0
    whole: bool = True
    upto: int = 0
    later: Sequence[Segment] = ()


_NOTHING = ReadPlan(None, 0, 0, False)


class LogReader:
    """Reads from one log. Safe to call from any thread."""

    def __init__(self, segments: SegmentList, failure: LogFailure) -> None:
        self._segments = segments
        self._failure = failure

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

    def read_bytes(self, offset: int, max_bytes: int) -> bytes:
        """Return the bytes of a read; blocks. Empty where nothing follows, or only what compaction
        removed.

        Raises KafkaError, and FileRetiredError when the log was truncated meanwhile.
        """
        truncations = self._segments.truncations
        piece = self.read(offset, max_bytes)
        if piece.region is None:
            return b""
        with piece.region:
            try:
                return piece.region.read()
            except OSError as error:
                if truncations != self._segments.truncations:
                    raise FileRetiredError(str(error)) from error
                raise self._failure.storage_error(error) from error

    # -- planning -------------------------------------------------------------------------------

    def plan(
        self,
        offset: int,
        max_bytes: int,
        upto: int | None = None,
        *,
        min_one: bool = True,
        committed: bool = False,
    ) -> LogSlice:
        """Plan a read from `offset`, of batches wholly below `upto` (default: log end offset).

        With `min_one` the first batch is returned whole even if it is larger than `max_bytes`. With
        `committed` the reader is told of aborted transactions.
        Raises KafkaError: OFFSET_OUT_OF_RANGE below the log start offset or above the log end
        offset, CORRUPT_MESSAGE where the log is damaged, KAFKA_STORAGE_ERROR when the disk failed.
        """
        while True:
            plan = self._plan(offset, max_bytes, upto, min_one, committed)
            if plan.segment is None:
                return LogSlice(offset, None, False, plan.unverified, plan.truncations)
            try:
                region = Region(plan.segment.log, plan.position, plan.length)
            except FileRetiredError:
                continue  # deleted or replaced since: the next plan sees that
            except OSError as error:
                raise self._failure.storage_error(error) from error
            aborted = aborted_between(plan.later, offset, plan.upto)
            if committed and plan.truncations != self._segments.truncations:
                region.close()  # the markers may be gone: another read knows what is decided now
                return LogSlice(offset, None, more_segments=False)
            return LogSlice(
                offset,
                region,
                plan.more_segments,
                plan.unverified,
                plan.truncations,
                plan.whole,
                aborted,
            )

    def _plan(
        self, offset: int, max_bytes: int, upto: int | None, min_one: bool, committed: bool
    ) -> ReadPlan:
        self._failure.raise_if_unusable()
        segments = self._segments
        with segments.state_lock:
            end, truncations = segments.log_end_offset, segments.truncations
            if not segments.log_start_offset <= offset <= end:
                raise self._out_of_range(offset)
            bound = end if upto is None or upto > end else upto
            if offset >= bound:
                return _NOTHING
            entries, bases = segments.entries, segments.bases
            number = max(bisect_right(bases, offset) - 1, 0)
            segment = entries[number]
            size, tail = segment.size, segment.tail
            last = number == len(entries) - 1
            next_base = end if last else bases[number + 1]
            around = (
                next_base,
                entries[number - 1] if number else None,
                None if last else entries[number + 1],
            )
            # Of the same moment: one that leaves the log keeps its index.
            later = entries[number:] if committed else ()
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
                    gap = UnverifiedRange(segment, offset, size, size, size, *around)
                    if next_base >= bound:
                        return ReadPlan(None, 0, 0, False, (gap,), truncations)
                    onward = self._plan(next_base, max_bytes, upto, min_one, committed)
                    return onward._replace(
                        unverified=(gap, *onward.unverified), truncations=truncations
                    )
                first = hit[0], hit[0] + hit[1].size
                fresh = fresh and first[0] >= segment.trusted_from
            if limit is None:
                beyond = segment.find(bound, size)
                limit = beyond[0] if beyond is not None else size
        except FileRetiredError:
            return self._plan(offset, max_bytes, upto, min_one, committed)
        except CorruptBatchError as error:
            raise self._failure.damaged(segment, error) from error
        except OSError as error:
            raise self._failure.storage_error(error) from error
        position, first_end = first
        length = min(max_bytes, limit - position)
        if min_one:
            length = max(length, min(first_end, limit) - position)
        if length <= 0:
            return _NOTHING
        piece_end = position + length
        unverified: tuple[UnverifiedRange, ...] = ()
        if not fresh:
            unverified = (UnverifiedRange(segment, offset, position, piece_end, size, *around),)
        whole = piece_end >= min(first_end, limit)
        end = bound if bound < next_base else next_base
        if piece_end < limit and any(map(len, (one.aborted for one in later))):
            try:
                end = min(segment.offset_behind(piece_end, limit) or end, end)
            except FileRetiredError:
                return self._plan(offset, max_bytes, upto, min_one, committed)
            except OSError as error:
                raise self._failure.storage_error(error) from error
        return ReadPlan(
            segment,
            position,
            length,
            bound > next_base,
            unverified,
            truncations,
            whole,
            end,
            later,
        )

    def _out_of_range(self, offset: int) -> KafkaError:
        segments = self._segments
        return KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{offset} is not within {segments.log_start_offset} and {segments.log_end_offset} "
            f"of {self._failure.name}",
        )

    # -- verification ---------------------------------------------------------------------------

    def verify(self, piece: LogSlice) -> None:
        """Check every byte of a slice that needs it, and end the slice before the first damaged
        batch. Blocks.

        Raises KafkaError CORRUPT_MESSAGE when nothing sound is left, KAFKA_STORAGE_ERROR, and
        FileRetiredError when the plan no longer holds. The region is closed then.
        """
        region = piece.region
        try:
            for unverified in piece.unverified:
                self._verify(piece, unverified)
        except BaseException:
            if region is not None:
                region.close()
            raise

    def _verify(self, piece: LogSlice, unverified: UnverifiedRange) -> None:
        segment, region = unverified.segment, piece.region
        try:
            sound, damage = integrity.damage(unverified)
        except WrongIndexError as error:
            self._segments.rebuild_indexes(segment)
            raise FileRetiredError(segment.index.file.path) from error
        except OSError as error:
            raise self._failure.storage_error(error) from error
        if damage is None:
            return
        if piece.truncations != self._segments.truncations:
            raise FileRetiredError(segment.log.path)
        if region is None or unverified.end == unverified.position or sound == unverified.position:
            raise self._failure.damaged(segment, damage) from damage
        region.length = sound - region.position

    # -- lookup by timestamp --------------------------------------------------------------------

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """Return the first record, from the log start offset on, that is not older than
        `timestamp` (ms); None when there is none. Blocks.
        """
        segments = self._segments
        truncations = segments.truncations
        with self._failure.guard():
            for segment in segments:
                try:
                    if segment.max_timestamp < timestamp:
                        continue
                    start = segments.log_start_offset
                    for data, header in segment.batches_since(timestamp, start):
                        hit = contents.first_since(header, data, timestamp, start)
                        if hit is not None:
                            return TimestampOffset(hit[0], hit[1], header.leader_epoch)
                except FileRetiredError:
                    continue
                except CorruptBatchError as error:
                    if truncations != segments.truncations:
                        return self.offset_for_timestamp(timestamp)
                    raise self._failure.damaged(segment, error) from error
        return None


def aborted_between(segments: Iterable[Segment], offset: int, upto: int) -> list[AbortedTxn]:
    """Return the aborted transactions that have offsets from `offset` on and below `upto`, of
    neighbouring segments from the one with `offset` on.

    An entry may be far behind its records: with the marker, in a later segment.
    """
    found: list[AbortedTxn] = []
    for segment in segments:
        some, is_all = segment.aborted.between(offset, upto)
        found += some
        if is_all:
            break
    return found
