"""How many TLS handshakes a broker takes in a time, and what a client that is there notices.

    python -m tests.bench.bench_handshakes

Clients in other processes connect to a TLS listener, while one that is connected asks for metadata
again and again: first a thousand connections in five seconds, each with a request, by clients in
Python; then as many as two `openssl s_time` bring about in five seconds, which costs the machine
less per connection. All handshakes are full ones. Printed are counts, the longest and the median
wait of the client that is there, with and without the others, and processor time per connection.
Limits of connections are the defaults, which are printed, but for `max.connections.per.ip`: all
come from one address.
"""

from __future__ import annotations

import multiprocessing
import re
import shutil
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from odradek.config import BrokerConfig
from tests.bench.bench_partitions import processor_s
from tests.bench.bench_requests import receive
from tests.bench.bench_tls import TlsBroker
from tests.fuzz.strangers import METADATA
from tests.support import certificates
from tests.support.broker import Cluster

HANDSHAKES = 1000
SECONDS = 5.0
PROCESSES = 4
FLAT_OUT_PROCESSES = 2
HELD_UP_S = 0.1
_COUNTED = re.compile(r"^(\d+) connections in \d+ real seconds", re.MULTILINE)


def knock(port: int, authority: str, count: int, began: float) -> tuple[int, float]:
    """Make `count` connections, evenly within SECONDS.

    Returns how many were served, and the processor time that this process took.
    """
    context = ssl.create_default_context(cafile=authority)
    served, before = 0, time.process_time()
    for number in range(count):
        time.sleep(max(0.0, began + SECONDS * number / count - time.monotonic()))
        try:
            with (
                socket.create_connection(("127.0.0.1", port), 60) as lower,
                context.wrap_socket(lower, server_hostname="localhost") as tls,
            ):
                tls.sendall(len(METADATA).to_bytes(4) + METADATA)
                served += bool(tls.recv(4))
        except OSError:
            continue
    return served, time.process_time() - before


def flat_out(port: int) -> int:
    """Make connections as fast as it goes for SECONDS, without requests; return how many."""
    command = ("openssl", "s_time", "-connect", f"127.0.0.1:{port}", "-new")
    line = [*command, "-time", str(round(SECONDS))]
    running = [
        subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for _ in range(FLAT_OUT_PROCESSES)
    ]
    said = [one.communicate()[0] for one in running]
    found = [_COUNTED.search(one) for one in said]
    assert all(found), said
    return sum(int(one[1]) for one in found if one)


class Bystander:
    """A client that asks one request after the other, and notes how long each took."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.waits_s: list[float] = []

    def __enter__(self) -> Bystander:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        buffer = memoryview(bytearray(1 << 16))
        while not self._stop.wait(0.005):
            began = time.monotonic()
            self._sock.sendall(len(METADATA).to_bytes(4) + METADATA)
            receive(self._sock, buffer)
            self.waits_s.append(time.monotonic() - began)

    def summary(self) -> str:
        """Return what it noticed."""
        over = sum(one > HELD_UP_S for one in self.waits_s)
        return (
            f"{len(self.waits_s)} requests, "
            f"median {statistics.median(self.waits_s) * 1000:.1f} ms, "
            f"longest {max(self.waits_s) * 1000:.0f} ms, {over} over {HELD_UP_S * 1000:.0f} ms"
        )


def main() -> int:
    """Print the counts and waits."""
    with tempfile.TemporaryDirectory() as folder:
        own = certificates.Authority(Path(folder)).issue("broker", ["localhost"])
        settings = {**own.settings(), "max.connections.per.ip": "2147483647"}
        with (
            Cluster(Path(folder), 1, settings, kind=TlsBroker) as cluster,
            multiprocessing.get_context("spawn").Pool(PROCESSES) as processes,
        ):
            broker = cluster.brokers[1]
            assert isinstance(broker, TlsBroker)
            port, authority = broker.ports["TLS"], str(own.authority_path)
            # Processes that have imported everything.
            processes.starmap(knock, [(port, authority, 1, 0.0)] * PROCESSES)
            with broker.connect() as plain:
                with Bystander(plain) as alone:
                    time.sleep(SECONDS)
                began, before = time.monotonic(), processor_s(broker.pid)
                each = (port, authority, HANDSHAKES // PROCESSES, began)
                with Bystander(plain) as beside:
                    found = processes.starmap(knock, [each] * PROCESSES, chunksize=1)
                    served, of_clients = (sum(one) for one in zip(*found, strict=True))
                took, spent = time.monotonic() - began, processor_s(broker.pid) - before
                before = processor_s(broker.pid)
                with Bystander(plain) as pressed:
                    most = flat_out(port) if shutil.which("openssl") else 0
                spent_on_most = processor_s(broker.pid) - before
    defaults = BrokerConfig()
    print(
        f"limits: max.connections={defaults.max_connections}, "
        f"max.connection.creation.rate={defaults.max_connection_creation_rate}"
    )
    print(f"a client alone:      {alone.summary()}")
    print(f"{served} of {HANDSHAKES} connections served in {took:.1f} s")
    print(
        f"processor time per connection: broker {spent / HANDSHAKES * 1000:.2f} ms, requests of "
        f"the other client included; clients {of_clients / HANDSHAKES * 1000:.2f} ms"
    )
    print(f"beside these:        {beside.summary()}")
    if not most:
        print("flat out: install openssl")
        return 0
    print(
        f"{most} handshakes in {SECONDS:.0f} s, flat out; processor time of the broker for each "
        f"{spent_on_most / most * 1000:.2f} ms, requests of the other client included"
    )
    print(f"beside these:        {pressed.summary()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
