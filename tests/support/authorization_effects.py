"""Requests that change a cluster or its disk, each in a way that the administrator can see.

They are sent in this order to a broker with the topics, the group and the offsets of
`authorization_asker.Asker.prepare`; the last ones are those of a controller that lies.
"""

from __future__ import annotations

from typing import Any

from odradek.protocol.messages import (
    acls,
    configs,
    control,
    groups,
    offsets,
    sasl,
    topics,
)
from odradek.security.acls import AclOperation, ResourceType
from tests.support import authorization_requests as requests
from tests.support.authorization_requests import GHOST, GROUP, OTHER, TIMEOUT_MS, TOPIC

FRESH = "fresh"


def effects(broker_epoch: int, controller_epoch: int) -> list[tuple[Any, int]]:
    """Return the requests, each with its version."""
    return [
        (requests.produce(TOPIC, OTHER), 8),
        (requests.commit(2), 7),
        (requests.forget(""), 0),
        (requests.commit(), 7),
        (groups.DeleteGroupsRequest(groups_names=[GROUP]), 2),
        (requests.creation(FRESH), 5),
        (_more_partitions(FRESH), 3),
        (requests.topic_metadata(["made-on-first-use"], create=True), 9),
        (_altered(2, TOPIC, "retention.ms"), 1),
        (_replaced(TOPIC), 1),
        (_altered(4, "1", "log.retention.ms"), 1),
        (requests.limit("fast"), 0),
        (_user("mallory"), 0),
        (_user("mallory", removed=True), 0),
        (requests.new_acl(FRESH), 2),
        (requests.acl_filter(FRESH), 2),
        (_own_right(), 2),
        (requests.write_markers(), 1),
        (_deleted_records(), 2),
        (topics.DeleteTopicsRequest(topic_names=[FRESH], timeout_ms=TIMEOUT_MS), 5),
        (_told_of_a_topic(broker_epoch, controller_epoch), 5),
        (_made_leader(broker_epoch, controller_epoch), 2),
        (_stopped(broker_epoch, controller_epoch), 2),
    ]


def _more_partitions(name: str) -> topics.CreatePartitionsRequest:
    wanted = [topics.CreatePartitionsTopic(name=name, count=3)]
    return topics.CreatePartitionsRequest(topics=wanted, timeout_ms=TIMEOUT_MS)


def _altered(kind: int, name: str, config: str) -> configs.IncrementalAlterConfigsRequest:
    changed = [configs.IncrementalAlterableConfig(name=config, config_operation=0, value="7777777")]
    resource = configs.IncrementalAlterConfigsResource(
        resource_type=kind, resource_name=name, configs=changed
    )
    return configs.IncrementalAlterConfigsRequest(resources=[resource])


def _replaced(name: str) -> configs.AlterConfigsRequest:
    changed = [configs.AlterableConfig(name="retention.ms", value="8888888")]
    resource = configs.AlterConfigsResource(resource_type=2, resource_name=name, configs=changed)
    return configs.AlterConfigsRequest(resources=[resource])


def _user(name: str, *, removed: bool = False) -> sasl.AlterUserScramCredentialsRequest:
    gone = [sasl.ScramCredentialDeletion(name=name, mechanism=1)]
    made = [
        sasl.ScramCredentialUpsertion(
            name=name, mechanism=1, iterations=4096, salt=b"salt", salted_password=bytes(32)
        )
    ]
    return sasl.AlterUserScramCredentialsRequest(
        deletions=gone if removed else [], upsertions=[] if removed else made
    )


def _own_right() -> acls.CreateAclsRequest:
    right = AclOperation.ALL, ResourceType.CLUSTER, requests.CLUSTER
    return acls.CreateAclsRequest(creations=requests.creations([right], host="192.0.2.1"))


def _deleted_records() -> offsets.DeleteRecordsRequest:
    parts = [offsets.DeleteRecordsPartition(partition_index=0, offset=1)]
    wanted = [offsets.DeleteRecordsTopic(name=TOPIC, partitions=parts)]
    return offsets.DeleteRecordsRequest(topics=wanted, timeout_ms=TIMEOUT_MS)


def _first_leader(controller_epoch: int) -> dict[str, Any]:
    """Return the fields by which broker 1 leads partition 0, of which it has the only replica."""
    return {
        "partition_index": 0,
        "controller_epoch": controller_epoch,
        "leader": 1,
        "leader_epoch": 0,
        "isr": [1],
        "zk_version": 0,
        "replicas": [1],
    }


def _told_of_a_topic(broker_epoch: int, controller_epoch: int) -> control.UpdateMetadataRequest:
    state = control.UpdateMetadataPartitionState(**_first_leader(controller_epoch))
    return control.UpdateMetadataRequest(
        controller_id=1,
        controller_epoch=controller_epoch,
        broker_epoch=broker_epoch,
        topic_states=[control.UpdateMetadataTopicState(topic_name=GHOST, partition_states=[state])],
        live_brokers=[],
    )


def _made_leader(broker_epoch: int, controller_epoch: int) -> control.LeaderAndIsrRequest:
    state = control.LeaderAndIsrPartitionState(**_first_leader(controller_epoch), is_new=True)
    return control.LeaderAndIsrRequest(
        controller_id=1,
        controller_epoch=controller_epoch,
        broker_epoch=broker_epoch,
        topic_states=[control.LeaderAndIsrTopicState(topic_name=GHOST, partition_states=[state])],
        live_leaders=[],
    )


def _stopped(broker_epoch: int, controller_epoch: int) -> control.StopReplicaRequest:
    return control.StopReplicaRequest(
        controller_id=1,
        controller_epoch=controller_epoch,
        broker_epoch=broker_epoch,
        delete_partitions=True,
        topics=[control.StopReplicaTopicV1(name=OTHER, partition_indexes=[0])],
    )
