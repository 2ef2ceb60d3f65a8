"""The partition of a key, as Java's producer and all that follow it choose it. Pure."""

from __future__ import annotations

from typing import Final

_MASK: Final = 0xFFFFFFFF
_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key in a topic of so many partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """Return MurmurHash2 with the seed of Kafka's producer (org.apache.kafka.common.utils.Utils).

    The result is unsigned, Java's is the same in 32 bits.
    """
    value = _SEED ^ len(data)
    whole = len(data) & ~3
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little")
        word = word * _MULTIPLIER & _MASK
        word ^= word >> 24
        value = (value * _MULTIPLIER & _MASK) ^ (word * _MULTIPLIER & _MASK)
    if rest := data[whole:]:
        value = (value ^ int.from_bytes(rest, "little")) * _MULTIPLIER & _MASK
    value ^= value >> 13
    value = value * _MULTIPLIER & _MASK
    return value ^ value >> 15
