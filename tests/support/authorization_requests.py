"""The requests of the cases of authorization, of every API."""

from __future__ import annotations

from collections.abc import Iterable

from odradek.protocol.messages import (
    acls,
    admin,
    client_quotas,
    configs,
    control,
    delegation_tokens,
    group_offsets,
    groups,
    metadata,
    offsets,
    producers,
    sasl,
    topics,
    transaction_states,
    transactions,
)
from odradek.protocol.messages import fetch as fetch_messages
from odradek.protocol.messages import produce as produce_messages
from odradek.security.acls import AclOperation as Operation
from odradek.security.acls import PatternType, PermissionType
from odradek.security.acls import ResourceType as Type
from tests.support.asking import SENDER
from tests.support.logs import batch

TOPIC, OTHER, GROUP, CLUSTER = "seen", "hidden", "readers", "kafka-cluster"
TRANSACTIONAL_ID = "copying"
# A topic of which only a forged request of a controller tells.
GHOST = "ghost"
Right = tuple[Operation, Type, str]
TIMEOUT_MS = 30_000


def creations(rights: Iterable[Right], host: str = SENDER) -> list[acls.AclCreation]:
    """Return ACLs that give rights to whoever comes from an address."""
    return [
        acls.AclCreation(
            resource_type=kind,
            resource_name=name,
            resource_pattern_type=PatternType.LITERAL,
            principal="User:ANONYMOUS",
            host=host,
            operation=operation,
            permission_type=PermissionType.ALLOW,
        )
        for operation, kind, name in rights
    ]


def produce(
    *names: str,
    acks: int = 1,
    transactional_id: str | None = None,
    records: bytes = batch(b"v"),
) -> produce_messages.ProduceRequest:
    return produce_messages.ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=TIMEOUT_MS,
        topic_data=[
            produce_messages.TopicProduceData(
                name=name,
                partition_data=[produce_messages.PartitionProduceData(index=0, records=records)],
            )
            for name in names
        ],
    )


def fetch(*names: str, replica_id: int = -1) -> fetch_messages.FetchRequest:
    return fetch_messages.FetchRequest(
        replica_id=replica_id,
        max_wait_ms=0,
        min_bytes=0,
        topics=[
            fetch_messages.FetchTopic(
                topic=name,
                partitions=[
                    fetch_messages.FetchPartition(
                        partition=0, fetch_offset=0, partition_max_bytes=1000
                    )
                ],
            )
            for name in names
        ],
    )


def topic_metadata(
    names: list[str] | None, create: bool = False, operations: bool = False
) -> metadata.MetadataRequest:
    return metadata.MetadataRequest(
        topics=None
        if names is None
        else [metadata.MetadataRequestTopic(name=name) for name in names],
        allow_auto_topic_creation=create,
        include_cluster_authorized_operations=operations,
        include_topic_authorized_operations=operations,
    )


def described_configs(
    kind: int, name: str, key: str = "retention.ms"
) -> configs.DescribeConfigsRequest:
    return configs.DescribeConfigsRequest(
        resources=[
            configs.DescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=[key]
            )
        ]
    )


def directories(*names: str) -> admin.DescribeLogDirsRequest:
    return admin.DescribeLogDirsRequest(
        topics=[admin.DescribableLogDirTopic(topic=name, partition_index=[0]) for name in names]
    )


def every_quota() -> client_quotas.DescribeClientQuotasRequest:
    return client_quotas.DescribeClientQuotasRequest(components=[], strict=False)


def alter(kind: int, name: str) -> configs.IncrementalAlterConfigsRequest:
    return configs.IncrementalAlterConfigsRequest(
        resources=[
            configs.IncrementalAlterConfigsResource(
                resource_type=kind, resource_name=name, configs=[]
            )
        ],
        validate_only=True,
    )


def listed_offsets(timestamp: int) -> offsets.ListOffsetsRequest:
    return offsets.ListOffsetsRequest(
        replica_id=-1,
        topics=[
            offsets.ListOffsetsTopic(
                name=name,
                partitions=[offsets.ListOffsetsPartition(partition_index=0, timestamp=timestamp)],
            )
            for name in (TOPIC, OTHER)
        ],
    )


def latest_offsets() -> offsets.ListOffsetsRequest:
    return listed_offsets(-1)


