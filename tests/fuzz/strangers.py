"""Connections of strangers to listeners with SASL: what may come before authentication.

Each visit is one connection, of a kind that is drawn by chance: noise, sound handshakes followed by
noise, announced giants, SCRAM and PLAIN messages with every kind of fault, halves of TLS hellos,
and connections that are reset. Each ends with a request that nobody may make there.
"""

from __future__ import annotations

import base64
import contextlib
import re
import socket
import ssl
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from typing import Final

from odradek.protocol.primitives import LENGTH32
from tests.fuzz.attack import CLOSING_SECONDS

VISITS_AT_ONCE: Final = 24
# A broker that waits for more says nothing.
PATIENCE_SECONDS: Final = 0.3
MECHANISMS: Final = (b"PLAIN", b"SCRAM-SHA-256", b"SCRAM-SHA-512")
_NONCE: Final = re.compile(rb"r=([^,]+),s=")
_HEADER: Final = struct.Struct(">hhih")
METADATA: Final = _HEADER.pack(3, 0, 7, -1) + bytes(4)
# Its header and its body have tagged fields: none.
DESCRIBE_CLUSTER: Final = _HEADER.pack(60, 0, 7, -1) + bytes(3)
VERSIONS: Final = _HEADER.pack(18, 0, 7, -1)


@dataclass(slots=True)
class Tally:
    """The frames that were sent, those that were answered, and what must not be: `surprises`."""

    frames: int = 0
    answers: int = 0
    surprises: list[str] = field(default_factory=list)


class Visit:
    """One connection of a stranger."""

    def __init__(self, sock: socket.socket, random: Random, tally: Tally) -> None:
        self.random = random
        self._sock = sock
        self._tally = tally

    def raw(self, content: bytes) -> None:
        """Send bytes as they are, and count them as a frame."""
        self._tally.frames += 1
        self._sock.sendall(content)

    def ask(self, frame: bytes) -> bytes:
        """Send a frame, and return its answer; nothing if none comes."""
        self.raw(LENGTH32.pack(len(frame)) + frame)
        self._sock.settimeout(PATIENCE_SECONDS)
        try:
            answer = self._receive(*LENGTH32.unpack(self._receive(LENGTH32.size)))
        except TimeoutError:
            return b""
        finally:
            self._sock.settimeout(CLOSING_SECONDS)
        self._tally.answers += 1
        return answer

    def _receive(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            some = self._sock.recv(size - len(found))
            if not some:
                raise ConnectionError("closed")
            found += some
        return found

    def check(self, port: int) -> None:
        """Ask for brokers: an answer to that names the port of the listener, no other one does.

        Late answers to other frames may come before it.
        """
        frame = self.random.choice((METADATA, DESCRIBE_CLUSTER))
        self.raw(LENGTH32.pack(len(frame)) + frame)
        self._sock.settimeout(PATIENCE_SECONDS)
        found = b""
        with contextlib.suppress(OSError):
            while some := self._sock.recv(65_536):
                found += some
        if LENGTH32.pack(port) in found:
            self._tally.surprises.append(f"answered: {found[-500:].hex()}")


# --- kinds of visits ----------------------------------------------------------------------------


def noise(visit: Visit) -> None:
    """Send random bytes, with a sound size or without."""
    content = visit.random.randbytes(visit.random.randint(0, 300))
    (visit.raw if visit.random.random() < 0.5 else visit.ask)(content)


def noise_after_handshake(visit: Visit) -> None:
    """Choose a mechanism, and send random bytes for its token, bare or in a request."""
    version = _choose(visit, visit.random.choice(MECHANISMS))
    content = visit.random.randbytes(visit.random.randint(0, 300))
    visit.ask(content if version == 0 or visit.random.random() < 0.3 else _token(content))


def giant(visit: Visit) -> None:
    """Announce a huge or a negative frame, and send a little of it."""
    if visit.random.random() < 0.5:
        _choose(visit, visit.random.choice(MECHANISMS))
    size = visit.random.choice((0x7FFF_FFFF, 600_000, 524_289, 100 << 20, -1, -(1 << 31), 0))
    visit.raw(LENGTH32.pack(size) + visit.random.randbytes(visit.random.randint(0, 5000)))


def many_handshakes(visit: Visit) -> None:
    """Send sound requests in every order, and damaged ones between them."""
    for _ in range(visit.random.randint(2, 8)):
        frame = bytearray(
            visit.random.choice((VERSIONS, _handshake(1, b"PLAIN"), _handshake(9, b"X"), METADATA))
        )
        if visit.random.random() < 0.5:
            frame[visit.random.randrange(len(frame))] ^= 1 << visit.random.randrange(8)
        if frame == METADATA:
            continue
        visit.ask(bytes(frame))


def plain(visit: Visit) -> None:
    """Send a PLAIN token that is wrong."""
    version = _choose(visit, b"PLAIN")
    content = visit.random.choice(WRONG)
    visit.ask(_token(content) if version else content)


WRONG: Final = (
    b"",
    b"\0",
    b"\0\0",
    b"\0alice\0guessed",
    b"bob\0alice\0guessed",
    b"\0\xff\0\xfe",
    b"\0" * 1000,
    b"\0" + b"/" * 200_000 + b"\0x",
    b"\0alice\0" + b"x" * 300_000,
)


def scram(visit: Visit) -> None:
    """Send the two messages of SCRAM, at least one of them wrong."""
    version = _choose(visit, visit.random.choice(MECHANISMS[1:]))

    def send(content: bytes) -> bytes:
        return visit.ask(_token(content) if version else content)

    challenge = send(_bent(visit.random, visit.random.choice(FIRST)))
    found = _NONCE.search(challenge)
    if found is None:
        return
    proof = base64.b64encode(visit.random.randbytes(visit.random.choice((0, 1, 32, 64, 10_000))))
    last = visit.random.choice(LAST).replace(b"NONCE", found[1]).replace(b"PROOF", proof)
    send(_bent(visit.random, last))


FIRST: Final = (
    *(b"n,,n=alice,r=abc",) * 4,
    b"y,,n=alice,r=abc",
    b"n,,n=nobody,r=abc",
    b"n,a=alice,n=alice,r=abc",
    b"n,a=bob,n=alice,r=abc",
    b"p=tls-unique,,n=alice,r=abc",
    b"n,,n=,r=abc",
    b"n,,n=a=2Cb=3D,r=abc",
    b"n,,n=a=b,r=abc",
    b"n,,n=..,r=abc",
    b"n,,n=alice,r=",
    b"n,,n=alice",
    b"n,,m=x,n=alice,r=abc",
    b"n,,n=alice,r=abc,tokenauth=true",
    b"n,,n=\xff\xfe,r=abc",
    b"n,,n=\0,r=abc",
    b"n,,n=" + b"/" * 200_000 + b",r=abc",
    b"n,,n=alice,r=" + b"x" * 300_000,
    b"," * 100_000,
    b"",
)
LAST: Final = (
    b"c=biws,r=NONCE,p=PROOF",
    b"c=biws,r=NONCE,x=y,p=PROOF",
    b"c=biws,r=NONCEmore,p=PROOF",
    b"c=biws,r=abc,p=PROOF",
    b"c=eSws,r=NONCE,p=PROOF",
    b"c=,r=NONCE,p=PROOF",
    b"c=biws,r=NONCE,p=",
    b"c=biws,r=NONCE,p=====",
    b"c=biws,r=NONCE",
    b"p=PROOF",
    b"c=biws,r=NONCE,p=PROOF,p=PROOF",
    b"c=" + b"A" * 300_000 + b",r=NONCE,p=PROOF",
    b"",
)


def half_hello(visit: Visit) -> None:
    """Send a part of a TLS hello, sound or damaged, to a listener of any kind."""
    hello = bytearray(client_hello())
    if visit.random.random() < 0.5:
        hello[visit.random.randrange(len(hello))] = visit.random.randrange(256)
    visit.raw(bytes(hello[: visit.random.randint(1, len(hello))]))


def nothing(visit: Visit) -> None:
    """Send nothing: the connection is reset."""


Kind = Callable[[Visit], None]
WITHIN_TLS: Final[tuple[Kind, ...]] = (
    *(noise, noise_after_handshake, giant, many_handshakes, plain),
    *(scram,) * 4,
)
WITHOUT_TLS: Final[tuple[Kind, ...]] = (half_hello, noise, nothing)


def client_hello() -> bytes:
    """Return what a client of TLS sends first."""
    outgoing = ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="x")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def _handshake(version: int, mechanism: bytes) -> bytes:
    return _HEADER.pack(17, version, 7, -1) + len(mechanism).to_bytes(2) + mechanism


