"""What a follower's former life sent cannot bring its empty successor into the in-sync set."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from kazoo.exceptions import ConnectionLoss

from odradek.handlers import fetch
from odradek.handlers.context import Broker, RequestContext
from odradek.log.records.batch import Origin
from odradek.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.protocol.regions import FileRegion
from odradek.replica import isr_writer
from odradek.replica.partition import Partition
from odradek.zk import znodes
from tests.support import logs
from tests.support.replicas import FIRST_EPOCH, KEY, Replicas

FOLLOWER = 2
PATH = znodes.state_path(KEY.topic, KEY.partition)
END = 3
# Of the follower's connections.
OLD, NEW = 7, 8


@pytest.fixture
async def led(replicas: Replicas) -> AsyncIterator[Partition]:
    """A partition with records, whose follower is not in sync; the ISR writer runs."""
    await replicas.lead(isr=(1,), replicas=(1, FOLLOWER))
    records = logs.batch(*[b"x"] * END)
    await replicas.manager.append([(KEY, records)], 1, 0, Origin.CLIENT)
    partition = replicas.manager.partitions[KEY]
    replicas.session.znodes[PATH] = b"", partition.zk_version
    writing = asyncio.create_task(replicas.manager.isr_writer.run())
    yield partition
    assert not writing.done(), writing.exception()
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)


async def ask(broker: Broker, offset: int, connection_id: int) -> None:
    """Send a fetch of the follower, and let the broker do what follows from it."""
    wanted = FetchPartition(partition=KEY.partition, fetch_offset=offset, partition_max_bytes=1)
    request = FetchRequest(
        replica_id=FOLLOWER,
        max_wait_ms=0,
        min_bytes=1,
        topics=[FetchTopic(topic=KEY.topic, partitions=[wanted])],
    )
    context = RequestContext(10, "2", "PLAINTEXT", "127.0.0.1", connection_id)
    answer = await fetch.fetch(broker, request, context)
    for part in answer.responses[0].partition_responses:
        if isinstance(part.record_set, FileRegion):
            part.record_set.close()
    for _ in range(20):
        await asyncio.sleep(0)


async def test_follower_that_goes_on_fetching_joins(broker: Broker, led: Partition) -> None:
    for _ in range(3):
        await ask(broker, END, OLD)
    assert led.isr.committed == (1, FOLLOWER)


async def test_fetch_of_a_former_life_does_not_let_an_empty_replica_join(
    broker: Broker, led: Partition, replicas: Replicas
) -> None:
    for offset in range(END):
        await ask(broker, offset, OLD)
    replicas.session.registered[FOLLOWER] = FIRST_EPOCH + 1  # it died, and came back empty
    await ask(broker, END, OLD)  # sent before it died
    assert led.isr.maximal == {1}
    await ask(broker, 0, NEW)
    assert led.isr.maximal == {1}


async def test_connection_that_is_accepted_late_proves_nothing(
    broker: Broker, led: Partition, replicas: Replicas
) -> None:
    """The leader was stopped: it accepts a connection of the former life after the new one's."""
    replicas.session.registered[FOLLOWER] = FIRST_EPOCH + 1
    await ask(broker, 0, NEW)
    await ask(broker, END, OLD)
    assert led.isr.maximal == {1}


async def test_empty_replica_joins_once_it_has_copied_everything(
    broker: Broker, led: Partition, replicas: Replicas
) -> None:
    await ask(broker, END, OLD)
    replicas.session.registered[FOLLOWER] = FIRST_EPOCH + 1
    for offset in (0, *[END] * 5):
        await ask(broker, offset, NEW)
    assert led.isr.committed == (1, FOLLOWER)


async def test_process_that_registers_again_joins_on_the_connection_that_it_has(
    broker: Broker, led: Partition, replicas: Replicas
) -> None:
    await ask(broker, END, OLD)
    replicas.session.registered[FOLLOWER] = None
    for _ in range(3):
        await ask(broker, END, OLD)
    assert led.isr.maximal == {1}
    replicas.session.registered[FOLLOWER] = FIRST_EPOCH + 1
    for _ in range(3):
        await ask(broker, END, OLD)
    assert led.isr.committed == (1, FOLLOWER)


async def test_follower_that_dies_while_it_joins_leaves_again(
    broker: Broker, led: Partition, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = replicas.session
    write = session.set
    written: list[bytes] = []

    async def write_late(path: str, data: bytes, version: int = -1) -> object:
        session.registered[FOLLOWER] = FIRST_EPOCH + 1
        written.append(data)
        return await write(path, data, version)

    monkeypatch.setattr(session, "set", write_late)
    for _ in range(3):
        await ask(broker, END, OLD)
    assert [znodes.decode_state(PATH, one).isr for one in written] == [(1, FOLLOWER), (1,)]
    assert led.isr.committed == (1,)


@pytest.mark.parametrize("lost", [ConnectionLoss(), RuntimeError("a bug")], ids=repr)
async def test_join_that_zookeeper_may_hold_is_not_taken_for_refused(
    broker: Broker,
    led: Partition,
    replicas: Replicas,
    monkeypatch: pytest.MonkeyPatch,
    lost: Exception,
) -> None:
    monkeypatch.setattr(isr_writer, "RETRY_S", 0.01)
    session = replicas.session
    for _ in range(2):
        await ask(broker, END, OLD)
    session.lost_answers.append(lost)
    write = session.set

    async def write_and_die(path: str, data: bytes, version: int = -1) -> object:
        session.registered[FOLLOWER] = FIRST_EPOCH + 1
        return await write(path, data, version)

    monkeypatch.setattr(session, "set", write_and_die)
    await ask(broker, END, OLD)
    assert led.isr.maximal == {1, FOLLOWER}
    while led.isr.maximal != {1}:
        await asyncio.sleep(0.001)
    assert znodes.decode_state(PATH, session.znodes[PATH][0]).isr == (1,)
