"""A follower's fetch that waits brings what has arrived already, not only its first append."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest

from odradek.handlers.context import Broker
from odradek.log.records.batch import Origin
from odradek.net import begun_work
from odradek.protocol.regions import part_length
from odradek.replica import gathered_appends
from odradek.values import TopicPartition
from tests.support import logs
from tests.support.replicas import KEY, Replicas
from tests.support.session_client import SessionClient

OTHER = TopicPartition("other", 0)
FOLLOWER = 2
IN_SYNC = (1, FOLLOWER)
LONG_MS = 600_000


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has arrived is looked for as long as there is more, however slow this machine is."""
    monkeypatch.setattr(gathered_appends, "MOST_S", 60)


@contextlib.contextmanager
def arrived(requests: Sequence[Callable[[], None]]) -> Iterator[None]:
    """Have requests in a socket's buffer, one of which is served at each look of the event loop."""
    loop = asyncio.get_running_loop()
    reading, writing = socket.socketpair()
    remaining = iter(requests)

    def serve() -> None:
        reading.recv(1)
        next(remaining)()

    with reading, writing:
        writing.send(bytes(len(requests)))
        loop.add_reader(reading.fileno(), serve)
        try:
            yield
        finally:
            loop.remove_reader(reading.fileno())


@pytest.fixture
async def follower(broker: Broker, replicas: Replicas) -> SessionClient:
    """Return a follower in sync with two partitions of which nothing is left to be said."""
    for key in (KEY, OTHER):
        await replicas.lead(topic=key.topic, replicas=IN_SYNC, isr=IN_SYNC)
    client = SessionClient(broker, FOLLOWER)
    await client.fetch((KEY, 0), (OTHER, 0))
    assert await client.fetch() == {}
    return client


async def until_waiting(client: SessionClient) -> None:
    async with asyncio.timeout(60):
        while not client.session.waits:
            await asyncio.sleep(0)


def appends(replicas: Replicas, *keys: TopicPartition) -> list[Callable[[], None]]:
    """Return requests that append at once, as the callback of a connection does."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None

    def request(key: TopicPartition) -> None:
        entries = [(key, logs.batch(b"value"))]
        left = begun_work.begin(_append(replicas, entries), task, loop)
        assert left is None

    return [partial(request, key) for key in keys]


async def _append(replicas: Replicas, entries: list[tuple[TopicPartition, bytes]]) -> None:
    await replicas.manager.append(entries, 1, 0, Origin.CLIENT)


@pytest.mark.usefixtures("patient")
async def test_what_has_arrived_is_brought_together(
    follower: SessionClient, replicas: Replicas
) -> None:
    fetch = asyncio.create_task(follower.fetch(wait_ms=LONG_MS))
    await until_waiting(follower)
    with arrived(appends(replicas, OTHER, KEY, KEY)):
        async with asyncio.timeout(60):
            found = await fetch
    sizes = {key: part_length(found[key].record_set or b"") for key in found}
    assert sizes == {OTHER: sizes[OTHER], KEY: 2 * sizes[OTHER]}


async def test_a_consumer_gets_the_first_append_at_once(broker: Broker, replicas: Replicas) -> None:
    for key in (KEY, OTHER):
        await replicas.lead(topic=key.topic)
    consumer = SessionClient(broker)
    await consumer.fetch((KEY, 0), (OTHER, 0))
    fetch = asyncio.create_task(consumer.fetch(wait_ms=LONG_MS))
    await until_waiting(consumer)
    with arrived(appends(replicas, OTHER, KEY)):
        async with asyncio.timeout(60):
            assert set(await fetch) == {OTHER}


async def test_more_is_not_waited_for_beyond_the_limit(
    follower: SessionClient, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathered_appends, "MOST_S", 0)
    fetch = asyncio.create_task(follower.fetch(wait_ms=LONG_MS))
    await until_waiting(follower)
    with arrived(appends(replicas, OTHER, KEY)):
        async with asyncio.timeout(60):
            assert set(await fetch) == {OTHER}


@pytest.mark.usefixtures("patient")
async def test_a_session_that_ends_meanwhile_is_not_waited_for(
    broker: Broker, follower: SessionClient, replicas: Replicas
) -> None:
    session = follower.session
    fetch = asyncio.create_task(follower.fetch(wait_ms=LONG_MS))
    await until_waiting(follower)
    ends = [lambda: broker.replicas.fetch_sessions.close(session)]
    with arrived([*appends(replicas, OTHER), *ends]):
        async with asyncio.timeout(60):
            assert await fetch == {}
