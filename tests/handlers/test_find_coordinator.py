"""FindCoordinator: which broker has a group, or a transactional id."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from odradek.handlers import automatic_topics, groups
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import FindCoordinatorRequest
from odradek.replica.metadata import BrokerInfo, PartitionInfo
from odradek.values import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

CONTEXT = RequestContext(2, "c", "PLAINTEXT", "h", 1)
TOPICS = {groups.GROUP: OFFSETS_TOPIC, groups.TRANSACTION: TRANSACTIONS_TOPIC}
both = pytest.mark.parametrize("key_type", TOPICS)


@dataclass
class CountedPartitions:
    """The number of a topic's partitions, which is known once it is read."""

    real: int | None
    known: int | None = None

    def __call__(self) -> int | None:
        return self.known

    async def learn(self) -> None:
        self.known = self.real


@pytest.fixture
def knowing(broker: Broker) -> Broker:
    """Broker 1 and broker 2; partition n of both topics is led by broker n, 0 by nobody alive."""
    for number in (1, 2):
        endpoints = {"PLAINTEXT": (f"host-{number}", 9092)}
        broker.metadata.brokers[number] = BrokerInfo(number, endpoints, None)
    for topic in TOPICS.values():
        broker.metadata.topics[topic] = {
            number: PartitionInfo(number, 0, (number,), (number,), ()) for number in range(3)
        }
    return replace(
        broker,
        groups=SimpleNamespace(partition_count=CountedPartitions(3)),  # type: ignore[arg-type]
        transactions=SimpleNamespace(partition_count=CountedPartitions(3)),  # type: ignore[arg-type]
    )


async def find(broker: Broker, key: str, key_type: int) -> tuple[ErrorCode, int, str]:
    request = FindCoordinatorRequest(key=key, key_type=key_type)
    found = await groups.find_coordinator(broker, request, CONTEXT)
    return ErrorCode(found.error_code), found.node_id, found.host


@both
async def test_leader_of_the_ids_partition_is_its_coordinator(
    knowing: Broker, key_type: int
) -> None:
    # Java's hashes of these are 97, 98 and 99.
    assert await find(knowing, "a", key_type) == (ErrorCode.NONE, 1, "host-1")
    assert await find(knowing, "b", key_type) == (ErrorCode.NONE, 2, "host-2")
    assert await find(knowing, "c", key_type) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, "")


@both
async def test_empty_id_has_a_partition_too(knowing: Broker, key_type: int) -> None:
    knowing.metadata.topics[TOPICS[key_type]][0] = PartitionInfo(2, 0, (2,), (2,), ())
    assert await find(knowing, "", key_type) == (ErrorCode.NONE, 2, "host-2")


@both
async def test_topic_is_made_at_the_first_use(
    knowing: Broker, key_type: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    async def create(broker: Broker, topic: str, context: RequestContext) -> ErrorCode:
        made.append(topic)
        return ErrorCode.INVALID_REPLICATION_FACTOR

    monkeypatch.setattr(automatic_topics, "create", create)
    del knowing.metadata.topics[TOPICS[key_type]]
    assert (await find(knowing, "a", key_type))[0] is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert made == [TOPICS[key_type]]


@both
async def test_unknown_number_of_partitions_is_no_reason_to_guess(
    knowing: Broker, key_type: int
) -> None:
    unread = SimpleNamespace(partition_count=CountedPartitions(None))
    blind = replace(knowing, groups=unread, transactions=unread)  # type: ignore[arg-type]
    assert (await find(blind, "a", key_type))[0] is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_another_type_of_key_is_refused(knowing: Broker) -> None:
    assert await find(knowing, "a", 2) == (ErrorCode.INVALID_REQUEST, -1, "")
