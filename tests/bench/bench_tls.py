"""What TLS costs a broker: processor time of requests over TLS, beside the same without it.

    python -m tests.bench.bench_tls

One connection each, one request after the other. The ratios are of processor time in the broker's
process, its kernel part included; times of one machine say little about another.
"""

from __future__ import annotations

import socket
import ssl
import sys
import tempfile
from pathlib import Path

from tests.bench.bench_instructions import frames
from tests.bench.bench_partitions import processor_s
from tests.bench.bench_requests import MEBIBYTE, receive
from tests.support import certificates
from tests.support.broker import Cluster
from tests.support.clients import create_topic
from tests.support.secure_broker import SecureBroker

REQUESTS = 200
FILL = 32
PARTITIONS = 6


class TlsBroker(SecureBroker):
    """A broker with a plain listener and one with TLS."""

    protocols = {"TLS": "SSL"}


def seconds(broker: TlsBroker, sock: socket.socket, frame: bytes) -> float:
    """Return the processor time of many requests."""
    buffer = memoryview(bytearray(4 * MEBIBYTE))
    before = processor_s(broker.pid)
    for _ in range(REQUESTS):
        sock.sendall(frame)
        receive(sock, buffer)
    return processor_s(broker.pid) - before


def main() -> int:
    """Print the ratio of each kind of request."""
    asked = frames()
    filled = asked.pop("fill short")
    with tempfile.TemporaryDirectory() as folder:
        own = certificates.Authority(Path(folder)).issue("broker", ["localhost"])
        context = ssl.create_default_context(cafile=str(own.authority_path))
        with Cluster(Path(folder), 1, own.settings(), kind=TlsBroker) as cluster:
            broker = cluster.brokers[1]
            assert isinstance(broker, TlsBroker)
            create_topic(cluster.bootstrap, "short")
            create_topic(cluster.bootstrap, "written", PARTITIONS)
            address = ("127.0.0.1", broker.ports["TLS"])
            with (
                broker.connect() as plain,
                socket.create_connection(address, 60) as lower,
                context.wrap_socket(lower, server_hostname="localhost") as tls,
            ):
                buffer = memoryview(bytearray(4 * MEBIBYTE))
                for _ in range(FILL):
                    plain.sendall(filled)
                    receive(plain, buffer)
                for what, frame in asked.items():
                    # Alternately: what else the machine does falls on both.
                    each = [[seconds(broker, one, frame) for one in (plain, tls)] for _ in "123"]
                    of_plain, of_tls = (sum(both) for both in zip(*each, strict=True))
                    print(f"{what:40} TLS / plain: {of_tls / of_plain:.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
