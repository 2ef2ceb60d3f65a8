"""Offsets that consumer groups commit."""

from odradek.protocol.primitives import Kind
from odradek.protocol.schema import (
    Request,
    array,
    boolean,
    int16,
    int32,
    int64,
    message,
    string,
    struct,
)


@struct
class OffsetCommitResponsePartition:
    """Outcome for one partition."""

    partition_index: int = int32()
    error_code: int = int16(default=0)


@struct
class OffsetCommitResponseTopic:
    """Results of one topic."""

    name: str = string()
    partitions: list[OffsetCommitResponsePartition] = array(OffsetCommitResponsePartition)


@message(versions=(0, 8), flexible_from=8)
class OffsetCommitResponse:
    """Outcome of an OffsetCommitRequest."""

    throttle_time_ms: int = int32(since=3, default=0)
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic)


@struct
class OffsetCommitRequestPartition:
    """Next offset the group will read, with text of its own."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(since=6, default=-1)
    commit_timestamp: int = int64(since=1, until=1, default=-1)
    committed_metadata: str | None = string(nullable_since=0, default=None)


@struct
class OffsetCommitRequestTopic:
    """Offsets of one topic."""

    name: str = string()
    partitions: list[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition)


@message(versions=(0, 8), flexible_from=8)
class OffsetCommitRequest(Request[OffsetCommitResponse]):
    """Store offsets of a group; version 0 stores them in ZooKeeper."""

    group_id: str = string()
    generation_id: int = int32(since=1, default=-1)
    member_id: str = string(since=1, default="")
    group_instance_id: str | None = string(since=7, nullable_since=7, default=None)
    retention_time_ms: int = int64(since=2, until=4, default=-1)
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic)


@struct
class OffsetFetchResponsePartition:
    """The committed offset; -1 when there is none."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(since=5, default=-1)
    metadata: str | None = string(nullable_since=0, default=None)
    error_code: int = int16(default=0)


@struct
class OffsetFetchResponseTopic:
    """Results of one topic."""

    name: str = string()
    partitions: list[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition)


@message(versions=(0, 7), flexible_from=6)
class OffsetFetchResponse:
    """Answer to an OffsetFetchRequest."""

    throttle_time_ms: int = int32(since=3, default=0)
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic)
    error_code: int = int16(since=2, default=0)


@struct
class OffsetFetchRequestTopic:
    """Partitions of one topic."""

    name: str = string()
    partition_indexes: list[int] = array(Kind.INT32)


@message(versions=(0, 7), flexible_from=6)
class OffsetFetchRequest(Request[OffsetFetchResponse]):
    """Read committed offsets; null topics mean all, version 0 reads ZooKeeper."""

    group_id: str = string()
    topics: list[OffsetFetchRequestTopic] | None = array(
        OffsetFetchRequestTopic, nullable_since=2, default=None
    )
    require_stable: bool = boolean(since=7, default=False)


@struct
class OffsetDeleteResponsePartition:
    """Outcome for one partition."""

    partition_index: int = int32()
    error_code: int = int16(default=0)


@struct
class OffsetDeleteResponseTopic:
    """Results of one topic."""

    name: str = string()
    partitions: list[OffsetDeleteResponsePartition] = array(OffsetDeleteResponsePartition)


@message(versions=(0, 0))
class OffsetDeleteResponse:
    """Outcome of an OffsetDeleteRequest."""

    error_code: int = int16(default=0)
    throttle_time_ms: int = int32(default=0)
    topics: list[OffsetDeleteResponseTopic] = array(OffsetDeleteResponseTopic)


@struct
class OffsetDeleteRequestPartition:
    """A partition whose offset goes."""

    partition_index: int = int32()


@struct
class OffsetDeleteRequestTopic:
    """Partitions of one topic."""

    name: str = string()
    partitions: list[OffsetDeleteRequestPartition] = array(OffsetDeleteRequestPartition)


@message(versions=(0, 0))
class OffsetDeleteRequest(Request[OffsetDeleteResponse]):
    """Forget offsets a group committed (KIP-496)."""

    group_id: str = string()
    topics: list[OffsetDeleteRequestTopic] = array(OffsetDeleteRequestTopic)
