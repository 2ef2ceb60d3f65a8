"""Creating, growing and deleting topics."""

from odradek.protocol.primitives import Kind
from odradek.protocol.schema import (
    Request,
    array,
    boolean,
    int8,
    int16,
    int32,
    message,
    string,
    struct,
)


@struct
class CreatableTopicConfigs:
    """A setting of the created topic."""

    name: str = string()
    value: str | None = string(nullable_since=0, default=None)
    read_only: bool = boolean(default=False)
    config_source: int = int8(default=-1)
    is_sensitive: bool = boolean(default=False)


@struct
class CreatableTopicResult:
    """Outcome for one topic."""

    name: str = string()
    error_code: int = int16(default=0)
    error_message: str | None = string(since=1, nullable_since=1, default=None)
    topic_config_error_code: int = int16(since=5, tag=0, default=0)
    num_partitions: int = int32(since=5, default=-1)
    replication_factor: int = int16(since=5, default=-1)
    configs: list[CreatableTopicConfigs] | None = array(
        CreatableTopicConfigs, since=5, nullable_since=5, default=None
    )


@message(versions=(0, 6), flexible_from=5)
class CreateTopicsResponse:
    """Outcome of a CreateTopicsRequest."""

    throttle_time_ms: int = int32(since=2, default=0)
    topics: list[CreatableTopicResult] = array(CreatableTopicResult)


@struct
class CreatableReplicaAssignment:
    """Brokers that shall hold one partition, preferred leader first."""

    partition_index: int = int32()
    broker_ids: list[int] = array(Kind.INT32)


@struct
class CreateableTopicConfig:
    """A setting of the new topic."""

    name: str = string()
    value: str | None = string(nullable_since=0, default=None)


@struct
class CreatableTopic:
    """A topic to create; counts are -1 for the broker's default or when assignments are given."""

    name: str = string()
    num_partitions: int = int32()
    replication_factor: int = int16()
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment)
    configs: list[CreateableTopicConfig] = array(CreateableTopicConfig)


@message(versions=(0, 6), flexible_from=5)
class CreateTopicsRequest(Request[CreateTopicsResponse]):
    """Create topics and wait up to `timeout_ms` for their leaders."""

    topics: list[CreatableTopic] = array(CreatableTopic)
    timeout_ms: int = int32(default=60000)
    validate_only: bool = boolean(since=1, default=False)


@struct
class DeletableTopicResult:
    """Outcome for one topic."""

    name: str = string()
    error_code: int = int16(default=0)
    error_message: str | None = string(since=5, nullable_since=5, default=None)


@message(versions=(0, 5), flexible_from=4)
class DeleteTopicsResponse:
    """Outcome of a DeleteTopicsRequest."""

    throttle_time_ms: int = int32(since=1, default=0)
    responses: list[DeletableTopicResult] = array(DeletableTopicResult)


@message(versions=(0, 5), flexible_from=4)
class DeleteTopicsRequest(Request[DeleteTopicsResponse]):
    """Delete topics by name."""

    topic_names: list[str] = array(Kind.STRING)
    timeout_ms: int = int32()


@struct
class CreatePartitionsTopicResult:
    """Outcome for one topic."""

    name: str = string()
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable_since=0, default=None)


@message(versions=(0, 3), flexible_from=2)
class CreatePartitionsResponse:
    """Outcome of a CreatePartitionsRequest."""

    throttle_time_ms: int = int32(default=0)
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult)


@struct
class CreatePartitionsAssignment:
    """Brokers that shall hold one new partition."""

    broker_ids: list[int] = array(Kind.INT32)


@struct
class CreatePartitionsTopic:
    """New total of partitions; null assignments leave the placement to the broker."""

    name: str = string()
    count: int = int32()
    assignments: list[CreatePartitionsAssignment] | None = array(
        CreatePartitionsAssignment, nullable_since=0, default=None
    )


@message(versions=(0, 3), flexible_from=2)
class CreatePartitionsRequest(Request[CreatePartitionsResponse]):
    """Grow topics (KIP-195)."""

    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic)
    timeout_ms: int = int32()
    validate_only: bool = boolean(default=False)
