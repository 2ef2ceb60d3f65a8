"""How a connection ends: by a failure, by its listener, or because nothing comes."""

import asyncio
import dataclasses
import gc
import logging
import struct
import weakref
from collections.abc import Sequence

import pytest

from odradek.net.client_info import ClientInfo, Dispatch
from odradek.net.connection import Connection
from odradek.net.connection_quotas import ConnectionQuotas
from odradek.net.frame import FrameReader, ProtocolViolation
from odradek.net.listener import Listener
from odradek.protocol.codec import MalformedError
from odradek.protocol.regions import Part
from tests.net.loopback import LIMITS, connected, echo, emptied, framed, listening, read_frame


def living() -> weakref.WeakSet[Connection]:
    """Return all connections, also those that records of other tests' logs keep alive."""
    return weakref.WeakSet(each for each in gc.get_objects() if isinstance(each, Connection))


async def test_a_closed_connection_is_freed_at_once() -> None:
    """Its buffer is: many that come and go must not take memory until the collector runs."""
    gc.collect()
    others = living()
    gc.disable()
    try:
        async with listening(echo) as listener:
            async with connected(listener) as (reader, writer):
                writer.write(framed(bytes(60_000)))
                await read_frame(reader)
                [connection] = map(weakref.ref, living() - others)
            await emptied(listener)
            async with asyncio.timeout(60):
                while connection() is not None:
                    await asyncio.sleep(0)
    finally:
        gc.enable()


@pytest.mark.parametrize("error", [ProtocolViolation, asyncio.CancelledError, RuntimeError])
@pytest.mark.parametrize("waits", [False, True])
async def test_a_connection_whose_request_fails_is_closed_and_freed_at_once(
    error: type[BaseException], waits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "odradek")  # records keep exceptions

    async def fail(frame: memoryview, peer: ClientInfo) -> None:
        if waits:
            await asyncio.sleep(0)
        raise error

    gc.collect()
    others = living()
    gc.disable()
    try:
        async with listening(fail) as listener, connected(listener) as (reader, writer):
            async with asyncio.timeout(60):
                while listener.connection_count == 0:
                    await asyncio.sleep(0)
            [connection] = map(weakref.ref, living() - others)
            writer.write(framed(b"request"))
            async with asyncio.timeout(60):
                assert await reader.read() == b""
                while connection() is not None:
                    await asyncio.sleep(0)
    finally:
        gc.enable()


@pytest.mark.parametrize("waits", [False, True])
async def test_a_connection_may_be_finished_by_a_request_which_is_answered(waits: bool) -> None:
    found: list[Connection] = []

    async def finish(frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
        found[0].finish()
        if waits:
            await asyncio.sleep(0)
        return [b"last"]

    def guard(connection: Connection, dispatch: Dispatch) -> Dispatch:
        found.append(connection)
        return dispatch

    listener = Listener("127.0.0.1", 0, ConnectionQuotas(LIMITS), finish, guard=guard)
    await listener.start()
    try:
        async with connected(listener) as (reader, writer), asyncio.timeout(60):
            writer.write(framed(b"first") + framed(b"second"))
            assert await read_frame(reader) == b"last"
            assert await reader.read() == b""
    finally:
        await listener.close(grace_ms=200)


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(-1, id="negative"),
        pytest.param(-(2**31), id="most-negative"),
        pytest.param(1_000_001, id="one-too-many"),
        pytest.param(2**31 - 1, id="largest"),
        pytest.param(int.from_bytes(b"GET "), id="http"),
    ],
)
async def test_hostile_size_closes_that_connection_only(size: int) -> None:
    async with listening(echo) as listener, connected(listener) as (reader, writer):
        async with connected(listener) as (hostile_reader, hostile_writer):
            hostile_writer.write(struct.pack(">i", size))
            assert await hostile_reader.read() == b""
        writer.write(framed(b"still here"))
        assert await read_frame(reader) == b"still here"


