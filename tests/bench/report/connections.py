"""Cases with a thousand connections from one process: all of them busy, and all of them idle."""

from __future__ import annotations

import contextlib
import resource
import selectors
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from odradek.protocol.messages.api_versions import ApiVersionsRequest
from tests.bench.bench_requests import framed
from tests.bench.report import bare
from tests.bench.report.bench import MEBI, Bench, Case, brokers_of, processor_time, topic
from tests.bench.report.results import What
from tests.support.broker import Broker
from tests.support.memory_use import resident_bytes

COUNT: Final = 1000
IDLE_SECONDS: Final = 5.0
REST_SECONDS: Final = 5.0
# What a broker, or this process, has beside.
SPARE_DESCRIPTORS: Final = 500
LIMIT_SECONDS: Final = 60.0
_SIZE: Final = struct.Struct(">i")


def busy(count: int = COUNT) -> Case:
    """A Produce of one record of 100 bytes on each connection, and the next after its answer."""
    section = f"{count} connections, each with a Produce of 100 B under way"
    speed = What(section, "answers", "requests/s")
    spent = What(section, "broker's processor time", "us each", less=True)
    memory = What(section, "broker's memory at the end", "MiB", less=True)

    def measure(bench: Bench, name: str) -> None:
        [broker] = brokers_of(bench.systems[name])
        answered: list[int] = []
        with topic(bench, name, 1) as made, connected(broker, count) as socks:
            frame = bare.produce_frame(made, 1, bare.batch(100))
            bare.check(broker.connect, frame)
            by_turns(socks, frame, bench.volume.seconds / 2)
            with processor_time(bench, name, spent, lambda: answered[0] / 1e6):
                began = time.perf_counter()
                answered.append(by_turns(socks, frame, bench.volume.seconds))
                lasted = time.perf_counter() - began
                bench.results.note(speed, name, answered[0] / lasted)
            bench.results.note(memory, name, resident_bytes(broker.pid) / MEBI)

    return Case(f"{count} connections, busy", measure, quick=False)


def idle(count: int = COUNT, seconds: float = IDLE_SECONDS) -> Case:
    """Connections that asked for the versions once, and nothing since."""
    section = f"{count} idle connections"
    spent = What(section, "broker's processor time", "ms/s", less=True)
    memory = What(section, "broker's memory", "MiB", less=True)

    def measure(bench: Bench, name: str) -> None:
        [broker] = brokers_of(bench.systems[name])
        hello = framed(ApiVersionsRequest(), 0)
        with connected(broker, count) as socks:
            by_turns(socks, hello, 0)
            bench.results.note(spent, name, idle_ms_per_second(broker, seconds))
            bench.results.note(memory, name, resident_bytes(broker.pid) / MEBI)

    return Case(f"{count} connections, idle", measure, quick=False)


def idle_ms_per_second(broker: Broker, seconds: float) -> float:
    """Return the processor time of a broker that nobody uses for so long, after a short rest.

    In nanoseconds of each thread: the ticks of a process are too coarse for what is next to none.
    """
    time.sleep(min(seconds, REST_SECONDS))
    before, began = _thread_ns(broker.pid), time.monotonic()
    time.sleep(seconds)
    after, lasted = _thread_ns(broker.pid), time.monotonic() - began
    # Threads that ended meanwhile are left out.
    spent = sum(value - before.get(thread, 0) for thread, value in after.items())
    # There is no ratio to nothing.
    return max(1, spent) / 1e6 / lasted


def _thread_ns(pid: int) -> dict[str, int]:
    found = {}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found[thread.name] = int((thread / "schedstat").read_text().split()[0])
    return found


def check_descriptors(count: int) -> None:
    """Fail if a process may not have so many descriptors beside its others."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + SPARE_DESCRIPTORS
    assert most == resource.RLIM_INFINITY or most >= needed, (
        f"{needed} descriptors are needed, and ulimit -n allows {most}"
    )


@contextlib.contextmanager
def connected(broker: Broker, count: int) -> Iterator[list[socket.socket]]:
    """So many connections to a broker, until the context ends."""
    check_descriptors(count)
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(broker.connect()) for _ in range(count)]


def by_turns(socks: list[socket.socket], frame: bytes, seconds: float) -> int:
    """Send a request on each connection, and the next upon its answer, for so long.

    Return how many answers there were; each connection gets one at least.
    """
    buffer = memoryview(bytearray(64 * 1024))
    answered = 0
    with selectors.DefaultSelector() as selector:
        for sock in socks:
            sock.sendall(frame)
            selector.register(sock, selectors.EVENT_READ)
        until = time.perf_counter() + seconds
        while waiting := len(selector.get_map()):
            ready = selector.select(LIMIT_SECONDS)
            assert ready, f"{waiting} connections wait for an answer"
            goes_on = time.perf_counter() < until
            for key, _ in ready:
                answering = key.fileobj
                assert isinstance(answering, socket.socket)
                receive_at_once(answering, buffer)
                answered += 1
                if goes_on:
                    answering.sendall(frame)
                else:
                    selector.unregister(answering)
    return answered


def receive_at_once(sock: socket.socket, buffer: memoryview) -> None:
    """Read one small answer and forget it, as a rule with one call: clients shall take little."""
    received, wanted = 0, _SIZE.size
    while received < wanted:
        more = sock.recv_into(buffer[received:])
        assert more, "the broker closed a connection"
        received += more
        if received >= _SIZE.size:
            wanted = _SIZE.size + _SIZE.unpack_from(buffer)[0]
