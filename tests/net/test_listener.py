"""Connections over real sockets on loopback: order, bounds, and what a broken peer can do."""

import asyncio
import contextlib
import dataclasses
import os
import socket
import struct
import weakref
from collections.abc import Sequence
from pathlib import Path

import pytest

from odradek.net.client_info import ClientInfo
from odradek.net.connection import FRAMES_A_TURN
from odradek.net.connection_quotas import ConnectionLimits, ConnectionQuotas
from odradek.net.frame import READ_AHEAD_BYTES
from odradek.net.listener import Listener
from odradek.net.sending import SLICE_BYTES
from odradek.protocol.api import ApiKey
from odradek.protocol.regions import Part
from tests.net.loopback import LIMITS, connected, echo, emptied, framed, listening, read_frame
from tests.support.file_regions import CountedRegion


async def test_requests_without_a_wait_are_served_in_the_task_of_their_connection() -> None:
    tasks: set[asyncio.Task[None] | None] = set()

    async def note(frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
        async with asyncio.timeout(60):
            tasks.add(asyncio.current_task())
        return [bytes(frame)]

    async with listening(note) as listener, connected(listener) as (reader, writer):
        for _ in range(3):
            writer.write(framed(b"request"))
            await read_frame(reader)
        [task] = tasks
        assert task is not None
        assert task.get_name().startswith("connection ")


async def test_frame_cut_at_every_byte_arrives_whole() -> None:
    request = framed(b"one request") + framed(b"and its successor")
    async with listening(echo) as listener:
        for cut in range(1, len(request)):
            async with connected(listener) as (reader, writer):
                writer.get_extra_info("socket").setsockopt(
                    socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
                )
                writer.write(request[:cut])
                await writer.drain()
                await asyncio.sleep(0.001)
                writer.write(request[cut:])
                assert await read_frame(reader) == b"one request"
                assert await read_frame(reader) == b"and its successor"


async def test_pipelined_requests_are_answered_in_order_though_later_ones_are_quicker() -> None:
    in_work = 0

    async def slower_first(frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
        nonlocal in_work
        in_work += 1
        assert in_work == 1
        await asyncio.sleep(0.02 if frame[0] == 0 else 0)
        in_work -= 1
        return [bytes(frame)]

    async with listening(slower_first) as listener, connected(listener) as (reader, writer):
        writer.write(b"".join(framed(bytes((number,)) * 3000) for number in range(100)))
        for number in range(100):
            assert await read_frame(reader) == bytes((number,)) * 3000


@pytest.mark.parametrize(
    ("answer_bytes", "in_a_row"), [(10, FRAMES_A_TURN), (SLICE_BYTES // 2, 2), (SLICE_BYTES, 1)]
)
async def test_pipelined_requests_leave_turns_to_others(answer_bytes: int, in_a_row: int) -> None:
    rounds, answered_in_round = 0, list[int]()
    going: asyncio.Handle

    def go_round() -> None:
        nonlocal rounds, going
        rounds += 1
        going = asyncio.get_running_loop().call_soon(go_round)

    async def note_round(frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
        answered_in_round.append(rounds)
        return [bytes(answer_bytes)]

    count = 3 * FRAMES_A_TURN
    going = asyncio.get_running_loop().call_soon(go_round)
    async with listening(note_round) as listener, connected(listener) as (reader, writer):
        writer.write(framed(b"again") * count)
        for _ in range(count):
            assert len(await read_frame(reader)) == answer_bytes
        going.cancel()
    most = max(answered_in_round.count(number) for number in set(answered_in_round))
    assert most <= in_a_row


async def test_request_without_answer_does_not_hold_up_the_next() -> None:
    async def silent_on_a(frame: memoryview, peer: ClientInfo) -> Sequence[Part] | None:
        return None if bytes(frame) == b"a" else [bytes(frame)]

    async with listening(silent_on_a) as listener, connected(listener) as (reader, writer):
        writer.write(framed(b"a") + framed(b"b") + framed(b"a") + framed(b"c"))
        assert await read_frame(reader) == b"b"
        assert await read_frame(reader) == b"c"


async def test_peer_that_shuts_its_side_still_gets_its_answers() -> None:
    async with listening(echo) as listener, connected(listener) as (reader, writer):
        writer.write(framed(b"last") + framed(b"words"))
        writer.write_eof()
        assert await reader.read() == framed(b"last") + framed(b"words")


async def test_work_for_a_peer_can_see_that_it_sends_no_more() -> None:
    async def until_gone(frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
        assert peer.is_connected()
        began.set()
        while peer.is_connected():
            await asyncio.sleep(0.001)
        return [b"seen"]

    began = asyncio.Event()
    async with listening(until_gone) as listener, connected(listener) as (reader, writer):
        writer.write(framed(b"work"))
        await began.wait()
        writer.write_eof()
        assert await read_frame(reader) == b"seen"


async def test_work_is_told_of_the_request_that_it_holds_up_however_its_bytes_come() -> None:
    async def until_told(frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
        said = bytes(frame)
        if said == b"work":
            told = asyncio.Event()
            peer.next_request.watch(told.set)
            await told.wait()
            peer.next_request.unwatch()
        return [said]

    behind = struct.pack(">h", ApiKey.LIST_OFFSETS) + b"rest"
    sent = framed(b"work") + framed(behind)
    for cut in range(1, len(sent) + 1):
        async with listening(until_told) as listener, connected(listener) as (reader, writer):
            writer.write(sent[:cut])
            await asyncio.sleep(0)
            writer.write(sent[cut:])
            assert [await read_frame(reader), await read_frame(reader)] == [b"work", behind]


async def test_peer_that_never_reads_stops_being_read_and_holds_up_nobody() -> None:
    dispatched = 0

    async def large_answers(frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
        nonlocal dispatched
        dispatched += 1
        return [bytes(100_000)]

    async with listening(large_answers) as listener, connected(listener) as (reader, writer):
        slow = socket.create_connection(("127.0.0.1", listener.port))
        slow.setblocking(False)
        request = framed(bytes(10_000))
        accepted = 0
        stalled_turns = 0
        while stalled_turns < 20:
            try:
                accepted += slow.send(request * 10)
                stalled_turns = 0
            except BlockingIOError:
                stalled_turns += 1
            await asyncio.sleep(0.005)
        held_back = accepted // len(request) - dispatched
        at_stall = dispatched
        writer.write(framed(b"?"))
        assert len(await read_frame(reader)) == 100_000
        assert dispatched == at_stall + 1
        # What the kernel and one read-ahead buffer hold was never dispatched.
        assert held_back > READ_AHEAD_BYTES // len(request)
        slow.close()


async def test_sendfile_moves_a_large_region_around_bytes(tmp_path: Path) -> None:
    content = bytes(range(256)) * 40_000
    path = tmp_path / "segment"
    path.write_bytes(b"before" + content + b"after")
    with path.open("rb") as file:
        region = CountedRegion(file.fileno(), 6, len(content))

        async def fetch(frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
            return [b"header", region, b"between", b"and", b"trailer"]

        async with listening(fetch) as listener, connected(listener) as (reader, writer):
            writer.write(framed(b"fetch"))
            await asyncio.sleep(0.02)  # long enough for the socket to fill
            assert await read_frame(reader) == b"header" + content + b"betweenandtrailer"
    assert region.closed == 1


async def test_regions_are_closed_once_when_the_peer_dies_in_the_middle(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(8_000_000))
    with path.open("rb") as file:
        regions = [CountedRegion(file.fileno(), 0, 8_000_000) for _ in range(3)]

        async def fetch(frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
            return [b"header", *regions]

        async with listening(fetch) as listener:
            async with connected(listener) as (reader, writer):
                writer.write(framed(b"fetch"))
                await reader.readexactly(100)
                writer.transport.abort()
            await emptied(listener)
    assert [region.closed for region in regions] == [1, 1, 1]


async def test_regions_are_closed_once_when_the_listener_closes_under_a_slow_reader(
    tmp_path: Path,
) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(8_000_000))
    with path.open("rb") as file:
        regions = [CountedRegion(file.fileno(), 0, 8_000_000) for _ in range(2)]

        async def fetch(frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
            return [b"header", *regions]

        async with listening(fetch) as listener, connected(listener) as (reader, writer):
            writer.write(framed(b"fetch"))
            await reader.readexactly(100)
            await listener.close(grace_ms=50)
            assert listener.connection_count == 0
    assert [region.closed for region in regions] == [1, 1]


async def test_file_shorter_than_its_region_closes_the_connection(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(b"short")
    with path.open("rb") as file:
        region = CountedRegion(file.fileno(), 0, 100)

        async def fetch(frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
            return [b"header", region]

        async with listening(fetch) as listener, connected(listener) as (reader, writer):
            writer.write(framed(b"fetch"))
            assert (await reader.read())[4:] == b"headershort"
    assert region.closed == 1


async def test_too_many_connections_from_one_address_are_refused() -> None:
    limits = ConnectionLimits(1000, 100, max_connections_per_ip=2, max_idle_ms=60_000)
    async with listening(echo, limits) as listener, connected(listener):
        async with connected(listener) as (second, second_writer):
            second_writer.write(framed(b"second"))
            assert await read_frame(second) == b"second"
            async with connected(listener) as (third, _):
                assert await third.read() == b""
        await emptied(listener, down_to=1)
        async with connected(listener) as (fourth, fourth_writer):
            fourth_writer.write(framed(b"fourth"))
            assert await read_frame(fourth) == b"fourth"


async def test_connection_above_the_total_waits_for_a_place() -> None:
    limits = ConnectionLimits(
        1000, max_connections=1, max_connections_per_ip=100, max_idle_ms=60_000
    )
    async with listening(echo, limits) as listener, connected(listener) as (reader, writer):
        writer.write(framed(b"first"))
        assert await read_frame(reader) == b"first"
        async with connected(listener) as (waiting, waiting_writer):
            waiting_writer.write(framed(b"second"))
            await asyncio.sleep(0.05)
            assert listener.connection_count == 1
            writer.close()
            assert await read_frame(waiting) == b"second"


def other_end(writer: asyncio.StreamWriter) -> socket.socket:
    """A copy of the socket that the listener, in this process too, accepted from a client."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            copy = os.dup(int(name))
            try:
                found = socket.socket(fileno=copy)
            except OSError:
                # A copy of a pipe would keep it open for the process at its other end.
                os.close(copy)
                continue
            with contextlib.suppress(OSError):
                if found.getpeername() == writer.get_extra_info("sockname"):
                    return found
            found.close()
    raise AssertionError("no such connection")


@pytest.mark.parametrize(
    ("asked", "expected"),
    # Linux doubles what is asked for, to have room for its own accounts.
    [((20_000, 30_000), (40_000, 60_000)), ((-1, 30_000), (None, 60_000)), ((0, -1), (None, None))],
)
async def test_connections_have_the_buffers_that_were_asked_for_or_the_kernels(
    asked: tuple[int, int], expected: tuple[int | None, int | None]
) -> None:
    sizes: list[tuple[int, ...]] = []
    for send, receive in ((-1, -1), asked):
        limits = dataclasses.replace(LIMITS, socket_send_bytes=send, socket_receive_bytes=receive)
        async with listening(echo, limits) as listener, connected(listener) as (reader, writer):
            writer.write(framed(b"here"))
            assert await read_frame(reader) == b"here"
            with other_end(writer) as accepted:
                sizes.append(
                    tuple(
                        accepted.getsockopt(socket.SOL_SOCKET, option)
                        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF)
                    )
                )
    kernels, found = sizes
    assert found == tuple(
        size if want is None else want for size, want in zip(kernels, expected, strict=True)
    )


async def test_large_request_holds_no_memory_once_it_is_answered() -> None:
    large, lies_in = 4_000_000, list[int]()
    frames: list[weakref.ref[memoryview]] = []

    async def watch(frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
        frames.append(weakref.ref(frame))
        lies_in.append(len(frame.obj))  # type: ignore[arg-type]
        return [b"done"]

    limits = dataclasses.replace(LIMITS, max_frame_bytes=large)
    async with listening(watch, limits) as listener, connected(listener) as (reader, writer):
        for size in (large, 10, 10):
            writer.write(framed(bytes(size)))
            assert await read_frame(reader) == b"done"
            async with asyncio.timeout(60):
                while frames[-1]() is not None:
                    await asyncio.sleep(0.002)
    assert lies_in[0] >= large
    assert lies_in[-1] <= READ_AHEAD_BYTES


async def test_peer_is_told_apart_by_connection() -> None:
    async def who(frame: memoryview, peer: ClientInfo) -> Sequence[Part]:
        return [f"{peer.host}:{peer.port}:{peer.connection_id}".encode()]

    async with listening(who) as listener:
        answers = set()
        for _ in range(2):
            async with connected(listener) as (reader, writer):
                writer.write(framed(b""))
                host, port = writer.get_extra_info("sockname")
                answer = (await read_frame(reader)).decode()
                assert answer.startswith(f"{host}:{port}:")
                answers.add(answer.rpartition(":")[2])
        assert len(answers) == 2


async def test_address_in_use_is_an_error_of_start() -> None:
    async with listening(echo) as listener:
        second = Listener("127.0.0.1", listener.port, ConnectionQuotas(LIMITS), echo)
        with pytest.raises(OSError, match=r"[Aa]ddress already in use"):
            await second.start()
