"""Reading record batches, by consumers and by followers."""

from odradek.protocol.primitives import Kind
from odradek.protocol.regions import Records
from odradek.protocol.schema import (
    Request,
    array,
    int8,
    int16,
    int32,
    int64,
    message,
    nested,
    records,
    string,
    struct,
)


@struct
class FetchEpochEndOffset:
    """Largest leader epoch below the fetcher's, and where it ends (KIP-595)."""

    epoch: int = int32(default=-1)
    end_offset: int = int64(default=-1)


@struct
class LeaderIdAndEpoch:
    """The leader the answering broker knows of."""

    leader_id: int = int32(default=-1)
    leader_epoch: int = int32(default=-1)


@struct
class SnapshotId:
    """Snapshot a quorum follower should load instead; never set by this broker."""

    end_offset: int = int64(default=-1)
    epoch: int = int32(default=-1)


@struct
class AbortedTransaction:
    """An aborted transaction whose records lie in the fetched range."""

    producer_id: int = int64()
    first_offset: int = int64()


@struct
class FetchablePartitionResponse:
    """Records of one partition and its offsets; `record_set` holds whole or cut-off batches."""

    partition: int = int32()
    error_code: int = int16(default=0)
    high_watermark: int = int64()
    last_stable_offset: int = int64(since=4, default=-1)
    log_start_offset: int = int64(since=5, default=-1)
    diverging_epoch: FetchEpochEndOffset = nested(
        FetchEpochEndOffset, since=12, tag=0, default_factory=FetchEpochEndOffset
    )
    current_leader: LeaderIdAndEpoch = nested(
        LeaderIdAndEpoch, since=12, tag=1, default_factory=LeaderIdAndEpoch
    )
    snapshot_id: SnapshotId = nested(SnapshotId, since=12, tag=2, default_factory=SnapshotId)
    aborted_transactions: list[AbortedTransaction] | None = array(
        AbortedTransaction, since=4, nullable_since=4, default=None
    )
    preferred_read_replica: int = int32(since=11, default=-1)
    record_set: Records | None = records(nullable_since=0)


@struct
class FetchableTopicResponse:
    """Results of one topic."""

    topic: str = string()
    partition_responses: list[FetchablePartitionResponse] = array(FetchablePartitionResponse)


@message(versions=(0, 12), flexible_from=12)
class FetchResponse:
    """Records of the fetched partitions; a `session_id` of 0 means no fetch session (KIP-227)."""

    throttle_time_ms: int = int32(since=1, default=0)
    error_code: int = int16(since=7, default=0)
    session_id: int = int32(since=7, default=0)
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse)


@struct
class FetchPartition:
    """Where to read in one partition; `log_start_offset` is the follower's own."""

    partition: int = int32()
    current_leader_epoch: int = int32(since=9, default=-1)
    fetch_offset: int = int64()
    last_fetched_epoch: int = int32(since=12, default=-1)
    log_start_offset: int = int64(since=5, default=-1)
    partition_max_bytes: int = int32()


@struct
class FetchTopic:
    """What to read of one topic."""

    topic: str = string()
    partitions: list[FetchPartition] = array(FetchPartition)


@struct
class ForgottenTopic:
    """Partitions to drop from the fetch session."""

    topic: str = string()
    partitions: list[int] = array(Kind.INT32)


@message(versions=(0, 12), flexible_from=12)
class FetchRequest(Request[FetchResponse]):
    """Read from `replica_id` (-1 for consumers), waiting up to `max_wait_ms` for `min_bytes`."""

    cluster_id: str | None = string(since=12, nullable_since=12, tag=0, default=None)
    replica_id: int = int32()
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(since=3, default=0x7FFFFFFF)
    isolation_level: int = int8(since=4, default=0)
    session_id: int = int32(since=7, default=0)
    session_epoch: int = int32(since=7, default=-1)
    topics: list[FetchTopic] = array(FetchTopic)
    forgotten_topics_data: list[ForgottenTopic] = array(
        ForgottenTopic, since=7, default_factory=list
    )
    rack_id: str = string(since=11, default="")
