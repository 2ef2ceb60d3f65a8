"""The states of producers in partitions, and of transactional ids at coordinators (KIP-664)."""

from odradek.protocol.primitives import Kind
from odradek.protocol.schema import Request, array, int16, int32, int64, message, string, struct


@struct
class ProducerState:
    """What a partition knows of one producer; -1 where nothing is known.

    `last_timestamp` is that of the producer's last batch (ms). `current_txn_start_offset` is -1
    outside of transactions.
    """

    producer_id: int = int64()
    producer_epoch: int = int32()
    last_sequence: int = int32(default=-1)
    last_timestamp: int = int64(default=-1)
    coordinator_epoch: int = int32()
    current_txn_start_offset: int = int64(default=-1)


@struct
class DescribeProducersPartitionResponse:
    """The producers of one partition."""

    partition_index: int = int32()
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable_since=0, default=None)
    active_producers: list[ProducerState] = array(ProducerState, default_factory=list)


@struct
class DescribeProducersTopicResponse:
    """Results of one topic."""

    name: str = string()
    partitions: list[DescribeProducersPartitionResponse] = array(DescribeProducersPartitionResponse)


@message(versions=(0, 0), flexible_from=0)
class DescribeProducersResponse:
    """Outcome of a DescribeProducersRequest."""

    throttle_time_ms: int = int32(default=0)
    topics: list[DescribeProducersTopicResponse] = array(DescribeProducersTopicResponse)


@struct
class DescribeProducersTopicRequest:
    """Partitions of one topic."""

    name: str = string()
    partition_indexes: list[int] = array(Kind.INT32)


@message(versions=(0, 0), flexible_from=0)
class DescribeProducersRequest(Request[DescribeProducersResponse]):
    """Ask a replica for the producers of partitions."""

    topics: list[DescribeProducersTopicRequest] = array(DescribeProducersTopicRequest)


@struct
class DescribedTransactionTopic:
    """Partitions of one topic that are in the transaction."""

    topic: str = string()
    partitions: list[int] = array(Kind.INT32)


@struct
class DescribedTransaction:
    """The state of one transactional id; the start is -1 before its first transaction."""

    error_code: int = int16(default=0)
    transactional_id: str = string()
    transaction_state: str = string(default="")
    transaction_timeout_ms: int = int32(default=0)
    transaction_start_time_ms: int = int64(default=0)
    producer_id: int = int64(default=0)
    producer_epoch: int = int16(default=0)
    topics: list[DescribedTransactionTopic] = array(DescribedTransactionTopic, default_factory=list)


@message(versions=(0, 0), flexible_from=0)
class DescribeTransactionsResponse:
    """Outcome of a DescribeTransactionsRequest."""

    throttle_time_ms: int = int32(default=0)
    transaction_states: list[DescribedTransaction] = array(DescribedTransaction)


@message(versions=(0, 0), flexible_from=0)
class DescribeTransactionsRequest(Request[DescribeTransactionsResponse]):
    """Ask their coordinator for the states of transactional ids."""

    transactional_ids: list[str] = array(Kind.STRING)


@struct
class ListedTransaction:
    """One transactional id in short."""

    transactional_id: str = string()
    producer_id: int = int64()
    transaction_state: str = string()


@message(versions=(0, 1), flexible_from=0)
class ListTransactionsResponse:
    """Outcome of a ListTransactionsRequest."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    unknown_state_filters: list[str] = array(Kind.STRING, default_factory=list)
    transaction_states: list[ListedTransaction] = array(ListedTransaction, default_factory=list)


@message(versions=(0, 1), flexible_from=0)
class ListTransactionsRequest(Request[ListTransactionsResponse]):
    """Ask a broker for the transactional ids that it coordinates; an empty filter passes all.

    `duration_filter` passes transactions that are open for longer (ms), -1 all (KIP-994).
    """

    state_filters: list[str] = array(Kind.STRING, default_factory=list)
    producer_id_filters: list[int] = array(Kind.INT64, default_factory=list)
    duration_filter: int = int64(since=1, default=-1)
