"""Compaction: of each key only the newest record stays.

A log is clean up to its first dirty offset (`cleaner-offset-checkpoint`). It is dirty from there to
the last rolled segment that is replicated and older than min.compaction.lag.ms. One cleaning reads
the dirty part into a map from key to newest offset, of bounded size. Then it copies every segment
up to the end of the map without the records that the map supersedes, and merges neighbours up to
segment.bytes. Offsets, producer fields and batch boundaries stay. A batch that loses no record is
copied byte for byte. A batch that loses all goes, unless it is its producer's newest: that one
stays as an empty batch, so that the producer's sequence survives. Tombstones go when they have been
clean for delete.retention.ms. So do markers of transactions of which no batch was left before this
cleaning, except of producers of which nothing else is known. Records of aborted transactions
supersede nothing, and go. Batches that unpack to more than the limit stay: Kafka has no limit, and
they may have been accepted before the topic was compacted.

Copies are written as `.cleaned` and made durable. They are renamed to `.swap`, and are complete
from then on; the originals become `.deleted`, and the copies take their names. Recovery finishes or
undoes every state in between. Appends and reads go on meanwhile. If a cleaned segment was truncated
or deleted in the meantime, its copy is removed.
"""

import logging
import math
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from odradek.log.partition.log import Log
from odradek.log.records import contents
from odradek.log.records.batch import CorruptBatchError, Header
from odradek.log.records.records import Record
from odradek.log.segment import batch_file
from odradek.log.segment.files import FileRetiredError, StoppedError
from odradek.log.segment.names import CLEANED_SUFFIX, SWAP_SUFFIX
from odradek.log.segment.placed import placed
from odradek.log.segment.segment import Segment
from odradek.protocol.regions import Buffer

logger = logging.getLogger(__name__)

BYTES_PER_KEY = 160
"""What one entry of the map costs in memory, keys of common length included."""


@dataclass(frozen=True, slots=True)
class DirtyRange:
    """What a cleaning would do: dirty offsets [start, end), bytes before and inside.

    It is valid while the log was truncated `truncations` times.
    """

    start: int
    end: int
    clean_bytes: int
    dirty_bytes: int
    overdue: bool
    truncations: int

    @property
    def ratio(self) -> float:
        """Share of the cleanable part that is dirty."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


@dataclass(slots=True)
class Throttle:
    """Keeps reading and writing of all threads together below `bytes_per_second`, until `stopping`
    is set.
    """

    bytes_per_second: float = float("inf")
    stopping: threading.Event = field(default_factory=threading.Event)
    clock: Callable[[], float] = time.monotonic
    _free_at: float = field(default=0.0, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def spend(self, count: int) -> None:
        """Account for `count` bytes, and wait while they are ahead of the rate.

        Raises StoppedError.
        """
        with self._lock:
            now = self.clock()
            takes_s = count / self.bytes_per_second if self.bytes_per_second else math.inf
            self._free_at = max(self._free_at, now) + takes_s
            ahead_s = min(self._free_at - now, threading.TIMEOUT_MAX)
        if self.stopping.is_set() or (ahead_s > 0 and self.stopping.wait(ahead_s)):
            raise StoppedError


class _AbortedBatches:
    """The batches of aborted transactions, as the segments' indexes tell."""

    def __init__(self, segments: Iterable[Segment]) -> None:
        # First and last offsets by producer id, rising.
        self._of: dict[int, list[tuple[int, int]]] = {}
        for segment in segments:
            for one in segment.aborted.since(0):
                self._of.setdefault(one.producer_id, []).append((one.first_offset, one.last_offset))

    def __contains__(self, header: Header) -> bool:
        if not self._of or not header.is_transactional:
            return False
        ranges = self._of.get(header.producer_id, [])
        following = bisect_left(ranges, header.base_offset, key=lambda one: one[1])
        return following < len(ranges) and ranges[following][0] <= header.base_offset


class _Transactions:
    """The producers of whose present transaction a cleaning has read a batch so far."""

    def __init__(self) -> None:
        self._producers: set[int] = set()

    def note(self, header: Header) -> None:
        """Note a data batch."""
        if header.is_transactional:
            self._producers.add(header.producer_id)

    def ends_one(self, header: Header) -> bool:
        """Return whether a marker ends such a transaction; note that."""
        ends = header.producer_id in self._producers
        self._producers.discard(header.producer_id)
        return ends


