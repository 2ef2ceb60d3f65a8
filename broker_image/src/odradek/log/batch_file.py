"""Reading whole batches from a file, each checked to the last byte: recovery and compaction."""

from collections.abc import Iterator

from odradek.log import batch
from odradek.log.batch import CorruptBatchError, Header
from odradek.log.files import read_exactly

_CHUNK = 1 << 20


def whole_batches(fd: int, end: int) -> Iterator[tuple[memoryview, Header]]:
    """Yield each batch of a file with its header, checksum verified, until the first that is not
    sound.
    """
    position = 0
    data, start = b"", 0
    while position < end:
        at = position - start
        header: Header | None
        try:
            header = batch.parse(data, at)
            whole = at + header.size <= len(data)
        except CorruptBatchError:
            header, whole = None, False
        if not whole:
            if header is not None and position + header.size > end:
                return
            want = max(_CHUNK, header.size if header is not None else 0)
            if at == 0 and len(data) >= min(want, end - position):
                return
            data, start = read_exactly(fd, want, position), position
            continue
        assert header is not None
        try:
            batch.check_crc(data, at, header)
        except CorruptBatchError:
            return
        yield memoryview(data)[at : at + header.size], header
        position += header.size
