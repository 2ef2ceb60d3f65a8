"""Sends frames to a broker and counts those that it dispatched.

A frame that cannot be decoded ends its connection, so each connection carries sound frames first
and one unsound frame last. The sender decodes them itself to know which is which, and what must
come back: an answer with the frame's correlation id to each sound one in order, and the end of the
connection after the unsound one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

from odradek.handlers.dispatch import SERVED
from odradek.protocol import codec, headers
from odradek.protocol.api import ApiKey
from odradek.protocol.primitives import LENGTH32
from tests.fuzz import corpus, forge, mutate

CONNECTIONS = 48
FORGED_SHARE = 0.1
# A sound frame may ask to be kept waiting: a Fetch for data, a JoinGroup for members.
PATIENCE_SECONDS = 0.3
CLOSING_SECONDS = 60
LEAST_DRIPPED = LENGTH32.size + 1


@dataclass(slots=True)
class Tally:
    """The results of the frames; `surprises` must stay empty."""

    dispatched: int = 0
    answered: int = 0
    refused: int = 0
    kept_waiting: int = 0
    surprises: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Count what another one counted, too."""
        self.dispatched += other.dispatched
        self.answered += other.answered
        self.refused += other.refused
        self.kept_waiting += other.kept_waiting
        self.surprises += other.surprises


@dataclass(frozen=True, slots=True)
class Shot:
    """A frame and the expected reaction to it."""

    frame: bytes
    sound: bool
    silent: bool = False  # acks=0: no answer, or the end of the connection


def judged(frame: bytes) -> Shot:
    """Return a frame with the reaction that a broker should have to it."""
    try:
        header, position = headers.decode_request_header(frame)
        served = SERVED.get(header.api_key)
        if served is None:
            return Shot(frame, sound=False)
        if not served.lowest <= header.api_version <= served.highest:
            return Shot(frame, sound=header.api_key == ApiKey.API_VERSIONS)
        request, _ = codec.decode(served.api.request, header.api_version, frame, position)
    except codec.MalformedError:
        return Shot(frame, sound=False)
    return Shot(frame, sound=True, silent=header.api_key == ApiKey.PRODUCE and request.acks == 0)


def volleys(shots: Iterable[Shot], random: Random) -> list[list[Shot]]:
    """Spread the shots over connections: those that are answered, then one that may end it."""
    sound: list[Shot] = []
    ending: list[Shot] = []
    for shot in shots:
        (sound if shot.sound and not shot.silent else ending).append(shot)
    random.shuffle(sound)
    count = max(1, len(ending))
    lists = [sound[number::count] for number in range(count)]
    for one, last in zip(lists, ending, strict=False):
        one.append(last)
    return lists


async def attack(
    address: tuple[str, int],
    frames: Sequence[bytes],
    random: Random,
    connections: int = CONNECTIONS,
) -> Tally:
    """Send the frames over many connections at a time."""
    tally = Tally()
    waiting = volleys(map(judged, frames), random)

    async def gun() -> None:
        while waiting:
            await _fire(address, waiting.pop(), tally)

    async with asyncio.TaskGroup() as guns:
        for _ in range(connections):
            guns.create_task(gun())
    return tally


async def _fire(address: tuple[str, int], shots: list[Shot], tally: Tally) -> None:
    loop = asyncio.get_running_loop()
    received = bytearray()
    ended = False
    with socket.socket() as sock:
        sock.setblocking(False)
        # Nothing of a connection is left in the kernel once it is closed.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        try:
            async with asyncio.timeout(CLOSING_SECONDS):
                await loop.sock_connect(sock, address)
            try:
                async with asyncio.timeout(PATIENCE_SECONDS) as patience:
                    # A reset may overtake the answers: then the frames before it count as lost.
                    with contextlib.suppress(ConnectionError):
                        await loop.sock_sendall(sock, b"".join(map(_framed, shots)))
                        sock.shutdown(socket.SHUT_WR)
                    while data := await loop.sock_recv(sock, 1 << 18):
                        received += data
                        patience.reschedule(loop.time() + PATIENCE_SECONDS)
                ended = True
            except TimeoutError:
                pass
        except ConnectionResetError:
            ended = True
        except (TimeoutError, OSError) as error:
            tally.surprises.append(f"no connection: {error!r}")
            return
    _count(shots, _answers(received), ended, tally)


def _framed(shot: Shot) -> bytes:
    return LENGTH32.pack(len(shot.frame)) + shot.frame


def _answers(received: bytearray) -> list[bytes]:
    """Return the correlation ids of the answers."""
    found: list[bytes] = []
    position = 0
    while position + 8 <= len(received):
        (size,) = LENGTH32.unpack_from(received, position)
        found.append(bytes(received[position + 4 : position + 8]))
        position += 4 + size
    return found


def _count(shots: list[Shot], answers: list[bytes], ended: bool, tally: Tally) -> None:
    """Match answers with their frames; the first frame without one ended the connection."""
    remaining = iter(answers)
    expected = next(remaining, None)
    for shot in shots:
        tally.dispatched += 1
        if shot.silent:
            continue
        if shot.sound and expected == shot.frame[4:8]:
            tally.answered += 1
            expected = next(remaining, None)
            continue
        if not ended:
            tally.kept_waiting += 1
        else:
            tally.refused += 1
            if shot.sound:
                tally.surprises.append(f"closed instead of answered: {shot.frame[:4000].hex()}")
        break
    if expected is not None:
        tally.surprises.append(f"answered though unsound: {shots[-1].frame[:400].hex()}")


def salvo(frames: Sequence[bytes], count: int, random: Random) -> list[bytes]:
    """Return `count` bad frames that would not rightly stop a broker."""
    found: list[bytes] = []
    while len(found) < count:
        is_forged = random.random() < FORGED_SHARE
        frame = forge.frame(random) if is_forged else mutate.damaged(random.choice(frames), random)
        if not corpus.breaks_the_cluster(frame):
            found.append(frame)
    return found


def truncations(frames: Iterable[bytes]) -> list[bytes]:
    """Return every frame, cut at every byte."""
    return [frame[:end] for frame in frames for end in range(len(frame))]


async def drip(address: tuple[str, int], frame: bytes, announced: int, seconds: float) -> int:
    """Send an announced size and its frame byte by byte, but for at most `seconds` once more than
    the size is sent; return the number of bytes sent.
    """
    _, writer = await asyncio.open_connection(*address)
    until = asyncio.get_running_loop().time() + seconds
    sent = 0
    try:
        for byte in LENGTH32.pack(announced) + frame:
            writer.write(bytes((byte,)))
            await writer.drain()
            sent += 1
            await asyncio.sleep(0.01)
            if sent > LEAST_DRIPPED and asyncio.get_running_loop().time() > until:
                break
    finally:
        writer.transport.abort()
    return sent
