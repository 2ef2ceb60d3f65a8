"""DescribeCluster tells what Metadata tells of brokers, controller and rights (KIP-700)."""

from __future__ import annotations

import dataclasses

import pytest

from odradek.handlers import cluster, metadata
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol import codec
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.control import UpdateMetadataRequest
from odradek.protocol.messages.metadata import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataResponse,
)
from odradek.security.acl_watcher import AclWatcher
from odradek.security.acls import (
    CLUSTER_NAME,
    AclEntry,
    AclOperation,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from odradek.security.authorizer import Authorizer
from odradek.values import Principal
from tests.support.control import state, update
from tests.support.replicas import Replicas

ALICE, BOB, ROOT = (Principal("User", name) for name in ("alice", "bob", "root"))
NOT_ASKED = -(2**31)
EVERYTHING = 8096
"""What Kafka 2.8 without an authorizer answers."""


async def ask(
    broker: Broker,
    listener: str = "PLAINTEXT",
    principal: Principal = ALICE,
    *,
    operations: bool = False,
) -> DescribeClusterResponse:
    """Return the answer, after comparing it with that of Metadata."""
    asked = RequestContext(0, "c", listener, "10.0.0.1", 1, lambda: True, principal)
    answer = await cluster.describe_cluster(
        broker, DescribeClusterRequest(include_cluster_authorized_operations=operations), asked
    )
    question = MetadataRequest(topics=[], include_cluster_authorized_operations=operations)
    data = await metadata.metadata(broker, question, asked._replace(version=8))
    told = codec.decode(MetadataResponse, 8, data)[0]
    assert (told.cluster_id, told.controller_id) == (answer.cluster_id, answer.controller_id)
    assert told.cluster_authorized_operations == answer.cluster_authorized_operations
    assert [(one.node_id, one.host, one.port, one.rack) for one in told.brokers] == [
        (one.broker_id, one.host, one.port, one.rack) for one in answer.brokers
    ]
    assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
    return answer


def racked(request: UpdateMetadataRequest) -> UpdateMetadataRequest:
    request.live_brokers[0].rack = "rack-1"
    return request


async def test_answer_tells_brokers_racks_and_controller(broker: Broker) -> None:
    broker.metadata.update(racked(update(state())))
    found = await ask(broker)
    assert (found.cluster_id, found.controller_id) == ("the-cluster", 1)
    assert found.brokers == [
        DescribeClusterBroker(broker_id=1, host="host-1", port=9001, rack="rack-1"),
        DescribeClusterBroker(broker_id=2, host="host-2", port=9002, rack=None),
    ]


async def test_brokers_without_the_listener_that_was_asked_are_left_out(broker: Broker) -> None:
    broker.metadata.update(update())
    found = await ask(broker, "INTERNAL")
    assert [one.broker_id for one in found.brokers] == [2]
    assert found.controller_id == 1


async def test_controller_that_is_gone_is_not_named(broker: Broker) -> None:
    broker.metadata.update(update(brokers=(2,)))
    assert (await ask(broker)).controller_id == -1


async def test_who_asks_what_is_allowed_hears_of_every_operation_without_an_authorizer(
    broker: Broker,
) -> None:
    broker.metadata.update(update())
    found = [
        (await ask(broker, operations=asks)).cluster_authorized_operations for asks in (False, True)
    ]
    assert found == [NOT_ASKED, EVERYTHING]


@pytest.mark.parametrize(
    ("principal", "told"), [(ALICE, 1 << AclOperation.DESCRIBE), (BOB, 0), (ROOT, EVERYTHING)]
)
async def test_everybody_is_told_of_brokers_and_of_rights_who_may_describe_the_cluster(
    broker: Broker, replicas: Replicas, principal: Principal, told: int
) -> None:
    watcher = AclWatcher(replicas.session)  # type: ignore[arg-type]
    watcher.loaded = True
    describe = AclEntry(ALICE, PermissionType.ALLOW, AclOperation.DESCRIBE)
    create = AclEntry(BOB, PermissionType.ALLOW, AclOperation.CREATE)
    watcher.acls.set(ResourcePattern(ResourceType.CLUSTER, CLUSTER_NAME), [describe, create])
    guarded = dataclasses.replace(broker, authorizer=Authorizer(watcher, [ROOT]))
    guarded.metadata.update(update())
    found = await ask(guarded, principal=principal, operations=True)
    assert [one.broker_id for one in found.brokers] == [1, 2]
    assert found.cluster_authorized_operations == told
    unasked = await ask(guarded, principal=principal)
    assert unasked.cluster_authorized_operations == NOT_ASKED
