"""What the controller and the brokers tell each other."""

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
class LeaderAndIsrPartitionError:
    """Outcome for one partition."""

    topic_name: str = string()
    partition_index: int = int32()
    error_code: int = int16(default=0)


@message(versions=(0, 4), flexible_from=4)
class LeaderAndIsrResponse:
    """Outcome of a LeaderAndIsrRequest."""

    error_code: int = int16(default=0)
    partition_errors: list[LeaderAndIsrPartitionError] = array(LeaderAndIsrPartitionError)


@struct
class LeaderAndIsrPartitionState:
    """State of one partition as the znode has it; `zk_version` is that znode's version."""

    topic_name: str = string(until=1, default="")
    partition_index: int = int32()
    controller_epoch: int = int32()
    leader: int = int32()
    leader_epoch: int = int32()
    isr: list[int] = array(Kind.INT32)
    zk_version: int = int32()
    replicas: list[int] = array(Kind.INT32)
    adding_replicas: list[int] = array(Kind.INT32, since=3, default_factory=list)
    removing_replicas: list[int] = array(Kind.INT32, since=3, default_factory=list)
    is_new: bool = boolean(since=1, default=False)


@struct
class LeaderAndIsrTopicState:
    """Partition states grouped by topic."""

    topic_name: str = string()
    partition_states: list[LeaderAndIsrPartitionState] = array(LeaderAndIsrPartitionState)


@struct
class LeaderAndIsrLiveLeader:
    """Address of a leader named in the request."""

    broker_id: int = int32()
    host_name: str = string()
    port: int = int32()


@message(versions=(0, 4), flexible_from=4)
class LeaderAndIsrRequest(Request[LeaderAndIsrResponse]):
    """Tell a broker which replicas it leads or follows; ungrouped before version 2."""

    controller_id: int = int32()
    controller_epoch: int = int32()
    broker_epoch: int = int64(since=2, default=-1)
    ungrouped_partition_states: list[LeaderAndIsrPartitionState] = array(
        LeaderAndIsrPartitionState, until=1, default_factory=list
    )
    topic_states: list[LeaderAndIsrTopicState] = array(
        LeaderAndIsrTopicState, since=2, default_factory=list
    )
    live_leaders: list[LeaderAndIsrLiveLeader] = array(LeaderAndIsrLiveLeader)


@struct
class StopReplicaPartitionError:
    """Outcome for one partition."""

    topic_name: str = string()
    partition_index: int = int32()
    error_code: int = int16(default=0)


@message(versions=(0, 3), flexible_from=2)
class StopReplicaResponse:
    """Outcome of a StopReplicaRequest."""

    error_code: int = int16(default=0)
    partition_errors: list[StopReplicaPartitionError] = array(StopReplicaPartitionError)


@struct
class StopReplicaPartitionV0:
    """One partition to stop."""

    topic_name: str = string()
    partition_index: int = int32()


@struct
class StopReplicaTopicV1:
    """Partitions of one topic to stop."""

    name: str = string()
    partition_indexes: list[int] = array(Kind.INT32)


@struct
class StopReplicaPartitionState:
    """One partition to stop, and whether its log goes too."""

    partition_index: int = int32()
    leader_epoch: int = int32(default=-1)
    delete_partition: bool = boolean(default=False)


@struct
class StopReplicaTopicState:
    """Partitions of one topic to stop."""

    topic_name: str = string()
    partition_states: list[StopReplicaPartitionState] = array(StopReplicaPartitionState)


@message(versions=(0, 3), flexible_from=2)
class StopReplicaRequest(Request[StopReplicaResponse]):
    """Tell a broker to stop replicas and perhaps delete their logs."""

    controller_id: int = int32()
    controller_epoch: int = int32()
    broker_epoch: int = int64(since=1, default=-1)
    delete_partitions: bool = boolean(until=2, default=False)
    ungrouped_partitions: list[StopReplicaPartitionV0] = array(
        StopReplicaPartitionV0, until=0, default_factory=list
    )
    topics: list[StopReplicaTopicV1] = array(
        StopReplicaTopicV1, since=1, until=2, default_factory=list
    )
    topic_states: list[StopReplicaTopicState] = array(
        StopReplicaTopicState, since=3, default_factory=list
    )


@message(versions=(0, 6), flexible_from=6)
class UpdateMetadataResponse:
    """Outcome of an UpdateMetadataRequest."""

    error_code: int = int16(default=0)


@struct
class UpdateMetadataPartitionState:
    """State of one partition for the metadata cache; leader -2 means it is being deleted."""

    topic_name: str = string(until=4, default="")
    partition_index: int = int32()
    controller_epoch: int = int32()
    leader: int = int32()
    leader_epoch: int = int32()
    isr: list[int] = array(Kind.INT32)
    zk_version: int = int32()
    replicas: list[int] = array(Kind.INT32)
    offline_replicas: list[int] = array(Kind.INT32, since=4, default_factory=list)


@struct
class UpdateMetadataTopicState:
    """Partition states grouped by topic."""

    topic_name: str = string()
    partition_states: list[UpdateMetadataPartitionState] = array(UpdateMetadataPartitionState)


@struct
class UpdateMetadataEndpoint:
    """One listener of a broker; `security_protocol` 0 is PLAINTEXT."""

    port: int = int32()
    host: str = string()
    listener: str = string(since=3, default="")
    security_protocol: int = int16()


@struct
class UpdateMetadataBroker:
    """A live broker and its listeners."""

    id: int = int32()
    v0_host: str = string(until=0, default="")
    v0_port: int = int32(until=0, default=0)
    endpoints: list[UpdateMetadataEndpoint] = array(
        UpdateMetadataEndpoint, since=1, default_factory=list
    )
    rack: str | None = string(since=2, nullable_since=2, default=None)


@message(versions=(0, 6), flexible_from=6)
class UpdateMetadataRequest(Request[UpdateMetadataResponse]):
    """Tell a broker about live brokers and partition states; ungrouped before version 5."""

    controller_id: int = int32()
    controller_epoch: int = int32()
    broker_epoch: int = int64(since=5, default=-1)
    ungrouped_partition_states: list[UpdateMetadataPartitionState] = array(
        UpdateMetadataPartitionState, until=4, default_factory=list
    )
    topic_states: list[UpdateMetadataTopicState] = array(
        UpdateMetadataTopicState, since=5, default_factory=list
    )
    live_brokers: list[UpdateMetadataBroker] = array(UpdateMetadataBroker)


@struct
class RemainingPartition:
    """A partition the broker still leads."""

    topic_name: str = string()
    partition_index: int = int32()


@message(versions=(0, 3), flexible_from=3)
class ControlledShutdownResponse:
    """Partitions whose leadership could not be moved yet."""

    error_code: int = int16(default=0)
    remaining_partitions: list[RemainingPartition] = array(RemainingPartition)


@message(versions=(0, 3), flexible_from=3)
class ControlledShutdownRequest(Request[ControlledShutdownResponse]):
    """Ask the controller to move leadership away from `broker_id`; version 0 has no client id."""

    broker_id: int = int32()
    broker_epoch: int = int64(since=2, default=-1)
