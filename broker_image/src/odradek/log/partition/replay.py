"""Producer state from files: the newest usable snapshot, then the headers of later batches."""

import contextlib
import logging
from collections.abc import Callable, Container, Iterable, Sequence

from odradek.log.partition.producers import (
    CorruptSnapshotError,
    ProducerStates,
    snapshot_offsets,
    snapshot_path,
)
from odradek.log.records import batch, contents
from odradek.log.records.batch import CorruptBatchError, Header
from odradek.log.records.contents import Marker
from odradek.log.segment.files import StoppedError, read_file, remove_if_there
from odradek.log.segment.segment import Segment
from odradek.log.segment.transaction_index import AbortedTxn

logger = logging.getLogger(__name__)


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
    is_compacted: bool,
    trusts_aborted: bool = True,
    is_stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Replace `states` by what `segments` say up to `log_end`, in one step; `names` are the files
    of the directory. What the segments' indexes of aborted transactions lack of that is added.
    Without `trusts_aborted`, what they say of later batches than the snapshot does not count: it
    may be of batches that a crash undid. Damaged batches are passed over.

    With `is_compacted` the batches of a producer that wrote may be gone, and the snapshot may lack
    it: it had expired. So it is where offsets are missing, perhaps because of a former policy; with
    a snapshot, that is looked for before the first batch and behind the snapshot only.

    Snapshots outside (log start offset, `newest_snapshot`] and damaged ones are removed. Raises
    OSError, and StoppedError once `is_stopping`.
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
    if is_compacted and log_end > log_start:
        rebuilt.forgetful = True
    if rebuilt.snapshot_offset >= 0 and not rebuilt.forgetful:
        # A snapshot lacks producers that expired before it: possible once the log is that old, or
        # where compaction left nothing of them.
        oldest_ms = segments[0].first_timestamp() if segments[0].size else now_ms
        rebuilt.forgetful = (
            now_ms - oldest_ms >= rebuilt.expiry_ms or _first_offset(segments) > log_start
        )
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
    segments: Sequence[Segment],
    torn: Container[Segment],
    log_end: int,
    is_stopping: Callable[[], bool],
) -> None:
    """Make the indexes of aborted transactions of `torn` anew, durably, from the headers of the
    batches of all `segments`.

    Raises OSError, and StoppedError, with nothing changed.
    """
    found: dict[Segment, list[AbortedTxn]] = {segment: [] for segment in segments}
    states = ProducerStates(expiry_ms=0)
    _replay(states, segments, log_end, lambda segment, one: found[segment].append(one), is_stopping)
    for segment, of_segment in found.items():
        if segment in torn:
            segment.aborted.replace(of_segment)


def _replay(
    states: ProducerStates,
    segments: Sequence[Segment],
    log_end: int,
    note_aborted: Callable[[Segment, AbortedTxn], None],
    is_stopping: Callable[[], bool],
) -> None:
    start = expected = states.end_offset
    for number, segment in enumerate(segments):
        following = segments[number + 1].base_offset if number + 1 < len(segments) else log_end
        if following <= start or segment.size == 0:
            continue
        for position, header in segment.scan_past_damage(start):
            if is_stopping():
                raise StoppedError
            if header is None:
                _note_damage(states, segment, position)
                continue
            if header.base_offset > expected:
                # Compaction removed batches, perhaps under a former cleanup.policy.
                states.forgetful = True
            expected = max(expected, header.last_offset + 1)
            if header.producer_id >= 0 and header.last_offset >= start:
                try:
                    marker = _marker_of(segment, position, header)
                except CorruptBatchError:
                    _note_damage(states, segment, position)
                    continue
                aborted = states.aborted_by(header, header.last_offset, marker)
                if aborted is not None:
                    note_aborted(segment, aborted)
                states.update(header, marker)
                # What has ended is decided, whoever leads next: its coordinator goes on until all
                # replicas have the marker. There may be too many to keep.
                states.transactions.forget_replicated(header.last_offset + 1)


def _first_offset(segments: Sequence[Segment]) -> int:
    """Return the offset of the first batch, that of its segment where the batch is damaged."""
    first = next((segment for segment in segments if segment.size), segments[0])
    with contextlib.suppress(CorruptBatchError):
        for _, header in first.scan(0):
            return header.base_offset
    return first.base_offset


def _marker_of(segment: Segment, position: int, header: Header) -> Marker | None:
    """Return the marker of a control batch on disk, None for a data batch. Raises
    CorruptBatchError.
    """
    if not header.is_control:
        return None
    data = segment.read(position, header.size)
    batch.check_crc(data, 0, header)
    return contents.marker_of(header, data)


def _note_damage(states: ProducerStates, segment: Segment, position: int) -> None:
    """Readers get no batch of the damaged part. A transaction whose marker may be there stays open
    until its producer's next marker, or until its records are deleted: better than to show records
    of which nobody knows whether they are committed.
    """
    states.forgetful = True
    logger.warning(
        "%s: batches at position %d are damaged: failed to read what their producers did",
        segment.log.path,
        position,
    )
