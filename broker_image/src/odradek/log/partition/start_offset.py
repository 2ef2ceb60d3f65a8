"""The log start offset of a log, and what its checkpoint on the disk says of it."""

from odradek.log.partition.segments import SegmentList


class StartOffset:
    """Tells which log start offset survives a crash, and which one to write."""

    def __init__(self, segments: SegmentList) -> None:
        self._segments = segments
        # What the checkpoint of log start offsets, or the first segment's name at the start, says.
        self._checkpointed = 0
        # The most that it may say while it is written, or after that failed.
        self._highest_checkpointed = 0
        self.overlapped = 0
        """The log start offset, until batches that overlap it are written up to there."""

    @property
    def durable(self) -> int:
        """Log start offset that survives a crash."""
        return min(self._checkpointed, self._segments.log_start_offset)

    @property
    def to_checkpoint(self) -> int:
        """Log start offset for the checkpoint."""
        return max(self._segments.log_start_offset, self.overlapped)

    @property
    def may_be_checkpointed_higher(self) -> bool:
        """True if the checkpoint may say more than it should."""
        return self._highest_checkpointed > self.to_checkpoint

    def begin_checkpoint(self) -> int:
        """Return the log start offset that is about to be written to the checkpoint.

        A truncation that lowers it from now on waits until the lower one is written. One that
        lowers it meanwhile is seen here.
        """
        offset = self.to_checkpoint
        self._highest_checkpointed = max(self._highest_checkpointed, offset)
        return min(offset, self.to_checkpoint)

    def note_checkpointed(self, offset: int) -> None:
        """Note what the checkpoint says now. Its lock is held: the last caller is right."""
        self._checkpointed = self._highest_checkpointed = offset
