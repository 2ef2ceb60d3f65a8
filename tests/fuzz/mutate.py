"""Ways to damage a frame. All randomness comes from the given generator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from odradek.protocol.primitives import write_uvarint

INT32S = tuple(
    value.to_bytes(4, signed=True)
    for value in (2**31 - 1, -1, -(2**31), 2**24, 100 * 1024 * 1024, 65_536, 0, 1)
)
INT16S = tuple(value.to_bytes(2, signed=True) for value in (2**15 - 1, -1, -(2**15), 256, 0))
UVARINTS = (b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\xff\xff", b"\x80" * 6, b"\x00", b"\xff\x7f")
# Before it come key, version and correlation id; after it whatever the version says.
BODY_AT = 8


def flipped(frame: bytes, random: Random) -> bytes:
    """Flip a few bits, most often in the body."""
    data = bytearray(frame)
    first = 0 if random.random() < 0.05 else min(BODY_AT, len(data) - 1)
    for _ in range(random.choice((1, 1, 1, 2, 4, 16))):
        data[random.randrange(first, len(data))] ^= 1 << random.randrange(8)
    return bytes(data)


def overwritten(frame: bytes, random: Random) -> bytes:
    """Make a number extreme, as a length or count may be."""
    value = random.choice(random.choice((INT32S, INT16S, UVARINTS)))
    at = random.randrange(min(BODY_AT, len(frame) - 1), len(frame))
    return frame[:at] + value + frame[at + len(value) :]


def cut(frame: bytes, random: Random) -> bytes:
    """Cut off the end."""
    return frame[: random.randrange(len(frame))]


def with_hole(frame: bytes, random: Random) -> bytes:
    """Remove or repeat a piece in the middle."""
    first = random.randrange(len(frame))
    after = min(len(frame), first + random.randrange(1, 16))
    piece = frame[first:after] * random.choice((0, 2, 50))
    return frame[:first] + piece + frame[after:]


def tagged(frame: bytes, random: Random) -> bytes:
    """Replace the empty section of tagged fields at the end by some fields, sound or not."""
    count = random.choice((1, 2, 127, 2**32 - 1))
    section = write_uvarint(count)
    for _ in range(min(count, random.randrange(1, 4))):
        body = random.randbytes(random.randrange(12))
        size = random.choice((len(body), len(body), 0, 2**31))
        section += write_uvarint(random.choice((0, 1, 77, 2**32 - 1))) + write_uvarint(size) + body
    return frame[:-1] + section


def retitled(frame: bytes, random: Random) -> bytes:
    """Change the key or version, so that the body does not fit."""
    key = random.choice((-1, *range(52), 999))
    version: int = random.choice((-1, *range(14), 2**15 - 1))
    keeps_key = random.random() < 0.7
    start = frame[:2] if keeps_key else key.to_bytes(2, signed=True)
    return start + version.to_bytes(2, signed=True) + frame[4:]


def noise(frame: bytes, random: Random) -> bytes:
    """Keep the start of the header, and replace the rest by random bytes."""
    return frame[: random.choice((0, 4, BODY_AT))] + random.randbytes(random.randrange(200))


MUTATIONS: Sequence[Callable[[bytes, Random], bytes]] = (
    *(flipped,) * 6,
    *(overwritten,) * 6,
    cut,
    with_hole,
    tagged,
    retitled,
    noise,
)


def damaged(frame: bytes, random: Random) -> bytes:
    """Return the frame after one mutation, sometimes after two."""
    data = random.choice(MUTATIONS)(frame, random)
    if data and random.random() < 0.1:
        data = random.choice(MUTATIONS)(data, random)
    return data
