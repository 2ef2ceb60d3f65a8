"""A console among peers who connect and send nothing, half a request, or a byte now and then."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from odradek.http_server import HttpServer
from odradek.tools.client import Access
from odradek_console import app, connections
from odradek_console.connections import CONNECTIONS, MOST_CONNECTIONS, ConsoleListener
from odradek_console.settings import ConsoleSettings
from tests.console.running import Pages, Running
from tests.support import certificates
from tests.support.broker import wait_until
from tests.support.ports import free_port
from tests.support.silent_peers import silent_peers

SILENT = 400
NO_BROKERS = "127.0.0.1:1"
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF_A_FORM = (
    b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\n\r\ntoken="
)

pytestmark = [
    pytest.mark.timeout(300),
    # aiohttp 3.12 has no other keys of a request than texts.
    pytest.mark.filterwarnings("ignore::aiohttp.web_exceptions.NotAppKeyWarning"),
]


def open_files(console: Running) -> int:
    return len(os.listdir(f"/proc/{console.process.pid}/fd"))


@pytest.mark.parametrize("start", [b"", REQUEST[:30], HALF_A_FORM], ids=["nothing", "head", "form"])
@pytest.mark.parametrize(("descriptors", "most"), [(256, MOST_CONNECTIONS), (100, 50)])
def test_silent_peers_keep_nobody_out(
    tmp_path: Path, start: bytes, descriptors: int, most: int
) -> None:
    limits = {resource.RLIMIT_NOFILE: descriptors}
    console = Running(tmp_path, NO_BROKERS, limits=limits)
    assert console.call("GET", "/healthz")[0] == 200
    others = open_files(console)
    with silent_peers(console.port, SILENT, start):
        for _ in range(3):
            assert console.call("GET", "/healthz")[0] == 200
        wait_until(lambda: open_files(console) <= others + most, "the first ones are closed")
    console.end()
    assert len(console.log.read_text().splitlines()) == 1


def test_peers_that_begin_no_handshake_keep_nobody_out(tmp_path: Path) -> None:
    issued = certificates.Authority(tmp_path).issue("console", ["127.0.0.1"])
    options = ("--tls-certificate", str(issued.certificate_path))
    console = Running(
        tmp_path,
        NO_BROKERS,
        *options,
        *("--tls-key", str(issued.key_path)),
        limits={resource.RLIMIT_NOFILE: 256},
    )
    trusted = ssl.create_default_context(cafile=issued.authority_path)
    with silent_peers(console.port, SILENT):
        browser = http.client.HTTPSConnection(
            "127.0.0.1", console.port, timeout=120, context=trusted
        )
        with contextlib.closing(browser):
            browser.request("GET", "/healthz")
            assert browser.getresponse().read() == b"ok\n"
    console.end()


def test_silent_peers_make_room_where_something_else_has_the_descriptors(tmp_path: Path) -> None:
    console = Running(tmp_path, NO_BROKERS)
    assert console.call("GET", "/healthz")[0] == 200
    left = open_files(console) + 20
    resource.prlimit(console.process.pid, resource.RLIMIT_NOFILE, (left, left))
    with silent_peers(console.port, SILENT):
        assert console.call("GET", "/healthz")[0] == 200
    console.end()


def test_silent_peers_at_the_port_of_probes_fail_no_probe(tmp_path: Path) -> None:
    port = free_port()
    limits = {resource.RLIMIT_NOFILE: 256}
    console = Running(tmp_path, NO_BROKERS, "--health-port", str(port), limits=limits)
    with silent_peers(port, SILENT), silent_peers(console.port, SILENT):
        assert Pages(port).call("GET", "/healthz")[:2] == (200, "ok\n")
        assert console.call("GET", "/healthz")[0] == 200
    console.end()


def test_a_probe_fails_while_no_page_can_be_made() -> None:
    asyncio.run(_check_probes())


async def _check_probes() -> None:
    port = free_port()
    server = HttpServer(port, lambda _: None, app.answer_probes())
    try:
        # Here the event loop waits for the answer, and there it does not.
        assert Pages(port).call("GET", "/healthz")[0] == 503
        assert (await asyncio.to_thread(Pages(port).call, "GET", "/healthz"))[0] == 200
    finally:
        server.stop()


class Slow:
    """A page that says `begun`, and ends when it is told to."""

    def __init__(self) -> None:
        self.finish = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"begun")
        await self.finish.wait()
        await response.write(b"ended")
        return response


class Peer:
    """A connection to a console in this process."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def read_until(self, end: bytes) -> bytes:
        return await self._reader.readuntil(end)

    async def ask(self) -> None:
        self.send(REQUEST)
        assert (await self.read_until(b"ok\n")).startswith(b"HTTP/1.1 200 ")

    async def see_end(self) -> None:
        """Wait until the console closes the connection."""
        with contextlib.suppress(ConnectionError):
            assert await self._reader.read(1) == b""


