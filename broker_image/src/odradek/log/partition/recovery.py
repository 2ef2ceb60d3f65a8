"""Recovery: opening a partition folder after a clean shutdown or after a crash.

A clean shutdown leaves `.kafka_cleanshutdown` in the log directory. Then sizes are taken from the
files, and only the last batches of the last segment are read. Without it every segment from the
recovery point on (what may not be on the disk) is read whole: checksums are verified, the file is
truncated behind the last valid batch, later segments are dropped, and indexes, leader epochs and
producer state are rebuilt. A power loss keeps any part of what was not synced: a truncation may be
undone in one file and not in another, or a segment may be there without the end of the one before.
So the files beside the batches count for nothing there. Interrupted deletions and compactions are
finished or undone as in Kafka: `.deleted` and `.cleaned` files are removed; a `.log.swap` is
complete and replaces the segments it was made from. No content of any file makes opening fail; only
an OSError does. Recovery that is told to stop leaves what a crash at that moment would, and the
file of leader epochs as it was.
"""

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest

from odradek.log.partition import replay, topic_identity
from odradek.log.partition.epochs import UNDEFINED_EPOCH
from odradek.log.partition.log import Log, LogEnvironment
from odradek.log.partition.producers import SNAPSHOT_SUFFIX, UNKNOWN_FORMER
from odradek.log.records.batch import CorruptBatchError, Header
from odradek.log.segment.batch_file import BatchSequence
from odradek.log.segment.files import StoppedError, list_names, remove_if_there, write_atomically
from odradek.log.segment.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    base_offset_of,
    file_name,
)
from odradek.log.segment.segment import Segment
from odradek.log.segment.transaction_index import CorruptTransactionIndexError
from odradek.topic_config import TopicConfig

_GARBAGE = (DELETED_SUFFIX, CLEANED_SUFFIX, ".tmp")
_ZEROS_AT_ONCE = 1 << 20


@dataclass(slots=True)
class Report:
    """What opening a log had to repair, for the broker's own log."""

    scanned_segments: int = 0
    truncated_bytes: int = 0
    dropped_segments: int = 0
    rebuilt: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """What the directory's checkpoints say about a partition. Without a recovery point nothing is
    known of its history: the folder is new, or from elsewhere, or the checkpoint is lost. Below
    `first_dirty_offset` it was compacted.
    """

    clean: bool
    recovery_point: int | None = None
    log_start_offset: int = 0
    first_dirty_offset: int = 0


def open_log(
    directory: str,
    topic: str,
    partition: int,
    config: TopicConfig,
    environment: LogEnvironment,
    known: Checkpointed,
) -> tuple[Log, Report]:
    """Open the log in `directory`; create the folder if needed. Its files are closed again.

    Raises OSError, and StoppedError once `environment.is_stopping` while segments are read whole.
    """
    os.makedirs(directory, exist_ok=True)
    log = Log(directory, topic, partition, config, environment)
    report = Report()
    names = _tidy(log, report)
    if topic_identity.FORMER_MARK in names:
        log.producers.go_on_from(UNKNOWN_FORMER)
    sizes = _log_sizes(log.directory, names)
    epochs_known = _load_epochs(log, known)
    former_epochs = log.epochs.entries
    segments = [Segment(directory, base, log.segment_settings()) for base in sorted(sizes)]
    torn = _load_aborted(segments, names, report)
    with _closed_on_failure(segments):
        first_dirty = _first_dirty(segments, known)
        for segment in segments[:first_dirty]:
            _open_closed(segment, sizes[segment.base_offset], names, report)
        unsure_epochs = _distrust_epochs(log, segments[first_dirty:], known)
        if 0 < first_dirty < len(segments):
            following = segments[first_dirty].base_offset
            _cut_behind_records(log, segments[first_dirty - 1], following, report)
        try:
            kept = _recover(log, segments, first_dirty, epochs_known, known, names, report)
        except StoppedError:
            if epochs_known and former_epochs:
                # By now the file may lack those that begin behind the batches read so far.
                log.epochs.replace(former_epochs)
            raise
        end = _end_of(log, kept, first_dirty, epochs_known, report)
        if not epochs_known:
            _rebuild_epochs(log, kept, report)
        _restore_last_epoch(log, unsure_epochs, end)
        _finish(log, kept, end, known, names, torn)
    for segment in log.segments:
        segment.close_files()
    return log, report


