"""Bounds that the connections of a broker share."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from odradek.net.client_info import ClientInfo
from odradek.net.connection_quotas import (
    DEFAULT_ADDRESS,
    MOST_ADDRESSES,
    AddressRates,
    ConnectionLimits,
    ConnectionQuotas,
)
from odradek.net.frame import READ_AHEAD_BYTES
from odradek.net.listener import Listener
from odradek.net.memory_quotas import RequestMemory
from odradek.protocol.regions import Part
from tests.net.loopback import connected, echo, framed, read_frame

LARGE = 3 * READ_AHEAD_BYTES


def limits(**changed: Any) -> ConnectionLimits:
    usual = ConnectionLimits(
        max_frame_bytes=1_000_000,
        max_connections=100,
        max_connections_per_ip=100,
        max_idle_ms=60_000,
    )
    return dataclasses.replace(usual, **changed)


@contextlib.asynccontextmanager
async def listening(
    quotas: ConnectionQuotas, *, protected: bool = False
) -> AsyncIterator[Listener]:
    listener = Listener("127.0.0.1", 0, quotas, echo, protected=protected)
    await listener.start()
    try:
        yield listener
    finally:
        await listener.close(grace_ms=200)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)


async def all_taken(memory: RequestMemory) -> None:
    await until(lambda: memory.full)


@pytest.mark.parametrize("limit_is_raised", [False, True], ids=["a place is left", "limit raised"])
async def test_places_are_counted_over_all_listeners_and_who_waits_gets_the_next(
    limit_is_raised: bool,
) -> None:
    quotas = ConnectionQuotas(limits(max_connections=1))
    async with (
        listening(quotas) as one,
        listening(quotas) as other,
        connected(one) as (reader, writer),
    ):
        writer.write(framed(b"first"))
        assert await read_frame(reader) == b"first"
        async with connected(other) as (waiting, waiting_writer):
            waiting_writer.write(framed(b"second"))
            await until(lambda: quotas.delayed["max-connections"])
            assert other.connection_count == 0
            if limit_is_raised:
                quotas.change_limits(limits(max_connections=2))
            else:
                writer.close()
            assert await read_frame(waiting) == b"second"


async def test_an_address_may_have_a_number_of_its_own() -> None:
    quotas = ConnectionQuotas(
        limits(max_connections_per_ip=1, max_connections_of_ip={"127.0.0.1": 2})
    )
    async with listening(quotas) as listener, connected(listener), connected(listener) as held:
        held[1].write(framed(b"second"))
        assert await read_frame(held[0]) == b"second"
        async with connected(listener) as (third, _):
            assert await third.read() == b""
        async with asyncio.timeout(60):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", listener.port, local_addr=("127.0.0.2", 0)
            )
            writer.write(framed(b"elsewhere"))
            assert await read_frame(reader) == b"elsewhere"
            writer.close()


async def test_large_requests_wait_for_memory_and_small_ones_do_not() -> None:
    quotas = ConnectionQuotas(limits(max_queued_bytes=LARGE))
    async with (
        listening(quotas) as listener,
        connected(listener) as (slow, slow_writer),
        connected(listener) as (second, second_writer),
        connected(listener) as (small, small_writer),
    ):
        slow_writer.write(framed(bytes(LARGE))[:-1])
        await all_taken(quotas.memory)
        second_writer.write(framed(b"2" * LARGE))
        small_writer.write(framed(b"small"))
        assert await read_frame(small) == b"small"
        await until(lambda: quotas.memory._waiting)
        slow_writer.write(b"\0")
        assert await read_frame(slow) == bytes(LARGE)
        assert await read_frame(second) == b"2" * LARGE


async def test_memory_of_a_connection_that_ends_in_the_middle_comes_back() -> None:
    quotas = ConnectionQuotas(limits(max_queued_bytes=1))
    async with listening(quotas) as listener, connected(listener) as (reader, writer):
        async with connected(listener) as (_, gone):
            gone.write(framed(bytes(LARGE))[:-1])
            await all_taken(quotas.memory)
            writer.write(framed(bytes(LARGE)))
            await until(lambda: quotas.memory._waiting)
        assert await read_frame(reader) == bytes(LARGE)
    assert quotas.memory.take("another", 1)


async def test_an_announcement_takes_no_memory() -> None:
    quotas = ConnectionQuotas(limits(max_queued_bytes=1))
    async with (
        listening(quotas) as listener,
        connected(listener) as (_, announcing),
        connected(listener) as (reader, writer),
    ):
        announcing.write(framed(bytes(LARGE))[:9])
        writer.write(framed(b"1" * LARGE))
        assert await read_frame(reader) == b"1" * LARGE


async def test_requests_that_fill_the_memory_together_are_all_answered() -> None:
    quotas = ConnectionQuotas(limits(max_queued_bytes=2 * LARGE))
    async with listening(quotas) as listener, contextlib.AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(connected(listener)) for _ in range(6)]
        for _, writer in peers:
            writer.write(framed(bytes(4 * LARGE))[: 2 * READ_AHEAD_BYTES])
        await all_taken(quotas.memory)
        for _, writer in peers:
            writer.write(framed(bytes(4 * LARGE))[2 * READ_AHEAD_BYTES :])
        answers = await asyncio.gather(*(read_frame(reader) for reader, _ in peers))
        assert answers == [bytes(4 * LARGE)] * len(peers)
    assert quotas.memory.take("another", 1)


async def test_a_frame_that_stalls_is_closed_and_its_memory_comes_back() -> None:
    quotas = ConnectionQuotas(limits(max_queued_bytes=1, frame_timeout_ms=2000))
    async with (
        listening(quotas) as listener,
        connected(listener) as (stalled, stalling),
        connected(listener) as (short, shortly),
        connected(listener) as (idle, idler),
        connected(listener) as (slow, dripping),
    ):
        stalling.write(framed(bytes(LARGE))[:-1])
        shortly.write(b"\0")
        await all_taken(quotas.memory)
        ended = asyncio.gather(stalled.read(), short.read())
        frame = framed(b"drop by drop" * 5000)
        position = 0
        async with asyncio.timeout(60):
            while not ended.done():
                dripping.write(frame[position : position + 300])
                position += 300
                await asyncio.sleep(0.02)
        assert all(rest == b"" for rest in ended.result())
        assert not quotas.memory.full
        dripping.write(frame[position:])
        assert await read_frame(slow) == frame[4:]
        idler.write(framed(b"still there"))
        assert await read_frame(idle) == b"still there"


async def test_peer_that_left_is_not_waited_for_beyond_the_idle_time() -> None:
    cancelled = asyncio.Event()

    async def forever(frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return []

    listener = Listener("127.0.0.1", 0, ConnectionQuotas(limits(max_idle_ms=2000)), forever)
    await listener.start()
    async with connected(listener) as (_, writer):
        writer.write(framed(b"wait"))
    async with asyncio.timeout(60):
        await cancelled.wait()
    await listener.close(grace_ms=100)


def test_memory_without_a_bound_is_always_there() -> None:
    memory = RequestMemory()
    assert all(memory.take(number, 1 << 40) for number in range(3))


def test_no_bound_on_memory_at_zero() -> None:
    memory = RequestMemory(0)
    assert not memory.limited
    assert memory.take("one", LARGE)
    assert memory.take("other", LARGE)


def test_only_the_request_that_began_first_exceeds_the_limit() -> None:
    memory = RequestMemory(10)
    assert memory.take("first", 4)
    assert memory.take("second", 6)
    assert memory.full
    assert not memory.take("third", 1)
    assert not memory.take("second", 7)
    assert memory.take("first", 20)
    retried: list[str] = []

    def second() -> None:
        retried.append("second")
        assert memory.take("second", 20)

    memory.when_free("third", lambda: retried.append("third"))
    memory.when_free("second", second)
    memory.give_back("fourth")
    assert not retried, "nothing was released"
    memory.give_back("first")
    assert retried == ["second"], "it began before the third, which has to wait on"
    assert not memory.take("third", 1)
    memory.give_back("second")
    assert memory.take("third", 1)


def test_each_of_many_that_wait_for_memory_retries_once() -> None:
    memory, retries = RequestMemory(10), 0

    def ask(number: int) -> None:
        nonlocal retries
        retries += 1
        if not memory.take(number, 10):
            memory.when_free(number, functools.partial(ask, number))

    for number in range(100):
        ask(number)
    memory.give_back(50)  # its connection ended
    for number in range(100):
        memory.give_back(number)
    assert retries == 100 + 98
    assert memory.take("another", 10)


def test_addresses_that_are_refused_do_not_use_up_what_comes() -> None:
    now = [0.0]
    rates = AddressRates(lambda: now[0])
    assert rates.refusal_s("10.0.0.1") == 0
    rates.limit({DEFAULT_ADDRESS: 2, "10.0.0.9": 1000})
    assert [rates.refusal_s("10.0.0.1") for _ in range(2)] == [0, 0]
    assert all(0 < rates.refusal_s("10.0.0.1") <= 1 for _ in range(50))
    assert [rates.refusal_s("10.0.0.9") for _ in range(900)] == [0] * 900
    now[0] += 0.5
    assert rates.refusal_s("10.0.0.1") == 0
    assert rates.refusal_s("10.0.0.1") > 0


def test_addresses_that_are_remembered_have_a_bound() -> None:
    now = [0.0]
    rates = AddressRates(lambda: now[0])
    rates.limit({DEFAULT_ADDRESS: 1})
    for number in range(MOST_ADDRESSES + 5):
        rates.refusal_s(str(number))
    assert len(rates._rates) <= MOST_ADDRESSES
    assert rates.refusal_s(str(MOST_ADDRESSES)) > 0
    now[0] += 2
    for number in range(MOST_ADDRESSES):
        rates.refusal_s(f"later {number}")
    assert len(rates._rates) <= MOST_ADDRESSES


async def test_a_listener_has_a_rate_of_its_own_and_others_do_not_wait() -> None:
    quotas = ConnectionQuotas(limits(max_creation_rate=1000))
    slow = Listener("127.0.0.1", 0, quotas, echo, creation_rate=1)
    await slow.start()
    try:
        async with listening(quotas) as other, connected(slow), connected(slow):
            await until(lambda: quotas.delayed["rate"])
            async with connected(other) as (reader, writer):
                writer.write(framed(b"at once"))
                assert await read_frame(reader) == b"at once"
        # Who waited is served all the same.
        async with connected(slow) as (reader, writer):
            writer.write(framed(b"later"))
            assert await read_frame(reader) == b"later"
    finally:
        await slow.close(grace_ms=200)


async def test_connections_above_the_rate_of_their_address_are_held_and_closed() -> None:
    addresses = AddressRates()
    addresses.limit({"127.0.0.1": 1})
    quotas = ConnectionQuotas(limits(), addresses)
    async with listening(quotas) as listener, connected(listener) as (reader, writer):
        writer.write(framed(b"first"))
        assert await read_frame(reader) == b"first"
        async with connected(listener) as (second, _):
            assert await second.read() == b""
        assert quotas.refused["address-rate"] == 1
    # What is held goes with the listener.
    async with listening(quotas) as listener, connected(listener):
        await until(lambda: quotas.refused["address-rate"] >= 1)
    assert not listener._held


async def test_brokers_have_no_rate_of_their_address() -> None:
    addresses = AddressRates()
    addresses.limit({DEFAULT_ADDRESS: 1})
    quotas = ConnectionQuotas(limits(), addresses)
    async with listening(quotas, protected=True) as listener:
        for _ in range(5):
            async with connected(listener) as (reader, writer):
                writer.write(framed(b"broker"))
                assert await read_frame(reader) == b"broker"
    assert not quotas.refused["address-rate"]
