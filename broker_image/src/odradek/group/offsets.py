"""The records of `__consumer_offsets`: committed offsets and groups, in Kafka's schemas.

The version of a key tells the kind of value: 0 and 1 a committed offset, 2 a group's membership. A
record without a value is a tombstone. Values are written in the versions of inter.broker.protocol
2.1 (offset 3, group 2), so that Kafka brokers of that version can take over a group and return it.
Every version can be read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from odradek.group.group import Group
from odradek.group.members import GroupMember
from odradek.protocol import codec, schema
from odradek.protocol.schema import array, binary, int32, int64, message, string

OFFSET_VALUE_VERSION = 3
GROUP_VALUE_VERSION = 2
_VERSION = struct.Struct(">h")


class UnknownRecordError(ValueError):
    """A record has a version that this broker does not know."""


@message(versions=(0, 1))
class OffsetKey:
    """Key of a committed offset."""

    group: str = string()
    topic: str = string()
    partition: int = int32()


@message(versions=(0, 3))
class OffsetValue:
    """A committed offset; timestamps in ms, expire_timestamp -1: by offsets.retention.minutes."""

    offset: int = int64()
    leader_epoch: int = int32(since=3, default=-1)
    metadata: str = string()
    commit_timestamp: int = int64()
    expire_timestamp: int = int64(since=1, until=1, default=-1)


@message(versions=(2, 2))
class GroupKey:
    """Key of a group's membership."""

    group: str = string()


@schema.struct
class StoredMember:
    """One member of a stored group."""

    member_id: str = string()
    group_instance_id: str | None = string(since=3, nullable_since=3, default=None)
    client_id: str = string()
    client_host: str = string()
    rebalance_timeout: int = int32(since=1, default=0)
    session_timeout: int = int32()
    subscription: bytes = binary()
    assignment: bytes = binary()


@message(versions=(0, 3))
class GroupValue:
    """A group's membership as of its last generation."""

    protocol_type: str = string()
    generation: int = int32()
    protocol: str | None = string(nullable_since=0, default=None)
    leader: str | None = string(nullable_since=0, default=None)
    current_state_timestamp: int = int64(since=2, default=-1)
    members: list[StoredMember] = array(StoredMember)


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A group's offset in a partition. `expires_ms` (wall clock) is -1 unless the commit set it."""

    offset: int
    metadata: str
    committed_ms: int
    leader_epoch: int = -1
    expires_ms: int = -1


def encode_offset(
    group: str, topic: str, partition: int, committed: CommittedOffset | None
) -> tuple[bytes, bytes | None]:
    """Return key and value of a committed offset; None makes a tombstone."""
    key = _versioned(1, OffsetKey(group=group, topic=topic, partition=partition))
    if committed is None:
        return key, None
    version = OFFSET_VALUE_VERSION if committed.expires_ms < 0 else 1
    value = OffsetValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.committed_ms,
        expire_timestamp=committed.expires_ms,
    )
    return key, _versioned(version, value)


def encode_group(
    group: Group, assignments: Mapping[str, bytes], now_ms: int
) -> tuple[bytes, bytes]:
    """Return key and value of a group with these assignments; `now_ms` is of the wall clock."""
    value = GroupValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol_name,
        leader=group.leader,
        current_state_timestamp=now_ms,
        members=[
            StoredMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata(group.protocol_name or ""),
                assignment=assignments.get(member.member_id, b""),
            )
            for member in group.members.values()
        ],
    )
    # Only version 3 has the instance ids of static members (KIP-345, Kafka 2.3).
    version = 3 if group.members.static_members else GROUP_VALUE_VERSION
    return group_key(group.group_id), _versioned(version, value)


def group_key(group: str) -> bytes:
    """Return the key of a group's record, also for its tombstone."""
    return _versioned(2, GroupKey(group=group))


def decode_key(data: bytes) -> OffsetKey | GroupKey:
    """Return the decoded key of a record. Raise UnknownRecordError."""
    version = _version(data)
    if version in (0, 1):
        return codec.decode(OffsetKey, version, data, _VERSION.size)[0]
    if version == 2:
        return codec.decode(GroupKey, version, data, _VERSION.size)[0]
    raise UnknownRecordError(f"__consumer_offsets key of version {version}")


def decode_offset(data: bytes) -> CommittedOffset:
    """Return a decoded committed offset. Raise UnknownRecordError."""
    version = _version(data)
    if not 0 <= version <= 3:
        raise UnknownRecordError(f"committed offset of version {version}")
    value, _ = codec.decode(OffsetValue, version, data, _VERSION.size)
    return CommittedOffset(
        value.offset,
        value.metadata,
        value.commit_timestamp,
        value.leader_epoch,
        value.expire_timestamp,
    )


def decode_group(data: bytes) -> GroupValue:
    """Return a decoded group. Raise UnknownRecordError."""
    version = _version(data)
    if not 0 <= version <= 3:
        raise UnknownRecordError(f"group of version {version}")
    return codec.decode(GroupValue, version, data, _VERSION.size)[0]


def members_of(value: GroupValue, now_ms: int) -> Iterable[GroupMember]:
    """Yield the stored members; their sessions start at `now_ms` (monotonic clock)."""
    for stored in value.members:
        yield GroupMember(
            stored.member_id,
            stored.group_instance_id,
            stored.client_id,
            stored.client_host,
            stored.session_timeout,
            stored.rebalance_timeout or stored.session_timeout,
            value.protocol_type,
            ((value.protocol or "", bytes(stored.subscription)),),
            deadline_ms=now_ms + stored.session_timeout,
            assignment=bytes(stored.assignment),
        )


def _version(data: bytes) -> int:
    if len(data) < _VERSION.size:
        raise UnknownRecordError("a key or value shorter than its version")
    version: int = _VERSION.unpack_from(data)[0]
    return version


def _versioned(version: int, value: OffsetKey | OffsetValue | GroupKey | GroupValue) -> bytes:
    return _VERSION.pack(version) + codec.encode(value, version)