def dirty_range(log: Log, first_dirty: int, now_ms: int) -> DirtyRange:
    """Return the part of a log that may be cleaned now. Raises OSError and CorruptBatchError."""
    truncations = log.segments.truncations
    config, segments = log.config, tuple(log.segments)
    start = max(first_dirty, segments[0].base_offset)
    if start > log.log_end_offset:  # the log was truncated below its clean part
        start = segments[0].base_offset
    end, clean, dirty, oldest = start, 0, 0, now_ms
    stable = log.last_stable_offset(log.high_watermark)
    for number, segment in enumerate(segments[:-1]):
        upper = segments[number + 1].base_offset
        newest = segment.newest_or_modified_ms()
        too_young = 0 < config.min_compaction_lag_ms > now_ms - newest
        if upper > stable or too_young:
            break
        if upper <= start:
            clean += segment.size
            continue
        first = segment.first_timestamp()
        oldest = min(oldest, first if first >= 0 else newest)
        dirty += segment.size
        end = upper
    overdue = dirty > 0 and now_ms - oldest > config.max_compaction_lag_ms
    return DirtyRange(start, end, clean, dirty, overdue, truncations)


def is_due(log: Log, dirty: DirtyRange) -> bool:
    """Return whether a log needs cleaning: it is dirty enough, or has been dirty for too long."""
    if "compact" not in log.config.cleanup_policy or dirty.dirty_bytes == 0:
        return False
    return dirty.overdue or dirty.ratio >= log.config.min_cleanable_dirty_ratio


def clean(
    log: Log, dirty: DirtyRange, max_keys: int, throttle: Throttle, buffer_bytes: int = 524_288
) -> int:
    """Compact `log` up to the end of the map, reading `buffer_bytes` at once; return the new first
    dirty offset.

    Raises OSError, StoppedError, FileRetiredError when the log was truncated or lost segments
    meanwhile, and CorruptBatchError when it is damaged. The segments it was working on are
    unchanged then.
    """
    aborted = _AbortedBatches(log.segments)
    newest, end = _newest_offsets(log, dirty, aborted, max_keys, throttle, buffer_bytes)
    if end <= dirty.start:
        return dirty.start
    segments = [each for each in log.segments[:-1] if each.base_offset < end]
    horizon_ms = _delete_horizon_ms(segments, dirty.start, log.config.delete_retention_ms)
    transactions = _Transactions()
    for group in _groups(segments, log.config.segment_bytes):
        _clean_group(
            log,
            group,
            newest,
            aborted,
            transactions,
            end,
            dirty.truncations,
            horizon_ms,
            throttle,
            buffer_bytes,
        )
    return end


def _newest_offsets(
    log: Log,
    dirty: DirtyRange,
    aborted: _AbortedBatches,
    max_keys: int,
    throttle: Throttle,
    buffer_bytes: int,
) -> tuple[dict[bytes, int], int]:
    """Return the newest offset per key of the dirty part, and the batch boundary where the map
    ends.
    """
    newest: dict[bytes, int] = {}
    reached = dirty.start
    for segment, following in pairwise(log.segments[:]):
        if following.base_offset <= dirty.start:
            continue
        if segment.base_offset >= dirty.end:
            break
        for data, header in _batches(segment, buffer_bytes):
            throttle.spend(header.size)
            if header.last_offset < dirty.start:
                continue
            if not header.is_control and header.record_count > 0 and header not in aborted:
                found = _records(data)
                if found is None:
                    logger.warning(
                        "%s-%d: not compacting the batch at offset %d of %d bytes: it unpacks to "
                        "more than the limit",
                        log.topic,
                        log.partition,
                        header.base_offset,
                        header.size,
                    )
                    found = []
                if newest and len(newest) + len(found) > max_keys:
                    return newest, reached
                newest.update((one.key, one.offset) for one in found if one.key is not None)
            reached = header.last_offset + 1
    return newest, dirty.end


def _delete_horizon_ms(segments: Sequence[Segment], start: int, retention_ms: int) -> int:
    """Return the newest modification time of segments whose tombstones may go, because they have
    been clean for long enough.
    """
    clean_segments = [
        segment
        for number, segment in enumerate(segments)
        if number + 1 < len(segments) and segments[number + 1].base_offset <= start
    ]
    if not clean_segments:
        return 0
    return clean_segments[-1].log.modified_ns() // 1_000_000 - retention_ms


