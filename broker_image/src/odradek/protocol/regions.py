"""The parts of an encoded answer: bytes, and file regions for sendfile.

A fetch answer holds its records as `FileRegion`s. The codec writes only their length; whoever sends
the answer moves the payload from the page cache to the socket and closes each region exactly once,
also when the peer has gone away in between.
"""

from collections.abc import Iterable
from typing import Final, Protocol, TypeAlias, runtime_checkable


@runtime_checkable
class FileRegion(Protocol):
    """`length` bytes of the open file `fd` from byte `position` on."""

    @property
    def fd(self) -> int:
        """File descriptor, readable until `close()`."""

    @property
    def position(self) -> int:
        """First byte of the region, counted from the start of the file."""

    @property
    def length(self) -> int:
        """Return the number of bytes in the region; the file has all of them."""

    def close(self) -> None:
        """Let go of the file; called exactly once by the last owner."""


# Record batches as they lie in memory: the slice of a request frame, or bytes somebody made.
Buffer: TypeAlias = bytes | bytearray | memoryview
Records: TypeAlias = Buffer | FileRegion
# A piece of an encoded message, in the order of the wire.
Part: TypeAlias = bytes | bytearray | memoryview | FileRegion


# The parts that are not file regions; isinstance takes a tuple twice as fast as a union.
IN_MEMORY: Final = (bytes, bytearray, memoryview)


def part_length(part: Part) -> int:
    """Return how many bytes `part` has on the wire."""
    return len(part) if isinstance(part, IN_MEMORY) else part.length


def total_length(parts: Iterable[Part]) -> int:
    """Return how many bytes `parts` have on the wire."""
    return sum(map(part_length, parts))


def close_all(parts: Iterable[Part]) -> None:
    """Close every file region among `parts`, for answers that are never sent."""
    for part in parts:
        if not isinstance(part, IN_MEMORY):
            part.close()
