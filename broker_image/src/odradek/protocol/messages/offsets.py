"""Questions about where a partition's log begins, ends and forks."""

from odradek.protocol.primitives import Kind
from odradek.protocol.schema import (
    Request,
    array,
    int8,
    int16,
    int32,
    int64,
    message,
    string,
    struct,
)


@struct
class ListOffsetsPartitionResponse:
    """The offset found, or in version 0 several in `old_style_offsets`, newest first."""

    partition_index: int = int32()
    error_code: int = int16(default=0)
    old_style_offsets: list[int] = array(Kind.INT64, until=0, default_factory=list)
    timestamp: int = int64(since=1, default=-1)
    offset: int = int64(since=1, default=-1)
    leader_epoch: int = int32(since=4, default=-1)


@struct
class ListOffsetsTopicResponse:
    """Results of one topic."""

    name: str = string()
    partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse)


@message(versions=(0, 6), flexible_from=6)
class ListOffsetsResponse:
    """Answer to a ListOffsetsRequest."""

    throttle_time_ms: int = int32(since=2, default=0)
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse)


@struct
class ListOffsetsPartition:
    """The timestamp asked for in milliseconds; -1 is the end of the log, -2 its beginning."""

    partition_index: int = int32()
    current_leader_epoch: int = int32(since=4, default=-1)
    timestamp: int = int64()
    max_num_offsets: int = int32(until=0, default=1)


@struct
class ListOffsetsTopic:
    """Questions about one topic."""

    name: str = string()
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition)


@message(versions=(0, 6), flexible_from=6)
class ListOffsetsRequest(Request[ListOffsetsResponse]):
    """Find offsets by timestamp."""

    replica_id: int = int32()
    isolation_level: int = int8(since=2, default=0)
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic)


@struct
class OffsetForLeaderEpochEndOffset:
    """Where the largest epoch that is not above the asked one ends; -1 when unknown."""

    error_code: int = int16(default=0)
    partition: int = int32()
    leader_epoch: int = int32(since=1, default=-1)
    end_offset: int = int64(default=-1)


@struct
class OffsetForLeaderTopicResult:
    """Results of one topic."""

    topic: str = string()
    partitions: list[OffsetForLeaderEpochEndOffset] = array(OffsetForLeaderEpochEndOffset)


@message(versions=(0, 4), flexible_from=4)
class OffsetForLeaderEpochResponse:
    """Answer to an OffsetForLeaderEpochRequest."""

    throttle_time_ms: int = int32(since=2, default=0)
    topics: list[OffsetForLeaderTopicResult] = array(OffsetForLeaderTopicResult)


@struct
class OffsetForLeaderPartition:
    """Leader epoch whose end is asked for."""

    partition: int = int32()
    current_leader_epoch: int = int32(since=2, default=-1)
    leader_epoch: int = int32()


@struct
class OffsetForLeaderTopic:
    """Questions about one topic."""

    topic: str = string()
    partitions: list[OffsetForLeaderPartition] = array(OffsetForLeaderPartition)


@message(versions=(0, 4), flexible_from=4)
class OffsetForLeaderEpochRequest(Request[OffsetForLeaderEpochResponse]):
    """Find where leader epochs end, so that logs that forked can be cut (KIP-101, KIP-320)."""

    replica_id: int = int32(since=3, default=-2)
    topics: list[OffsetForLeaderTopic] = array(OffsetForLeaderTopic)


@struct
class DeleteRecordsPartitionResult:
    """New beginning of the partition's log."""

    partition_index: int = int32()
    low_watermark: int = int64()
    error_code: int = int16(default=0)


@struct
class DeleteRecordsTopicResult:
    """Results of one topic."""

    name: str = string()
    partitions: list[DeleteRecordsPartitionResult] = array(DeleteRecordsPartitionResult)


@message(versions=(0, 2), flexible_from=2)
class DeleteRecordsResponse:
    """Answer to a DeleteRecordsRequest."""

    throttle_time_ms: int = int32(default=0)
    topics: list[DeleteRecordsTopicResult] = array(DeleteRecordsTopicResult)


@struct
class DeleteRecordsPartition:
    """First offset to keep; -1 means the high watermark."""

    partition_index: int = int32()
    offset: int = int64()


@struct
class DeleteRecordsTopic:
    """Partitions of one topic."""

    name: str = string()
    partitions: list[DeleteRecordsPartition] = array(DeleteRecordsPartition)


@message(versions=(0, 2), flexible_from=2)
class DeleteRecordsRequest(Request[DeleteRecordsResponse]):
    """Drop records below given offsets (KIP-107)."""

    topics: list[DeleteRecordsTopic] = array(DeleteRecordsTopic)
    timeout_ms: int = int32()
