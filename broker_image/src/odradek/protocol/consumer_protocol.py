"""What consumers hide from their coordinator: the bytes of subscriptions and assignments."""

from __future__ import annotations

import struct

from odradek.values import TopicPartition

# The record of a group, by default 1 MB at most, has room for so many names of eight bytes.
# Metadata may announce any number, of names without a byte.
MOST_SUBSCRIBED_TOPICS = 100_000


def subscribed(metadata: bytes) -> list[str] | None:
    """Return the topics of a consumer's subscription: i16 version, then an array of strings; None
    for another layout, and for more than MOST_SUBSCRIBED_TOPICS.
    """
    try:
        (count,) = struct.unpack_from(">i", metadata, 2)
        if not 0 <= count <= MOST_SUBSCRIBED_TOPICS:
            return None
        position, topics = 6, []
        for _ in range(count):
            (length,) = struct.unpack_from(">h", metadata, position)
            position += 2
            # A negative length would lead back: a few bytes could keep the loop busy for minutes.
            if not 0 <= length <= len(metadata) - position:
                return None
            topics.append(metadata[position : position + length].decode())
            position += length
    except (struct.error, UnicodeDecodeError):
        return None
    return topics


def assigned(data: bytes) -> tuple[TopicPartition, ...]:
    """Return the partitions of a consumer's assignment, none for other protocol types."""
    found = []
    try:
        (topics,) = struct.unpack_from(">i", data, 2)
        position = 6
        for _ in range(topics):
            (length,) = struct.unpack_from(">h", data, position)
            # What is negative would lead back: a few bytes could keep the loop busy for minutes.
            if length < 0:
                return ()
            topic = data[position + 2 : position + 2 + length].decode()
            position += 2 + length
            (count,) = struct.unpack_from(">i", data, position)
            if count < 0:
                return ()
            numbers = struct.unpack_from(f">{count}i", data, position + 4)
            position += 4 + 4 * count
            found += [TopicPartition(topic, number) for number in numbers]
    except (struct.error, UnicodeDecodeError):
        return ()
    return tuple(sorted(found))
