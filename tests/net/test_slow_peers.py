"""Peers that send or read slowly: who is closed, who waits, and what is held for them in all."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from odradek.net.client_info import ClientInfo, Dispatch
from odradek.net.connection_quotas import ConnectionLimits, ConnectionQuotas
from odradek.net.frame import READ_AHEAD_BYTES
from odradek.net.listener import Listener
from odradek.net.memory_quotas import (
    RELIEF_S,
    SHORT_LEAST_RATE,
    SHORT_LONGEST_S,
    AnswerMemory,
)
from odradek.protocol.api import ApiKey
from odradek.protocol.primitives import LENGTH16
from odradek.protocol.regions import Part
from tests.net.loopback import connected, echo, emptied, framed, read_frame
from tests.support.file_regions import CountedRegion

LIMITS = ConnectionLimits(
    max_frame_bytes=50_000_000,
    max_connections=100,
    max_connections_per_ip=100,
    max_idle_ms=600_000,
)
FRAME_TIMEOUT_S = LIMITS.frame_timeout_ms / 1000
LARGE = 3 * READ_AHEAD_BYTES
# More than the buffers of a socket on loopback hold.
UNREAD = 16 * 1024 * 1024


class Clock:
    """The time of the event loop, which only `go_on` moves much."""

    def __init__(self) -> None:
        self.ahead = 0.0

    async def go_on(self, seconds: float) -> None:
        """Let time pass, and what is due happen, in steps shorter than any period here."""
        while seconds > 0:
            step = min(seconds, 1.0)
            self.ahead += step
            seconds -= step
            await settled()


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    loop = asyncio.get_running_loop()
    real_time = loop.time
    monkeypatch.setattr(loop, "time", lambda: real_time() + made.ahead)
    return made


@contextlib.asynccontextmanager
async def listening(quotas: ConnectionQuotas, dispatch: Dispatch = echo) -> AsyncIterator[Listener]:
    listener = Listener("127.0.0.1", 0, quotas, dispatch)
    await listener.start()
    try:
        yield listener
    finally:
        await listener.close(grace_ms=200)


@contextlib.contextmanager
def not_reading(listener: Listener, request: bytes, count: int = 1) -> Iterator[None]:
    """So many peers that ask and never read."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            peer = socket.create_connection(("127.0.0.1", listener.port))
            stack.enter_context(peer).sendall(framed(request))
        yield


async def unread(frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
    """Answer with more than sockets hold, or echo what is not the word."""
    return [bytes(UNREAD)] if bytes(frame) == b"large" else [bytes(frame)]


async def until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)


