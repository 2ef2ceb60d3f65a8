"""Requests of every API, each sent with several sets of rights, and the error codes of the answers.

The sender is User:ANONYMOUS from another address of this machine, of which ACLs speak: nobody needs
to authenticate for that. The same works with Apache Kafka.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from odradek.protocol import codec, headers
from odradek.protocol.api import APIS, Api
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages import (
    acls,
    admin,
    client_quotas,
    configs,
    control,
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
from odradek.security import acl_znodes
from odradek.security.acls import AclEntry, PatternType, PermissionType, ResourcePattern
from odradek.security.acls import AclOperation as Operation
from odradek.security.acls import ResourceType as Type
from odradek.values import ANONYMOUS
from tests.support.logs import batch

ADMIN, SENDER = "127.0.0.1", "127.0.0.2"
TOPIC, OTHER, GROUP, CLUSTER = "seen", "hidden", "readers", "kafka-cluster"
TRANSACTIONAL_ID = "copying"
Right = tuple[Operation, Type, str]
TIMEOUT_MS = 30_000
_FRESH = re.compile("fresh-[0-9]+-[0-9]+")


class Connection:
    """A connection from one of this machine's addresses, which sends typed requests."""

    def __init__(self, port: int, host: str) -> None:
        self._numbers = itertools.count(1)
        self._socket = socket.create_connection(
            ("127.0.0.1", port), timeout=120, source_address=(host, 0)
        )

    def ask(self, request: Any, version: int) -> Any:
        """Return the answer, None if the connection was closed instead."""
        return self.ask_together([request], version)[0]

    def ask_together(self, requests: Sequence[Any], version: int) -> list[Any]:
        """Send requests of one kind at once; return the answers as `ask` does."""
        entry = self.send(requests, version)
        return [self._answer(entry, version) for _ in requests]

    def send(self, requests: Sequence[Any], version: int) -> Api:
        """Send requests of one kind at once; return what they are."""
        [entry] = [one for one in APIS.values() if one.request is type(requests[0])]
        frames = b""
        for request in requests:
            head = headers.encode_request_header(
                headers.RequestHeader(entry.key, version, next(self._numbers), "asker")
            )
            frame = head + codec.encode(request, version)
            frames += struct.pack(">i", len(frame)) + frame
        self._socket.sendall(frames)
        return entry

    def _answer(self, entry: Api, version: int) -> Any:
        size = self._receive(4)
        if size is None:
            return None
        answer = self._receive(struct.unpack(">i", size)[0])
        assert answer is not None
        _, position = headers.decode_response_header(entry, version, answer)
        return codec.decode(entry.response, version, answer, position)[0]

    def _receive(self, size: int) -> bytes | None:
        found = b""
        while len(found) < size:
            try:
                part = self._socket.recv(size - len(found))
            except ConnectionResetError:
                return None
            if not part:
                return None
            found += part
        return found

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


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


@dataclass(frozen=True, slots=True)
class Case:
    """A request, and the rights that it needs altogether. A fresh name makes it repeatable."""

    name: str
    version: int
    make: Callable[[str], Any]
    rights: Callable[[str], tuple[Right, ...]]

    def variants(self, fresh: str) -> Iterator[tuple[str, tuple[Right, ...]]]:
        """Yield what the sender has: nothing, everything but one right, everything."""
        rights = self.rights(fresh)
        yield "nothing", ()
        if len(rights) > 1:
            for missing in rights:
                kept = tuple(one for one in rights if one is not missing)
                yield f"no {missing[0].name} {missing[1].name}", kept
        yield "everything", rights


def _topic(operation: Operation, name: str = TOPIC) -> Right:
    return operation, Type.TOPIC, name


def _group(operation: Operation, name: str = GROUP) -> Right:
    return operation, Type.GROUP, name


def _cluster(operation: Operation) -> Right:
    return operation, Type.CLUSTER, CLUSTER


