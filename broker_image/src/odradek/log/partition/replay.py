"""Producer state from files: the newest usable snapshot, then the headers of later batches."""

from collections.abc import Callable, Iterable, Sequence

from odradek.log.partition.producers import (
    CorruptSnapshotError,
    ProducerStates,
    snapshot_offsets,
    snapshot_path,
)
from odradek.log.records import contents
from odradek.log.records.batch import Header
from odradek.log.records.contents import Marker
from odradek.log.segment.files import StoppedError, read_file, remove_if_there
from odradek.log.segment.segment import Segment
from odradek.log.segment.transaction_index import AbortedTxn


def rebuild(
    states: ProducerStates,
    directory: str,
    names: Iterable[str],
    segments: Sequence[Segment],
    log_start: int,
    log_end: int,
    now_ms: int,
    newest_snapshot: int,
    *,
    trusts_aborted: bool = True,
    is_stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Replace `states` by what `segments` say up to `log_end`, in one step; `names` are the files
    of the directory. What the segments' indexes of aborted transactions lack of that is added.
    Without `trusts_aborted`, what they say of later batches than the snapshot does not count: it
    may be of batches that a crash undid.

    Snapshots outside (log start offset, `newest_snapshot`] and damaged ones are removed. Raises
    CorruptBatchError and OSError, and StoppedError once `is_stopping`.
    """
    rebuilt = states.emptied()
    rebuilt.clear(log_start)
    for at in reversed(snapshot_offsets(names)):
        path = snapshot_path(directory, at)
        if log_start < at <= newest_snapshot and rebuilt.snapshot_offset < 0:
            try:
                rebuilt.load(read_file(path), at, now_ms)
                continue
            except CorruptSnapshotError:
                pass
        elif log_start < at <= newest_snapshot:
            continue
        remove_if_there(path)
    if rebuilt.snapshot_offset >= 0 and not rebuilt.forgetful:
        # A snapshot lacks producers that expired before it: possible once the log is that old.
        oldest = next((header for _, header in segments[0].scan(0)), None)
        age_ms = 0 if oldest is None else now_ms - oldest.max_timestamp
        rebuilt.forgetful = age_ms >= rebuilt.expiry_ms
    if not trusts_aborted:
        for segment in segments:
            segment.aborted.truncate_to(rebuilt.end_offset)
    _replay(
        rebuilt,
        segments,
        log_end,
        lambda segment, found: segment.aborted.append(found),
        is_stopping,
    )
    rebuilt.end_offset = log_end
    rebuilt.forget_deleted(log_start)
    rebuilt.expire(now_ms)
    states.become(rebuilt)


def rebuild_aborted(
    segments: Sequence[Segment], log_end: int, is_stopping: Callable[[], bool]
) -> None:
    """Make the indexes of aborted transactions anew, durably, from the headers of all batches.

    Raises CorruptBatchError and OSError, and StoppedError, with nothing changed.
    """
    found: dict[Segment, list[AbortedTxn]] = {segment: [] for segment in segments}
    states = ProducerStates(expiry_ms=0)
    _replay(states, segments, log_end, lambda segment, one: found[segment].append(one), is_stopping)
    for segment, of_segment in found.items():
        segment.aborted.replace(of_segment)


def _replay(
    states: ProducerStates,
    segments: Sequence[Segment],
    log_end: int,
    note_aborted: Callable[[Segment, AbortedTxn], None],
    is_stopping: Callable[[], bool],
) -> None:
    start = states.end_offset
    for number, segment in enumerate(segments):
        following = segments[number + 1].base_offset if number + 1 < len(segments) else log_end
        if following <= start or segment.size == 0:
            continue
        first = segment.find(start)
        if first is None:
            continue
        for position, header in segment.scan(first[0]):
            if is_stopping():
                raise StoppedError
            if header.producer_id >= 0 and header.last_offset >= start:
                marker = _marker_of(segment, position, header)
                aborted = states.aborted_by(header, header.last_offset, marker)
                if aborted is not None:
                    note_aborted(segment, aborted)
                states.update(header, marker)
                # What has ended is decided, whoever leads next: its coordinator goes on until all
                # replicas have the marker. There may be too many to keep.
                states.transactions.forget_replicated(header.last_offset + 1)


def _marker_of(segment: Segment, position: int, header: Header) -> Marker | None:
    """Return the marker of a control batch on disk, None for a data batch."""
    if not header.is_control:
        return None
    return contents.marker_of(header, segment.read(position, header.size))
