"""Appending record batches."""

from odradek.protocol.regions import Buffer
from odradek.protocol.schema import (
    Request,
    array,
    int16,
    int32,
    int64,
    message,
    records,
    string,
    struct,
)


@struct
class BatchIndexAndErrorMessage:
    """Why one record of a batch was refused (KIP-467)."""

    batch_index: int = int32()
    batch_index_error_message: str | None = string(nullable_since=0, default=None)


@struct
class PartitionProduceResponse:
    """Offset that the batch of one partition starts at, or why it was refused."""

    index: int = int32()
    error_code: int = int16(default=0)
    base_offset: int = int64()
    log_append_time_ms: int = int64(since=2, default=-1)
    log_start_offset: int = int64(since=5, default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = array(
        BatchIndexAndErrorMessage, since=8, default_factory=list
    )
    error_message: str | None = string(since=8, nullable_since=8, default=None)


@struct
class TopicProduceResponse:
    """Results of one topic."""

    name: str = string()
    partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse)


@message(versions=(0, 9), flexible_from=9)
class ProduceResponse:
    """Outcome of every partition of a ProduceRequest; not sent when acks was 0."""

    responses: list[TopicProduceResponse] = array(TopicProduceResponse)
    throttle_time_ms: int = int32(since=1, default=0)


@struct
class PartitionProduceData:
    """Batches for one partition."""

    index: int = int32()
    records: Buffer | None = records(nullable_since=0)


@struct
class TopicProduceData:
    """Batches for the partitions of one topic."""

    name: str = string()
    partition_data: list[PartitionProduceData] = array(PartitionProduceData)


@message(versions=(0, 9), flexible_from=9)
class ProduceRequest(Request[ProduceResponse]):
    """Ask leaders to append; `acks` is 0 (no answer), 1 (leader) or -1 (all in-sync replicas)."""

    transactional_id: str | None = string(since=3, nullable_since=3, default=None)
    acks: int = int16()
    timeout_ms: int = int32()
    topic_data: list[TopicProduceData] = array(TopicProduceData)