@contextlib.asynccontextmanager
async def console_with(slow: Slow) -> AsyncIterator[Callable[[], Awaitable[Peer]]]:
    """A console in this process, with one page more, and a way to connect to it."""
    settings = ConsoleSettings((("127.0.0.1", 1),), Access(), "127.0.0.1", 0, None, None)
    application = app.make(settings)
    application.router.add_get("/slow", slow.answer)
    runner = web.AppRunner(application, handler_cancellation=True)
    await runner.setup()
    assert runner.server is not None
    listener = ConsoleListener(runner.server, application[CONNECTIONS], None)
    writers = []

    async def connect() -> Peer:
        reader, writer = await asyncio.open_connection(*listener.addresses[0])
        writers.append(writer)
        return Peer(reader, writer)

    try:
        await listener.listen("127.0.0.1", 0)
        yield connect
    finally:
        for one in writers:
            one.close()
        await listener.close()
        await runner.cleanup()


@pytest.mark.parametrize("sent", [b"", REQUEST, HALF_A_FORM], ids=["head", "second head", "form"])
def test_who_sends_a_byte_now_and_then_is_cut_off(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "LONGEST_SILENCE_S", 1.0)
    asyncio.run(_check_dribbler(sent))


async def _check_dribbler(sent: bytes) -> None:
    slow = Slow()
    async with console_with(slow) as connect:
        reading = await connect()
        reading.send(REQUEST.replace(b"/healthz", b"/slow"))
        await reading.read_until(b"begun")
        dribbler = await connect()
        if sent == REQUEST:
            await dribbler.ask()
        else:
            dribbler.send(sent)

        async def dribble() -> None:
            dribbler.send(b"GET /" if sent != HALF_A_FORM else b"")
            while True:
                dribbler.send(b"x")
                await asyncio.sleep(0.05)

        dribbling = asyncio.create_task(dribble())
        await dribbler.see_end()
        dribbling.cancel()
        # An answer that takes longer is not cut off, nor is the connection of one who goes on.
        slow.finish.set()
        await reading.read_until(b"ended")
        await reading.read_until(b"\r\n0\r\n\r\n")
        await reading.ask()
        # Nor does it stay when nobody uses it any more.
        await reading.see_end()


def test_who_asked_last_and_who_is_answered_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 3)
    asyncio.run(_check_order())


async def _check_order() -> None:
    slow = Slow()
    async with console_with(slow) as connect:
        first = await connect()
        first.send(REQUEST.replace(b"/healthz", b"/slow"))
        await first.read_until(b"begun")
        browser = await connect()
        await browser.ask()
        for _ in range(3):
            silent = await connect()
            await browser.ask()
            await connect()
            await silent.see_end()
            await browser.ask()
        # Where all are being answered, there is no room.
        browser.send(REQUEST.replace(b"/healthz", b"/slow"))
        await browser.read_until(b"begun")
        third = await connect()
        third.send(REQUEST.replace(b"/healthz", b"/slow"))
        await third.read_until(b"begun")
        refused = await connect()
        await refused.see_end()
        slow.finish.set()
        for one in (first, browser, third):
            await one.read_until(b"ended")
        later = await connect()
        await later.ask()


def test_a_port_in_use_is_left_alone_and_a_closed_one_is_free() -> None:
    asyncio.run(_check_port())


async def _check_port() -> None:
    runner = web.AppRunner(web.Application())
    await runner.setup()
    assert runner.server is not None
    counted = connections.Connections()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        listener = ConsoleListener(runner.server, counted, None)
        with pytest.raises(OSError, match="in use"):
            await listener.listen("127.0.0.1", port)
        await listener.close()
    listener = ConsoleListener(runner.server, counted, None)
    await listener.listen("127.0.0.1", port)
    await listener.close()
    await runner.cleanup()