@pytest.mark.parametrize(
    ("failure", "level"),
    [
        pytest.param(ProtocolViolation("bad"), logging.WARNING, id="violation"),
        pytest.param(MalformedError("bad"), logging.WARNING, id="malformed"),
        pytest.param(KeyError("bug"), logging.ERROR, id="bug"),
        pytest.param(OSError("disk"), logging.ERROR, id="disk"),
    ],
)
async def test_failure_of_dispatch_is_logged_and_closes_that_connection_only(
    failure: Exception, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse_bad(frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
        if bytes(frame) == b"bad":
            raise failure
        return [bytes(frame)]

    async with listening(refuse_bad) as listener, connected(listener) as (reader, writer):
        async with connected(listener) as (bad_reader, bad_writer):
            bad_writer.write(framed(b"bad"))
            assert await bad_reader.read() == b""
        writer.write(framed(b"good"))
        assert await read_frame(reader) == b"good"
    said = [one for one in caplog.records if one.name.startswith("odradek.net.")]
    assert [record.levelno for record in said if record.levelno > logging.INFO] == [level]


async def test_request_in_work_is_answered_when_the_listener_closes() -> None:
    started = asyncio.Event()

    async def slow(frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
        started.set()
        await asyncio.sleep(0.05)
        return [b"done"]

    async with (
        listening(slow) as listener,
        connected(listener) as (reader, writer),
        connected(listener) as (idle_reader, idle_writer),
    ):
        idle_writer.write(framed(b"work"))
        assert await read_frame(idle_reader) == b"done"
        started.clear()
        writer.write(framed(b"work"))
        await started.wait()
        closing = asyncio.create_task(listener.close(grace_ms=60_000))
        assert await read_frame(reader) == b"done"
        assert await reader.read() == b""
        assert await idle_reader.read() == b""
        await closing
        with pytest.raises(ConnectionError):
            await asyncio.open_connection("127.0.0.1", listener.port)


async def test_a_closed_listener_resets_connections_without_a_request() -> None:
    async with listening(echo) as listener, connected(listener) as (reader, _):
        while not listener.connection_count:
            await asyncio.sleep(0)
        await listener.close()
        with pytest.raises(ConnectionResetError):
            await reader.read()


async def test_request_that_outlasts_the_grace_is_cancelled() -> None:
    started = asyncio.Event()

    async def endless(frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with listening(endless) as listener, connected(listener) as (reader, writer):
        writer.write(framed(b"work"))
        await started.wait()
        await listener.close(grace_ms=20)
        assert await reader.read() == b""


async def test_idle_connection_is_closed_and_a_waiting_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    real_time, ahead = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: real_time() + ahead)
    started, late = asyncio.Event(), asyncio.Event()

    async def long_poll(frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
        started.set()
        await late.wait()
        return [b"late"]

    async with (
        listening(long_poll) as listener,
        connected(listener) as (reader, writer),
    ):
        writer.write(framed(b"poll"))
        await started.wait()
        for _ in range(2):
            async with connected(listener) as (idle, _):
                while listener.connection_count < 2:
                    await asyncio.sleep(0)
                ahead += LIMITS.max_idle_ms / 1000
                assert await idle.read() == b""
        late.set()
        assert await read_frame(reader) == b"late"


async def test_a_read_that_fails_closes_its_connection_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bytes would wake the event loop for ever."""
    async with listening(echo) as listener, connected(listener) as (sound, sound_writer):
        sound_writer.write(framed(b"a"))
        assert await read_frame(sound) == b"a"
        async with connected(listener) as (sick, sick_writer):
            with monkeypatch.context() as patched:
                patched.setattr(FrameReader, "received", lambda self, count: 1 / 0)
                sick_writer.write(framed(b"b"))
                async with asyncio.timeout(60):
                    assert await sick.read() == b""
        await emptied(listener, down_to=1)
        sound_writer.write(framed(b"c"))
        assert await read_frame(sound) == b"c"


async def test_a_connection_that_cannot_be_looked_after_is_closed_and_the_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = dataclasses.replace(LIMITS, frame_timeout_ms=100)  # looks every 25 ms
    async with listening(echo, limits) as listener, connected(listener) as (sound, sound_writer):
        async with connected(listener) as (sick, sick_writer):
            port = sick_writer.get_extra_info("sockname")[1]
            idle_seconds = Connection.idle_seconds

            def fail(self: Connection) -> float:
                return 1 / 0 if self.peer.port == port else idle_seconds(self)

            monkeypatch.setattr(Connection, "idle_seconds", fail)
            async with asyncio.timeout(60):
                assert await sick.read() == b""
        sound_writer.write(framed(b"a"))
        assert await read_frame(sound) == b"a"
