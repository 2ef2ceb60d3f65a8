"""Short answers to requests that came together: sent together, in order, and never held back."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest

from odradek.net.client_info import Answer, ClientInfo, Dispatch
from odradek.net.connection import FRAMES_A_TURN
from odradek.net.connection_quotas import ConnectionLimits, ConnectionQuotas
from odradek.net.frame import ProtocolViolation
from odradek.net.listener import Listener
from odradek.net.owed_answers import Later
from odradek.net.sending import Sends, send_at_once
from odradek.net.transport import PlainTransport, TlsTransport
from odradek.protocol.regions import Buffer, Part
from tests.net import test_tls
from tests.net.loopback import LIMITS, connected, emptied, framed, listening, read_frame
from tests.support import certificates
from tests.support.file_regions import CountedRegion

LONG_BYTES = 100_000

Served: TypeAlias = tuple[Listener, asyncio.StreamReader, asyncio.StreamWriter]
Serving: TypeAlias = Callable[
    [Dispatch, ConnectionLimits], contextlib.AbstractAsyncContextManager[Served]
]


class Asked:
    """Dispatches frames by their first word, and answers with the frame."""

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()
        self.waiting = asyncio.Event()
        self.went_on = asyncio.Event()

    async def dispatch(self, frame: memoryview, peer: ClientInfo) -> Answer:
        said = bytes(frame)
        match said.split()[0]:
            case b"wait":
                self.waiting.set()
                await self.goes_on.wait()
                self.went_on.set()
            case b"later":
                return Later(lambda: self._later(said))
            case b"long":
                return [said.ljust(LONG_BYTES)]
            case b"none":
                return None
            case b"refused":
                raise ProtocolViolation("no such request")
            case b"broken":
                raise RuntimeError("a fault of the broker")
        return [said]

    async def _later(self, said: bytes) -> Sequence[Part]:
        self.waiting.set()
        await self.goes_on.wait()
        self.went_on.set()
        return [said]


def together(*said: bytes) -> bytes:
    return b"".join(map(framed, said))


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> certificates.Issued:
    folder = tmp_path_factory.mktemp("certificates")
    return certificates.Authority(folder).issue("broker", test_tls.HOSTS)


@pytest.fixture(params=["plain", "TLS"])
def serving(request: pytest.FixtureRequest, own: certificates.Issued) -> Serving:
    """A listener with a client of it, without TLS and with it."""

    @contextlib.asynccontextmanager
    async def served(dispatch: Dispatch, limits: ConnectionLimits) -> AsyncIterator[Served]:
        async with contextlib.AsyncExitStack() as stack:
            if request.param == "plain":
                listener = await stack.enter_async_context(listening(dispatch, limits))
                both = await stack.enter_async_context(connected(listener))
            else:
                settings, quotas = test_tls.settings_of(own), ConnectionQuotas(limits)
                found = test_tls.listening(dispatch, settings, quotas=quotas)
                listener = await stack.enter_async_context(found)
                context = test_tls.client_context(own)
                both = await stack.enter_async_context(test_tls.connected(listener, context))
            yield listener, *both

    return served


@pytest.fixture
def takes(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Sockets take nothing until it is set."""
    event = asyncio.Event()
    monkeypatch.setattr("odradek.net.connection.send_at_once", lambda _sock, answer: answer)

    def gated(send_all: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        async def send(*arguments: object) -> None:
            await event.wait()
            await send_all(*arguments)

        return send

    for transport in (PlainTransport, TlsTransport):
        monkeypatch.setattr(transport, "send_all", gated(transport.send_all))
    return event


@pytest.fixture
def sends(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what was sent at once."""
    sizes: list[int] = []

    def counted(sock: Sends, answer: bytes) -> Buffer:
        sizes.append(len(answer))
        return send_at_once(sock, answer)

    monkeypatch.setattr("odradek.net.connection.send_at_once", counted)
    return sizes


async def test_short_answers_are_sent_together(sends: list[int]) -> None:
    async with listening(Asked().dispatch) as listener, connected(listener) as (reader, writer):
        wanted = [b"quick %d" % number for number in range(8)]
        writer.write(together(*wanted))
        assert [await read_frame(reader) for _ in wanted] == wanted
        assert sends == [len(together(*wanted))]


async def test_as_many_are_sent_together_as_make_a_turn(sends: list[int]) -> None:
    async with listening(Asked().dispatch) as listener, connected(listener) as (reader, writer):
        wanted = [b"quick %02d" % number for number in range(2 * FRAMES_A_TURN)]
        writer.write(together(*wanted))
        assert [await read_frame(reader) for _ in wanted] == wanted
        assert max(sends) == len(together(*wanted)) // 2


async def test_no_more_than_a_few_kilobytes_are_sent_together(sends: list[int]) -> None:
    async with listening(Asked().dispatch) as listener, connected(listener) as (reader, writer):
        wanted = [b"quick %d ".ljust(4000, b".") % number for number in range(8)]
        writer.write(together(*wanted))
        assert [await read_frame(reader) for _ in wanted] == wanted
        assert max(sends) <= 5 * 4004


async def test_an_answer_is_sent_at_once_unless_the_next_request_is_there(
    sends: list[int],
) -> None:
    async with listening(Asked().dispatch) as listener, connected(listener) as (reader, writer):
        writer.write(framed(b"quick") + framed(b"cut off")[:-1])
        assert await read_frame(reader) == b"quick"
        writer.write(b"f")
        assert await read_frame(reader) == b"cut off"
        assert len(sends) == 2


@pytest.mark.parametrize("kind", [b"wait", b"later"])
async def test_no_answer_waits_for_a_request_that_waits(kind: bytes) -> None:
    asked = Asked()
    async with listening(asked.dispatch) as listener, connected(listener) as (reader, writer):
        behind = [kind, b"quick 3", b"long", b"none", b"quick 4"]
        writer.write(together(b"quick 1", b"quick 2", *behind))
        assert [await read_frame(reader) for _ in range(2)] == [b"quick 1", b"quick 2"]
        await asked.waiting.wait()
        asked.goes_on.set()
        answered = [one for one in behind if one != b"none"]
        assert [(await read_frame(reader)).rstrip() for _ in answered] == answered


async def test_what_follows_may_be_long_or_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "records"
    path.write_bytes(b"r" * LONG_BYTES)
    asked = Asked()

    async def dispatch(frame: memoryview, peer: ClientInfo) -> Answer:
        if bytes(frame) != b"file":
            return await asked.dispatch(frame, peer)
        return [b"records: ", CountedRegion(file.fileno(), 0, LONG_BYTES)]

    said = [b"quick 1", b"quick 2", b"file", b"quick 3", b"long", b"quick 4"]
    with path.open("rb") as file:
        async with listening(dispatch) as listener, connected(listener) as (reader, writer):
            writer.write(together(*said))
            found = [(await read_frame(reader)).rstrip() for _ in said]
    assert found[2] == b"records: " + path.read_bytes()
    assert [*found[:2], *found[3:]] == [*said[:2], *said[3:]]


@pytest.mark.parametrize(
    "last", [framed(b"refused"), framed(b"broken"), b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"]
)
@pytest.mark.parametrize("before", [1, 2, FRAMES_A_TURN, FRAMES_A_TURN + 1])
async def test_what_came_before_a_bad_request_is_answered(last: bytes, before: int) -> None:
    async with listening(Asked().dispatch) as listener, connected(listener) as (reader, writer):
        said = [b"quick %d" % number for number in range(before)]
        writer.write(together(*said) + last)
        assert await reader.read() == together(*said)
        await emptied(listener)


@pytest.mark.parametrize("kind", [b"wait", b"later"])
async def test_request_goes_on_while_answers_before_it_wait_for_their_peer(
    kind: bytes, serving: Serving, takes: asyncio.Event
) -> None:
    """It may hold what others wait for: a lock, or memory."""
    asked = Asked()
    async with asyncio.timeout(60), serving(asked.dispatch, LIMITS) as (_, reader, writer):
        said = [b"quick 1", b"quick 2", kind, b"quick 3", b"long", b"quick 4"]
        writer.write(together(*said))
        await asked.waiting.wait()
        asked.goes_on.set()
        await asked.went_on.wait()
        takes.set()
        assert [(await read_frame(reader)).rstrip() for _ in said] == said


async def test_answers_before_a_request_that_waits_are_sent_once_there_is_room(
    serving: Serving, takes: asyncio.Event
) -> None:
    asked = Asked()
    async with asyncio.timeout(60), serving(asked.dispatch, LIMITS) as (_, reader, writer):
        writer.write(together(b"quick 1", b"quick 2", b"wait"))
        await asked.waiting.wait()
        takes.set()
        assert [await read_frame(reader) for _ in range(2)] == [b"quick 1", b"quick 2"]
        asked.goes_on.set()
        assert await read_frame(reader) == b"wait"


async def test_request_in_progress_is_not_broken_off_where_its_peer_is_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = Asked()
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def dispatch(frame: memoryview, client: ClientInfo) -> Answer:
        if bytes(frame) == b"quick 2":
            peer.close()  # with a reset
        return await asked.dispatch(frame, client)

    async with asyncio.timeout(60), listening(dispatch) as listener:
        peer.connect(("127.0.0.1", listener.port))
        peer.sendall(together(b"quick 1", b"quick 2", b"wait"))
        await asked.waiting.wait()
        asked.goes_on.set()
        await asked.went_on.wait()
        await emptied(listener)
    assert not [one for one in caplog.records if one.levelno > logging.INFO]


async def test_answers_whose_sending_is_measured_are_sent_within_that(sends: list[int]) -> None:
    measured = []

    async def send(work: Awaitable[None]) -> None:
        before = len(sends)
        await work
        measured.append(sends[before:])

    async def dispatch(frame: memoryview, client: ClientInfo) -> Answer:
        client.throttling.send = send
        return [bytes(frame)]

    async with listening(dispatch) as listener, connected(listener) as (reader, writer):
        wanted = [b"quick %d" % number for number in range(8)]
        writer.write(together(*wanted))
        assert [await read_frame(reader) for _ in wanted] == wanted
    assert measured == [[len(framed(one))] for one in wanted]


@pytest.mark.parametrize("ends", ["", "refused", "shut"])
async def test_a_peer_that_reads_late_gets_every_answer_in_order(
    ends: str, serving: Serving
) -> None:
    """Sockets are full in the middle of what is gathered, before requests of all kinds."""
    limits = dataclasses.replace(LIMITS, socket_send_bytes=4096)
    asked = Asked()
    asked.goes_on.set()
    async with serving(asked.dispatch, limits) as (_, reader, writer):
        kinds = [b"quick", b"quick", b"wait", b"quick", b"quick", b"later", b"quick", b"long"]
        said = [
            (b"%s %d " % (kinds[number % len(kinds)], number)).ljust(3000, b".")
            for number in range(400)
        ]
        sent = together(*said) + (framed(b"refused") if ends == "refused" else b"")

        async def write() -> None:
            for start in range(0, len(sent), 20_000):
                writer.write(sent[start : start + 20_000])
                await writer.drain()
            if ends == "shut" and writer.can_write_eof():
                writer.write_eof()

        writing = asyncio.create_task(write())
        for wanted in said:
            assert (await read_frame(reader)).rstrip() == wanted
        await writing
        if ends == "refused" or (ends and writer.can_write_eof()):
            assert await reader.read() == b""
