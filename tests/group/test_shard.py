"""What is read back from a partition of `__consumer_offsets`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from odradek.group import offsets as schemas
from odradek.group.offsets import Committed
from odradek.group.shard import Shard
from odradek.log import records


def shard() -> Shard:
    return Shard(SimpleNamespace(reign=0, key=SimpleNamespace(partition=0)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "bad",
    [
        (b"\x00\x09garbage", b"\x00\x03"),
        (b"\x00", b""),
        (b"\x00\x01\x00\xff", b"\x00\x03"),
        (schemas.encode_offset("g", "t", 0, None)[0], b"\x00\x03\x00"),
        (schemas.group_key("g"), b"\x00\x03\x00\x02"),
    ],
)
def test_record_that_is_not_understood_costs_no_other_one(bad: tuple[bytes, bytes]) -> None:
    good = [
        schemas.encode_offset("g", "t", partition, Committed(partition, "", 1))
        for partition in (1, 2)
    ]
    read = shard()
    assert read._take(records.make([good[0], bad, good[1]], 1), {}, 0) == 3
    assert {where: commit.offset for where, commit in read.offsets["g"].items()} == {
        ("t", 1): 1,
        ("t", 2): 2,
    }
