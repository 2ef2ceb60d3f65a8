"""The segments of a partition as they come and go: rolling, truncation, retention, deletion.

Everything here runs under `_append_lock`, which serialises all that changes a log and may be held
across disk calls. Readers are kept right by order: what they may see is lowered or replaced first,
under the state lock, and only then do files change.
"""

import contextlib
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence

from odradek.config import TopicConfig
from odradek.log.partition import replay, retention
from odradek.log.partition.epochs import EpochCache
from odradek.log.partition.producers import ProducerStates, list_snapshots, snapshot_path
from odradek.log.partition.reading import ReadableLog, Surroundings
from odradek.log.records.batch import CorruptBatchError
from odradek.log.segment import files
from odradek.log.segment.segment import DELETED_SUFFIX, Segment, SegmentSettings
from odradek.log.segment.tail import Tail
from odradek.protocol.errors import ErrorCode, KafkaError


class SegmentedLog(ReadableLog):
    """A log that begins and drops segments. `odradek.log.partition.log.Log` adds appending."""

    def __init__(
        self,
        directory: str,
        topic: str,
        partition: int,
        config: TopicConfig,
        surroundings: Surroundings,
    ) -> None:
        super().__init__(directory, topic, partition, surroundings)
        self.config = config
        self.epochs = EpochCache(directory)
        self.producers = ProducerStates(surroundings.producer_expiry_ms)
        self._high_watermark = 0
        self._append_lock = threading.RLock()
        self._deleted: list[tuple[float, Segment]] = []

    @property
    def high_watermark(self) -> int:
        """What the replica manager says is committed; retention and compaction stop there."""
        return self._high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        self._high_watermark = max(self.log_start_offset, min(offset, self.log_end_offset))

    def install(self, segments: Sequence[Segment], log_end_offset: int) -> None:
        """Take over segments, oldest first. For `recovery` and `cleaner`, which make them."""
        with self._state_lock:
            self._segments = list(segments)
            self._bases = [segment.base_offset for segment in segments]
            self.log_end_offset = log_end_offset

    # -- rolling --------------------------------------------------------------------------------

    def roll(self, base_offset: int | None = None) -> None:
        """Begin a new segment at `base_offset`, by default the log end."""
        with self._append_lock, self._storage():
            base = max(self.log_end_offset, base_offset or 0)
            previous = self.active
            previous.become_inactive()
            self.producers.write_snapshot(self.directory)
            if previous.base_offset == base:  # empty: the new one takes its name
                with self._state_lock:
                    self._segments.pop()
                    self._bases.pop()
                previous.retire()
            fresh = self._new_segment(base)
            with self._state_lock:
                self._segments.append(fresh)
                self._bases.append(base)

    def _new_segment(self, base_offset: int) -> Segment:
        segment = Segment(self.directory, base_offset, self.segment_settings())
        self.create_files(segment)
        return segment

    def create_files(self, segment: Segment) -> None:
        """Make the files of a segment that is to be written."""
        segment.create(self.config.segment_bytes if self.config.preallocate else 0)

    def segment_settings(self) -> SegmentSettings:
        """Settings of a segment made now."""
        config = self.config
        jitter = min(config.segment_jitter_ms, config.segment_ms)
        return SegmentSettings(
            config.index_interval_bytes,
            config.segment_index_bytes,
            self._surroundings.now_ms(),
            self._surroundings.chance.randrange(jitter) if jitter > 0 else 0,
        )

    def _rebuild_indexes(self, segment: Segment) -> None:
        with self._append_lock, self._storage():
            segment.rebuild_indexes()

    # -- truncation, deletion -------------------------------------------------------------------

    def truncate_to(self, offset: int) -> bool:
        """Drop everything from `offset` on; False when the log already ended there or before.

        An epoch that has led without writing goes in any case: what others wrote may come there.
        """
        with self._append_lock, self._storage():
            if offset >= self.log_end_offset:
                self.epochs.truncate_from_end(self.log_end_offset)
                return False
            if offset <= self.log_start_offset or offset < self._bases[0]:
                self.truncate_fully_and_start_at(offset)
                return True
            kept = max(bisect_left(self._bases, offset), 1)
            segment = self._segments[kept - 1]
            try:
                position, end = segment.cut_for(offset)
            except CorruptBatchError as error:
                raise self._damaged(segment, error) from error
            if end <= self.log_start_offset:  # nothing that can be read is left
                self.truncate_fully_and_start_at(self.log_start_offset)
                return True
            # Whoever reads stops short of the cut before the bytes go.
            with self._state_lock:
                dropped = self._segments[kept:]
                del self._segments[kept:], self._bases[kept:]
                segment.size, segment.tail = position, Tail()
                self.log_end_offset = end
                self._cuts += 1
            self._lower_marks(end)
            for doomed in reversed(dropped):
                self._delete_now(doomed)
            segment.truncate_files(end, self._surroundings.now_ms())
            self.epochs.truncate_from_end(end)
            self._reload_producers()
            self._keep_end(segment, end)
            return True

    def _keep_end(self, last: Segment, end: int) -> None:
        """See to it that the files tell the log end, also where compaction took what was before it:
        else a restart would give offsets anew that had other records.
        """
        with contextlib.suppress(CorruptBatchError):
            if last.next_offset() < end:
                self.roll()

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything; the next batch gets `offset`."""
        with self._append_lock, self._storage():
            # There is always a segment: checkpoints and readers look at the first one. Its files
            # come last, for they may have the names of files that go.
            fresh = Segment(self.directory, offset, self.segment_settings())
            with self._state_lock:
                dropped, self._segments, self._bases = self._segments, [fresh], [offset]
                self.log_end_offset = self.log_start_offset = offset
                self._cuts += 1
                # Nothing lies below, so nothing is left to flush.
                self.recovery_point = max(self.recovery_point, offset)
            self._lower_marks(offset)
            for segment in reversed(dropped):
                self._delete_now(segment)
            self.epochs.clear()
            self._drop_snapshots(lambda at: True)
            self.producers.clear(offset)
            self.create_files(fresh)
            self.install([fresh], offset)

    def _lower_marks(self, end: int) -> None:
        """Bring marks down to `end`; a lower recovery point is on disk before bytes are
        rewritten.
        """
        self._high_watermark = min(self._high_watermark, end)
        lowered = self.recovery_point > end
        self.recovery_point = min(self.recovery_point, end)
        if lowered or "compact" in self.config.cleanup_policy:
            self._surroundings.on_truncate(self)

    def _delete_now(self, segment: Segment) -> None:
        segment.retire()
        for path in segment.paths():
            files.remove_if_there(path)

    def _reload_producers(self) -> None:
        replay.rebuild(
            self.producers,
            self.directory,
            self._segments,
            self.log_start_offset,
            self.log_end_offset,
            self._surroundings.now_ms(),
        )

    def _drop_snapshots(self, doomed: Callable[[int], bool]) -> None:
        for at in list_snapshots(self.directory):
            if doomed(at):
                files.remove_if_there(snapshot_path(self.directory, at))

    def advance_log_start(self, offset: int) -> None:
        """Hide records below `offset` (DeleteRecords, or the leader's start); files go with
        retention.

        Raises KafkaError OFFSET_OUT_OF_RANGE above the high watermark.
        """
        with self._append_lock, self._storage():
            if offset > self._high_watermark:
                raise KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"{offset} is above the high watermark {self._high_watermark}",
                )
            self._raise_log_start(offset)

    def _raise_log_start(self, offset: int) -> None:
        if offset > self.log_start_offset:
            with self._state_lock:
                self.log_start_offset = offset
            self.epochs.truncate_from_start(offset)

    def apply_retention(self) -> int:
        """Delete old segments by log start offset, time and size; return how many. Files go
        later.
        """
        # Looking at old segments may read from the disk, which appends need not wait for.
        with self._storage():
            segments = self.segments
            facts = [self._facts(segment) for segment in segments]
        with self._append_lock, self._storage():
            if tuple(self._segments[: len(segments)]) != segments:
                return 0  # truncated or compacted meanwhile: the next round sees it
            if len(self._segments) == len(segments):
                facts[-1] = self._facts(self.active)
            by_age = "delete" in self.config.cleanup_policy
            doomed = retention.deletable(
                facts,
                self.log_end_offset
                if len(self._segments) == len(segments)
                else self._bases[len(segments)],
                self._high_watermark,
                self.log_start_offset,
                self._surroundings.now_ms(),
                retention.Limits(
                    self.config.retention_ms if by_age else -1,
                    self.config.retention_bytes if by_age else -1,
                ),
            )
            if doomed == 0:
                return 0
            if doomed == len(self._segments):
                self.roll()
            return self._retire_oldest(doomed)

    def _facts(self, segment: Segment) -> retention.SegmentFacts:
        return retention.SegmentFacts(
            segment.base_offset, segment.size, segment.newest_or_modified_ms()
        )

    def _retire_oldest(self, count: int) -> int:
        with self._state_lock:
            gone = self._segments[:count]
            del self._segments[:count], self._bases[:count]
        if gone:
            self._raise_log_start(self._bases[0])
            self.schedule_delete(gone)
            self._drop_snapshots(lambda at: at < self._bases[0])
        return len(gone)

    def schedule_delete(self, segments: Sequence[Segment]) -> None:
        """Rename segments to `.deleted`; `delete_due` removes them after file.delete.delay.ms."""
        due = self._surroundings.monotonic() + self.config.file_delete_delay_ms / 1000
        for segment in segments:
            segment.retire()  # first, for who opened a renamed file would make an empty one
            segment.rename_suffix("", DELETED_SUFFIX)
            self._deleted.append((due, segment))

    def delete_due(self) -> None:
        """Remove files whose delay is over."""
        now = self._surroundings.monotonic()
        with self._append_lock, self._storage():
            due = [segment for at, segment in self._deleted if at <= now]
            self._deleted = [entry for entry in self._deleted if entry[0] > now]
            for segment in due:
                self._delete_now(segment)

    def begin_copy(self, copy: Segment) -> None:
        """Make the files of a segment that compaction fills. Raises KafkaError and OSError."""
        with self._append_lock:
            self._refuse_if_gone()
            copy.create()

    def discard_copy(self, copy: Segment) -> None:
        """Remove what compaction does not finish, unless the disk failed when it was part of the
        log already. Of a deleted log nothing is removed: a new one may have the name.
        """
        with self._append_lock:
            if copy in self._segments:
                return
            if self.closed:
                copy.retire()
            else:
                self._delete_now(copy)

    def replace_segments(
        self, old: Sequence[Segment], copy: Segment, suffix: str, complete_suffix: str, cuts: int
    ) -> bool:
        """Put a compacted, durable `copy` in the place of neighbouring closed segments.

        The copy is renamed from `suffix` to `complete_suffix`, which recovery takes as finished,
        and then to its own name. False when one of the old segments is gone, or the log was cut
        since it had been cut `cuts` times: one of them may grow again. Nothing changed then.
        """
        with self._append_lock, self._storage():
            if self._cuts != cuts:
                return False
            first = next(
                (number for number, each in enumerate(self._segments) if each is old[0]), -1
            )
            if first < 0 or self._segments[first : first + len(old)] != list(old):
                return False
            copy.rename_suffix(suffix, complete_suffix)
            files.fsync_path(self.directory)
            with self._state_lock:
                self._segments[first : first + len(old)] = [copy]
                self._bases[first : first + len(old)] = [copy.base_offset]
            self.schedule_delete(old)
            copy.rename_suffix(complete_suffix, "")
            files.fsync_path(self.directory)
            return True
