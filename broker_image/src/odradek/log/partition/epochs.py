"""Leader epochs: which epoch wrote which offsets, kept in the file `leader-epoch-checkpoint`.

Followers ask for the end offset of an epoch to find where their log diverges from the leader's
(KIP-101, KIP-279), instead of trusting the high watermark. The file is in Kafka's text format. It
is rewritten at every change, in place while it is small, made durable with the log's flush, and
rebuilt from the batches (each carries its epoch) when it is missing or unreadable.
"""

import contextlib
import os
import threading
from bisect import bisect_left, bisect_right
from itertools import pairwise, starmap

from odradek.log.partition import checkpoints
from odradek.log.records.incoming import Batches
from odradek.log.segment.files import fsync_path, remove_if_there, write_atomically, write_in_place

FILE_NAME = "leader-epoch-checkpoint"
UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class EpochCache:
    """The leader epochs of one partition, in memory and in its file. Safe to read while one thread
    writes.

    Invariant: the entries (epoch, first offset) rise strictly in both. `_write` asserts
    it for the first and the last two, where changes happen.
    """

    __slots__ = ("_entries", "_file_lock", "_lock", "_unsynced", "_unwritten", "directory")

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._entries: list[tuple[int, int]] = []
        self._lock = threading.Lock()
        self._file_lock = threading.Lock()
        # The file may lack entries, or not be on the disk itself yet.
        self._unwritten = False
        self._unsynced = False

    @property
    def path(self) -> str:
        """The checkpoint file."""
        return os.path.join(self.directory, FILE_NAME)

    @property
    def entries(self) -> list[tuple[int, int]]:
        """A copy of the (epoch, first offset) pairs."""
        with self._lock:
            return list(self._entries)

    def load(self, *, durable: bool = True) -> bool:
        """Read the file; return False when it says nothing or cannot be trusted, and the batches
        must be read. After a crash it is not `durable`: what was read may be in memory only.
        """
        self._unsynced = not durable
        try:
            entries = checkpoints.read_epochs(self.path)
        except checkpoints.CorruptCheckpointError:
            return False
        if entries is None:
            return False
        if not all(starmap(_rises, pairwise(entries))) or any(
            epoch < 0 or offset < 0 for epoch, offset in entries
        ):
            return False
        self._entries = entries
        return True

    @property
    def latest(self) -> int:
        """The newest epoch, -1 when none is known."""
        entries = self._entries
        return entries[-1][0] if entries else UNDEFINED_EPOCH

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that `epoch` begins at `start_offset`; entries that contradict it are dropped.

        Changes nothing if it raises OSError.
        """
        previous = self._entries
        try:
            self.note(epoch, start_offset)
        except OSError:
            with self._lock:
                self._entries = previous
            raise

    def note(self, epoch: int, start_offset: int) -> None:
        """As `assign`, for a batch that is in the log already: the entry stays if this raises
        OSError, and the next flush writes the file.
        """
        if epoch < 0 or epoch == self.latest:
            return
        with self._lock:
            kept = [
                entry for entry in self._entries if entry[0] < epoch and entry[1] < start_offset
            ]
            self._entries = [*kept, (epoch, start_offset)]
        self._write()

    def note_batches(self, batches: Batches) -> None:
        """Note the leader epochs of all batches, and raise the last error afterwards."""
        failure: OSError | None = None
        for _, header in batches:
            try:
                self.note_batch(header.magic, header.leader_epoch, header.base_offset)
            except OSError as error:
                failure = error
        if failure is not None:
            raise failure

    def note_batch(self, magic: int, leader_epoch: int, base_offset: int) -> None:
        """Note the leader epoch of a batch that was written. Raises OSError.

        The formats before 0.11 carry none. Behind such a batch the known epochs say nothing any
        more, so they go, and replicas trust the high watermark, as in Kafka.
        """
        entries = self._entries
        if magic < 2:
            if entries:
                self.clear()
        elif not entries or leader_epoch > entries[-1][0]:
            self.note(leader_epoch, base_offset)

    def replace(self, entries: list[tuple[int, int]]) -> None:
        """Take the entries of another log with the same batches. Raises OSError."""
        if not entries:
            self.clear()
            return
        with self._lock:
            changed = self._entries != entries
            self._entries = entries
        if changed:
            self._write()

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the largest epoch not above `epoch`, and the offset where it ends; (-1, -1) when
        unknown.

        Kafka's rules: the newest epoch ends at the log end offset; for an epoch below every known
        one the result is that epoch and the first known offset.
        """
        entries = self._entries
        if epoch < 0 or not entries or epoch > entries[-1][0]:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == entries[-1][0]:
            return epoch, log_end_offset
        following = bisect_right(entries, epoch, key=lambda entry: entry[0])
        end = entries[following][1]
        return (epoch if following == 0 else entries[following - 1][0]), end

    def epoch_of(self, offset: int) -> int:
        """Return the epoch that wrote `offset`, -1 when unknown."""
        entries = self._entries
        found = bisect_right(entries, offset, key=lambda entry: entry[1])
        return entries[found - 1][0] if found else UNDEFINED_EPOCH

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget epochs that begin at or behind `end_offset`."""
        with self._lock:
            kept = bisect_left(self._entries, end_offset, key=lambda entry: entry[1])
            changed = kept < len(self._entries)
            self._entries = self._entries[:kept]
        if changed or self._unwritten:
            self._write()

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget epochs that end before `start_offset`; the one that spans it now begins there."""
        with self._lock:
            below = bisect_right(self._entries, start_offset, key=lambda entry: entry[1])
            changed = below > 0 and self._entries[below - 1][1] != start_offset
            if changed:
                spanning = (self._entries[below - 1][0], start_offset)
                self._entries = [spanning, *self._entries[below:]]
            elif below > 1:
                changed, self._entries = True, self._entries[below - 1 :]
        if changed:
            self._write()

    def distrust(self, offset: int) -> list[tuple[int, int]]:
        """Forget, in memory, the epochs that begin at `offset` or behind, and return them: the file
        may be newer or older than the batches there, which are read again.
        """
        with self._lock:
            kept = bisect_left(self._entries, offset, key=lambda entry: entry[1])
            forgotten = self._entries[kept:]
            self._entries = self._entries[:kept]
        self._unwritten = self._unwritten or bool(forgotten)
        return forgotten

    def clear(self) -> None:
        """Forget everything, and remove the file."""
        with self._lock:
            self._entries = []
        remove_if_there(self.path)

    def _write(self) -> None:
        with self._file_lock:
            entries = self._entries
            if len(entries) > 1:
                assert _rises(*entries[:2]), entries
                assert _rises(*entries[-2:]), entries
            self._unwritten = True
            data = checkpoints.format_epochs(entries)
            # A broker that becomes leader of many partitions writes as many files.
            if not write_in_place(self.path, data):
                write_atomically(self.path, data, durable=False)
            self._unwritten = False
            self._unsynced = True

    def flush(self) -> None:
        """Make the file durable if it changed; write it first where that failed."""
        if self._unwritten:
            self._write()
        if self._unsynced:
            self._unsynced = False
            try:
                if self._entries:
                    with contextlib.suppress(FileNotFoundError):  # removed meanwhile by `clear`
                        fsync_path(self.path)
                fsync_path(self.directory)
            except OSError:
                self._unsynced = True
                raise


def _rises(earlier: tuple[int, int], later: tuple[int, int]) -> bool:
    return earlier[0] < later[0] and earlier[1] < later[1]