@contextlib.contextmanager
def _closed_on_failure(segments: Iterable[Segment]) -> Iterator[None]:
    """Leave no file open for a log that cannot be opened."""
    try:
        yield
    except BaseException:
        for segment in segments:
            segment.retire()
        raise


def _load_aborted(segments: list[Segment], names: Collection[str], report: Report) -> set[Segment]:
    """Load the indexes of aborted transactions; return the segments of those for which the batches
    must be read. They stay as they are until then: recovery may break off.
    """
    torn: set[Segment] = set()
    ends = [segment.base_offset for segment in segments[1:]]
    for segment, end in zip_longest(segments, ends):
        if os.path.basename(segment.aborted.path) in names:
            try:
                segment.aborted.load(segment.base_offset, end)
            except CorruptTransactionIndexError:
                report.rebuilt.append(segment.aborted.path)
                torn.add(segment)
    return torn


def _load_epochs(log: Log, known: Checkpointed) -> bool:
    """Load the leader epochs; return False when the batches must be read for them. Formats before
    0.11 carry none.
    """
    if log.config.message_magic < 2:
        log.epochs.clear()
        return True
    return log.epochs.load(durable=known.clean)


def _first_dirty(segments: list[Segment], known: Checkpointed) -> int:
    """Return the number of the first segment that has to be read whole."""
    if known.clean:
        return len(segments)
    below = sum(1 for segment in segments if segment.base_offset <= (known.recovery_point or 0))
    return max(below - 1, 0)


def _open_closed(segment: Segment, size: int, names: Collection[str], report: Report) -> None:
    segment.open(size)
    if size and any(
        file_name(segment.base_offset, suffix) not in names
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)
    ):
        report.rebuilt.append(segment.index.file.path)
        segment.rebuild_indexes()


def _distrust_epochs(log: Log, dirty: list[Segment], known: Checkpointed) -> list[tuple[int, int]]:
    """Forget the leader epochs of what is read whole, and return them: a truncation may be in the
    file and not in the log, or the other way round.

    Not where the log was compacted: the batches of an epoch may be gone from there.
    """
    if not dirty:
        return []
    return log.epochs.distrust(max(dirty[0].base_offset, known.first_dirty_offset))


def _restore_last_epoch(log: Log, forgotten: list[tuple[int, int]], end: int) -> None:
    """Take back an epoch that begins at the log end offset: its leader wrote nothing yet."""
    for epoch, offset in forgotten:
        if offset == end and epoch > log.epochs.latest:
            log.epochs.note(epoch, offset)


def _cut_behind_records(log: Log, segment: Segment, following: int, report: Report) -> None:
    """Finish the log file of a segment before the one at `following`, if only its records are on
    the disk: zeros are behind them if it was preallocated. Anything else stays: no checksum covers
    the offset that makes a batch the last one.
    """
    with contextlib.suppress(CorruptBatchError):  # readers are told of damage
        found = segment.find(following - 1)
        if found is None:
            return
        position, header = found
        end = position + header.size
        if end < segment.size and _has_only_zeros(segment, end):
            report.truncated_bytes += segment.size - end
            segment.size = end
            segment.truncate_files(following, log.now_ms())


def _has_only_zeros(segment: Segment, position: int) -> bool:
    while data := segment.read(position, _ZEROS_AT_ONCE):
        if data.count(0) < len(data):
            return False
        position += len(data)
    return True


