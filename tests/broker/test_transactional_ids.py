"""Transactional ids on a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from odradek.handlers.groups import TRANSACTION
from odradek.net.client import PeerClient
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.values import TRANSACTIONS_TOPIC
from tests.support.asking import ADMIN, Connection
from tests.support.broker import STEADY, Cluster, wait_until
from tests.support.clients import QUIET
from tests.support.hanging_transactions import begun


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {
        **STEADY,
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "5",
        "offsets.topic.replication.factor": "1",
    }
    with Cluster(tmp_path_factory.mktemp("transactional"), settings=settings) as running:
        yield running


async def coordinator(cluster: Cluster, transactional_id: str) -> FindCoordinatorResponse:
    client = PeerClient("127.0.0.1", next(iter(cluster.brokers.values())).port, "test")
    request = FindCoordinatorRequest(key=transactional_id, key_type=TRANSACTION)
    async with asyncio.timeout(120):
        while (found := await client.call(request, 2, 30_000)).error_code != ErrorCode.NONE:
            assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            await asyncio.sleep(0.05)
    await client.close()
    return found


async def test_coordinator_is_found_once_the_topic_is_made_as_kafka_makes_it(
    cluster: Cluster,
) -> None:
    found = await coordinator(cluster, "ours")
    assert found.node_id in cluster.brokers
    client = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    resource = ConfigResource(ResourceType.TOPIC, TRANSACTIONS_TOPIC)
    configs = client.describe_configs([resource])[resource].result(60)
    # TransactionStateManager.transactionTopicConfigs of Kafka 2.8
    wanted = {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "1",
        "segment.bytes": "104857600",
        "unclean.leader.election.enable": "false",
    }
    assert {name: configs[name].value for name in wanted} == wanted
    assert len(client.list_topics(timeout=30).topics[TRANSACTIONS_TOPIC].partitions) == 5


def test_offsets_of_a_group_are_added_on_a_cluster_that_had_no_group(cluster: Cluster) -> None:
    with closing(Connection(cluster.brokers[1].port, ADMIN)) as connection:
        producer = begun(connection, "with offsets")
        wait_until(lambda: producer.add_offsets("g") == "=0", "the offsets are added")
        assert producer.end() == "=0"
