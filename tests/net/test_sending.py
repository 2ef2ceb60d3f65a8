"""Answers of bytes and file regions into sockets that take little at a time."""

import asyncio
import socket
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.net import sending
from odradek.net.sending import GATHERED_BUFFERS, SLICE_BYTES, Outgoing, send_all
from odradek.protocol.regions import Part
from tests.support.file_regions import CountedRegion

CONTENT = bytes(number * 7 % 251 for number in range(100_000))


def small_pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    ours.setblocking(False)
    theirs.setblocking(False)
    return ours, theirs


def received(sock: socket.socket, limit: int) -> bytes:
    try:
        return sock.recv(limit)
    except BlockingIOError:
        return b""


PARTS = st.lists(
    st.binary(max_size=50)
    | st.integers(0, 20_000).map(lambda size: bytes((size % 256,)) * size)
    | st.tuples(st.integers(0, 50_000), st.integers(0, 50_000)),
    max_size=12,
)


@settings(max_examples=60, deadline=None, database=None)
@given(drawn=PARTS, take=st.integers(1, 30_000))
def test_any_parts_arrive_whole_and_in_order_through_partial_sends(
    drawn: list[bytes | tuple[int, int]], take: int
) -> None:
    ours, theirs = small_pair()
    with tempfile.TemporaryFile() as file, ours, theirs:
        file.write(CONTENT)
        file.flush()
        parts: list[Part] = [
            part if isinstance(part, bytes) else CountedRegion(file.fileno(), *part)
            for part in drawn
        ]
        expected = b"".join(
            part if isinstance(part, bytes) else CONTENT[part[0] : part[0] + part[1]]
            for part in drawn
        )
        outgoing = Outgoing(parts)
        got = b""
        while not outgoing.done:
            try:
                outgoing.send_some(ours)
            except BlockingIOError:
                got += received(theirs, take)
        outgoing.close()
        while piece := received(theirs, 100_000):
            got += piece
    assert got == expected
    assert all(part.closed == 1 for part in parts if isinstance(part, CountedRegion))


async def test_more_buffers_than_one_call_gathers_arrive() -> None:
    ours, theirs = small_pair()
    count = 3 * GATHERED_BUFFERS + 1
    with ours, theirs:
        reading = asyncio.create_task(read_all(theirs, count * 300))
        await send_all(ours, [bytes((n % 256,)) * 300 for n in range(count)], lambda: None)
        assert await reading == b"".join(bytes((n % 256,)) * 300 for n in range(count))


async def read_all(sock: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        got += await asyncio.get_running_loop().sock_recv(sock, 10_000)
    return got


async def test_others_run_between_the_slices_of_a_large_region(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = 0
    slices: list[int] = []

    def never_full(sock: object, region: object, offset: int, count: int) -> int:
        slices.append(count)
        return count

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(sending, "_send_slice", never_full)
    ours, theirs = small_pair()
    with ours, theirs:
        counting = asyncio.create_task(count_turns())
        await send_all(ours, [CountedRegion(0, 0, 10 * SLICE_BYTES)], lambda: None)
        counting.cancel()
    assert slices == [SLICE_BYTES] * 10
    assert turns >= 9


async def test_progress_is_told_while_the_peer_reads_slowly() -> None:
    ours, theirs = small_pair()
    told = 0

    def count() -> None:
        nonlocal told
        told += 1

    with ours, theirs:
        reading = asyncio.create_task(read_all(theirs, 200_000))
        await send_all(ours, [bytes(200_000)], count)
        await reading
    assert told > 5


async def test_cancelled_sending_closes_every_region_once() -> None:
    ours, theirs = small_pair()
    with tempfile.TemporaryFile() as file, ours, theirs:
        file.write(bytes(1_000_000))
        file.flush()
        regions = [CountedRegion(file.fileno(), 0, 1_000_000) for _ in range(3)]
        sending_task = asyncio.create_task(send_all(ours, [b"x", *regions], lambda: None))
        await asyncio.sleep(0.01)
        sending_task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending_task
        assert [region.closed for region in regions] == [1, 1, 1]
        # The loop no longer watches the socket, so it can be used again.
        asyncio.get_running_loop().add_writer(ours, lambda: None)
        asyncio.get_running_loop().remove_writer(ours)
