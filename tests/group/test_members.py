"""What is counted along of a group's members."""

from __future__ import annotations

from odradek.group.members import Member, Members, Protocols


def member(protocols: Protocols) -> Member:
    return Member("m", None, "client", "/host", 10_000, 60_000, "consumer", protocols, 0)


def test_nothing_is_kept_of_strategies_that_no_member_knows_any_more() -> None:
    members = Members()
    one = member((("first", b""),))
    members.add(one)
    for number in range(3):
        members.set_protocols(one, ((f"made up {number}", b""),))
    assert members.all_know("made up 2")
    assert [*members._knowing] == ["made up 2"]
    members.drop(one)
    assert not members._knowing