def _id(operation: Operation, name: str = TRANSACTIONAL_ID) -> Right:
    return operation, Type.TRANSACTIONAL_ID, name


def _always(*rights: Right) -> Callable[[str], tuple[Right, ...]]:
    return lambda fresh: rights


def _produce(
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


def _fetch(*names: str, replica_id: int = -1) -> fetch_messages.FetchRequest:
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


def _metadata(
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


def _configs(kind: int, name: str) -> configs.DescribeConfigsRequest:
    return configs.DescribeConfigsRequest(
        resources=[
            configs.DescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=["retention.ms"]
            )
        ]
    )


def _alter(kind: int, name: str) -> configs.IncrementalAlterConfigsRequest:
    return configs.IncrementalAlterConfigsRequest(
        resources=[
            configs.IncrementalAlterConfigsResource(
                resource_type=kind, resource_name=name, configs=[]
            )
        ],
        validate_only=True,
    )


def _offsets() -> offsets.ListOffsetsRequest:
    return offsets.ListOffsetsRequest(
        replica_id=-1,
        topics=[
            offsets.ListOffsetsTopic(
                name=name,
                partitions=[offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)],
            )
            for name in (TOPIC, OTHER)
        ],
    )


def _epochs(replica_id: int) -> offsets.OffsetForLeaderEpochRequest:
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


def _commit() -> group_offsets.OffsetCommitRequest:
    return group_offsets.OffsetCommitRequest(
        group_id=GROUP,
        topics=[
            group_offsets.OffsetCommitRequestTopic(
                name=name,
                partitions=[
                    group_offsets.OffsetCommitRequestPartition(
                        partition_index=0, committed_offset=1
                    )
                ],
            )
            for name in (TOPIC, OTHER)
        ],
    )


def _committed(names: tuple[str, ...] | None) -> group_offsets.OffsetFetchRequest:
    return group_offsets.OffsetFetchRequest(
        group_id=GROUP,
        topics=None
        if names is None
        else [
            group_offsets.OffsetFetchRequestTopic(name=name, partition_indexes=[0])
            for name in names
        ],
    )


def _commit_in_transaction(fresh: str) -> transactions.TxnOffsetCommitRequest:
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


def _forget(fresh: str) -> group_offsets.OffsetDeleteRequest:
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


def _create(fresh: str) -> topics.CreateTopicsRequest:
    return creation(fresh, f"{fresh}-other")


def _new_acl(fresh: str) -> acls.CreateAclsRequest:
    return acls.CreateAclsRequest(
        creations=creations([_topic(Operation.READ, fresh)], host="192.0.2.1")
    )


def _acl_filter(fresh: str) -> acls.DeleteAclsRequest:
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


def _describe_acls(fresh: str) -> acls.DescribeAclsRequest:
    return acls.DescribeAclsRequest(
        resource_type_filter=Type.TOPIC,
        resource_name_filter=fresh,
        pattern_type_filter=PatternType.MATCH,
        operation=1,
        permission_type=1,
    )


