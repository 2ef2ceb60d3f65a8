"""Metadata answers: from what the controller told, for the listener and the version that asked."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from odradek.handlers import automatic_topics, control, metadata
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol import codec
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from tests.support.control import state, update


async def ask(
    broker: Broker, *names: str, version: int = 9, listener: str = "PLAINTEXT", create: bool = False
) -> MetadataResponse:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names] if names else None,
        allow_auto_topic_creation=create,
    )
    data = await metadata.metadata(broker, request, RequestContext(version, "c", listener, "h", 1))
    return codec.decode(MetadataResponse, version, data)[0]


async def tell(broker: Broker, request: object) -> object:
    return await control.update_metadata(
        broker,
        request,  # type: ignore[arg-type]
        RequestContext(4, "c", "PLAINTEXT", "h", 1),
    )


async def test_answer_tells_brokers_controller_leader_epoch_and_sets(broker: Broker) -> None:
    await tell(broker, update(state(leader=2)))
    found = await ask(broker, "orders")
    assert [(b.node_id, b.host, b.port) for b in found.brokers] == [
        (1, "host-1", 9001),
        (2, "host-2", 9002),
    ]
    assert (found.cluster_id, found.controller_id) == ("the-cluster", 1)
    part = found.topics[0].partitions[0]
    assert (part.leader_id, part.leader_epoch, part.error_code) == (2, 3, 0)
    assert (part.replica_nodes, part.isr_nodes, part.offline_replicas) == ([1, 2], [1, 2], [])


async def test_partition_whose_leader_is_gone_has_no_leader(broker: Broker) -> None:
    await tell(broker, update(state(leader=2), brokers=(1,)))
    part = (await ask(broker, "orders")).topics[0].partitions[0]
    assert (part.error_code, part.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert part.offline_replicas == [2]


@pytest.mark.parametrize(
    ("version", "error"), [(5, ErrorCode.LEADER_NOT_AVAILABLE), (6, ErrorCode.LISTENER_NOT_FOUND)]
)
async def test_leader_without_the_listener_that_was_asked_is_told_apart_since_version_6(
    broker: Broker, version: int, error: ErrorCode
) -> None:
    await tell(broker, update(state(leader=1)))
    found = await ask(broker, "orders", version=version, listener="INTERNAL")
    assert [b.node_id for b in found.brokers] == [2]
    assert found.topics[0].partitions[0].error_code == error


async def test_version_0_hides_dead_replicas_and_says_so(broker: Broker) -> None:
    await tell(broker, update(state(leader=1), brokers=(1,)))
    part = (await ask(broker, "orders", version=0)).topics[0].partitions[0]
    assert (part.error_code, part.replica_nodes) == (ErrorCode.REPLICA_NOT_AVAILABLE, [1])
    later = (await ask(broker, "orders", version=1)).topics[0].partitions[0]
    assert (later.error_code, later.replica_nodes) == (ErrorCode.NONE, [1, 2])


async def test_unknown_and_impossible_names_have_their_codes(broker: Broker) -> None:
    await tell(broker, update())
    assert (await ask(broker, "none")).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await ask(broker, "a/b")).topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_topics_cannot_be_asked_for_by_id_as_in_kafka_before_version_12(
    broker: Broker,
) -> None:
    await tell(broker, update(state()))
    an_id = bytes(range(16))
    for one in (
        MetadataRequestTopic(name="orders", topic_id=an_id),
        MetadataRequestTopic(name=None),
    ):
        request = MetadataRequest(topics=[MetadataRequestTopic(name="orders"), one])
        context = RequestContext(10, "c", "PLAINTEXT", "h", 1)
        data = await metadata.metadata(broker, request, context)
        found = codec.decode(MetadataResponse, 10, data)[0]
        assert found.brokers == []
        assert [(topic.name, topic.topic_id, topic.error_code) for topic in found.topics] == [
            ("orders", bytes(16), ErrorCode.INVALID_REQUEST),
            (one.name or "", one.topic_id, ErrorCode.INVALID_REQUEST),
        ]


async def test_topics_have_no_ids(broker: Broker) -> None:
    await tell(broker, update(state()))
    for version in (10, 11):
        found = await ask(broker, "orders", version=version)
        assert [(one.name, one.topic_id) for one in found.topics] == [("orders", bytes(16))]


async def test_topic_is_not_created_where_the_broker_forbids_it(broker: Broker) -> None:
    strict = dataclasses.replace(
        broker, config=dataclasses.replace(broker.config, auto_create_topics_enable=False)
    )
    await tell(strict, update())
    found = await ask(strict, "none", create=True)
    assert found.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_kept_answer_ends_with_the_next_change(broker: Broker) -> None:
    await tell(broker, update(state(leader=1)))
    assert (await ask(broker, "orders")).topics[0].partitions[0].leader_id == 1
    await tell(broker, update(state(leader=2)))
    assert (await ask(broker, "orders")).topics[0].partitions[0].leader_id == 2


async def test_deleted_topic_is_unknown_and_its_waiters_are_told(broker: Broker) -> None:
    await tell(broker, update(state()))
    waiting = asyncio.create_task(broker.metadata.wait_until_gone("orders", 60_000))
    await asyncio.sleep(0)
    await tell(broker, update(state(leader=-2)))
    assert await waiting
    assert (await ask(broker, "orders")).topics[0].error_code == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )


async def test_waiting_for_leaders_ends_when_the_last_partition_has_one(broker: Broker) -> None:
    await tell(broker, update(state(index=0), state(index=1, leader=-1)))
    waiting = asyncio.create_task(broker.metadata.wait_for_leaders("orders", 2, 60_000))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert broker.metadata.leaderless() == 1
    await tell(broker, update(state(index=1)))
    assert await waiting
    assert not await broker.metadata.wait_for_leaders("orders", 3, 1)


async def test_waiting_for_a_topic_costs_nothing_where_others_change(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    has_leaders = broker.metadata.has_leaders

    def look(topic: str, partitions: int) -> bool:
        looks.append(topic)
        return has_leaders(topic, partitions)

    monkeypatch.setattr(broker.metadata, "has_leaders", look)
    names = [f"new-{number}" for number in range(20)]
    waiting = [
        asyncio.create_task(broker.metadata.wait_for_leaders(name, 1, 60_000)) for name in names
    ]
    await asyncio.sleep(0)
    for name in names:
        await tell(broker, update(state(topic=name)))
    assert all(await asyncio.gather(*waiting))
    assert len(looks) == 2 * len(names)


async def test_update_of_an_old_controller_changes_nothing(broker: Broker) -> None:
    await tell(broker, update(state(), epoch=5))
    refused = await tell(broker, update(state(leader=2), epoch=4))
    assert refused.error_code == ErrorCode.STALE_CONTROLLER_EPOCH  # type: ignore[attr-defined]
    assert (await ask(broker, "orders")).topics[0].partitions[0].leader_id == 1


async def test_update_for_a_former_registration_is_refused(broker: Broker) -> None:
    request = update(state())
    request.broker_epoch = 99
    refused = await tell(broker, request)
    assert refused.error_code == ErrorCode.STALE_BROKER_EPOCH  # type: ignore[attr-defined]
    assert not broker.metadata.topics


async def test_who_asks_what_is_allowed_hears_of_every_operation(broker: Broker) -> None:
    await tell(broker, update(state()))
    found = []
    for asks in (False, True):
        request = MetadataRequest(
            topics=None,
            include_cluster_authorized_operations=asks,
            include_topic_authorized_operations=asks,
        )
        data = await metadata.metadata(broker, request, RequestContext(9, "c", "PLAINTEXT", "h", 1))
        answer = codec.decode(MetadataResponse, 9, data)[0]
        topic = answer.topics[0].topic_authorized_operations
        found.append((answer.cluster_authorized_operations, topic))
    # What Kafka 2.8 without an authorizer answers.
    assert found == [(-(2**31), -(2**31)), (8096, 3576)]


@pytest.fixture
def created(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The topics that were created on first use."""
    names: list[str] = []

    async def create(broker: Broker, topic: str, context: RequestContext) -> ErrorCode:
        names.append(topic)
        return ErrorCode.LEADER_NOT_AVAILABLE

    monkeypatch.setattr(automatic_topics, "create", create)
    return names


async def test_one_request_creates_so_many_topics_and_the_next_one_others(
    broker: Broker, created: list[str]
) -> None:
    wanted = [f"t{number}" for number in range(metadata.MOST_CREATED + 5)]
    found = await ask(broker, "no/name", *wanted, create=True)
    assert created == wanted[: metadata.MOST_CREATED]
    codes = {one.name: one.error_code for one in found.topics}
    assert codes.pop("no/name") == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert codes == dict.fromkeys(wanted, ErrorCode.LEADER_NOT_AVAILABLE), "so clients ask again"
    await tell(broker, update(*(state(name) for name in created)))
    await ask(broker, *wanted, create=True)
    assert created == wanted


async def test_for_a_client_that_went_away_no_further_topics_are_created(
    broker: Broker, created: list[str]
) -> None:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=f"t{number}") for number in range(5)],
        allow_auto_topic_creation=True,
    )
    context = RequestContext(9, "c", "PLAINTEXT", "h", 1, lambda: len(created) < 2)
    await metadata.metadata(broker, request, context)
    assert created == ["t0", "t1"]
