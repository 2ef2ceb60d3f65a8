"""Messages as values: what `dataclass` would give them is made when it is first used."""

from __future__ import annotations

import dataclasses

import pytest

from odradek.protocol.schema import array, int32, message, string, struct


@struct
class Inner:
    """A structure."""

    number: int = int32()


@message(versions=(0, 1))
class Outer:
    """A message."""

    name: str = string()
    count: int = int32(default=7)
    inner: list[Inner] = array(Inner, default_factory=list)


def test_fields_have_their_defaults_and_lists_of_their_own() -> None:
    one, other = Outer(name="a"), Outer(name="a")
    assert (one.name, one.count, one.inner) == ("a", 7, [])
    assert one.inner is not other.inner


def test_equal_messages_are_of_one_class_with_equal_fields() -> None:
    one = Outer(name="a", inner=[Inner(number=1)])
    assert one == Outer(name="a", inner=[Inner(number=1)])
    assert one != Outer(name="a", inner=[Inner(number=2)])
    assert one.__eq__("a") is NotImplemented
    assert dataclasses.replace(one, count=8) == Outer(name="a", count=8, inner=one.inner)


def test_messages_are_shown_with_their_fields_and_have_no_hash() -> None:
    assert repr(Outer(name="a", count=1)) == "Outer(name='a', count=1, inner=[])"
    with pytest.raises(TypeError, match="unhashable"):
        hash(Outer(name="a"))


@pytest.mark.parametrize("values", [{}, {"name": "a", "other": 1}])
def test_missing_and_unknown_fields_are_errors(values: dict[str, object]) -> None:
    for _ in range(2):  # the first use of the class, and a later one
        with pytest.raises(TypeError, match="argument"):
            Outer(**values)  # type: ignore[arg-type]
