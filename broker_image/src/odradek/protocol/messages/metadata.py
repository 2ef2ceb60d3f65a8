"""Which brokers there are and who leads which partition."""

from odradek.protocol.primitives import NO_UUID, Kind
from odradek.protocol.schema import (
    Request,
    array,
    boolean,
    int16,
    int32,
    message,
    string,
    struct,
    uuid,
)


@struct
class MetadataResponseBroker:
    """Address of a broker."""

    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(since=1, nullable_since=1, default=None)


@struct
class MetadataResponsePartition:
    """Leader, replicas and in-sync replicas of one partition."""

    error_code: int = int16(default=0)
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(since=7, default=-1)
    replica_nodes: list[int] = array(Kind.INT32)
    isr_nodes: list[int] = array(Kind.INT32)
    offline_replicas: list[int] = array(Kind.INT32, since=5, default_factory=list)


@struct
class MetadataResponseTopic:
    """Partitions of one topic."""

    error_code: int = int16(default=0)
    name: str = string()
    topic_id: bytes = uuid(since=10, default=NO_UUID)
    is_internal: bool = boolean(since=1, default=False)
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition)
    topic_authorized_operations: int = int32(since=8, default=-0x80000000)


@message(versions=(0, 11), flexible_from=9)
class MetadataResponse:
    """The cluster as the answering broker sees it."""

    throttle_time_ms: int = int32(since=3, default=0)
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker)
    cluster_id: str | None = string(since=2, nullable_since=2, default=None)
    controller_id: int = int32(since=1, default=-1)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic)
    cluster_authorized_operations: int = int32(since=8, until=10, default=-0x80000000)


@struct
class MetadataRequestTopic:
    """A topic asked for by name; ids are of use from version 12 on only."""

    topic_id: bytes = uuid(since=10, default=NO_UUID)
    name: str | None = string(nullable_since=10)


@message(versions=(0, 11), flexible_from=9)
class MetadataRequest(Request[MetadataResponse]):
    """Ask about `topics`: null means all, in version 0 the empty list does."""

    topics: list[MetadataRequestTopic] | None = array(
        MetadataRequestTopic, nullable_since=1, default=None
    )
    allow_auto_topic_creation: bool = boolean(since=4, default=True)
    include_cluster_authorized_operations: bool = boolean(since=8, until=10, default=False)
    include_topic_authorized_operations: bool = boolean(since=8, default=False)


@struct
class DescribeClusterBroker:
    """Address of a broker."""

    broker_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable_since=0, default=None)


@message(versions=(0, 0), flexible_from=0)
class DescribeClusterResponse:
    """The brokers and the controller, as the answering broker sees them."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable_since=0, default=None)
    cluster_id: str = string()
    controller_id: int = int32(default=-1)
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker)
    cluster_authorized_operations: int = int32(default=-0x80000000)


@message(versions=(0, 0), flexible_from=0)
class DescribeClusterRequest(Request[DescribeClusterResponse]):
    """Ask for the brokers and the controller, without topics (KIP-700)."""

    include_cluster_authorized_operations: bool = boolean()
