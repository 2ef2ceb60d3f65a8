"""Very many connections, and strange ones: who is let in, who waits, and what is said about it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import logging
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from odradek.net.addresses import numbers_by_address
from odradek.net.broker_addresses import BrokerAddresses
from odradek.net.connection_quotas import (
    BROKER_PLACES,
    ConnectionLimits,
    ConnectionQuotas,
    CreationRate,
)
from odradek.net.listener import ACCEPTED_A_TURN, WAITING_PLACES, Listener
from odradek.net.rare_log import LINES_PER_PERIOD
from tests.net.loopback import connected, echo, emptied, framed, read_frame
from tests.support.missing import require_ipv6

LIMITS = ConnectionLimits(
    max_frame_bytes=1_000_000,
    max_connections=2,
    max_connections_per_ip=10_000,
    max_idle_ms=60_000,
)
BROKER_HOST, CLIENT_HOST, OTHER_HOST = "127.0.0.2", "127.0.0.1", "127.0.0.3"


def is_broker(host: str) -> bool:
    return host == BROKER_HOST


@contextlib.asynccontextmanager
async def listening(quotas: ConnectionQuotas, **options: Any) -> AsyncIterator[Listener]:
    listener = Listener("127.0.0.1", 0, quotas, echo, **options)
    await listener.start()
    try:
        yield listener
    finally:
        await listener.close(grace_ms=200)


class Peer:
    """A connection from a chosen address."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self) -> bytes:
        async with asyncio.timeout(60):
            self.writer.write(framed(b"?"))
            return await read_frame(self.reader)

    async def is_closed(self) -> bool:
        async with asyncio.timeout(60):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True


