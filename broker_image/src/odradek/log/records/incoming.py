"""A follower's received batches: checked, and split into runs that fit into one segment."""

from collections.abc import Iterator, Sequence

from odradek.log.records import batch
from odradek.log.records.batch import CorruptBatchError, Header
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.regions import Buffer

Batches = Sequence[tuple[int, Header]]


def checked(data: Buffer) -> Batches:
    """Return the whole batches of a leader's bytes. Raises KafkaError CORRUPT_MESSAGE for a wrong
    checksum, or offsets that do not rise.
    """
    expected = -1
    try:
        batches = list(batch.scan(data))
        for position, header in batches:
            batch.check_crc(data, position, header)
            if header.base_offset < expected:
                raise CorruptBatchError(position, f"offset {header.base_offset} goes back")
            expected = header.last_offset + 1
    except CorruptBatchError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    return batches


def have_gaps(batches: Batches, expected: int) -> bool:
    """Return whether offsets are missing between batches, or from `expected` to the first one."""
    for _, header in batches:
        if header.base_offset > expected:
            return True
        expected = header.last_offset + 1
    return False


def runs(batches: Batches, segment_bytes: int) -> Iterator[Batches]:
    """Yield runs of batches that fit into one segment each, in size and in offsets."""
    run: list[tuple[int, Header]] = []
    size = 0
    for entry in batches:
        header = entry[1]
        far = run and header.last_offset - run[0][1].base_offset > 2**31 - 1
        if run and (size + header.size > segment_bytes or far):
            yield run
            run, size = [], 0
        run.append(entry)
        size += header.size
    if run:
        yield run
