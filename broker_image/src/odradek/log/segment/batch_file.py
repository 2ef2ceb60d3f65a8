"""Reading of whole, checked batches from a file, for fetches, recovery and compaction.

A batch's checksum does not cover its base offset and its leader epoch, because a broker writes
them. `BatchSequence` compares those with the batches around: both only rise in a log.

A fetch needs no batch, only that all are sound. `skip_sound` says that at a third of the price
where batches are small. It stops at whatever is not plainly sound, and leaves the verdict to
`whole_batches`.
"""

import os
import threading
from collections.abc import Iterator

from crc32c import crc32c

from odradek.log.records import batch
from odradek.log.records.batch import CorruptBatchError, Header
from odradek.log.segment.files import read_exactly

_FIRST_CHUNK = 1 << 16
_CHUNK = 1 << 20
_OWN_CHUNK = 1 << 18


class _OwnBuffer(threading.local):
    """Memory of each thread that its reads use again, so that none waits for new pages."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_OWN_CHUNK))


_own_buffer = _OwnBuffer()


class CutOffError(CorruptBatchError):
    """A batch that goes on behind the end of what is to be read."""


class OutOfOrderError(CorruptBatchError):
    """A batch that cannot follow the one before; either may be the damaged one."""


class BatchSequence:
    """What the batches so far demand of the next one."""

    __slots__ = ("leader_epoch", "next_offset")

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self.leader_epoch = batch.NO_EPOCH

    def take(self, position: int, header: Header) -> None:
        """Raise OutOfOrderError when the batch at `position` cannot follow those before.

        Older formats have no epoch, and a log may change its format to an older one.
        """
        if header.base_offset < self.next_offset:
            raise OutOfOrderError(
                position, f"offset {header.base_offset} where {self.next_offset} is next"
            )
        if header.magic == 2:
            if header.leader_epoch < self.leader_epoch:
                raise OutOfOrderError(
                    position, f"leader epoch {header.leader_epoch} after {self.leader_epoch}"
                )
            self.leader_epoch = header.leader_epoch
        self.next_offset = header.last_offset + 1


def whole_batches(
    fd: int, end: int, start: int = 0, at_once: int = _CHUNK
) -> Iterator[tuple[memoryview, Header]]:
    """Yield each batch of the file's bytes from `start` to `end` with its header. Reads `at_once`
    bytes, and more only where a batch is longer.

    Raises CorruptBatchError at the first batch that is not sound, CutOffError where that goes over
    `end`. Positions count from the start of the file.
    """
    position, chunk = start, min(_FIRST_CHUNK, at_once)
    data, data_start = memoryview(b""), start
    while position < end:
        at = position - data_start
        try:
            header = batch.parse(data, at)
        except CorruptBatchError as error:
            if len(data) - at >= min(batch.HEADER_SIZE, end - position):
                kind = CutOffError if end - position < batch.HEADER_SIZE else CorruptBatchError
                raise kind(position, error.reason) from None
            size = batch.HEADER_SIZE
        else:
            size = header.size
            if position + size > end:
                raise CutOffError(position, f"batch of {size} bytes cut off at {end}")
            if at + size <= len(data):
                try:
                    batch.check_crc(data, at, header)
                except CorruptBatchError as error:
                    raise CorruptBatchError(position, error.reason) from None
                yield data[at : at + size], header
                position += size
                continue
        data = memoryview(read_exactly(fd, min(max(chunk, size), end - position), position))
        data_start, chunk = position, at_once
        if len(data) < min(size, end - position):
            raise CutOffError(position, f"the file ends at {position + len(data)}")


def skip_sound(fd: int, end: int, start: int, sequence: BatchSequence) -> tuple[int, int]:
    """Return where the last sound batch begins from `start` on, and where it ends: each so far is
    of magic 2, whole before `end`, with the right checksum, and has been taken by `sequence`. Both
    are `start` if the first batch is none.

    What is there instead, `whole_batches` says. Raises OSError.
    """
    buffer = _own_buffer.view
    unpack, header_size = batch.SEQUENCE.unpack_from, batch.HEADER_SIZE
    next_offset, leader_epoch = sequence.next_offset, sequence.leader_epoch
    before = position = start
    while position < end:
        length = os.preadv(fd, (buffer[: end - position],), position)
        at = 0
        while length - at >= header_size:
            base_offset, size, epoch, magic, crc, last_delta = unpack(buffer, at)
            behind = at + size + batch.LOG_OVERHEAD
            if (
                magic != 2
                or not at + header_size <= behind <= length
                or base_offset < next_offset
                or epoch < leader_epoch
                or last_delta < 0
                or crc32c(buffer[at + batch.CRC_START : behind]) != crc
            ):
                break
            next_offset, leader_epoch = base_offset + last_delta + 1, epoch
            before, at = position + at, behind
        if not at:
            break
        position += at
    sequence.next_offset, sequence.leader_epoch = next_offset, leader_epoch
    return before, position
