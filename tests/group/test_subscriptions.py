"""Which topics a group subscribes to, as told by its members' metadata."""

from __future__ import annotations

import struct

import pytest

from odradek.group.states import GroupState
from odradek.protocol.consumer_protocol import MOST_SUBSCRIBED_TOPICS, subscribed
from odradek.protocol.errors import ErrorCode
from tests.group.test_commit_order import subscription
from tests.group.test_group import World


def test_topics_of_a_subscription() -> None:
    assert subscribed(struct.pack(">hih3sh1s", 0, 2, 3, b"abc", 1, b"d")) == ["abc", "d"]


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
    assert subscribed(metadata) is None


def test_a_negative_length_ends_the_walk() -> None:
    """Of length -2 it would stand still, as often as the count says."""
    assert subscribed(struct.pack(">hih", 0, 3, -2)) is None


def test_more_topics_than_a_group_can_keep_are_not_read() -> None:
    """Their names may be of no bytes: a request would make the loop read 50 million of them."""
    most = MOST_SUBSCRIBED_TOPICS
    assert subscribed(struct.pack(">hi", 0, most) + bytes(2 * most)) == [""] * most
    assert subscribed(struct.pack(">hi", 0, most + 1) + bytes(2 * most + 2)) is None


def test_a_group_reads_what_the_members_of_its_last_generation_read() -> None:
    world = World(delay_ms=10)
    assert world.group.subscribed_topics() == frozenset()
    world.join("a", protocols=(("range", subscription("t")),))
    assert world.group.subscribed_topics() is None, "before the first generation"
    world.advance(10)
    assert world.group.subscribed_topics() == frozenset({"t"})
    world.sync("a", {})
    world.join("b", protocols=(("range", subscription("u")),))
    assert world.group.state is GroupState.PREPARING_REBALANCE
    assert world.group.subscribed_topics() == frozenset({"t"})
    world.join("a", world.id_of("a"), protocols=(("range", subscription("t", "v")),))
    assert world.group.subscribed_topics() == frozenset({"t", "u", "v"})


def test_a_group_that_was_empty_reads_nothing_until_its_next_generation() -> None:
    world = World(delay_ms=10)
    world.join("a", protocols=(("range", subscription("t")),))
    world.advance(10)
    assert world.group.leave(world.id_of("a"), None, world.now) is ErrorCode.NONE
    assert world.group.subscribed_topics() == frozenset()
    world.join("b", protocols=(("range", subscription("u")),))
    assert world.group.state is GroupState.PREPARING_REBALANCE
    assert world.group.subscribed_topics() == frozenset()
    world.advance(10)
    assert world.group.subscribed_topics() == frozenset({"u"})


def test_of_groups_of_another_protocol_nobody_can_tell_what_they_read() -> None:
    world = World()
    world.join("a", protocol_type="connect", protocols=(("range", subscription("t")),))
    assert world.group.state is GroupState.COMPLETING_REBALANCE
    assert world.group.subscribed_topics() is None
