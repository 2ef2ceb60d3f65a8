"""Verification of bytes on the disk before they are served.

A batch's checksum covers its content, not its base offset and leader epoch. Those are compared with
the batch before and the batch after. In a compacted log a reader may find no batch at the offset it
asked for; the verified batches before the gap prove that none is missing.
"""

from typing import NamedTuple

from odradek.log.records import batch
from odradek.log.records.batch import CorruptBatchError, Header
from odradek.log.segment import batch_file
from odradek.log.segment.batch_file import BatchSequence, CutOffError, OutOfOrderError
from odradek.log.segment.files import read_exactly
from odradek.log.segment.segment import Segment


class WrongIndexError(Exception):
    """The index led past a batch that it should have led to; the log itself is sound there."""


class UnverifiedRange(NamedTuple):
    """Bytes of a segment that answer a read from `offset`: from `position` to `end`.

    Where the segment ends before `offset` is reached, both are its size. `size` is the published
    size of the segment, `before` and `after` are its neighbours, `next_base` is the base offset of
    what follows it.
    """

    segment: Segment
    offset: int
    position: int
    end: int
    size: int
    next_base: int
    before: Segment | None
    after: Segment | None


def damage(unverified: UnverifiedRange) -> tuple[int, CorruptBatchError | None]:
    """Return up to which position the whole batches of the range are sound, and what is wrong
    there.

    Raises WrongIndexError, OSError, and FileRetiredError.
    """
    segment, position, end = unverified.segment, unverified.position, unverified.end
    fd = segment.log.acquire()
    try:
        try:
            sequence = _sequence_at(fd, unverified)
        except CorruptBatchError as error:
            return position, error
        before, position = batch_file.skip_sound(fd, end, position, sequence)
        try:
            for data, header in batch_file.whole_batches(fd, end, position):
                sequence.take(position, header)
                before, position = position, position + len(data)
            _check_following(fd, unverified, position, sequence)
        except CutOffError as error:
            if end >= unverified.size:
                return position, error
            if position == unverified.position:
                return end, None  # less than one batch: no reader takes it for one
            return _cut_off(fd, unverified, before, position, sequence)
        except OutOfOrderError as error:
            return before, error
        except CorruptBatchError as error:
            return position, error
        return end, None
    finally:
        segment.log.release()


def _cut_off(
    fd: int, unverified: UnverifiedRange, before: int, position: int, sequence: BatchSequence
) -> tuple[int, CorruptBatchError | None]:
    """As `damage`, for a range that ends inside a batch."""
    try:
        _check_following(fd, unverified, position, sequence)
    except OutOfOrderError as error:
        return before, error
    return unverified.end, None


def _check_following(
    fd: int, unverified: UnverifiedRange, position: int, sequence: BatchSequence
) -> None:
    """Compare the last batch, which ends at `position`, with the batch after it."""
    size, next_base, after = unverified.size, unverified.next_base, unverified.after
    if position >= size and sequence.next_offset > next_base:
        raise OutOfOrderError(
            position, f"the segment reaches {sequence.next_offset}, the next is {next_base}"
        )
    try:
        if position < size:
            following = _header(fd, position)
        elif after is not None and after.size:
            following = batch.parse(after.read(0, batch.HEADER_SIZE))
        else:
            return
    except CorruptBatchError:
        return  # reported to the reader of that batch
    sequence.take(position, following)


def _header(fd: int, position: int) -> Header:
    try:
        return batch.parse(read_exactly(fd, batch.HEADER_SIZE, position))
    except CorruptBatchError as error:
        raise CorruptBatchError(position, error.reason) from None


def _sequence_at(fd: int, unverified: UnverifiedRange) -> BatchSequence:
    """Return what the batches before the range demand of its first batch.

    Raises CorruptBatchError when no batch begins at the offset asked for, and damage before may be
    the reason.
    """
    at_end = unverified.position >= unverified.size
    if at_end or _header(fd, unverified.position).base_offset > unverified.offset:
        return _sequence_behind_gap(fd, unverified)
    segment = unverified.segment
    sequence = BatchSequence(segment.base_offset)
    if unverified.position == 0:
        sequence.leader_epoch = _last_epoch(unverified.before)
        return sequence
    start = segment.index.before(unverified.offset)
    try:
        for at, header in segment.scan(start, unverified.position):
            try:
                sequence.take(at, header)
            except OutOfOrderError:
                sequence = BatchSequence(segment.base_offset)
                sequence.take(at, header)
    except CorruptBatchError:
        return BatchSequence(segment.base_offset)  # damaged, but not asked for
    return sequence


def _last_epoch(segment: Segment | None) -> int:
    """Return the leader epoch of a segment's last batch, -1 when it is not known."""
    epoch = batch.NO_EPOCH
    if segment is not None:
        try:
            for _, header in segment.scan(segment.index.last()[1]):
                epoch = header.leader_epoch
        except CorruptBatchError:
            return batch.NO_EPOCH
    return epoch


def _sequence_behind_gap(fd: int, unverified: UnverifiedRange) -> BatchSequence:
    """As `_sequence_at`, where the batches before end below the offset asked for. They must be
    sound, or else a batch may be missing.
    """
    segment = unverified.segment
    wrong: CorruptBatchError | None = None
    for start in (segment.index.before(unverified.offset), 0):
        sequence, at, reached = BatchSequence(segment.base_offset), start, False
        try:
            for data, header in batch_file.whole_batches(fd, unverified.position, max(start, 0)):
                sequence.take(at, header)
                at += len(data)
                reached = reached or header.last_offset >= unverified.offset
        except CorruptBatchError as error:
            wrong = error
            continue
        if reached or wrong is not None or at != unverified.position:
            raise WrongIndexError(segment.index.file.path)
        return sequence
    assert wrong is not None
    raise wrong
