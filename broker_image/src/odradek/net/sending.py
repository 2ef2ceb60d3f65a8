"""Sends an answer, made of bytes and file regions, to a non-blocking socket.

Bytes are gathered with sendmsg, with MSG_MORE while more parts follow, so that header and records
share packets. Regions go from the page cache to the socket with sendfile, without a copy in Python.
Partial sends and a full socket are normal: the rest waits until the socket is writable again.

Reading a region from a cold disk blocks the thread that calls sendfile. So regions are sent in
slices, and the event loop runs in between. Only `_send_slice` blocks on file pages: if a profile
shows that it stalls the loop, move it to a thread.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from odradek.protocol.regions import IN_MEMORY, Buffer, FileRegion, Part

# Most bytes sent before other connections get their turn.
SLICE_BYTES: Final = 1024 * 1024
# Buffers gathered in one call; the kernel's limit is 1024.
GATHERED_BUFFERS: Final = 64


class Outgoing:
    """The unsent rest of one answer; owns its regions and closes each exactly once.

    `sent` counts the bytes that the kernel has taken.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.sent = 0
        self._parts = list(parts)
        self._index = 0
        self._offset = 0

    @property
    def done(self) -> bool:
        """Return whether the kernel has taken everything."""
        return self._index == len(self._parts)

    def held_bytes(self) -> int:
        """Return how much memory the unsent parts take; regions of files take none."""
        return sum(len(part) for part in self._parts[self._index :] if isinstance(part, IN_MEMORY))

    @property
    def has_regions(self) -> bool:
        """Return whether a part of the answer is, or was, a region of a file."""
        return any(not isinstance(part, IN_MEMORY) for part in self._parts)

    def send_some(self, sock: socket.socket) -> int:
        """Send at most about one slice; return the number of bytes.

        Raises BlockingIOError if the socket is full, another OSError if the peer is gone, and
        ConnectionError if a file ends before its region does.
        """
        part = self._parts[self._index]
        if isinstance(part, IN_MEMORY):
            return self._send_buffers(sock, part)
        count = min(part.length - self._offset, SLICE_BYTES)
        sent = _send_slice(sock, part, self._offset, count) if count else 0
        if count and not sent:
            raise ConnectionError("file ended before the region that was promised")
        self.sent += sent
        self._offset += sent
        if self._offset == part.length:
            self._advance()
            part.close()
        return sent

    def close(self) -> None:
        """Close the unsent regions; idempotent."""
        while not self.done:
            part = self._parts[self._index]
            self._advance()
            if not isinstance(part, IN_MEMORY):
                part.close()

    def _send_buffers(self, sock: socket.socket, first: Buffer) -> int:
        index = self._index + 1
        if index == len(self._parts) or not isinstance(self._parts[index], IN_MEMORY):
            # Nearly every answer is one buffer, for which `send` is cheaper.
            left = memoryview(first)[self._offset :] if self._offset else first
            sent = sock.send(left, socket.MSG_MORE if index < len(self._parts) else 0)
            self._skip_buffers((left,), sent)
            return sent
        gathered = [memoryview(first)[self._offset :]]
        for part in self._parts[index : index + GATHERED_BUFFERS - 1]:
            if not isinstance(part, IN_MEMORY):
                break
            gathered.append(memoryview(part))
            index += 1
        more = socket.MSG_MORE if index < len(self._parts) else 0
        sent = sock.sendmsg(gathered, (), more)
        self._skip_buffers(gathered, sent)
        return sent

    def _skip_buffers(self, gathered: Sequence[Buffer], sent: int) -> None:
        self.sent += sent
        for buffer in gathered:
            if sent < len(buffer):
                self._offset += sent
                return
            sent -= len(buffer)
            self._advance()

    def _advance(self) -> None:
        self._index += 1
        self._offset = 0


class Sends(Protocol):
    """What takes bytes without waiting: a socket, or a transport."""

    def send(self, data: Buffer, flags: int = 0, /) -> int:
        """Return how many bytes were taken. Raises OSError."""


def send_at_once(sock: Sends, answer: bytes) -> Buffer:
    """Send what the socket takes without waiting; return the rest.

    Raises OSError if the peer is gone.
    """
    try:
        sent = sock.send(answer)
    except (BlockingIOError, InterruptedError):
        return answer
    return b"" if sent == len(answer) else memoryview(answer)[sent:]


def ignore_wait(outgoing: Outgoing) -> None:
    """Do nothing about an answer that waits."""


async def send_all(
    sock: socket.socket,
    parts: Sequence[Part],
    on_progress: Callable[[], None],
    on_wait: Callable[[Outgoing], None] = ignore_wait,
) -> None:
    """Send all parts and always close the regions; call `on_progress` after each send.

    `on_wait` is called before others get their turn. Raises OSError if the peer is gone. After a
    cancelled or failed call the answer is incomplete: the caller closes the socket.
    """
    outgoing = Outgoing(parts)
    budget = SLICE_BYTES
    try:
        while not outgoing.done:
            try:
                budget -= outgoing.send_some(sock)
            except (BlockingIOError, InterruptedError):
                on_wait(outgoing)
                await _writable(sock)
                continue
            on_progress()
            if budget <= 0 and not outgoing.done:
                on_wait(outgoing)
                await asyncio.sleep(0)
                budget = SLICE_BYTES
    finally:
        outgoing.close()


def _send_slice(sock: socket.socket, region: FileRegion, offset: int, count: int) -> int:
    return os.sendfile(sock.fileno(), region.fd, region.position + offset, count)


async def _writable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_writer(sock, _settle, ready)
    try:
        await ready
    finally:
        loop.remove_writer(sock)


def _settle(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)