def _groups(segments: Sequence[Segment], segment_bytes: int) -> Iterator[list[Segment]]:
    """Yield neighbours whose copies surely fit into one segment."""
    group: list[Segment] = []
    size = 0
    for number, segment in enumerate(segments):
        last = number + 1 == len(segments)
        upper = segment.next_offset() if last else segments[number + 1].base_offset
        if group and (size + segment.size > segment_bytes or not group[0].accepts(upper)):
            yield group
            group, size = [], 0
        group.append(segment)
        size += segment.size
    if group:
        yield group


def _clean_group(
    log: Log,
    group: list[Segment],
    newest: dict[bytes, int],
    aborted: _AbortedBatches,
    transactions: _Transactions,
    end: int,
    truncations: int,
    horizon_ms: int,
    throttle: Throttle,
    buffer_bytes: int,
) -> None:
    copy = Segment(log.directory, group[0].base_offset, log.segment_settings(), CLEANED_SUFFIX)
    try:
        log.segments.begin_copy(copy)
        markers_left: set[int] = set()
        for segment in group:
            is_young = segment.log.modified_ns() // 1_000_000 > horizon_ms
            for data, header in _batches(segment, buffer_bytes):
                kept: Buffer | None = None
                stored = header
                if not header.is_control:
                    transactions.note(header)
                    kept, stored = _filter(
                        log, data, header, newest, aborted, end, keep_tombstones=is_young
                    )
                elif (
                    transactions.ends_one(header)
                    or is_young
                    or header.base_offset >= end
                    or _is_all_of_its_producer(log, header)
                ):
                    kept = bytes(data)
                    markers_left.add(header.last_offset)
                throttle.spend(header.size)
                if kept is not None:
                    places = (placed(0, stored),)
                    copy.append([kept], len(kept), places)
                    copy.publish(places, len(kept))
                    throttle.spend(len(kept))
        indexed = (one for segment in group for one in segment.aborted.since(0))
        # Without its marker, readers would take what follows for aborted, too.
        copy.aborted.replace(one for one in indexed if one.last_offset in markers_left)
        copy.become_inactive()
        copy.flush()
        modified_ns = group[-1].log.modified_ns()
        copy.log.set_modified_ns(modified_ns)
        if not log.replace_segments(group, copy, SWAP_SUFFIX, truncations):
            raise FileRetiredError(group[0].log.path)
    except BaseException:
        log.segments.discard_copy(copy)
        raise


def _filter(
    log: Log,
    data: memoryview,
    header: Header,
    newest: dict[bytes, int],
    aborted: _AbortedBatches,
    end: int,
    *,
    keep_tombstones: bool,
) -> tuple[Buffer | None, Header]:
    """Return a data batch without superseded records: unchanged, smaller, emptied, or None."""
    if header.base_offset >= end:
        return bytes(data), header
    found = _records(data) if header.record_count > 0 and header not in aborted else []
    if found is None:
        return bytes(data), header
    kept = [
        record
        for record in found
        if record.key is not None
        and newest.get(record.key, -1) <= record.offset
        and (record.value is not None or keep_tombstones)
    ]
    if kept and len(kept) == len(found):
        return bytes(data), header
    if not kept and not _is_newest_of_its_producer(log, header):
        return None, header
    return contents.rebuild(header, kept)


def _records(data: memoryview) -> list[Record] | None:
    """Return the records of a batch, None if they are too many or too large to be looked at."""
    try:
        return contents.decode(data)
    except CorruptBatchError as error:
        if contents.is_too_large(error):
            return None
        raise


def _is_newest_of_its_producer(log: Log, header: Header) -> bool:
    if header.producer_id < 0:
        return False
    producer = log.producers.get(header.producer_id)
    return (
        producer is not None
        and producer.epoch == header.producer_epoch
        and bool(producer.batches)
        and producer.batches[-1].last_offset == header.last_offset
    )


def _is_all_of_its_producer(log: Log, header: Header) -> bool:
    """Return whether a marker is what the log knows of its producer: whose epoch it tells."""
    producer = log.producers.get(header.producer_id)
    return producer is not None and producer.epoch == header.producer_epoch and not producer.batches


def _batches(segment: Segment, at_once: int) -> Iterator[tuple[memoryview, Header]]:
    """Yield every batch of a segment. Raises CorruptBatchError if one is damaged."""
    fd = segment.log.acquire()
    try:
        yield from batch_file.whole_batches(fd, segment.size, at_once=at_once)
    finally:
        segment.log.release()
