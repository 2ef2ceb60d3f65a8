"""Requests of every API, each with the rights that it needs altogether."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from odradek.protocol.messages import (
    admin,
    client_quotas,
    configs,
    control,
    groups,
    offsets,
    producers,
    sasl,
    topics,
    transaction_states,
)
from odradek.security.acls import AclOperation as Operation
from odradek.security.acls import ResourceType as Type
from tests.support import authorization_requests as requests
from tests.support.authorization_requests import (
    CLUSTER,
    GROUP,
    OTHER,
    TIMEOUT_MS,
    TOPIC,
    TRANSACTIONAL_ID,
    Right,
)
from tests.support.logs import batch


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


def _repeated(request: Any) -> Callable[[str], Any]:
    return lambda fresh: request


def _always(*rights: Right) -> Callable[[str], tuple[Right, ...]]:
    return lambda fresh: rights


TRANSACTIONAL = batch(b"v", producer_id=0, producer_epoch=0, base_sequence=0, transactional=True)
READ, WRITE, CREATE, DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
ALTER, DESCRIBE, ACT = Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION
DESCRIBE_CONFIGS, ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS

CASES = [
    Case("Produce", 8, lambda _: requests.produce(TOPIC, OTHER), _always(_topic(WRITE))),
    Case("Produce missing", 8, lambda _: requests.produce("none"), _always(_topic(WRITE, "none"))),
    Case("Produce acks=0", 8, lambda _: requests.produce(TOPIC, acks=0), _always()),
    Case("Produce acks=7", 8, lambda _: requests.produce(TOPIC, acks=7), _always()),
    Case("Fetch", 11, lambda _: requests.fetch(TOPIC, OTHER), _always(_topic(READ))),
    Case("Fetch missing", 11, lambda _: requests.fetch("none"), _always(_topic(READ, "none"))),
    Case("Fetch v3", 3, lambda _: requests.fetch(TOPIC, OTHER), _always(_topic(READ))),
    Case(
        "Fetch follower", 11, lambda _: requests.fetch(TOPIC, replica_id=7), _always(_topic(READ))
    ),
    Case("ListOffsets", 5, lambda _: requests.latest_offsets(), _always(_topic(DESCRIBE))),
    Case("ListOffsets v0", 0, lambda _: requests.latest_offsets(), _always(_topic(READ))),
    Case(
        "Metadata", 9, lambda _: requests.topic_metadata([TOPIC, OTHER]), _always(_topic(DESCRIBE))
    ),
    Case("Metadata all", 9, lambda _: requests.topic_metadata(None), _always(_topic(READ))),
    Case("Metadata v0 all", 0, lambda _: requests.topic_metadata([]), _always(_topic(DESCRIBE))),
    Case("Metadata none", 9, lambda _: requests.topic_metadata([]), _always()),
    Case(
        "Metadata operations",
        8,
        lambda _: requests.topic_metadata([TOPIC, OTHER], operations=True),
        _always(_topic(ALTER), _topic(ALTER_CONFIGS), _cluster(DESCRIBE)),
    ),
    Case(
        "Metadata creating, on the topic",
        9,
        lambda fresh: requests.topic_metadata([fresh], create=True),
        lambda fresh: (_topic(DESCRIBE, fresh), _topic(CREATE, fresh)),
    ),
    Case(
        "Metadata creating, on the cluster",
        9,
        lambda fresh: requests.topic_metadata([fresh], create=True),
        lambda fresh: (_topic(DESCRIBE, fresh), _cluster(CREATE)),
    ),
    Case("UpdateMetadata", 5, requests.update, _always(_cluster(ACT))),
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
    Case("OffsetCommit", 7, lambda _: requests.commit(), _always(_group(READ), _topic(READ))),
    Case(
        "OffsetFetch",
        7,
        lambda _: requests.committed((TOPIC, OTHER)),
        _always(_group(DESCRIBE), _topic(DESCRIBE)),
    ),
    Case(
        "OffsetFetch v1",
        1,
        lambda _: requests.committed((TOPIC, OTHER)),
        _always(_group(DESCRIBE), _topic(DESCRIBE)),
    ),
    Case(
        "OffsetFetch v0",
        0,
        lambda _: requests.committed((TOPIC, OTHER)),
        _always(_group(DESCRIBE), _topic(DESCRIBE)),
    ),
    Case(
        "OffsetFetch all",
        7,
        lambda _: requests.committed(None),
        _always(_group(DESCRIBE), _topic(DESCRIBE)),
    ),
    *(
        Case(
            f"TxnOffsetCommit v{version}",
            version,
            requests.commit_in_transaction,
            _always(_id(WRITE), _group(READ), _topic(READ)),
        )
        for version in (0, 3)
    ),
    Case("OffsetDelete", 0, requests.forget, _always(_group(DELETE), _topic(READ))),
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
    Case("JoinGroup", 7, requests.join, lambda fresh: (_group(READ, fresh),)),
    Case("SyncGroup", 3, requests.sync, _always(_group(READ))),
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
    Case("CreateTopics", 5, requests.create, lambda fresh: (_topic(CREATE, fresh),)),
    Case(
        "CreateTopics with configs",
        5,
        requests.create,
        lambda fresh: (_topic(CREATE, fresh), _topic(DESCRIBE_CONFIGS, fresh)),
    ),
    Case("CreateTopics, of the cluster", 5, requests.create, _always(_cluster(CREATE))),
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
        lambda _: requests.find_transactional_id(TRANSACTIONAL_ID),
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
        lambda fresh: requests.initialize(fresh),
        lambda fresh: (_id(WRITE, fresh),),
    ),
    Case("InitProducerId of no id", 4, lambda _: requests.initialize(""), _always(_id(WRITE, "*"))),
    Case(
        "AddPartitionsToTxn with another",
        3,
        lambda _: requests.add(TOPIC, OTHER),
        _always(_id(WRITE), _topic(WRITE)),
    ),
    Case(
        "AddPartitionsToTxn missing",
        3,
        lambda _: requests.add(TOPIC, "none"),
        _always(_id(WRITE), _topic(WRITE), _topic(WRITE, "none")),
    ),
    Case(
        "AddPartitionsToTxn internal",
        3,
        lambda _: requests.add(TOPIC, "__consumer_offsets"),
        _always(_id(WRITE), _topic(WRITE), _topic(WRITE, "__consumer_offsets")),
    ),
    Case(
        "AddPartitionsToTxn of another producer",
        3,
        lambda _: requests.add(TOPIC, producer_epoch=1),
        _always(_id(WRITE), _topic(WRITE)),
    ),
    Case(
        "AddPartitionsToTxn of another producer, v1",
        1,
        lambda _: requests.add(TOPIC, producer_epoch=1),
        _always(_id(WRITE), _topic(WRITE)),
    ),
    Case("EndTxn of nothing", 3, lambda _: requests.end(), _always(_id(WRITE))),
    Case(
        "AddPartitionsToTxn", 3, lambda _: requests.add(TOPIC), _always(_id(WRITE), _topic(WRITE))
    ),
    Case(
        "Produce transactional",
        8,
        lambda _: requests.produce(
            TOPIC, acks=-1, transactional_id=TRANSACTIONAL_ID, records=TRANSACTIONAL
        ),
        _always(_id(WRITE), _topic(WRITE)),
    ),
    Case(
        "Produce plain with an id",
        8,
        lambda _: requests.produce(TOPIC, transactional_id=TRANSACTIONAL_ID),
        _always(_id(WRITE), _topic(WRITE)),
    ),
    Case(
        "Produce transactional without an id",
        8,
        lambda _: requests.produce(TOPIC, OTHER, acks=-1, records=TRANSACTIONAL),
        _always(_topic(WRITE)),
    ),
    Case(
        "AddOffsetsToTxn",
        3,
        lambda _: requests.add_offsets(GROUP),
        _always(_id(WRITE), _group(READ)),
    ),
    Case(
        "AddOffsetsToTxn of no group",
        3,
        lambda _: requests.add_offsets(""),
        _always(_id(WRITE), _group(READ, "*")),
    ),
    Case("EndTxn of another producer", 3, lambda _: requests.end(1), _always(_id(WRITE))),
    Case("EndTxn of another producer, v1", 1, lambda _: requests.end(1), _always(_id(WRITE))),
    Case("EndTxn", 3, lambda _: requests.end(), _always(_id(WRITE))),
    Case("WriteTxnMarkers", 1, lambda _: requests.write_markers(), _always(_cluster(ACT))),
    Case("OffsetForLeaderEpoch", 3, lambda _: requests.epochs(-1), _always(_topic(DESCRIBE))),
    Case("OffsetForLeaderEpoch follower", 3, lambda _: requests.epochs(7), _always(_cluster(ACT))),
    Case("DescribeAcls", 2, requests.describe_acls, _always(_cluster(DESCRIBE))),
    Case("CreateAcls", 2, requests.new_acl, _always(_cluster(ALTER))),
    Case("DeleteAcls", 2, requests.acl_filter, _always(_cluster(ALTER))),
    Case(
        "DescribeConfigs of a topic",
        3,
        lambda _: requests.described_configs(2, TOPIC),
        _always(_topic(DESCRIBE_CONFIGS)),
    ),
    Case(
        "DescribeConfigs of a broker",
        3,
        lambda _: requests.described_configs(4, "1"),
        _always(_cluster(ALTER_CONFIGS)),
    ),
    Case(
        "AlterConfigs of a topic",
        1,
        lambda _: requests.alter(2, TOPIC),
        _always(_topic(ALTER_CONFIGS)),
    ),
    Case(
        "AlterConfigs of a broker",
        1,
        lambda _: requests.alter(4, "1"),
        _always(_cluster(ALTER_CONFIGS)),
    ),
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
    Case("AlterReplicaLogDirs", 2, requests.move, _always(_cluster(ALTER))),
    Case(
        "DescribeLogDirs",
        2,
        lambda _: admin.DescribeLogDirsRequest(),
        _always(_cluster(DESCRIBE)),
    ),
    Case("ElectLeaders", 2, requests.elect, _always(_cluster(ALTER))),
    Case("AlterPartitionReassignments", 0, requests.reassign, _always(_cluster(ALTER))),
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
    Case("AlterClientQuotas", 0, requests.limit, _always(_cluster(ALTER_CONFIGS))),
    Case(
        "DescribeUserScramCredentials",
        0,
        lambda _: sasl.DescribeUserScramCredentialsRequest(users=None),
        _always(_cluster(DESCRIBE)),
    ),
    Case("AlterUserScramCredentials", 0, requests.remove_credentials, _always(_cluster(ALTER))),
    Case(
        "DescribeCluster",
        0,
        lambda _: requests.described_cluster(operations=True),
        _always(_cluster(DESCRIBE)),
    ),
    Case(
        "DescribeCluster alone",
        0,
        lambda _: requests.described_cluster(operations=False),
        _always(_cluster(DESCRIBE)),
    ),
    *(
        Case(type(one).__name__.removesuffix("Request"), 2, _repeated(one), _always())
        for one in requests.OF_TOKENS
    ),
]


# What 2.8.2 lacks, or has only in part; a transaction is open.
NEWER_CASES = [
    Case("DescribeProducers", 0, requests.described_producers, _always(_topic(READ))),
    Case(
        "DescribeTransactions",
        0,
        requests.described_transactions,
        _always(_id(DESCRIBE), _topic(DESCRIBE)),
    ),
    Case(
        "DescribeTransactions of any",
        0,
        requests.described_transactions,
        _always(_id(DESCRIBE, "*")),
    ),
    *(
        Case(
            f"ListTransactions v{version}",
            version,
            lambda _: transaction_states.ListTransactionsRequest(),
            _always(_id(DESCRIBE)),
        )
        for version in (0, 1)
    ),
    Case(
        "WriteTxnMarkers with Alter",
        1,
        lambda _: requests.write_markers(),
        _always(_cluster(ALTER)),
    ),
]
