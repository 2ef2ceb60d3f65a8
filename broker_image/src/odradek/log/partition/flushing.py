"""Flushing a log: fsync of what was written, while appends go on."""

import contextlib
import os
import threading
from collections.abc import Callable

from odradek.log.partition.epochs import EpochCache
from odradek.log.partition.failure import LogFailure
from odradek.log.partition.producers import snapshot_path
from odradek.log.partition.segments import SegmentList
from odradek.log.segment import files
from odradek.log.segment.files import FileRetiredError


class Flusher:
    """Makes the segments, snapshots and leader epochs of one log durable."""

    def __init__(
        self,
        segments: SegmentList,
        epochs: EpochCache,
        failures: LogFailure,
        monotonic: Callable[[], float],
    ) -> None:
        self._segments = segments
        self._epochs = epochs
        self._failures = failures
        self._monotonic = monotonic
        self.lock = threading.Lock()
        """Held while a flush is under way."""
        self._last_flush = monotonic()
        self.name_unsynced = False
        """The folder's new name may not be on the disk itself yet."""

    @property
    def waited_ms(self) -> float:
        """Time since the last flush."""
        return (self._monotonic() - self._last_flush) * 1000

    def flush(self, *, only_rolled: bool) -> None:
        """As `Log.flush`. Raises KafkaError."""
        with self.lock, self._failures.guard():
            while not self._flush_untruncated(only_rolled):
                pass  # records that were written after the truncation may not be on the disk

    def _flush_untruncated(self, only_rolled: bool) -> bool:
        """Flush; return False when the log was truncated meanwhile."""
        segments, end, truncations = self._segments.unflushed(only_rolled=only_rolled)
        if end <= self._segments.recovery_point:
            return True
        for segment in segments:
            with contextlib.suppress(FileRetiredError):
                segment.flush()
        for segment in segments[1:]:
            self.sync_snapshot(segment.base_offset)
        self.sync_snapshot(end)
        self._epochs.flush()
        directory = self._segments.directory
        files.fsync_path(directory)
        if self.name_unsynced:
            files.fsync_path(os.path.dirname(directory))
            self.name_unsynced = False
        if not self._segments.note_flushed(end, truncations):
            return False
        self._last_flush = self._monotonic()
        return True

    def sync_snapshot(self, offset: int) -> None:
        """Make a snapshot of the producers' state durable, if there is one. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            files.fsync_path(snapshot_path(self._segments.directory, offset))
