"""Transactions of producers (KIP-98), and the offsets that groups commit in them (KIP-447)."""

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
class AddPartitionsToTxnPartitionResult:
    """Outcome for one partition."""

    partition_index: int = int32()
    error_code: int = int16(default=0)


@struct
class AddPartitionsToTxnTopicResult:
    """Results of one topic."""

    name: str = string()
    results: list[AddPartitionsToTxnPartitionResult] = array(AddPartitionsToTxnPartitionResult)


@struct
class AddPartitionsToTxnResult:
    """Results of one transaction."""

    transactional_id: str = string()
    topic_results: list[AddPartitionsToTxnTopicResult] = array(AddPartitionsToTxnTopicResult)


@message(versions=(0, 4), flexible_from=3)
class AddPartitionsToTxnResponse:
    """Outcome of an AddPartitionsToTxnRequest."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(since=4, default=0)
    results_by_transaction: list[AddPartitionsToTxnResult] = array(
        AddPartitionsToTxnResult, since=4, default_factory=list
    )
    results: list[AddPartitionsToTxnTopicResult] = array(
        AddPartitionsToTxnTopicResult, until=3, default_factory=list
    )


@struct
class AddPartitionsToTxnTopic:
    """Partitions of one topic."""

    name: str = string()
    partitions: list[int] = array(Kind.INT32)


@struct
class AddPartitionsToTxnTransaction:
    """Partitions of one transaction; with `verify_only` the coordinator adds none, and answers
    whether they are in the ongoing transaction.
    """

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    verify_only: bool = boolean(default=False)
    topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic)


@message(versions=(0, 4), flexible_from=3)
class AddPartitionsToTxnRequest(Request[AddPartitionsToTxnResponse]):
    """Tell the coordinator where the producer is going to write in its transaction.

    Clients send versions up to 3, brokers version 4, which has many transactions (KIP-890).
    """

    transactions: list[AddPartitionsToTxnTransaction] = array(
        AddPartitionsToTxnTransaction, since=4, default_factory=list
    )
    transactional_id: str = string(until=3, default="")
    producer_id: int = int64(until=3, default=-1)
    producer_epoch: int = int16(until=3, default=-1)
    topics: list[AddPartitionsToTxnTopic] = array(
        AddPartitionsToTxnTopic, until=3, default_factory=list
    )


@message(versions=(0, 3), flexible_from=3)
class AddOffsetsToTxnResponse:
    """Outcome of an AddOffsetsToTxnRequest."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)


@message(versions=(0, 3), flexible_from=3)
class AddOffsetsToTxnRequest(Request[AddOffsetsToTxnResponse]):
    """Tell the coordinator of the group whose offsets belong to the transaction."""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    group_id: str = string()


@message(versions=(0, 3), flexible_from=3)
class EndTxnResponse:
    """Outcome of an EndTxnRequest."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)


@message(versions=(0, 3), flexible_from=3)
class EndTxnRequest(Request[EndTxnResponse]):
    """Commit or abort the transaction."""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    committed: bool = boolean()


@struct
class WritableTxnMarkerPartitionResult:
    """Outcome for one partition."""

    partition_index: int = int32()
    error_code: int = int16(default=0)


@struct
class WritableTxnMarkerTopicResult:
    """Results of one topic."""

    name: str = string()
    partitions: list[WritableTxnMarkerPartitionResult] = array(WritableTxnMarkerPartitionResult)


@struct
class WritableTxnMarkerResult:
    """Results of one producer's marker."""

    producer_id: int = int64()
    topics: list[WritableTxnMarkerTopicResult] = array(WritableTxnMarkerTopicResult)


@message(versions=(0, 1), flexible_from=1)
class WriteTxnMarkersResponse:
    """Outcome of a WriteTxnMarkersRequest."""

    markers: list[WritableTxnMarkerResult] = array(WritableTxnMarkerResult)


@struct
class WritableTxnMarkerTopic:
    """Partitions of one topic."""

    name: str = string()
    partition_indexes: list[int] = array(Kind.INT32)


@struct
class WritableTxnMarker:
    """The end of one producer's transaction: True commits it."""

    producer_id: int = int64()
    producer_epoch: int = int16()
    transaction_result: bool = boolean()
    topics: list[WritableTxnMarkerTopic] = array(WritableTxnMarkerTopic)
    coordinator_epoch: int = int32()


@message(versions=(0, 1), flexible_from=1)
class WriteTxnMarkersRequest(Request[WriteTxnMarkersResponse]):
    """Have the leaders of partitions write markers. A coordinator sends it, no client."""

    markers: list[WritableTxnMarker] = array(WritableTxnMarker)


@struct
class TxnOffsetCommitResponsePartition:
    """Outcome for one partition."""

    partition_index: int = int32()
    error_code: int = int16(default=0)


@struct
class TxnOffsetCommitResponseTopic:
    """Results of one topic."""

    name: str = string()
    partitions: list[TxnOffsetCommitResponsePartition] = array(TxnOffsetCommitResponsePartition)


@message(versions=(0, 3), flexible_from=3)
class TxnOffsetCommitResponse:
    """Outcome of a TxnOffsetCommitRequest."""

    throttle_time_ms: int = int32(default=0)
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic)


@struct
class TxnOffsetCommitRequestPartition:
    """Next offset the group will read, with text of its own."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(since=2, default=-1)
    committed_metadata: str | None = string(nullable_since=0, default=None)


@struct
class TxnOffsetCommitRequestTopic:
    """Offsets of one topic."""

    name: str = string()
    partitions: list[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition)


@message(versions=(0, 3), flexible_from=3)
class TxnOffsetCommitRequest(Request[TxnOffsetCommitResponse]):
    """Commit offsets of a group that count once the producer's transaction is committed."""

    transactional_id: str = string()
    group_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    generation_id: int = int32(since=3, default=-1)
    member_id: str = string(since=3, default="")
    group_instance_id: str | None = string(since=3, nullable_since=3, default=None)
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic)
