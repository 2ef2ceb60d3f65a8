"""The frame reader without sockets."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.net.frame import (
    INITIAL_BUFFER_BYTES,
    READ_AHEAD_BYTES,
    FrameReader,
    ProtocolViolation,
)

LIMIT = 10_000_000


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def receive(reader: FrameReader, data: bytes) -> int:
    """Put as much of `data` as there is room for; returns how much."""
    room = reader.room()
    count = min(len(room), len(data))
    room[:count] = data[:count]
    reader.received(count)
    return count


@settings(max_examples=60, deadline=None, database=None)
@given(
    sizes=st.lists(st.integers(0, 100) | st.integers(0, 200_000), max_size=8),
    pieces=st.lists(st.integers(1, 100_000), min_size=1, max_size=8),
    reuse=st.booleans(),
)
def test_any_stream_in_any_pieces_gives_its_frames(
    sizes: list[int], pieces: list[int], reuse: bool
) -> None:
    payloads = [bytes((size % 251,)) * size for size in sizes]
    reader = FrameReader(LIMIT, reuse=reuse)
    stream = memoryview(b"".join(map(framed, payloads)))
    frames: list[bytes] = []
    turn = 0
    while len(frames) < len(payloads):
        frame = reader.next_frame()
        if frame is not None:
            frames.append(bytes(frame))
            continue
        taken = receive(reader, bytes(stream[: pieces[turn % len(pieces)]]))
        assert taken > 0, "no room though no frame is in use"
        stream = stream[taken:]
        turn += 1
    assert frames == payloads
    assert reader.next_frame() is None
    assert reader.buffered_bytes == 0


@pytest.mark.parametrize("size", [-1, -(2**31), LIMIT + 1, 2**31 - 1])
def test_size_out_of_bounds_is_a_violation_as_soon_as_it_is_known(size: int) -> None:
    reader = FrameReader(LIMIT)
    data = struct.pack(">i", size)
    receive(reader, data[:3])
    assert reader.next_frame() is None
    receive(reader, data[3:])
    with pytest.raises(ProtocolViolation):
        reader.next_frame()


def test_announced_size_takes_no_memory_until_its_bytes_arrive() -> None:
    reader = FrameReader(LIMIT)
    receive(reader, struct.pack(">i", LIMIT))
    assert reader.next_frame() is None
    assert reader.capacity == INITIAL_BUFFER_BYTES
    arrived = 4
    while arrived < LIMIT // 2:
        arrived += receive(reader, bytes(50_000))
        assert reader.next_frame() is None
        assert reader.capacity <= max(INITIAL_BUFFER_BYTES, 2 * arrived + 1)


def test_buffer_of_a_peer_that_sends_ahead_grows_to_the_read_ahead_and_no_further() -> None:
    reader = FrameReader(LIMIT)
    small = framed(b"x" * 96)
    answered = 0
    for _ in range(40):
        receive(reader, small * 3000)
        while (frame := reader.next_frame()) is not None:
            assert frame == b"x" * 96
            answered += 1
        break_off = reader.buffered_bytes % len(small)
        if break_off:
            receive(reader, small[break_off:])
            assert reader.next_frame() is not None
    assert reader.capacity == READ_AHEAD_BYTES
    assert answered > READ_AHEAD_BYTES // len(small)


def test_frame_in_use_is_not_overwritten_by_what_follows_and_pins_the_buffer() -> None:
    reader = FrameReader(LIMIT)
    receive(reader, framed(b"in use"))
    frame = reader.next_frame()
    assert frame is not None
    more = framed(b"x" * 1000) * 200
    while taken := receive(reader, more):
        more = more[taken:]
    assert len(reader.room()) == 0
    assert reader.capacity == INITIAL_BUFFER_BYTES
    assert bytes(frame) == b"in use"


def test_frames_given_away_stay_as_they_are() -> None:
    reader = FrameReader(LIMIT, reuse=False)
    kept = []
    for number in range(50):
        data = framed(bytes((number,)) * (number * 1000))
        while data:
            data = data[receive(reader, data) :]
            while (frame := reader.next_frame()) is not None:
                kept.append(frame)
    assert [bytes(frame) for frame in kept] == [bytes((n,)) * (n * 1000) for n in range(50)]


def test_large_buffer_serves_again_until_it_is_released() -> None:
    reader = FrameReader(LIMIT)
    data = framed(bytes(1_000_000))
    while data:
        data = data[receive(reader, data) :]
        frame = reader.next_frame()
    assert frame is not None
    assert reader.next_frame() is None
    assert reader.capacity > 1_000_000
    reader.release_spare()
    assert reader.capacity == INITIAL_BUFFER_BYTES