def _recover(
    log: Log,
    segments: list[Segment],
    first: int,
    epochs_known: bool,
    known: Checkpointed,
    names: Collection[str],
    report: Report,
) -> list[Segment]:
    """Check segments from `first` on; return those that stay. Raises StoppedError."""
    sequence = BatchSequence(0)
    for number in range(first, len(segments)):
        segment = segments[number]
        cut = _check_segment(log, segment, epochs_known, sequence, log.environment.is_stopping)
        report.scanned_segments += 1
        report.truncated_bytes += cut
        if number + 1 < len(segments) and (
            cut or _lost_its_end(log, segment, segments[number + 1].base_offset, known, names)
        ):
            for doomed in reversed(segments[number + 1 :]):  # no gap if this breaks off
                doomed.retire()
                for path in doomed.paths():
                    remove_if_there(path)
                report.dropped_segments += 1
            return segments[: number + 1]
        if number + 1 < len(segments):
            # Index files are preallocated at full size. Nothing else would trim those of a closed
            # segment, and Kafka, which trusts all below the recovery point, would read the rest.
            segment.become_inactive()
    return segments


def _lost_its_end(
    log: Log, segment: Segment, following: int, known: Checkpointed, names: Collection[str]
) -> bool:
    """Return whether the records between a segment and the next one, at `following`, are missing.

    Compaction leaves gaps, too, perhaps before the topic became another, and followers copy them.
    But where a roll wrote a snapshot of the producers' state, the log had reached that offset. In
    doubt nothing is missing: else whole records would be thrown away.
    """
    return (
        known.recovery_point is not None
        and following > known.log_start_offset
        and "compact" not in log.config.cleanup_policy
        and file_name(following, SNAPSHOT_SUFFIX) in names
        and known.first_dirty_offset <= segment.next_offset() < following
    )


def _check_segment(
    log: Log,
    segment: Segment,
    note_epochs: bool,
    sequence: BatchSequence,
    is_stopping: Callable[[], bool] = lambda: False,
) -> int:
    """Cut a segment behind its last valid batch that can follow those before; return the bytes
    removed. Batches that a truncation removed may be there again behind newer ones.

    Raises StoppedError, with nothing cut.
    """

    def on_batch(position: int, header: Header, data: memoryview) -> None:
        if is_stopping():
            raise StoppedError
        if header.magic == 2:
            sequence.take(position, header)
        if note_epochs:
            log.epochs.note_batch(header.magic, header.leader_epoch, header.base_offset)

    return segment.recover(on_batch)


def _end_of(
    log: Log, segments: list[Segment], first_dirty: int, epochs_known: bool, report: Report
) -> int:
    """Return the log end offset. Recovers a last segment that is not whole in spite of a clean
    shutdown.
    """
    if not segments:
        return 0
    last = segments[-1]
    try:
        return last.next_offset()
    except CorruptBatchError:
        report.scanned_segments += 1
        report.truncated_bytes += _check_segment(log, last, epochs_known, BatchSequence(0))
        return last.next_offset()


def _rebuild_epochs(log: Log, segments: list[Segment], report: Report) -> None:
    """Read the leader epochs from all batches. The file is written once: the next start would
    believe one that has a part of them.
    """
    entries: list[tuple[int, int]] = []
    for segment in segments:
        try:
            for _, header in segment.scan(0):
                if header.magic < 2:
                    entries = []
                elif header.leader_epoch > (entries[-1][0] if entries else UNDEFINED_EPOCH):
                    entries.append((header.leader_epoch, header.base_offset))
        except CorruptBatchError:
            continue  # damage inside a closed segment is reported to its readers
    log.epochs.replace(entries)
    if segments and any(segment.size for segment in segments):
        report.rebuilt.append(log.epochs.path)