def _choose(visit: Visit, mechanism: bytes) -> int:
    version = visit.random.randint(0, 1)
    visit.ask(_handshake(version, mechanism))
    return version


def _token(content: bytes) -> bytes:
    return _HEADER.pack(36, 0, 7, -1) + LENGTH32.pack(len(content)) + content


def _bent(random: Random, content: bytes) -> bytes:
    """Return a message, sometimes with a byte changed, or cut."""
    bent = bytearray(content)
    if bent and random.random() < 0.3:
        bent[random.randrange(len(bent))] = random.randrange(256)
    if bent and random.random() < 0.2:
        del bent[random.randrange(len(bent)) :]
    return bytes(bent)


# --- the crowd ----------------------------------------------------------------------------------


def visit_all(
    plain_port: int, tls_port: int, context: ssl.SSLContext, frames: int, random: Random
) -> Tally:
    """Visit a listener with SASL and one with SASL over TLS, until so many frames are sent."""
    tally = Tally()

    def stranger(own: Random) -> None:
        while tally.frames < frames and not tally.surprises:
            within = own.random() < 0.4
            port = tls_port if within else own.choice((plain_port, plain_port, tls_port))
            kind = own.choice(WITHIN_TLS if within else (*WITHIN_TLS, *WITHOUT_TLS))
            try:
                sock = socket.create_connection(("127.0.0.1", port), CLOSING_SECONDS)
            except OSError as error:
                tally.surprises.append(f"no connection: {error!r}")
                return
            # Nothing of a connection is left in the kernel once it is closed.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            # A broker may take long for a handshake, and then ends it.
            with contextlib.suppress(OSError), contextlib.ExitStack() as used:
                used.enter_context(sock)
                if within:
                    sock = used.enter_context(
                        context.wrap_socket(sock, server_hostname="127.0.0.1")
                    )
                visit = Visit(sock, own, tally)
                with contextlib.suppress(OSError):
                    kind(visit)
                visit.check(port)

    with ThreadPoolExecutor(VISITS_AT_ONCE) as crowd:
        seeds = [Random(random.random()) for _ in range(VISITS_AT_ONCE)]
        for _ in crowd.map(stranger, seeds):
            pass
    return tally