async def test_a_large_request_that_waits_for_memory_is_not_taken_for_a_stalled_one(
    clock: Clock,
) -> None:
    quotas = ConnectionQuotas(dataclasses.replace(LIMITS, max_queued_bytes=1))
    working, finish = asyncio.Event(), asyncio.Event()

    async def slowly(frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
        if frame[0] == ord("1"):
            working.set()
            await finish.wait()
        return [bytes(frame)]

    async with (
        listening(quotas, slowly) as listener,
        connected(listener) as (first, first_writer),
        connected(listener) as (second, second_writer),
    ):
        first_writer.write(framed(b"1" * LARGE))
        await working.wait()
        second_writer.write(framed(b"2" * LARGE))
        await clock.go_on(5 * FRAME_TIMEOUT_S)
        assert listener.connection_count == 2
        await clock.go_on(2 * LIMITS.max_idle_ms / 1000)
        finish.set()
        assert await read_frame(first) == b"1" * LARGE
        assert await read_frame(second) == b"2" * LARGE


async def test_the_controllers_large_requests_do_not_wait_for_those_of_clients() -> None:
    quotas = ConnectionQuotas(dataclasses.replace(LIMITS, max_queued_bytes=1))
    produce, update_metadata = (
        LENGTH16.pack(key) + bytes(LARGE) for key in (ApiKey.PRODUCE, ApiKey.UPDATE_METADATA)
    )
    async with (
        listening(quotas) as listener,
        connected(listener) as (_, slow),
        connected(listener) as (reader, writer),
    ):
        slow.write(framed(produce)[:-1])
        await until(lambda: quotas.memory.full)
        for _ in range(2):
            writer.write(framed(update_metadata))
            async with asyncio.timeout(60):
                assert await read_frame(reader) == update_metadata
        slow.close()


async def test_a_byte_now_and_then_does_not_keep_a_request_alive(clock: Clock) -> None:
    quotas = ConnectionQuotas(LIMITS)
    async with listening(quotas) as listener, connected(listener) as (_, writer):
        request = framed(bytes(LARGE))
        writer.write(request[:READ_AHEAD_BYTES])
        position = READ_AHEAD_BYTES
        for _ in range(10):
            writer.write(request[position : position + 1])
            position += 1
            await clock.go_on(FRAME_TIMEOUT_S - 1)
            if not listener.connection_count:
                break
        assert listener.connection_count == 0
        assert position - READ_AHEAD_BYTES <= 3
        assert quotas.closed["slow-request"] == 1


async def test_an_answer_in_our_memory_that_nobody_reads_is_given_up(clock: Clock) -> None:
    quotas = ConnectionQuotas(LIMITS)
    async with (
        listening(quotas, unread) as listener,
        connected(listener) as (reader, writer),
    ):
        with not_reading(listener, b"large"):
            await until(lambda: quotas.answers.total > 0)
            await held_and_given_up(clock, quotas, listener)
        writer.write(framed(b"still here"))
        assert await read_frame(reader) == b"still here"


async def held_and_given_up(clock: Clock, quotas: ConnectionQuotas, listener: Listener) -> None:
    assert quotas.answers.total <= UNREAD + 4
    await clock.go_on(FRAME_TIMEOUT_S / 2)
    assert listener.connection_count == 2
    await clock.go_on(FRAME_TIMEOUT_S)
    assert listener.connection_count == 1
    assert quotas.closed["slow-answer"] == 1
    assert quotas.answers.total == 0


async def test_an_answer_of_file_regions_waits_for_its_reader(clock: Clock, tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(UNREAD))
    with path.open("rb") as file:
        region = CountedRegion(file.fileno(), 0, UNREAD)

        async def fetch(frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
            return [b"header", region, b"trailer"]

        quotas = ConnectionQuotas(dataclasses.replace(LIMITS, max_answer_bytes=UNREAD))
        async with listening(quotas, fetch) as listener:
            with not_reading(listener, b"fetch"):
                await until(lambda: listener.connection_count == 1 and quotas.answers.total > 0)
                assert quotas.answers.total < 100, "regions of files are not in our memory"
                await clock.go_on(4 * FRAME_TIMEOUT_S)
                assert listener.connection_count == 1
                others = Client()
                quotas.answers.hold(others, UNREAD)
                await clock.go_on(4 * RELIEF_S)
                assert listener.connection_count == 1, "closing it would free no memory"
                quotas.answers.release(others)
                await clock.go_on(LIMITS.max_idle_ms / 1000)
                assert listener.connection_count == 0
                assert quotas.closed["idle"] == 1
    assert region.closed == 1


async def test_file_regions_do_not_excuse_much_memory_beside_them(
    clock: Clock, tmp_path: Path
) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(UNREAD))
    with path.open("rb") as file:
        region = CountedRegion(file.fileno(), 0, UNREAD)

        async def fetch(frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
            return [b"header", region, bytes(2 * READ_AHEAD_BYTES)]

        quotas = ConnectionQuotas(LIMITS)
        async with listening(quotas, fetch) as listener:
            with not_reading(listener, b"fetch"):
                await until(lambda: quotas.answers.total > READ_AHEAD_BYTES)
                await clock.go_on(2 * FRAME_TIMEOUT_S)
                assert listener.connection_count == 0
                assert quotas.closed["slow-answer"] == 1
    assert region.closed == 1


async def test_answers_that_nobody_reads_make_room_for_clients_that_read(clock: Clock) -> None:
    quotas = ConnectionQuotas(dataclasses.replace(LIMITS, max_answer_bytes=2 * UNREAD))
    at_most = 2 * UNREAD + UNREAD
    served = 0

    async def gated(frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
        nonlocal served
        await quotas.answers.wait_for_room()
        served += 1
        return await unread(frame, peer)

    async with listening(quotas, gated) as listener:
        with not_reading(listener, b"large", 10):
            await until(lambda: quotas.answers.full)
            await settled()
            assert served <= 3
            async with connected(listener) as (reader, writer):
                writer.write(framed(b"large"))
                reading = asyncio.create_task(read_frame(reader))
                async with asyncio.timeout(60 + 100 * RELIEF_S):
                    while not reading.done():
                        assert quotas.answers.total <= at_most
                        await clock.go_on(RELIEF_S)
                        await asyncio.sleep(0.05)
                assert await reading == bytes(UNREAD)
            assert quotas.closed["slow-answer"] >= 7
        await emptied(listener)
    assert quotas.answers.total == 0
    assert not quotas.answers.full


async def test_a_reader_that_keeps_up_is_not_given_up_while_memory_is_short(clock: Clock) -> None:
    quotas = ConnectionQuotas(dataclasses.replace(LIMITS, max_answer_bytes=1))
    async with listening(quotas, unread) as listener:
        loop = asyncio.get_running_loop()
        with (
            not_reading(listener, b"large"),
            socket.create_connection(("127.0.0.1", listener.port)) as reading,
        ):
            reading.setblocking(False)
            reading.sendall(framed(b"large"))
            await until(lambda: quotas.answers.total > UNREAD + 4)
            # So much per period lets the kernel of a reader open its window again.
            left, share = UNREAD + 4, UNREAD // 4
            enough = RELIEF_S * max(SHORT_LEAST_RATE, UNREAD / SHORT_LONGEST_S)
            assert share > enough
            answers: dict[Any, object] = dict(quotas.answers._answers)
            port = reading.getsockname()[1]
            [reader] = (one for one in answers if one.peer.port == port)
            while left:
                wanted = min(left, share)
                left -= wanted
                before = reader.answered_bytes()
                while wanted:
                    received = await loop.sock_recv(reading, wanted)
                    assert received, "it was given up"
                    wanted -= len(received)
                # Its kernel may take some time to say what it took.
                await until(
                    lambda before=before: (
                        reader not in quotas.answers._answers
                        or reader.answered_bytes() - before > enough
                    )
                )
                await clock.go_on(RELIEF_S)
            await until(lambda: listener.connection_count == 1)
            assert quotas.closed["slow-answer"] == 1
            reading.sendall(framed(b"still here"))
            answer = await loop.sock_recv(reading, 100)
            assert answer == framed(b"still here")


class Client:
    """A client whose answer is counted for as long as the test wants."""

    def __init__(self) -> None:
        self.answered = 0
        self.is_given_up = False

    def answered_bytes(self) -> int:
        return self.answered

    def give_up_answer(self) -> None:
        self.is_given_up = True


@pytest.mark.parametrize("moves_last", [True, False])
async def test_who_moves_a_little_is_given_up_only_for_what_the_others_do_not_free(
    clock: Clock, moves_last: bool
) -> None:
    answers, moving, still = AnswerMemory(170), Client(), [Client(), Client()]
    for client in [*still, moving] if moves_last else [moving, *still]:
        answers.hold(client, 60)
    moving.answered = 1
    await clock.go_on(RELIEF_S)
    assert [one.is_given_up for one in still] == [True, True]
    assert not moving.is_given_up


async def test_turns_come_in_order_and_nobody_overtakes() -> None:
    answers, slow = AnswerMemory(10), Client()
    clients = [Client() for _ in range(4)]
    served: list[int] = []

    async def ask(number: int) -> None:
        await answers.wait_for_room()
        answers.hold(clients[number], 10)
        served.append(number)

    answers.hold(slow, 10)
    asking = [asyncio.create_task(ask(number)) for number in range(3)]
    await settled()
    assert not served
    answers.release(slow)
    late = asyncio.create_task(ask(3))
    for number in range(4):
        await settled()
        assert served == list(range(number + 1)), "one at a time: each fills the memory"
        answers.release(clients[number])
    await asyncio.gather(*asking, late)
    await settled()
    assert not answers.full


async def test_who_leaves_the_line_passes_the_turn_on() -> None:
    answers, slow = AnswerMemory(10), Client()
    answers.hold(slow, 10)
    waiting = [asyncio.create_task(answers.wait_for_room()) for _ in range(3)]
    await settled()
    waiting[0].cancel()
    await settled()
    answers.release(slow)
    # Cancelled in the very moment in which its turn comes.
    waiting[1].cancel()
    await settled()
    assert waiting[2].done()
    assert not waiting[2].cancelled()
    assert not answers.full


async def test_pipelined_requests_whose_answers_are_not_read_hold_one_answer(clock: Clock) -> None:
    dispatched = 0

    async def count(frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
        nonlocal dispatched
        dispatched += 1
        return [bytes(1000)]

    quotas = ConnectionQuotas(LIMITS)
    requests = framed(b"small") * 1000
    most = 100 * len(requests)
    async with listening(quotas, count) as listener:
        with socket.create_connection(("127.0.0.1", listener.port)) as flooding:
            flooding.setblocking(False)
            sent, full_turns = 0, 0
            while full_turns < 20 and sent < most:
                try:
                    sent += flooding.send(requests)
                    full_turns = 0
                except BlockingIOError:
                    full_turns += 1
                await asyncio.sleep(0.002)
            await until(lambda: quotas.answers.total > 0)
            assert quotas.answers.total <= 1004
            assert dispatched < 100_000
            await clock.go_on(2 * FRAME_TIMEOUT_S)
            assert listener.connection_count == 0
            assert quotas.closed["slow-answer"] == 1