def _finish(
    log: Log,
    segments: list[Segment],
    end: int,
    known: Checkpointed,
    names: Collection[str],
    torn: set[Segment],
) -> None:
    """Set offsets, leader epochs and producers, and hand the segments to the log. Raises
    StoppedError.
    """
    start = max(known.log_start_offset, segments[0].base_offset if segments else 0)
    if not segments or end < start:
        for segment in segments:
            segment.retire()
            for path in segment.paths():
                remove_if_there(path)
        fresh = Segment(log.directory, start, log.segment_settings())
        with _closed_on_failure((fresh,)):
            fresh.create(log.preallocated_bytes)
        # Where there were no files, the next start would make these again if they were lost.
        fresh.changed = bool(segments or log.preallocated_bytes)
        segments, end = [fresh], start
    recovery_point = end if known.clean else min(max(known.recovery_point or 0, start), end)
    log.install(segments, start, end, recovery_point)
    # An epoch that begins at the log end offset is of a leader that wrote nothing yet: keep it.
    log.epochs.truncate_from_end(end + 1)
    log.epochs.truncate_from_start(start)
    now_ms = log.environment.now_ms()
    if any(segments[-1].aborted.since(end)):
        torn.add(segments[-1])
    if torn:
        replay.rebuild_aborted(segments, torn, end, log.environment.is_stopping)
    # A newer snapshot may be of records that a truncation removed.
    replay.rebuild(
        log.producers,
        log.directory,
        names,
        segments,
        start,
        end,
        now_ms,
        recovery_point,
        is_compacted="compact" in log.config.cleanup_policy or known.first_dirty_offset > 0,
        trusts_aborted=known.clean,
        is_stopping=log.environment.is_stopping,
    )


def _tidy(log: Log, report: Report) -> set[str]:
    """Remove garbage, finish swaps; return the names of the files that are left."""
    names = set(list_names(log.directory))
    left_over = sorted(name for name in names if name.endswith((*_GARBAGE, SWAP_SUFFIX)))
    for name in left_over:
        if name.endswith(_GARBAGE):
            remove_if_there(os.path.join(log.directory, name))
    for name in left_over:
        if name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            base_offset = base_offset_of(name.removesuffix(LOG_SUFFIX + SWAP_SUFFIX))
            if base_offset is not None:
                _finish_swap(log, base_offset, report)
        elif name.endswith(SWAP_SUFFIX):
            remove_if_there(os.path.join(log.directory, name))
    return set(list_names(log.directory)) if left_over else names


def _log_sizes(directory: str, names: Iterable[str]) -> dict[int, int]:
    """Return {base offset: size} of the segments; remove indexes without a log file."""
    sizes: dict[int, int] = {}
    others: list[tuple[int, str]] = []
    for name in names:
        stem, suffix = os.path.splitext(name)
        base_offset = base_offset_of(stem)
        if base_offset is None:
            continue
        if suffix == LOG_SUFFIX:
            sizes[base_offset] = os.stat(os.path.join(directory, name)).st_size
        elif suffix in SEGMENT_SUFFIXES:
            others.append((base_offset, name))
    for base_offset, name in others:
        if base_offset not in sizes:
            remove_if_there(os.path.join(directory, name))
    return sizes


def _finish_swap(log: Log, base: int, report: Report) -> None:
    """Put a compacted segment in the place of those it was made from."""
    swap = Segment(log.directory, base, log.segment_settings(), SWAP_SUFFIX)
    end = base
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
        remove_if_there(os.path.join(log.directory, file_name(base, suffix + SWAP_SUFFIX)))

    def on_batch(position: int, header: Header, data: memoryview) -> None:
        nonlocal end
        end = header.last_offset + 1

    with _closed_on_failure((swap,)):
        swap.recover(on_batch)
    for name in list_names(log.directory):
        stem, suffix = os.path.splitext(name)
        covered = base_offset_of(stem) if suffix in SEGMENT_SUFFIXES else None
        if covered is not None and base <= covered < max(end, base + 1):
            remove_if_there(os.path.join(log.directory, name))
    # A torn index of aborted transactions: the batches are read for it, by the next start if this
    # one breaks off.
    write_atomically(os.path.join(log.directory, file_name(base, TXN_INDEX_SUFFIX)), b"\0")
    swap.rename_suffix("")
    swap.retire()
    report.rebuilt.append(swap.log.path)