def epochs(replica_id: int) -> offsets.OffsetForLeaderEpochRequest:
    return offsets.OffsetForLeaderEpochRequest(
        replica_id=replica_id,
        topics=[
            offsets.OffsetForLeaderTopic(
                topic=name,
                partitions=[offsets.OffsetForLeaderPartition(partition=0, leader_epoch=0)],
            )
            for name in (TOPIC, OTHER)
        ],
    )


def commit(offset: int = 1) -> group_offsets.OffsetCommitRequest:
    return group_offsets.OffsetCommitRequest(
        group_id=GROUP,
        topics=[
            group_offsets.OffsetCommitRequestTopic(
                name=name,
                partitions=[
                    group_offsets.OffsetCommitRequestPartition(
                        partition_index=0, committed_offset=offset
                    )
                ],
            )
            for name in (TOPIC, OTHER)
        ],
    )


def committed(names: tuple[str, ...] | None) -> group_offsets.OffsetFetchRequest:
    return group_offsets.OffsetFetchRequest(
        group_id=GROUP,
        topics=None
        if names is None
        else [
            group_offsets.OffsetFetchRequestTopic(name=name, partition_indexes=[0])
            for name in names
        ],
    )


def commit_in_transaction(fresh: str) -> transactions.TxnOffsetCommitRequest:
    return transactions.TxnOffsetCommitRequest(
        transactional_id=TRANSACTIONAL_ID,
        group_id=GROUP,
        producer_id=1000,
        producer_epoch=0,
        topics=[
            transactions.TxnOffsetCommitRequestTopic(
                name=name,
                partitions=[
                    transactions.TxnOffsetCommitRequestPartition(
                        partition_index=0, committed_offset=1
                    )
                ],
            )
            for name in (TOPIC, OTHER)
        ],
    )


def forget(fresh: str) -> group_offsets.OffsetDeleteRequest:
    return group_offsets.OffsetDeleteRequest(
        group_id=GROUP,
        topics=[
            group_offsets.OffsetDeleteRequestTopic(
                name=name,
                partitions=[group_offsets.OffsetDeleteRequestPartition(partition_index=0)],
            )
            for name in (TOPIC, OTHER)
        ],
    )


def creation(*names: str, partitions: int = 1) -> topics.CreateTopicsRequest:
    """Return a request that makes topics."""
    return topics.CreateTopicsRequest(
        topics=[
            topics.CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=1,
                assignments=[],
                configs=[],
            )
            for name in names
        ],
        timeout_ms=TIMEOUT_MS,
    )


def create(fresh: str) -> topics.CreateTopicsRequest:
    return creation(fresh, f"{fresh}-other")


def new_acl(fresh: str) -> acls.CreateAclsRequest:
    return acls.CreateAclsRequest(
        creations=creations([(Operation.READ, Type.TOPIC, fresh)], host="192.0.2.1")
    )


def acl_filter(fresh: str) -> acls.DeleteAclsRequest:
    return acls.DeleteAclsRequest(
        filters=[
            acls.DeleteAclsFilter(
                resource_type_filter=Type.TOPIC,
                resource_name_filter=fresh,
                pattern_type_filter=PatternType.LITERAL,
                operation=1,
                permission_type=1,
            )
        ]
    )


def describe_acls(fresh: str) -> acls.DescribeAclsRequest:
    return acls.DescribeAclsRequest(
        resource_type_filter=Type.TOPIC,
        resource_name_filter=fresh,
        pattern_type_filter=PatternType.MATCH,
        operation=1,
        permission_type=1,
    )


