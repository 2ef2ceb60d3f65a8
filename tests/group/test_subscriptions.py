"""Which topics a group subscribes to, as told by its members' metadata."""

from __future__ import annotations

import struct

from odradek.group.group import _topics


def test_topics_of_a_subscription() -> None:
    assert _topics(struct.pack(">hih3sh1s", 0, 2, 3, b"abc", 1, b"d")) == ["abc", "d"]


def test_a_negative_length_ends_the_walk() -> None:
    """Of length -2 it would stand still, as often as the count says."""
    assert _topics(struct.pack(">hih", 0, 3, -2)) == []
