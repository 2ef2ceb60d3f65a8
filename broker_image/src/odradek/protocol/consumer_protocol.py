"""What consumers hide from their coordinator: the bytes of an assignment."""

from __future__ import annotations

import struct

from odradek.values import TopicPartition


def assigned(data: bytes) -> tuple[TopicPartition, ...]:
    """Return the partitions of a consumer's assignment, none for other protocol types."""
    found = []
    try:
        (topics,) = struct.unpack_from(">i", data, 2)
        position = 6
        for _ in range(topics):
            (length,) = struct.unpack_from(">h", data, position)
            topic = data[position + 2 : position + 2 + length].decode()
            position += 2 + length
            (count,) = struct.unpack_from(">i", data, position)
            numbers = struct.unpack_from(f">{max(count, 0)}i", data, position + 4)
            position += 4 + 4 * count
            found += [TopicPartition(topic, number) for number in numbers]
    except (struct.error, UnicodeDecodeError):
        return ()
    return tuple(sorted(found))