def _join(fresh: str) -> groups.JoinGroupRequest:
    return groups.JoinGroupRequest(
        group_id=fresh,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[groups.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


def _sync(fresh: str) -> groups.SyncGroupRequest:
    return groups.SyncGroupRequest(group_id=GROUP, generation_id=1, member_id="m", assignments=[])


def _elect(fresh: str) -> admin.ElectLeadersRequest:
    wanted = [admin.TopicPartitions(topic=TOPIC, partition_id=[0])]
    return admin.ElectLeadersRequest(topic_partitions=wanted)


def _reassign(fresh: str) -> admin.AlterPartitionReassignmentsRequest:
    parts = [admin.ReassignablePartition(partition_index=0, replicas=None)]
    return admin.AlterPartitionReassignmentsRequest(
        topics=[admin.ReassignableTopic(name=TOPIC, partitions=parts)]
    )


def _limit(fresh: str) -> client_quotas.AlterClientQuotasRequest:
    entry = client_quotas.QuotaAlteration(
        entity=[client_quotas.QuotaEntityData(entity_type="client-id", entity_name=fresh)],
        ops=[client_quotas.QuotaOperation(key="producer_byte_rate", value=1e9, remove=False)],
    )
    return client_quotas.AlterClientQuotasRequest(entries=[entry], validate_only=False)


def _remove_credentials(fresh: str) -> sasl.AlterUserScramCredentialsRequest:
    gone = [sasl.ScramCredentialDeletion(name=user, mechanism=1) for user in ("one", "two")]
    return sasl.AlterUserScramCredentialsRequest(deletions=gone, upsertions=[])


def _move(fresh: str) -> admin.AlterReplicaLogDirsRequest:
    wanted = [admin.AlterReplicaLogDirTopic(name=TOPIC, partitions=[0])]
    return admin.AlterReplicaLogDirsRequest(
        dirs=[admin.AlterReplicaLogDir(path="/none", topics=wanted)]
    )


def _update(fresh: str) -> control.UpdateMetadataRequest:
    return control.UpdateMetadataRequest(
        controller_id=1, controller_epoch=0, broker_epoch=0, topic_states=[], live_brokers=[]
    )


def _initialize(transactional_id: str | None) -> producers.InitProducerIdRequest:
    return producers.InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=60_000
    )


def _add(*names: str, producer_epoch: int = 0) -> transactions.AddPartitionsToTxnRequest:
    return transactions.AddPartitionsToTxnRequest(
        transactional_id=TRANSACTIONAL_ID,
        producer_id=0,
        producer_epoch=producer_epoch,
        topics=[
            transactions.AddPartitionsToTxnTopic(name=name, partitions=[0, 0]) for name in names
        ],
    )


def _add_offsets(group: str) -> transactions.AddOffsetsToTxnRequest:
    return transactions.AddOffsetsToTxnRequest(
        transactional_id=TRANSACTIONAL_ID, producer_id=0, producer_epoch=0, group_id=group
    )


def _end(producer_epoch: int = 0) -> transactions.EndTxnRequest:
    return transactions.EndTxnRequest(
        transactional_id=TRANSACTIONAL_ID,
        producer_id=0,
        producer_epoch=producer_epoch,
        committed=True,
    )


def _write_markers() -> transactions.WriteTxnMarkersRequest:
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


def _producers(fresh: str) -> transaction_states.DescribeProducersRequest:
    return transaction_states.DescribeProducersRequest(
        topics=[
            transaction_states.DescribeProducersTopicRequest(name=name, partition_indexes=[0, 7])
            for name in (TOPIC, OTHER, "none", "a/b")
        ]
    )


def _described(fresh: str) -> transaction_states.DescribeTransactionsRequest:
    return transaction_states.DescribeTransactionsRequest(
        transactional_ids=[TRANSACTIONAL_ID, "others", ""]
    )


def _find(transactional_id: str) -> groups.FindCoordinatorRequest:
    return groups.FindCoordinatorRequest(key=transactional_id, key_type=1)


TRANSACTIONAL = batch(b"v", producer_id=0, producer_epoch=0, base_sequence=0, transactional=True)
READ, WRITE, CREATE, DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
ALTER, DESCRIBE, ACT = Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION
DESCRIBE_CONFIGS, ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS

CASES = [
    Case("Produce", 8, lambda _: _produce(TOPIC, OTHER), _always(_topic(WRITE))),
    Case("Produce missing", 8, lambda _: _produce("none"), _always(_topic(WRITE, "none"))),
    Case("Produce acks=0", 8, lambda _: _produce(TOPIC, acks=0), _always()),
    Case("Produce acks=7", 8, lambda _: _produce(TOPIC, acks=7), _always()),
    Case("Fetch", 11, lambda _: _fetch(TOPIC, OTHER), _always(_topic(READ))),
    Case("Fetch missing", 11, lambda _: _fetch("none"), _always(_topic(READ, "none"))),
    Case("Fetch v3", 3, lambda _: _fetch(TOPIC, OTHER), _always(_topic(READ))),
    Case("Fetch follower", 11, lambda _: _fetch(TOPIC, replica_id=7), _always(_topic(READ))),
    Case("ListOffsets", 5, lambda _: _offsets(), _always(_topic(DESCRIBE))),
    Case("ListOffsets v0", 0, lambda _: _offsets(), _always(_topic(READ))),
    Case("Metadata", 9, lambda _: _metadata([TOPIC, OTHER]), _always(_topic(DESCRIBE))),
    Case("Metadata all", 9, lambda _: _metadata(None), _always(_topic(READ))),
    Case("Metadata v0 all", 0, lambda _: _metadata([]), _always(_topic(DESCRIBE))),
    Case("Metadata none", 9, lambda _: _metadata([]), _always()),
    Case(
        "Metadata operations",
        8,
        lambda _: _metadata([TOPIC, OTHER], operations=True),
        _always(_topic(ALTER), _topic(ALTER_CONFIGS), _cluster(DESCRIBE)),
    ),
    Case(
        "Metadata creating, on the topic",
        9,
        lambda fresh: _metadata([fresh], create=True),
        lambda fresh: (_topic(DESCRIBE, fresh), _topic(CREATE, fresh)),
    ),
    Case(
        "Metadata creating, on the cluster",
        9,
        lambda fresh: _metadata([fresh], create=True),
        lambda fresh: (_topic(DESCRIBE, fresh), _cluster(CREATE)),
    ),
    Case("UpdateMetadata", 5, _update, _always(_cluster(ACT))),
    Case(
        "StopReplica",
        2,
        lambda _: control.StopReplicaRequest(
            controller_id=1, controller_epoch=0, broker_epoch=0, topics=[]
        ),
        _always(_cluster(ACT)),
    ),
    Case(
        "LeaderAndIsr",
        2,
        lambda _: control.LeaderAndIsrRequest(
            controller_id=1, controller_epoch=0, broker_epoch=0, live_leaders=[]
        ),
        _always(_cluster(ACT)),
    ),
    Case(
        "ControlledShutdown",
        1,
        lambda _: control.ControlledShutdownRequest(broker_id=77),
        _always(_cluster(ACT)),
    ),
    Case("OffsetCommit", 7, lambda _: _commit(), _always(_group(READ), _topic(READ))),
    Case(
        "OffsetFetch",
        7,
        lambda _: _committed((TOPIC, OTHER)),
        _always(_group(DESCRIBE), _topic(DESCRIBE)),
    ),
    Case(
        "OffsetFetch v1",
        1,
        lambda _: _committed((TOPIC, OTHER)),
        _always(_group(DESCRIBE), _topic(DESCRIBE)),
    ),
    Case(
        "OffsetFetch v0",
        0,
        lambda _: _committed((TOPIC, OTHER)),
        _always(_group(DESCRIBE), _topic(DESCRIBE)),
    ),
    Case(
        "OffsetFetch all",
        7,
        lambda _: _committed(None),
        _always(_group(DESCRIBE), _topic(DESCRIBE)),
    ),
    *(
        Case(
            f"TxnOffsetCommit v{version}",
            version,
            _commit_in_transaction,
            _always(_id(WRITE), _group(READ), _topic(READ)),
        )
        for version in (0, 3)
    ),
    Case("OffsetDelete", 0, _forget, _always(_group(DELETE), _topic(READ))),
    Case(
        "FindCoordinator",
        3,
        lambda _: groups.FindCoordinatorRequest(key=GROUP),
        _always(_group(DESCRIBE)),
    ),
    Case("ListGroups", 4, lambda _: groups.ListGroupsRequest(), _always(_group(DESCRIBE))),
    Case(
        "ListGroups, of the cluster",
        4,
        lambda _: groups.ListGroupsRequest(),
        _always(_cluster(DESCRIBE)),
    ),
    Case("JoinGroup", 7, _join, lambda fresh: (_group(READ, fresh),)),
    Case("SyncGroup", 3, _sync, _always(_group(READ))),
    Case(
        "Heartbeat",
        4,
        lambda _: groups.HeartbeatRequest(group_id=GROUP, generation_id=1, member_id="m"),
        _always(_group(READ)),
    ),
    Case(
        "LeaveGroup",
        4,
        lambda _: groups.LeaveGroupRequest(
            group_id=GROUP, members=[groups.MemberIdentity(member_id="m")]
        ),
        _always(_group(READ)),
    ),
    Case(
        "DescribeGroups",
        5,
        lambda _: groups.DescribeGroupsRequest(
            groups=[GROUP, "others"], include_authorized_operations=True
        ),
        _always(_group(READ)),
    ),
    Case(
        "DeleteGroups",
        2,
        lambda _: groups.DeleteGroupsRequest(groups_names=[GROUP, "others"]),
        _always(_group(DELETE)),
    ),
    Case("CreateTopics", 5, _create, lambda fresh: (_topic(CREATE, fresh),)),
    Case(
        "CreateTopics with configs",
        5,
        _create,
        lambda fresh: (_topic(CREATE, fresh), _topic(DESCRIBE_CONFIGS, fresh)),
    ),
    Case("CreateTopics, of the cluster", 5, _create, _always(_cluster(CREATE))),
    Case(
        "CreatePartitions",
        3,
        lambda _: topics.CreatePartitionsRequest(
            topics=[
                topics.CreatePartitionsTopic(name=name, count=3) for name in (TOPIC, OTHER, "none")
            ],
            timeout_ms=TIMEOUT_MS,
            validate_only=True,
        ),
        _always(_topic(ALTER)),
    ),
    Case(
        "DeleteTopics",
        5,
        lambda _: topics.DeleteTopicsRequest(
            topic_names=["none", OTHER, "gone"], timeout_ms=TIMEOUT_MS
        ),
        _always(_topic(DELETE, "none")),
    ),
    Case(
        "DeleteRecords",
        2,
        lambda _: offsets.DeleteRecordsRequest(
            topics=[
                offsets.DeleteRecordsTopic(
                    name=name,
                    partitions=[offsets.DeleteRecordsPartition(partition_index=0, offset=0)],
                )
                for name in (TOPIC, OTHER)
            ],
            timeout_ms=TIMEOUT_MS,
        ),
        _always(_topic(DELETE)),
    ),
    Case(
        "InitProducerId",
        4,
        lambda _: producers.InitProducerIdRequest(transaction_timeout_ms=1000),
        _always(_topic(WRITE)),
    ),
    Case(
        "InitProducerId, of the cluster",
        4,
        lambda _: producers.InitProducerIdRequest(transaction_timeout_ms=1000),
        _always(_cluster(Operation.IDEMPOTENT_WRITE)),
    ),
    Case(
        "FindCoordinator of a transactional id",
        3,
        lambda _: _find(TRANSACTIONAL_ID),
        _always(_id(DESCRIBE)),
    ),
    Case(
        "FindCoordinator of type 2",
        3,
        lambda _: groups.FindCoordinatorRequest(key=GROUP, key_type=2),
        _always(_group(DESCRIBE)),
    ),
    Case(
        "InitProducerId of a transactional id",
        4,
        lambda fresh: _initialize(fresh),
        lambda fresh: (_id(WRITE, fresh),),
    ),
    Case("InitProducerId of no id", 4, lambda _: _initialize(""), _always(_id(WRITE, "*"))),
    Case(
        "AddPartitionsToTxn with another",
        3,
        lambda _: _add(TOPIC, OTHER),
        _always(_id(WRITE), _topic(WRITE)),
    ),
    Case(
        "AddPartitionsToTxn missing",
        3,
        lambda _: _add(TOPIC, "none"),
        _always(_id(WRITE), _topic(WRITE), _topic(WRITE, "none")),
    ),
    Case(
        "AddPartitionsToTxn internal",
        3,
        lambda _: _add(TOPIC, "__consumer_offsets"),
        _always(_id(WRITE), _topic(WRITE), _topic(WRITE, "__consumer_offsets")),
    ),
    Case(
        "AddPartitionsToTxn of another producer",
        3,
        lambda _: _add(TOPIC, producer_epoch=1),
        _always(_id(WRITE), _topic(WRITE)),
    ),
    Case(
        "AddPartitionsToTxn of another producer, v1",
        1,
        lambda _: _add(TOPIC, producer_epoch=1),
        _always(_id(WRITE), _topic(WRITE)),
    ),
    Case("EndTxn of nothing", 3, lambda _: _end(), _always(_id(WRITE))),
    Case("AddPartitionsToTxn", 3, lambda _: _add(TOPIC), _always(_id(WRITE), _topic(WRITE))),
    Case(
        "Produce transactional",
        8,
        lambda _: _produce(
            TOPIC, acks=-1, transactional_id=TRANSACTIONAL_ID, records=TRANSACTIONAL
        ),
        _always(_id(WRITE), _topic(WRITE)),
    ),
    Case(
        "Produce plain with an id",
        8,
        lambda _: _produce(TOPIC, transactional_id=TRANSACTIONAL_ID),
        _always(_id(WRITE), _topic(WRITE)),
    ),
    Case(
        "Produce transactional without an id",
        8,
        lambda _: _produce(TOPIC, OTHER, acks=-1, records=TRANSACTIONAL),
        _always(_topic(WRITE)),
    ),
    Case("AddOffsetsToTxn", 3, lambda _: _add_offsets(GROUP), _always(_id(WRITE), _group(READ))),
    Case(
        "AddOffsetsToTxn of no group",
        3,
        lambda _: _add_offsets(""),
        _always(_id(WRITE), _group(READ, "*")),
    ),
    Case("EndTxn of another producer", 3, lambda _: _end(1), _always(_id(WRITE))),
    Case("EndTxn of another producer, v1", 1, lambda _: _end(1), _always(_id(WRITE))),
    Case("EndTxn", 3, lambda _: _end(), _always(_id(WRITE))),
    Case("WriteTxnMarkers", 1, lambda _: _write_markers(), _always(_cluster(ACT))),
    Case("OffsetForLeaderEpoch", 3, lambda _: _epochs(-1), _always(_topic(DESCRIBE))),
    Case("OffsetForLeaderEpoch follower", 3, lambda _: _epochs(7), _always(_cluster(ACT))),
    Case("DescribeAcls", 2, _describe_acls, _always(_cluster(DESCRIBE))),
    Case("CreateAcls", 2, _new_acl, _always(_cluster(ALTER))),
    Case("DeleteAcls", 2, _acl_filter, _always(_cluster(ALTER))),
    Case(
        "DescribeConfigs of a topic",
        3,
        lambda _: _configs(2, TOPIC),
        _always(_topic(DESCRIBE_CONFIGS)),
    ),
    Case(
        "DescribeConfigs of a broker",
        3,
        lambda _: _configs(4, "1"),
        _always(_cluster(ALTER_CONFIGS)),
    ),
    Case("AlterConfigs of a topic", 1, lambda _: _alter(2, TOPIC), _always(_topic(ALTER_CONFIGS))),
    Case("AlterConfigs of a broker", 1, lambda _: _alter(4, "1"), _always(_cluster(ALTER_CONFIGS))),
    Case(
        "AlterConfigs before Kafka 2.3",
        1,
        lambda _: configs.AlterConfigsRequest(
            resources=[
                configs.AlterConfigsResource(resource_type=2, resource_name=TOPIC, configs=[])
            ],
            validate_only=True,
        ),
        _always(_topic(ALTER_CONFIGS)),
    ),
    Case("AlterReplicaLogDirs", 2, _move, _always(_cluster(ALTER))),
    Case(
        "DescribeLogDirs",
        2,
        lambda _: admin.DescribeLogDirsRequest(),
        _always(_cluster(DESCRIBE)),
    ),
    Case("ElectLeaders", 2, _elect, _always(_cluster(ALTER))),
    Case("AlterPartitionReassignments", 0, _reassign, _always(_cluster(ALTER))),
    Case(
        "ListPartitionReassignments",
        0,
        lambda _: admin.ListPartitionReassignmentsRequest(),
        _always(_cluster(DESCRIBE)),
    ),
    Case(
        "DescribeClientQuotas",
        0,
        lambda _: client_quotas.DescribeClientQuotasRequest(components=[], strict=False),
        _always(_cluster(DESCRIBE_CONFIGS)),
    ),
    Case("AlterClientQuotas", 0, _limit, _always(_cluster(ALTER_CONFIGS))),
    Case(
        "DescribeUserScramCredentials",
        0,
        lambda _: sasl.DescribeUserScramCredentialsRequest(users=None),
        _always(_cluster(DESCRIBE)),
    ),
    Case("AlterUserScramCredentials", 0, _remove_credentials, _always(_cluster(ALTER))),
]


# What 2.8.2 lacks, or has only in part; a transaction is open.
NEWER_CASES = [
    Case("DescribeProducers", 0, _producers, _always(_topic(READ))),
    Case("DescribeTransactions", 0, _described, _always(_id(DESCRIBE), _topic(DESCRIBE))),
    Case("DescribeTransactions of any", 0, _described, _always(_id(DESCRIBE, "*"))),
    *(
        Case(
            f"ListTransactions v{version}",
            version,
            lambda _: transaction_states.ListTransactionsRequest(),
            _always(_id(DESCRIBE)),
        )
        for version in (0, 1)
    ),
    Case("WriteTxnMarkers with Alter", 1, lambda _: _write_markers(), _always(_cluster(ALTER))),
]


NAMES = {
    *("name", "topic", "group_id", "topic_name", "resource_name", "group"),
    *("transactional_id", "transaction_state"),
}
# Fields of versions that Kafka 2.8, which is compared with, does not know.
_LATER_FIELDS = {("AddPartitionsToTxnResponse", "error_code")}


def _codes(answer: Any) -> Iterator[str]:
    """Yield what an answer says, in words that do not depend on the order of its lists."""
    if not dataclasses.is_dataclass(answer):
        return
    name, values = "", []
    for one in dataclasses.fields(answer):
        value = getattr(answer, one.name)
        if (type(answer).__name__, one.name) in _LATER_FIELDS:
            continue
        if isinstance(value, list):
            for entry in value:
                yield from (f"{one.name}.{text}" for text in _codes(entry))
        elif one.name in NAMES:
            name = value
        elif one.name.endswith(("error_code", "authorized_operations")):
            values.append(value)
    yield f"{name}={','.join(map(str, values))}"


def codes(answer: Any) -> str:
    """Return what an answer says in one line; None is a closed connection."""
    if answer is None:
        return "closed"
    return " ".join(sorted({_FRESH.sub("FRESH", text) for text in _codes(answer)}))


class Asker:
    """Sends the cases to one broker, whose first user is the administrator."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._admin = Connection(port, ADMIN)

    def prepare(self) -> None:
        """Make two topics, and commit an offset of the group, as administrator."""
        for name in (TOPIC, OTHER):
            made = self._admin.ask(_create(name), 5)
            while made.topics[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR:
                made = self._admin.ask(_create(name), 5)  # it knows no brokers yet
            assert made.topics[0].error_code == 0, made
        while self._admin.ask(_commit(), 7).topics[0].partitions[0].error_code:
            self._admin.ask(groups.FindCoordinatorRequest(key=GROUP), 3)
        while self._admin.ask(_find(TRANSACTIONAL_ID), 3).error_code:
            pass
        while (made := self._admin.ask(_initialize(TRANSACTIONAL_ID), 4)).error_code:
            pass
        assert (made.producer_id, made.producer_epoch) == (0, 0)

    def begin_transaction(self) -> None:
        """Leave a transaction open that has both topics, as administrator."""
        assert "=0" in codes(self._admin.ask(_add(TOPIC, OTHER), 3))

    def results(self, cases: Sequence[Case] = CASES) -> dict[str, str]:
        """Return the codes by case and variant."""
        found = {}
        for number, case in enumerate(cases):
            if case.name == "OffsetDelete":
                self._admin.ask(_commit(), 7)
            for turn in range(9):
                fresh = f"fresh-{number}-{turn}"
                variants = dict(enumerate(case.variants(fresh)))
                if turn not in variants:
                    break
                said, rights = variants[turn]
                found[f"{case.name}, with {said}"] = self._one(case, fresh, rights)
            if case.name == "EndTxn":
                while self._admin.ask(_end(), 3).error_code == ErrorCode.CONCURRENT_TRANSACTIONS:
                    pass  # its markers are being written
        self._admin.close()
        return found

    def state(self) -> list[str]:
        """Return what requests could have changed: topics, records, offsets, groups and ACLs."""
        everything = acls.DescribeAclsRequest(
            resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
        )
        told = self._admin.ask(_metadata(None), 9)
        return [
            *sorted(f"{one.name}: {len(one.partitions)}" for one in told.topics),
            *(
                str(self._admin.ask(request, version))
                for request, version in (
                    (_offsets(), 5),
                    (_committed(None), 7),
                    (groups.ListGroupsRequest(), 4),
                    (everything, 2),
                    (_configs(2, TOPIC), 3),
                )
            ),
        ]

    def _one(self, case: Case, fresh: str, rights: tuple[Right, ...]) -> str:
        created = self._admin.ask(acls.CreateAclsRequest(creations=creations(rights)), 2)
        assert not any(one.error_code for one in created.results), created
        sender = Connection(self._port, SENDER)
        before = self.state() if not rights else []
        answer = sender.ask(case.make(fresh), case.version)
        assert not before or self.state() == before, f"{case.name} without a right did something"
        sender.close()
        if any(fresh in text and "=5," in text for text in _codes(answer)):
            # It is being created; the next case must not find it half done.
            while self._admin.ask(_metadata([fresh]), 9).topics[0].error_code:
                pass
        self._admin.ask(
            acls.DeleteAclsRequest(
                filters=[
                    acls.DeleteAclsFilter(
                        resource_type_filter=1,
                        pattern_type_filter=1,
                        host_filter=SENDER,
                        operation=1,
                        permission_type=1,
                    )
                ]
            ),
            2,
        )
        return codes(answer)


SETTINGS = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "auto.leader.rebalance.enable": "false",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "zookeeper.session.timeout.ms": "30000",
}


def allow_administrator(client: Any) -> None:
    """Let whoever comes from ADMIN do everything, in the ZooKeeper of brokers to be started."""
    entry = AclEntry(ANONYMOUS, PermissionType.ALLOW, Operation.ALL, ADMIN)
    for kind, name in (
        (Type.CLUSTER, CLUSTER),
        (Type.TOPIC, "*"),
        (Type.GROUP, "*"),
        (Type.TRANSACTIONAL_ID, "*"),
    ):
        path = acl_znodes.acl_path(ResourcePattern(kind, name))
        client.create(path, acl_znodes.encode_acls([entry]), makepath=True)
