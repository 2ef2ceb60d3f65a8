"""Takes descriptors and memory from a running process, and gives them back."""

from __future__ import annotations

import contextlib
import resource
import struct
from collections.abc import Iterator
from pathlib import Path

from tests.support.broker import Broker

MEBIBYTE = 1024 * 1024
FIRST_FILES = 14
# They send most of a large request, which the broker has to hold.
GREEDY_PEERS = 4
GREEDY_SECONDS = 1


@contextlib.contextmanager
def of_files(broker: Broker, spare: int) -> Iterator[None]:
    """Let a broker open hardly any file or connection: only the numbers of its first ones, most of
    which it keeps, are left to it.
    """
    with _limited(broker.pid, resource.RLIMIT_NOFILE, FIRST_FILES + spare):
        yield


@contextlib.contextmanager
def of_memory(broker: Broker, spare: int) -> Iterator[None]:
    """Let a broker take `spare` MiB more of address space than it has, and ask it for more."""
    pages = int(Path(f"/proc/{broker.pid}/statm").read_text().split()[0])
    size = pages * resource.getpagesize()
    with (
        _limited(broker.pid, resource.RLIMIT_AS, size + spare * MEBIBYTE),
        contextlib.ExitStack() as connections,
    ):
        for _ in range(GREEDY_PEERS):
            with contextlib.suppress(OSError):
                peer = connections.enter_context(broker.connect())
                peer.settimeout(GREEDY_SECONDS)
                peer.sendall(struct.pack(">i", 8 * MEBIBYTE) + bytes(7 * MEBIBYTE))
        yield


@contextlib.contextmanager
def _limited(pid: int, number: int, limit: int) -> Iterator[None]:
    before = resource.prlimit(pid, number)
    resource.prlimit(pid, number, (limit, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, number, before)
