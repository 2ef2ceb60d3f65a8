"""Cluster administration: log directories, leader elections and moving replicas."""

from odradek.protocol.primitives import Kind
from odradek.protocol.schema import (
    Request,
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    message,
    string,
    struct,
)


@struct
class AlterReplicaLogDirPartitionResult:
    """Outcome for one replica."""

    partition_index: int = int32()
    error_code: int = int16(default=0)


@struct
class AlterReplicaLogDirTopicResult:
    """Results of one topic."""

    topic_name: str = string()
    partitions: list[AlterReplicaLogDirPartitionResult] = array(AlterReplicaLogDirPartitionResult)


@message(versions=(0, 2), flexible_from=2)
class AlterReplicaLogDirsResponse:
    """Outcome of an AlterReplicaLogDirsRequest."""

    throttle_time_ms: int = int32(default=0)
    results: list[AlterReplicaLogDirTopicResult] = array(AlterReplicaLogDirTopicResult)


@struct
class AlterReplicaLogDirTopic:
    """Partitions of one topic."""

    name: str = string()
    partitions: list[int] = array(Kind.INT32)


@struct
class AlterReplicaLogDir:
    """One log directory, by its absolute path, and the replicas that shall be there."""

    path: str = string()
    topics: list[AlterReplicaLogDirTopic] = array(AlterReplicaLogDirTopic)


@message(versions=(0, 2), flexible_from=2)
class AlterReplicaLogDirsRequest(Request[AlterReplicaLogDirsResponse]):
    """Move replicas of the asked broker to its other log directories (KIP-113)."""

    dirs: list[AlterReplicaLogDir] = array(AlterReplicaLogDir)


@struct
class DescribeLogDirsPartition:
    """Size of one replica in bytes, and its lag in records."""

    partition_index: int = int32()
    partition_size: int = int64()
    offset_lag: int = int64()
    is_future_key: bool = boolean(default=False)


@struct
class DescribeLogDirsTopic:
    """Replicas of one topic."""

    name: str = string()
    partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition)


@struct
class DescribeLogDirsResult:
    """One log directory and what lies in it."""

    error_code: int = int16(default=0)
    log_dir: str = string()
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic)


@message(versions=(0, 2), flexible_from=2)
class DescribeLogDirsResponse:
    """Answer to a DescribeLogDirsRequest."""

    throttle_time_ms: int = int32(default=0)
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult)


@struct
class DescribableLogDirTopic:
    """Partitions of one topic."""

    topic: str = string()
    partition_index: list[int] = array(Kind.INT32)


@message(versions=(0, 2), flexible_from=2)
class DescribeLogDirsRequest(Request[DescribeLogDirsResponse]):
    """Ask what lies in the log directories; null topics mean everything (KIP-113)."""

    topics: list[DescribableLogDirTopic] | None = array(
        DescribableLogDirTopic, nullable_since=0, default=None
    )


@struct
class PartitionResult:
    """Outcome for one partition."""

    partition_id: int = int32()
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable_since=0, default=None)


@struct
class ReplicaElectionResult:
    """Results of one topic."""

    topic: str = string()
    partition_result: list[PartitionResult] = array(PartitionResult)


@message(versions=(0, 2), flexible_from=2)
class ElectLeadersResponse:
    """Outcome of an ElectLeadersRequest."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(since=1, default=0)
    replica_election_results: list[ReplicaElectionResult] = array(ReplicaElectionResult)


@struct
class TopicPartitions:
    """Partitions of one topic."""

    topic: str = string()
    partition_id: list[int] = array(Kind.INT32)


@message(versions=(0, 2), flexible_from=2)
class ElectLeadersRequest(Request[ElectLeadersResponse]):
    """Elect the preferred (type 0) or any live (type 1) replica; null means all (KIP-460)."""

    election_type: int = int8(since=1, default=0)
    topic_partitions: list[TopicPartitions] | None = array(
        TopicPartitions, nullable_since=0, default=None
    )
    timeout_ms: int = int32(default=60000)


@struct
class ReassignablePartitionResponse:
    """Outcome for one partition."""

    partition_index: int = int32()
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable_since=0, default=None)


@struct
class ReassignableTopicResponse:
    """Results of one topic."""

    name: str = string()
    partitions: list[ReassignablePartitionResponse] = array(ReassignablePartitionResponse)


@message(versions=(0, 0), flexible_from=0)
class AlterPartitionReassignmentsResponse:
    """Outcome of an AlterPartitionReassignmentsRequest."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable_since=0, default=None)
    responses: list[ReassignableTopicResponse] = array(ReassignableTopicResponse)


@struct
class ReassignablePartition:
    """Brokers that shall hold the partition; null cancels a running move."""

    partition_index: int = int32()
    replicas: list[int] | None = array(Kind.INT32, nullable_since=0, default=None)


@struct
class ReassignableTopic:
    """Partitions of one topic."""

    name: str = string()
    partitions: list[ReassignablePartition] = array(ReassignablePartition)


@message(versions=(0, 0), flexible_from=0)
class AlterPartitionReassignmentsRequest(Request[AlterPartitionReassignmentsResponse]):
    """Move replicas, or cancel moves (KIP-455)."""

    timeout_ms: int = int32(default=60000)
    topics: list[ReassignableTopic] = array(ReassignableTopic)


@struct
class OngoingPartitionReassignment:
    """A running move."""

    partition_index: int = int32()
    replicas: list[int] = array(Kind.INT32)
    adding_replicas: list[int] = array(Kind.INT32)
    removing_replicas: list[int] = array(Kind.INT32)


@struct
class OngoingTopicReassignment:
    """Running moves of one topic."""

    name: str = string()
    partitions: list[OngoingPartitionReassignment] = array(OngoingPartitionReassignment)


@message(versions=(0, 0), flexible_from=0)
class ListPartitionReassignmentsResponse:
    """Moves under way."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable_since=0, default=None)
    topics: list[OngoingTopicReassignment] = array(OngoingTopicReassignment)


@struct
class ListPartitionReassignmentsTopics:
    """Partitions of one topic."""

    name: str = string()
    partition_indexes: list[int] = array(Kind.INT32)


@message(versions=(0, 0), flexible_from=0)
class ListPartitionReassignmentsRequest(Request[ListPartitionReassignmentsResponse]):
    """Ask which moves are under way; null topics mean all (KIP-455)."""

    timeout_ms: int = int32(default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = array(
        ListPartitionReassignmentsTopics, nullable_since=0, default=None
    )
