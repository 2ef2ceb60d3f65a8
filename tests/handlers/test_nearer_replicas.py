"""A leader sends a consumer to the replica in its rack that is most caught up (KIP-392)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from odradek.config import RACK_AWARE_SELECTOR
from odradek.handlers import fetch
from odradek.handlers.context import Broker, RequestContext
from odradek.log.records.batch import Origin
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import FetchablePartitionResponse
from odradek.protocol.regions import part_length
from tests.support import logs
from tests.support.control import update
from tests.support.replicas import KEY, Replicas
from tests.support.session_client import SessionClient

RACKS = {1: "a", 2: "b", 3: "b", 4: "a"}
ALL = tuple(RACKS)
LEADER = -1


@pytest.fixture
def settings() -> dict[str, str]:
    return {"replica_selector_class": RACK_AWARE_SELECTOR}


@pytest.fixture
async def replicas(tmp_path: Path, settings: dict[str, str]) -> AsyncIterator[Replicas]:
    """Leader 1 of three records, which the followers 2, 3 and 4 in sync have."""
    async with Replicas(tmp_path, **settings) as built:
        await built.lead(isr=ALL, replicas=ALL)
        append = built.manager.append
        for _ in range(3):
            [outcome] = await append([(KEY, logs.batch(b"value"))], 1, 0, Origin.CLIENT)
            assert outcome.error is ErrorCode.NONE
        live(built, *ALL)
        yield built


def live(replicas: Replicas, *brokers: int) -> None:
    """Tell the broker which brokers live, with their racks."""
    told = update(brokers=brokers)
    for one in told.live_brokers:
        one.rack = RACKS[one.id]
    replicas.metadata.update(told)


async def follow(broker: Broker, start: int = 0, **ends: int) -> None:
    """Have followers fetch at these offsets, each with a log that begins at `start`."""
    for name, offset in ends.items():
        follower = SessionClient(broker, int(name.removeprefix("of_")))
        request = follower.request([(KEY, offset)])
        request.topics[0].partitions[0].log_start_offset = start
        await follower.answer(request)


async def ask(
    broker: Broker,
    offset: int = 0,
    rack: str = "b",
    version: int = 11,
    replica_id: int = -1,
    leader_epoch: int = -1,
    listener: str = "PLAINTEXT",
) -> FetchablePartitionResponse:
    request = SessionClient(broker, replica_id).request(
        [(KEY, offset)], wait_ms=600_000, leader_epoch=leader_epoch
    )
    request.session_epoch = -1
    request.rack_id = rack
    context = RequestContext(version, "c", listener, "h", 1)
    async with asyncio.timeout(60):
        answer = await fetch.fetch(broker, request, context)
    [topic] = answer.responses
    [part] = topic.partition_responses
    return part


async def test_a_consumer_is_sent_to_its_rack_at_once_and_gets_no_records(broker: Broker) -> None:
    await follow(broker, of_2=3, of_3=2, of_4=3)
    for offset in (0, 3):  # at the log end, too: the wait is the follower's
        part = await ask(broker, offset)
        assert (part.error_code, part.preferred_read_replica) == (ErrorCode.NONE, 2)
        assert part_length(part.record_set or b"") == 0
        assert (part.high_watermark, part.log_start_offset) == (2, 0)


async def test_the_one_that_is_most_caught_up_is_named(broker: Broker, replicas: Replicas) -> None:
    await follow(broker, of_2=1, of_3=2, of_4=3)
    assert (await ask(broker)).preferred_read_replica == 3
    await follow(broker, of_3=3)
    replicas.clock.now += 1
    await follow(broker, of_2=3)
    assert (await ask(broker)).preferred_read_replica == 2


async def test_a_consumer_elsewhere_stays_with_the_leader(broker: Broker) -> None:
    await follow(broker, of_2=3, of_3=3, of_4=3)
    for part in (
        await ask(broker, rack="a"),
        await ask(broker, rack="c"),
        await ask(broker, rack=""),
        await ask(broker, replica_id=-2),
    ):
        assert part.preferred_read_replica == LEADER
        assert part_length(part.record_set or b"") > 0


async def test_only_a_replica_that_has_the_offset_is_named(broker: Broker) -> None:
    assert (await ask(broker, leader_epoch=1)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    await follow(broker, of_4=3)
    await follow(broker, start=1, of_2=2, of_3=2)
    assert (await ask(broker, 0)).preferred_read_replica == LEADER
    assert (await ask(broker, 1)).preferred_read_replica == 3
    assert (await ask(broker, 2)).preferred_read_replica == 3
    await follow(broker, of_2=3)
    assert (await ask(broker, 3)).preferred_read_replica == 2


async def test_only_a_live_replica_in_sync_on_the_listener_is_named(
    broker: Broker, replicas: Replicas
) -> None:
    await follow(broker, of_2=3, of_3=3, of_4=3)
    assert (await ask(broker, listener="INTERNAL")).preferred_read_replica == 2
    live(replicas, 1, 2, 4)
    assert (await ask(broker)).preferred_read_replica == 2
    live(replicas, 1, 4)
    assert (await ask(broker)).preferred_read_replica == LEADER
    live(replicas, *ALL)
    await replicas.lead(isr=(1, 2, 4), replicas=ALL, epoch=1)
    await follow(broker, of_2=3, of_3=3, of_4=3)
    assert (await ask(broker)).preferred_read_replica == 2


async def test_a_session_names_the_replica_until_the_consumer_goes(broker: Broker) -> None:
    consumer = SessionClient(broker)
    await follow(broker, of_4=3)
    request = consumer.request([(KEY, 0)])
    request.rack_id = "b"
    await consumer.answer(request)
    await follow(broker, of_2=3, of_3=3)
    for named in ([], [(KEY, 3)], []):
        request = consumer.request(named, wait_ms=600_000)
        request.rack_id = "b"
        async with asyncio.timeout(60):
            answer = await consumer.answer(request)
        [part] = answer.responses[0].partition_responses
        assert part.preferred_read_replica == 3
    assert await consumer.fetch(forgotten=[KEY]) == {}


@pytest.mark.parametrize("settings", [{}])
async def test_without_a_selector_the_leader_serves_all(broker: Broker) -> None:
    await follow(broker, of_2=3, of_3=3, of_4=3)
    part = await ask(broker)
    assert part.preferred_read_replica == LEADER
    assert part_length(part.record_set or b"") > 0


async def test_a_follower_serves_consumers_since_version_11(
    broker: Broker, replicas: Replicas
) -> None:
    await follow(broker, of_2=3, of_3=3, of_4=3)
    await replicas.take(leader=2, isr=ALL, replicas=ALL, epoch=1)
    for version, replica_id in ((10, -1), (11, 3)):
        part = await ask(broker, rack="", version=version, replica_id=replica_id)
        assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    part = await ask(broker)
    assert (part.error_code, part.preferred_read_replica) == (ErrorCode.NONE, LEADER)
    assert part_length(part.record_set or b"") > 0
