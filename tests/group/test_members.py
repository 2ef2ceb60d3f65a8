"""The counts that a group keeps of its members."""

from __future__ import annotations

from odradek.group.members import GroupMember, Members, Protocols


def member(protocols: Protocols) -> GroupMember:
    return GroupMember("m", None, "client", "/host", 10_000, 60_000, "consumer", protocols, 0)


def test_strategies_that_no_member_supports_are_forgotten() -> None:
    members = Members()
    one = member((("first", b""),))
    members.add(one)
    for number in range(3):
        members.set_protocols(one, ((f"made up {number}", b""),))
    assert members.all_support("made up 2")
    assert [*members._supporters] == ["made up 2"]
    members.remove(one)
    assert not members._supporters