def join(fresh: str) -> groups.JoinGroupRequest:
    return groups.JoinGroupRequest(
        group_id=fresh,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[groups.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


def sync(fresh: str) -> groups.SyncGroupRequest:
    return groups.SyncGroupRequest(group_id=GROUP, generation_id=1, member_id="m", assignments=[])


def elect(fresh: str) -> admin.ElectLeadersRequest:
    wanted = [admin.TopicPartitions(topic=TOPIC, partition_id=[0])]
    return admin.ElectLeadersRequest(topic_partitions=wanted)


def reassign(fresh: str) -> admin.AlterPartitionReassignmentsRequest:
    parts = [admin.ReassignablePartition(partition_index=0, replicas=None)]
    return admin.AlterPartitionReassignmentsRequest(
        topics=[admin.ReassignableTopic(name=TOPIC, partitions=parts)]
    )


def limit(fresh: str) -> client_quotas.AlterClientQuotasRequest:
    entry = client_quotas.QuotaAlteration(
        entity=[client_quotas.QuotaEntityData(entity_type="client-id", entity_name=fresh)],
        ops=[client_quotas.QuotaOperation(key="producer_byte_rate", value=1e9, remove=False)],
    )
    return client_quotas.AlterClientQuotasRequest(entries=[entry], validate_only=False)


def remove_credentials(fresh: str) -> sasl.AlterUserScramCredentialsRequest:
    gone = [sasl.ScramCredentialDeletion(name=user, mechanism=1) for user in ("one", "two")]
    return sasl.AlterUserScramCredentialsRequest(deletions=gone, upsertions=[])


def move(fresh: str) -> admin.AlterReplicaLogDirsRequest:
    wanted = [admin.AlterReplicaLogDirTopic(name=TOPIC, partitions=[0])]
    return admin.AlterReplicaLogDirsRequest(
        dirs=[admin.AlterReplicaLogDir(path="/none", topics=wanted)]
    )


def update(fresh: str) -> control.UpdateMetadataRequest:
    return control.UpdateMetadataRequest(
        controller_id=1, controller_epoch=0, broker_epoch=0, topic_states=[], live_brokers=[]
    )


def initialize(transactional_id: str | None) -> producers.InitProducerIdRequest:
    return producers.InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=60_000
    )


def add(*names: str, producer_epoch: int = 0) -> transactions.AddPartitionsToTxnRequest:
    return transactions.AddPartitionsToTxnRequest(
        transactional_id=TRANSACTIONAL_ID,
        producer_id=0,
        producer_epoch=producer_epoch,
        topics=[
            transactions.AddPartitionsToTxnTopic(name=name, partitions=[0, 0]) for name in names
        ],
    )


def add_offsets(group: str) -> transactions.AddOffsetsToTxnRequest:
    return transactions.AddOffsetsToTxnRequest(
        transactional_id=TRANSACTIONAL_ID, producer_id=0, producer_epoch=0, group_id=group
    )


def end(producer_epoch: int = 0) -> transactions.EndTxnRequest:
    return transactions.EndTxnRequest(
        transactional_id=TRANSACTIONAL_ID,
        producer_id=0,
        producer_epoch=producer_epoch,
        committed=True,
    )


def write_markers() -> transactions.WriteTxnMarkersRequest:
    return transactions.WriteTxnMarkersRequest(
        markers=[
            transactions.WritableTxnMarker(
                producer_id=producer_id,
                producer_epoch=0,
                transaction_result=True,
                topics=[
                    transactions.WritableTxnMarkerTopic(name=name, partition_indexes=[0])
                    for name in (TOPIC, OTHER, "none")
                ],
                coordinator_epoch=0,
            )
            for producer_id in (7_001, 7_002)
        ]
    )


def described_producers(fresh: str) -> transaction_states.DescribeProducersRequest:
    return transaction_states.DescribeProducersRequest(
        topics=[
            transaction_states.DescribeProducersTopicRequest(name=name, partition_indexes=[0, 7])
            for name in (TOPIC, OTHER, "none", "a/b")
        ]
    )


def described_transactions(fresh: str) -> transaction_states.DescribeTransactionsRequest:
    return transaction_states.DescribeTransactionsRequest(
        transactional_ids=[TRANSACTIONAL_ID, "others", ""]
    )


def find_transactional_id(transactional_id: str) -> groups.FindCoordinatorRequest:
    return groups.FindCoordinatorRequest(key=transactional_id, key_type=1)


OF_TOKENS = (
    delegation_tokens.CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1),
    delegation_tokens.RenewDelegationTokenRequest(hmac=b"h", renew_period_ms=-1),
    delegation_tokens.ExpireDelegationTokenRequest(hmac=b"h", expiry_time_period_ms=-1),
    delegation_tokens.DescribeDelegationTokenRequest(owners=None),
)


def described_cluster(*, operations: bool) -> metadata.DescribeClusterRequest:
    return metadata.DescribeClusterRequest(include_cluster_authorized_operations=operations)
