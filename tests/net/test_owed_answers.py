"""Produce requests behind one that waits for replicas: what is dispatched, and when is answered."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import logging
import struct
import weakref
from collections.abc import Awaitable, Sequence

import pytest

from odradek.net.client_info import Answer, ClientInfo
from odradek.net.connection import Connection
from odradek.net.connection_quotas import ConnectionQuotas
from odradek.net.frame import ProtocolViolation
from odradek.net.listener import Listener
from odradek.net.owed_answers import MOST_OWED, Later
from odradek.protocol.api import ApiKey
from odradek.protocol.regions import Part
from tests.net.loopback import (
    LIMITS,
    connected,
    emptied,
    framed,
    listening,
    read_frame,
)

FRAME_BYTES = 100_000
TOO_LARGE = 2_000_000_000


def produce(number: int) -> bytes:
    """A frame that is larger than the first buffer of a connection."""
    return struct.pack(">hh", ApiKey.PRODUCE, number) + bytes(FRAME_BYTES)


def other(number: int) -> bytes:
    return struct.pack(">hh", ApiKey.METADATA, number)


class Replicating:
    """Dispatches Produce requests, whose answers are there once they are let go, in any order."""

    def __init__(self) -> None:
        self.dispatched: list[int] = []
        self.waits: dict[int, asyncio.Future[Sequence[Part]]] = {}
        self._came = asyncio.Event()

    async def dispatch(self, frame: memoryview, peer: ClientInfo) -> Answer:
        key, number = struct.unpack_from(">hh", frame)
        self.dispatched.append(number)
        self._came.set()
        if key != ApiKey.PRODUCE:
            return [bytes(frame)]
        assert peer.takes_later
        self.waits[number] = asyncio.get_running_loop().create_future()
        return Later(lambda: self.waits[number])

    def let_go(self, number: int) -> None:
        self.waits[number].set_result([struct.pack(">h", number)])

    async def until_dispatched(self, numbers: Sequence[int]) -> None:
        async with asyncio.timeout(60):
            while self.dispatched != list(numbers):
                self._came.clear()
                await self._came.wait()


async def some_turns() -> None:
    """Let the connection see what was sent."""
    for _ in range(100):
        await asyncio.sleep(0)


def number_of(answer: bytes) -> int:
    return int.from_bytes(answer[-2:], "big")


async def test_produces_behind_one_that_waits_are_dispatched_and_answered_in_order() -> None:
    work = Replicating()
    async with listening(work.dispatch) as listener, connected(listener) as (reader, writer):
        writer.write(b"".join(framed(produce(number)) for number in range(3)))
        await work.until_dispatched([0, 1, 2])
        for number in (2, 1, 0):
            work.let_go(number)
        assert [number_of(await read_frame(reader)) for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("how", ["violation", "bug", "size"])
async def test_what_came_before_a_bad_request_is_answered(how: str) -> None:
    work = Replicating()

    async def dispatch(frame: memoryview, peer: ClientInfo) -> Answer:
        found = await work.dispatch(frame, peer)
        if work.dispatched[-1] == 1:
            raise ProtocolViolation("bad") if how == "violation" else KeyError("bug")
        return found

    async with listening(dispatch) as listener, connected(listener) as (reader, writer):
        writer.write(framed(produce(0)))
        await work.until_dispatched([0])
        writer.write(struct.pack(">i", TOO_LARGE) if how == "size" else framed(produce(1)))
        await some_turns()
        [connection] = connections_to(writer)
        assert connection.idle_seconds() == 0, "it waits for us"
        work.let_go(0)
        assert number_of(await read_frame(reader)) == 0
        with contextlib.suppress(ConnectionResetError):  # it had not read all that came
            async with asyncio.timeout(60):
                assert await reader.read() == b""


async def test_a_failure_ends_a_connection_before_it_is_muted() -> None:
    work = Replicating()

    async def send(answering: Awaitable[None]) -> None:
        await answering

    async def dispatch(frame: memoryview, peer: ClientInfo) -> Answer:
        found = await work.dispatch(frame, peer)
        if work.dispatched[-1] == 0:
            return found
        # A produce with acks=0, after quotas were switched on.
        peer.throttling.send, peer.throttling.mute_s = send, 3600.0
        return None

    async with listening(dispatch) as listener, connected(listener) as (reader, writer):
        writer.write(framed(produce(0)) + framed(produce(1)))
        await work.until_dispatched([0, 1])
        await some_turns()
        work.waits[0].set_exception(KeyError("bug"))
        async with asyncio.timeout(60):
            assert await reader.read() == b""


async def test_requests_whose_answers_are_owed_hold_no_memory() -> None:
    """A follower needs it for the fetch that they wait for."""
    work = Replicating()
    quotas = ConnectionQuotas(dataclasses.replace(LIMITS, max_queued_bytes=FRAME_BYTES))
    listener = Listener("127.0.0.1", 0, quotas, work.dispatch)
    await listener.start()
    async with connected(listener) as (_, client), connected(listener) as (reader, follower):
        client.write(b"".join(framed(produce(number)) for number in range(MOST_OWED)))
        await work.until_dispatched(range(MOST_OWED))
        follower.write(framed(other(9) + bytes(FRAME_BYTES)))
        async with asyncio.timeout(60):
            await read_frame(reader)
    await listener.close(grace_ms=1)


async def test_only_so_many_are_owed() -> None:
    work = Replicating()
    count = MOST_OWED + 2
    async with listening(work.dispatch) as listener, connected(listener) as (reader, writer):
        writer.write(b"".join(framed(produce(number)) for number in range(count)))
        for owed in range(MOST_OWED, count + 1):
            await work.until_dispatched(range(owed))
            work.let_go(owed - MOST_OWED)
            assert number_of(await read_frame(reader)) == owed - MOST_OWED


async def test_another_request_waits_until_all_before_it_are_answered() -> None:
    work = Replicating()
    async with listening(work.dispatch) as listener, connected(listener) as (reader, writer):
        writer.write(framed(produce(0)) + framed(produce(1)) + framed(other(2)))
        await work.until_dispatched([0, 1])
        work.let_go(0)
        assert number_of(await read_frame(reader)) == 0
        assert work.dispatched == [0, 1]
        work.let_go(1)
        assert [number_of(await read_frame(reader)) for _ in range(2)] == [1, 2]


async def test_an_answer_that_is_there_at_once_waits_for_its_turn() -> None:
    work = Replicating()

    async def dispatch(frame: memoryview, peer: ClientInfo) -> Answer:
        found = await work.dispatch(frame, peer)
        number = work.dispatched[-1]
        return [struct.pack(">h", number)] if number == 1 else None if number == 2 else found

    async with listening(dispatch) as listener, connected(listener) as (reader, writer):
        writer.write(b"".join(framed(produce(number)) for number in range(4)))
        await work.until_dispatched([0, 1, 2, 3])
        work.let_go(0)
        work.let_go(3)
        assert [number_of(await read_frame(reader)) for _ in range(3)] == [0, 1, 3]


@pytest.mark.parametrize(
    "failure", [pytest.param(KeyError("bug"), id="bug"), pytest.param(OSError("disk"), id="disk")]
)
@pytest.mark.parametrize("behind", [0, 1, MOST_OWED])
async def test_what_fails_later_is_logged_and_closes_that_connection_only(
    failure: Exception, behind: int, caplog: pytest.LogCaptureFixture
) -> None:
    work = Replicating()
    async with listening(work.dispatch) as listener, connected(listener) as (reader, writer):
        async with connected(listener) as (bad_reader, bad_writer):
            bad_writer.write(b"".join(framed(produce(number)) for number in range(1 + behind)))
            await work.until_dispatched(range(min(1 + behind, MOST_OWED)))
            work.waits[0].set_exception(failure)
            with contextlib.suppress(ConnectionResetError):  # it had not read all that came
                assert await bad_reader.read() == b""
        await emptied(listener, 1)
        work.dispatched.clear()
        writer.write(framed(other(9)))
        assert number_of(await read_frame(reader)) == 9
    said = [one for one in caplog.records if one.name.startswith("odradek.net.")]
    errors = [record.levelno for record in said if record.levelno > logging.INFO]
    assert errors == [logging.ERROR]


async def test_a_peer_that_shuts_its_side_still_gets_what_is_owed() -> None:
    work = Replicating()
    async with listening(work.dispatch) as listener, connected(listener) as (reader, writer):
        writer.write(framed(produce(0)) + framed(produce(1)))
        writer.write_eof()
        await work.until_dispatched([0, 1])
        work.let_go(0)
        work.let_go(1)
        assert await reader.read() == framed(b"\0\0") + framed(b"\0\1")


async def test_a_listener_that_closes_lets_owed_answers_be_sent() -> None:
    work = Replicating()
    listener = Listener("127.0.0.1", 0, ConnectionQuotas(LIMITS), work.dispatch)
    await listener.start()
    async with connected(listener) as (reader, writer):
        writer.write(framed(produce(0)) + framed(produce(1)))
        await work.until_dispatched([0, 1])
        closing = asyncio.create_task(listener.close(grace_ms=60_000))
        await asyncio.sleep(0)
        work.let_go(0)
        work.let_go(1)
        assert await reader.read() == framed(b"\0\0") + framed(b"\0\1")
        await closing


async def test_a_listener_does_not_wait_for_owed_answers_for_ever() -> None:
    work = Replicating()
    listener = Listener("127.0.0.1", 0, ConnectionQuotas(LIMITS), work.dispatch)
    await listener.start()
    async with connected(listener) as (reader, writer):
        writer.write(framed(produce(0)) + framed(produce(1)))
        await work.until_dispatched([0, 1])
        await listener.close(grace_ms=1)
        assert await reader.read() == b""
    assert work.waits[0].cancelled()


async def test_a_connection_that_owes_is_not_idle() -> None:
    work = Replicating()
    async with listening(work.dispatch) as listener, connected(listener) as (reader, writer):
        writer.write(framed(produce(0)))
        await work.until_dispatched([0])
        await asyncio.sleep(0)  # a round later it would count
        [connection] = connections_to(writer)
        assert connection.idle_seconds() == 0
        work.let_go(0)
        assert number_of(await read_frame(reader)) == 0


def connections_to(writer: asyncio.StreamWriter) -> list[Connection]:
    port = writer.get_extra_info("sockname")[1]
    found = [each for each in gc.get_objects() if isinstance(each, Connection)]
    return [each for each in found if each.peer.port == port]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_connection_that_owed_is_freed_at_once(fails: bool) -> None:
    work = Replicating()
    gc.collect()
    gc.disable()
    try:
        async with listening(work.dispatch) as listener:
            async with connected(listener) as (reader, writer):
                writer.write(framed(produce(0)))
                await work.until_dispatched([0])
                connection = weakref.ref(connections_to(writer)[0])
                if fails:
                    work.waits[0].set_exception(MemoryError)
                    assert await reader.read() == b""
                else:
                    work.let_go(0)
                    await read_frame(reader)
            work.waits.clear()
            await emptied(listener)
            async with asyncio.timeout(60):
                while connection() is not None:
                    await asyncio.sleep(0)
    finally:
        gc.enable()
