"""What a segment keeps of a batch that is written to it."""

from typing import TypeAlias

from odradek.log.records.batch import LOG_OVERHEAD, Header

Placed: TypeAlias = tuple[int, int, int, int, int]
"""Position within the buffers, size, first and last offset, and largest timestamp (ms) of a batch.
A plain tuple, whose fields are unpacked: every append makes one.
"""


def placed(position: int, header: Header) -> Placed:
    """Return what a segment keeps of the batch at a position within the buffers."""
    base_offset, length, _, _, _, _, last_offset_delta, _, max_timestamp, *_ = header
    last_offset = base_offset + last_offset_delta
    return position, length + LOG_OVERHEAD, base_offset, last_offset, max_timestamp
