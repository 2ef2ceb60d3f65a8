"""`__consumer_offsets` has Kafka's bytes, and groups have Kafka's partitions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.coordination.partitioning import java_hash, partition_of
from odradek.group import offsets
from odradek.group.group import Group
from odradek.group.members import GroupMember
from odradek.group.offsets import CommittedOffset, GroupKey, OffsetKey

TEXT = st.text(max_size=20)
LONG = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize(
    ("text", "hashed"),
    [
        ("", 0),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),
        ("\U0001f600", 1772899),
    ],
)
def test_hash_equals_javas(text: str, hashed: int) -> None:
    assert java_hash(text) == hashed


def test_least_hash_maps_to_partition_0() -> None:
    assert partition_of("polygenelubricants", 50) == 0
    assert partition_of("hello", 50) == 22


def test_committed_offset_has_kafkas_bytes() -> None:
    key, value = offsets.encode_offset("g", "t", 3, CommittedOffset(7, "m", 1000, 5))
    assert key == b"\x00\x01" + b"\x00\x01g" + b"\x00\x01t" + b"\x00\x00\x00\x03"
    assert value == (
        b"\x00\x03" + (7).to_bytes(8, "big") + (5).to_bytes(4, "big") + b"\x00\x01m"
        + (1000).to_bytes(8, "big")
    )  # fmt: skip


def test_commit_with_its_own_expiry_is_written_in_version_1() -> None:
    _, value = offsets.encode_offset("g", "t", 0, CommittedOffset(7, "", 1000, -1, 2000))
    assert value is not None
    assert value[:2] == b"\x00\x01"
    assert offsets.decode_offset(value).expires_ms == 2000


@given(TEXT, TEXT, st.integers(0, 2**31 - 1), LONG, TEXT, LONG)
def test_offsets_survive_the_round_trip(
    group: str, topic: str, partition: int, offset: int, metadata: str, at: int
) -> None:
    committed = CommittedOffset(offset, metadata, at, 4)
    key, value = offsets.encode_offset(group, topic, partition, committed)
    assert offsets.decode_key(key) == OffsetKey(group=group, topic=topic, partition=partition)
    assert value is not None
    assert offsets.decode_offset(value) == committed


@pytest.mark.parametrize(("instance", "version"), [(None, 2), ("i", 3)])
def test_group_survives_the_round_trip(instance: str | None, version: int) -> None:
    group = Group("g", lambda *_: None)
    group.protocol_type, group.protocol_name = "consumer", "range"
    member = GroupMember("m", instance, "c", "/h", 10, 20, "consumer", (("range", b"topics"),), 0)
    group.restore([member], 9, "m")
    key, value = offsets.encode_group(group, {"m": b"share"}, 77)
    assert offsets.decode_key(key) == GroupKey(group="g")
    assert value[:2] == version.to_bytes(2, "big")
    stored = offsets.decode_group(value)
    assert (stored.generation, stored.leader, stored.protocol) == (9, "m", "range")
    (read,) = offsets.members_of(stored, 100)
    assert read.assignment == b"share"
    assert read.metadata("range") == b"topics"
    assert read.instance_id == instance
    assert read.deadline_ms == 110


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x00\x09rest"])
def test_unknown_version_raises(data: bytes) -> None:
    for decode in (offsets.decode_key, offsets.decode_offset, offsets.decode_group):
        with pytest.raises(offsets.UnknownRecordError):
            decode(data)
