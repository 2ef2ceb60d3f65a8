"""Which topics a group subscribes to, as told by its members' metadata."""

from __future__ import annotations

import struct

import pytest

from odradek.group.group import _topics


def test_topics_of_a_subscription() -> None:
    assert _topics(struct.pack(">hih3sh1s", 0, 2, 3, b"abc", 1, b"d")) == ["abc", "d"]


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"junk",
        struct.pack(">hi", 0, -1),
        struct.pack(">hih", 0, 1, 3),
        struct.pack(">hih1s", 0, 1, 1, b"\xff"),
    ],
    ids=["empty", "short", "negative count", "cut off", "not UTF-8"],
)
def test_of_another_layout_nothing_is_known(metadata: bytes) -> None:
    assert _topics(metadata) is None


def test_a_negative_length_ends_the_walk() -> None:
    """Of length -2 it would stand still, as often as the count says."""
    assert _topics(struct.pack(">hih", 0, 3, -2)) is None