@contextlib.asynccontextmanager
async def from_host(listener: Listener, host: str) -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, local_addr=(host, 0))
    try:
        yield Peer(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@pytest.mark.parametrize(
    "options", [{"protected": True}, {"is_broker": is_broker}], ids=["own listener", "shared"]
)
async def test_a_broker_takes_the_place_of_the_least_recently_used_client(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    real_time, ahead = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: real_time() + ahead)
    quotas = ConnectionQuotas(LIMITS)
    async with (
        listening(quotas) as ordinary,
        listening(quotas, **options) as brokers,
        from_host(ordinary, CLIENT_HOST) as old,
        from_host(ordinary, CLIENT_HOST) as used,
    ):
        await old.ask()
        await used.ask()
        ahead += 1
        await used.ask()
        async with from_host(brokers, BROKER_HOST) as broker:
            assert await broker.ask() == b"?"
            assert await old.is_closed()
            assert await used.ask() == b"?"
            assert quotas.closed["replaced"] == 1
            assert brokers.connection_count + ordinary.connection_count == 2


async def test_brokers_are_let_in_past_clients_that_wait_and_those_are_served_later() -> None:
    quotas = ConnectionQuotas(dataclasses.replace(LIMITS, max_connections=1))
    async with (
        listening(quotas, is_broker=is_broker) as listener,
        from_host(listener, CLIENT_HOST) as client,
    ):
        await client.ask()
        async with (
            contextlib.AsyncExitStack() as stack,
            from_host(listener, OTHER_HOST) as first,
        ):
            while not quotas.delayed["max-connections"]:
                await asyncio.sleep(0.002)
            for _ in range(WAITING_PLACES + 5):
                await stack.enter_async_context(from_host(listener, OTHER_HOST))
            async with from_host(listener, BROKER_HOST) as broker:
                assert await broker.ask() == b"?"
                assert await client.is_closed()
                assert listener.connection_count == 1
                first.writer.write(framed(b"?"))
                await asyncio.sleep(0.02)
                assert not first.reader._buffer  # type: ignore[attr-defined]
            assert await first.ask() == b"?"
            assert quotas.refused["waiting"] >= 5


async def test_client_that_has_only_just_been_accepted_makes_place_too() -> None:
    quotas = ConnectionQuotas(dataclasses.replace(LIMITS, max_connections=1))
    async with listening(quotas, is_broker=is_broker) as listener:
        # Both are accepted in one round of the event loop, as this thread is busy.
        address = "127.0.0.1", listener.port
        with (
            socket.create_connection(address, 60, (CLIENT_HOST, 0)) as client,
            socket.create_connection(address, 60, (BROKER_HOST, 0)) as broker,
        ):
            reader, writer = await asyncio.open_connection(sock=broker.dup())
            assert await Peer(reader, writer).ask() == b"?"
            assert quotas.closed["replaced"] == 1
            await emptied(listener, 1)
            client.settimeout(60)
            assert await asyncio.to_thread(client.recv, 1) == b""
            writer.close()


async def test_brokers_are_let_in_past_clients_that_wait_for_the_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quotas = ConnectionQuotas(
        dataclasses.replace(LIMITS, max_connections=10, max_connections_per_ip=5)
    )
    monkeypatch.setattr(quotas, "creation_delay_s", lambda: 3600.0)
    async with (
        listening(quotas, is_broker=is_broker) as listener,
        contextlib.AsyncExitStack() as on,
    ):
        clients = [await on.enter_async_context(from_host(listener, CLIENT_HOST)) for _ in range(6)]
        async with from_host(listener, BROKER_HOST) as broker:
            assert await broker.ask() == b"?"
            assert listener.connection_count == 1
        assert await clients[5].is_closed()
        assert quotas.refused == {"per-address": 1, "waiting": 0, "address-rate": 0}


async def test_clients_that_are_refused_do_not_use_up_the_rate_of_others() -> None:
    quotas = ConnectionQuotas(
        dataclasses.replace(LIMITS, max_connections_per_ip=1, max_creation_rate=2)
    )
    async with (
        listening(quotas, is_broker=is_broker) as listener,
        from_host(listener, CLIENT_HOST) as client,
    ):
        await client.ask()
        for _ in range(5):
            async with from_host(listener, CLIENT_HOST) as refused:
                assert await refused.is_closed()
        assert quotas.delayed["rate"] == 0


async def test_other_limits_change_without_another_burst_of_connections() -> None:
    quotas = ConnectionQuotas(dataclasses.replace(LIMITS, max_creation_rate=1))
    assert quotas.creation_delay_s() == 0
    quotas.change_limits(dataclasses.replace(quotas.limits, max_connections=5))
    assert quotas.creation_delay_s() > 0
    quotas.change_limits(dataclasses.replace(quotas.limits, max_creation_rate=2))
    assert quotas.creation_delay_s() == 0


async def test_overrides_count_for_addresses_as_connections_show_them() -> None:
    entries = ["localhost:4", "[::1]:5", "[::ffff:10.0.0.1]:6", "127.0.0.9:0"]
    numbers = await numbers_by_address(entries)
    assert numbers == {"127.0.0.1": 4, "::1": 5, "10.0.0.1": 6, "127.0.0.9": 0}
    with pytest.raises(OSError, match=r"failed to look up broker\.\.example: "):
        await numbers_by_address([*entries, "broker..example:5"])


async def test_brokers_alone_cannot_take_every_descriptor() -> None:
    quotas = ConnectionQuotas(dataclasses.replace(LIMITS, max_connections=1))
    async with contextlib.AsyncExitStack() as stack:
        listener = await stack.enter_async_context(listening(quotas, protected=True))
        for _ in range(BROKER_PLACES + 6):
            await stack.enter_async_context(from_host(listener, BROKER_HOST))
        while not quotas.delayed["max-connections"]:
            await asyncio.sleep(0.002)
        assert listener.connection_count == BROKER_PLACES + 1


async def test_addresses_of_brokers_follow_their_names() -> None:
    hosts = ["localhost", "127.0.0.9"]

    async def named() -> list[str]:
        return hosts

    addresses = BrokerAddresses(named)
    assert "127.0.0.1" not in addresses
    await addresses.refresh()
    assert "127.0.0.1" in addresses
    assert "127.0.0.9" in addresses
    hosts[:] = ["localhost", "no such host\N{FULL STOP}." * 40]
    await addresses.refresh()
    assert "127.0.0.1" in addresses
    assert "127.0.0.9" not in addresses


async def test_an_address_of_ipv4_is_the_same_on_a_listener_with_ipv6() -> None:
    require_ipv6()
    seen = []

    def note(host: str) -> bool:
        seen.append(host)
        return True

    listener = Listener("::", 0, ConnectionQuotas(LIMITS), echo, is_broker=note)
    await listener.start()
    try:
        async with from_host(listener, BROKER_HOST) as broker:
            await broker.ask()
    finally:
        await listener.close(grace_ms=200)
    assert seen == [BROKER_HOST]


def test_the_rate_lets_in_a_burst_and_delays_the_rest() -> None:
    now = 1000.0
    rate = CreationRate(10, lambda: now)
    assert [rate.delay_s() for _ in range(10)] == pytest.approx([0.0] * 10, abs=1e-6)
    delays = [rate.delay_s() for _ in range(5)]
    assert delays == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    now += 3600
    assert [rate.delay_s() for _ in range(10)] == pytest.approx([0.0] * 10, abs=1e-6)
    assert rate.delay_s() > 0


@pytest.mark.parametrize(("per_second", "delay_s"), [(0, 1.0), (1, 1.0), (2**31 - 1, 0.0)])
def test_the_rate_never_stops_connections_for_good(per_second: int, delay_s: float) -> None:
    rate = CreationRate(per_second, lambda: 1000.0)
    assert [rate.delay_s() for _ in range(5)][1:] == pytest.approx([delay_s] * 4, abs=1e-6)


@pytest.mark.parametrize("is_shared", [False, True], ids=["own listener", "shared"])
async def test_connections_above_the_rate_are_delayed_but_those_of_brokers_are_not(
    is_shared: bool,
) -> None:
    quotas = ConnectionQuotas(dataclasses.replace(LIMITS, max_connections=100, max_creation_rate=2))
    async with (
        listening(quotas, is_broker=is_broker if is_shared else None) as listener,
        listening(quotas, protected=True) as own,
        contextlib.AsyncExitStack() as stack,
    ):
        between_brokers = listener if is_shared else own
        peers = [await stack.enter_async_context(connected(listener)) for _ in range(4)]
        while not quotas.delayed["rate"]:
            await asyncio.sleep(0.002)
        before = quotas.delayed["rate"]
        for _ in range(10):
            async with from_host(between_brokers, BROKER_HOST) as broker:
                assert await broker.ask() == b"?"
        for reader, writer in peers:
            writer.write(framed(b"late"))
            assert await read_frame(reader) == b"late"
        assert before <= quotas.delayed["rate"] <= 4
        assert quotas.refused.total() == 0


async def test_a_full_backlog_leaves_turns_to_others() -> None:
    quotas = ConnectionQuotas(dataclasses.replace(LIMITS, max_connections=10_000))
    loop = asyncio.get_running_loop()
    accepted_in_round: list[int] = []
    before = 0
    going: asyncio.Handle
    async with listening(quotas) as listener:

        def go_round() -> None:
            nonlocal going, before
            accepted_in_round.append(listener.connection_count - before)
            before = listener.connection_count
            going = loop.call_soon(go_round)

        with contextlib.ExitStack() as stack:
            # The kernel completes these while this thread, and so the event loop, is busy.
            for _ in range(100):
                stack.enter_context(socket.create_connection(("127.0.0.1", listener.port)))
            going = loop.call_soon(go_round)
            async with asyncio.timeout(60):
                while listener.connection_count < 100:
                    await asyncio.sleep(0)
            going.cancel()
        await emptied(listener)
    assert max(accepted_in_round) <= ACCEPTED_A_TURN


@pytest.mark.parametrize("code", [errno.EPROTO, errno.ENETDOWN, errno.EPERM, errno.EMFILE])
async def test_errors_of_accept_are_not_the_listeners_end(
    code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # A network that fails in that moment cannot be had here.
    loop = asyncio.get_running_loop()
    accept, failures = loop.sock_accept, 3

    async def failing(sock: socket.socket) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError(code, "injected")
        return await accept(sock)

    monkeypatch.setattr(loop, "sock_accept", failing)
    quotas = ConnectionQuotas(dataclasses.replace(LIMITS, max_connections=100))
    async with listening(quotas) as listener, connected(listener) as (reader, writer):
        writer.write(framed(b"through"))
        assert await read_frame(reader) == b"through"
    assert "failed to accept a connection: [Errno" in caplog.text
    assert quotas.delayed["descriptors"] == (3 if code == errno.EMFILE else 0)


_OUT_OF_DESCRIPTORS = """
import asyncio, os, resource
from odradek.net.connection_quotas import ConnectionLimits, ConnectionQuotas
from odradek.net.listener import Listener

async def echo(frame, peer):
    return [bytes(frame)]

async def main():
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    limits = ConnectionLimits(1000, 1000, 1000, 600_000)
    quotas = ConnectionQuotas(limits)
    listener = Listener("127.0.0.1", 0, quotas, echo)
    await listener.start()
    print(listener.port, flush=True)
    taken = []
    while True:
        try:
            taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            break
    print("full", flush=True)
    loop = asyncio.get_running_loop()
    while not quotas.delayed["descriptors"]:
        await asyncio.sleep(0.01)
    await asyncio.sleep(1)
    print(quotas.delayed["descriptors"], flush=True)
    for one in taken:
        os.close(one)
    await listener.wait_closed()

asyncio.run(main())
"""


def test_without_descriptors_accepting_neither_ends_nor_spins() -> None:
    """In a process of its own, which has few descriptors."""
    with subprocess.Popen(
        [sys.executable, "-c", _OUT_OF_DESCRIPTORS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            assert child.stdout is not None
            port = int(child.stdout.readline())
            assert child.stdout.readline() == "full\n"
            with socket.create_connection(("127.0.0.1", port), 60) as waiting:
                waiting.sendall(framed(b"when there is room"))
                # One per pause; a loop that spins has thousands.
                assert 1 <= int(child.stdout.readline()) < 50
                (size,) = struct.unpack(">i", waiting.recv(4, socket.MSG_WAITALL))
                assert waiting.recv(size, socket.MSG_WAITALL) == b"when there is room"
            assert child.poll() is None
        finally:
            child.kill()


@pytest.mark.parametrize(
    ("hello", "protocol"),
    [
        pytest.param(bytes.fromhex("1603010200010001fc0303"), "TLS", id="tls"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n", "HTTP", id="http"),
    ],
)
async def test_strangers_are_closed_and_a_line_names_what_they_speak(
    hello: bytes, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    quotas = ConnectionQuotas(dataclasses.replace(LIMITS, max_connections=100))
    async with listening(quotas) as listener:
        for _ in range(LINES_PER_PERIOD + 20):
            async with connected(listener) as (reader, writer):
                writer.write(hello)
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
        await emptied(listener)
    lines = [one for one in caplog.messages if f"the peer speaks {protocol}" in one]
    assert len(lines) == LINES_PER_PERIOD
    assert quotas.closed["violation"] == LINES_PER_PERIOD + 20


async def _is_answered(listener: Listener) -> bool:
    try:
        async with connected(listener) as (reader, writer):
            writer.write(framed(b"still here"))
            return await read_frame(reader) == b"still here"
    except (ConnectionError, asyncio.IncompleteReadError):
        return False


async def test_thousands_opened_and_closed_at_once_leave_nothing_behind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "odradek.net")
    quotas = ConnectionQuotas(
        dataclasses.replace(LIMITS, max_connections=100, max_connections_per_ip=20)
    )
    loop = asyncio.get_running_loop()

    def come_and_go(port: int) -> None:
        for number in range(300):
            with socket.create_connection(("127.0.0.1", port), 60) as peer:
                if number % 2:
                    # Reset instead of the usual end.
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async with listening(quotas) as listener:
        await asyncio.gather(
            *(loop.run_in_executor(None, come_and_go, listener.port) for _ in range(2))
        )
        # The last of the crowd may still wait to be accepted, and take all places of their address.
        async with asyncio.timeout(60):
            while not await _is_answered(listener):
                pass
        await emptied(listener)
        assert not quotas._per_ip
        assert not quotas._ordinary
    assert len(caplog.records) < 200
