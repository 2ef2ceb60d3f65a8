"""The side of a partition that readers see: published segments, planning of reads, lookups.

`_state_lock` guards the few fields readers need (segment list, offsets, published sizes) and is
never held across a disk call, so a read is planned without waiting for a slow write, roll or fsync.
A plan is a segment with a position and a length; only then is the file held. A segment that goes
away in between makes the read plan again.
"""

import contextlib
import random
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from odradek.log import contents, files
from odradek.log.batch import CorruptBatchError
from odradek.log.files import FileRetiredError, Region
from odradek.log.segment import Segment
from odradek.protocol.errors import ErrorCode, KafkaError


def wall_clock_ms() -> int:
    """The time records are stamped with, ms since 1970."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a log needs of the process around it: clocks, chance, and whom to tell."""

    now_ms: Callable[[], int] = wall_clock_ms
    monotonic: Callable[[], float] = time.monotonic
    chance: random.Random = field(default_factory=random.Random)
    producer_expiry_ms: int = 7 * 24 * 3_600_000
    on_failure: Callable[["ReadableLog", OSError], None] = lambda log, error: None
    on_truncate: Callable[["ReadableLog"], None] = lambda log: None


class LogSlice(NamedTuple):
    """What a read found: a piece of a segment file, or no region when nothing is there yet.

    `offset` is the one asked for; the region starts with the batch that holds it and may end inside
    a batch when max_bytes cut it, as Kafka's does. `more` tells that bytes below the bound follow.
    Whoever takes the slice closes the region.
    """

    offset: int
    region: Region | None
    more: bool

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

    segment: Segment
    position: int
    length: int
    more: bool


class ReadableLog:
    """What a log shows to readers, and how it fails. `odradek.log.log.Log` adds writing."""

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

    # -- reading --------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, upto: int | None = None, *, min_one: bool = True
    ) -> LogSlice:
        """Plan a read from `offset`, of batches wholly below `upto` (default: the log end).

        With `min_one` the first batch goes out whole even if it is larger than `max_bytes`. Raises
        KafkaError OFFSET_OUT_OF_RANGE below the log start or above the log end, CORRUPT_MESSAGE
        where the log is damaged, KAFKA_STORAGE_ERROR when the disk failed.
        """
        while True:
            plan = self._plan(offset, max_bytes, upto, min_one)
            if plan is None:
                return LogSlice(offset, None, False)
            try:
                region = Region(plan.segment.log, plan.position, plan.length)
            except FileRetiredError:
                continue  # deleted or replaced since: the next look sees it
            except OSError as error:
                raise self._storage_error(error) from error
            return LogSlice(offset, region, plan.more)

    def readable_bytes(self, offset: int, max_bytes: int, upto: int | None = None) -> int:
        """How many bytes `read` would return, without opening anything. Raises as `read`."""
        plan = self._plan(offset, max_bytes, upto, True)
        return plan.length if plan is not None else 0

    def _plan(self, offset: int, max_bytes: int, upto: int | None, min_one: bool) -> Plan | None:
        if self.failure is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(self.failure))
        with self._state_lock:
            end = self.log_end_offset
            if not self.log_start_offset <= offset <= end:
                raise self._out_of_range(offset)
            bound = end if upto is None or upto > end else upto
            if offset >= bound:
                return None
            number = max(bisect_right(self._bases, offset) - 1, 0)
            segment = self._segments[number]
            size, tail = segment.size, segment.tail
            last = number == len(self._segments) - 1
            next_base = end if last else self._bases[number + 1]
            first = tail.find(offset, size)
            limit: int | None = size
            if bound < next_base:
                near = tail.find(bound, size)
                limit = near[0] if near is not None else None
        try:
            if first is None:
                hit = segment.find(offset, size)
                if hit is None:  # compaction left nothing from `offset` to the end of the segment
                    if next_base >= bound:
                        return None
                    return self._plan(next_base, max_bytes, upto, min_one)
                first = hit[0], hit[0] + hit[1].size
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
            return None
        return Plan(segment, position, length, position + length < limit or bound > next_base)

    def _out_of_range(self, offset: int) -> KafkaError:
        return KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{offset} is not within {self.log_start_offset} and {self.log_end_offset} "
            f"of {self.topic}-{self.partition}",
        )

    def _damaged(self, segment: Segment, error: CorruptBatchError) -> KafkaError:
        return KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"{self.topic}-{self.partition} segment {segment.base_offset}: {error}",
        )

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """First record not older than `timestamp` (ms), from the log start on; None when there is
        none.
        """
        with self._storage():
            for segment in self.segments:
                try:
                    if segment.max_timestamp < timestamp:
                        continue
                    for position, header in segment.batches_since(timestamp, self.log_start_offset):
                        data = segment.read(position, header.size)
                        hit = contents.first_since(header, data, timestamp, self.log_start_offset)
                        if hit is not None:
                            return TimestampOffset(hit[0], hit[1], header.leader_epoch)
                except FileRetiredError:
                    continue
                except CorruptBatchError as error:
                    raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
        return None

    # -- failure --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _storage(self) -> Iterator[None]:
        """Refuse work on a failed log, and turn a disk error into KAFKA_STORAGE_ERROR."""
        if self.failure is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(self.failure))
        try:
            yield
        except OSError as error:
            raise self._storage_error(error) from error

    def _storage_error(self, error: OSError) -> KafkaError:
        if files.is_disk_failure(error) and self.failure is None:
            self.failure = error
            self._surroundings.on_failure(self, error)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))

    def fail(self, error: OSError) -> None:
        """Take the log offline because its directory failed elsewhere."""
        if self.failure is None:
            self.failure = error
