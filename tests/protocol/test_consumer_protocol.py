"""The assignments of consumers, which their leader may fill with any bytes."""

from __future__ import annotations

import struct

import pytest

from odradek.protocol.consumer_protocol import assigned
from odradek.values import TopicPartition

MOST = 2**31 - 1


def test_partitions_of_an_assignment_are_told_in_order() -> None:
    data = struct.pack(">hih1siiih1sii", 0, 2, 1, b"b", 2, 7, 3, 1, b"a", 1, 0)
    wanted = [("a", 0), ("b", 3), ("b", 7)]
    assert assigned(data) == tuple(TopicPartition(*one) for one in wanted)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"junk",
        struct.pack(">hih1si", 0, 1, 1, b"a", MOST),
        struct.pack(">hih1sii", 0, 1, 1, b"\xff", 1, 0),
        # These would stand still, as often as the number of topics says.
        struct.pack(">hih2si", 0, MOST, 2, b"ab", -2),
        struct.pack(">hihih", 0, MOST, 0, 0, -6),
    ],
    ids=["empty", "short", "cut off", "not UTF-8", "negative count", "negative length"],
)
def test_of_other_bytes_nothing_is_known(data: bytes) -> None:
    assert assigned(data) == ()
