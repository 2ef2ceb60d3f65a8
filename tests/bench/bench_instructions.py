"""Processor instructions per request, of two revisions.

    python -m tests.bench.bench_instructions --against REV [--tls]

A broker runs under valgrind, which counts what its process executes outside of the kernel: Python,
its libraries, the checksum. Unlike a time the count is the same on a busy machine: two runs differ
by about one in a hundred. So it shows what a change costs where times show noise. With `--tls` the
requests come over TLS, and OpenSSL is counted, too; without it the brokers have no TLS listener, so
that they can be of a revision before there was any.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import signal
import socket
import ssl
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from odradek.log.records import records
from odradek.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.bench.bench_produce_fetch import positive
from tests.bench.bench_requests import BATCH_BYTES, MEBIBYTE, fetch, framed, receive
from tests.support import certificates, revision
from tests.support.broker import STEADY, Cluster, FreshBroker
from tests.support.clients import create_topic
from tests.support.secure_broker import SecureBroker

PARTITIONS = 6
REQUESTS = 1000
WARM_UP = 150
RECORD_TIME_MS = 1_700_000_000_000
BUDGET = 1.03
"""The most that a change may cost the hot path."""

_COUNTED = re.compile(r"I +refs: +([\d,]+)")


class CountedBroker(SecureBroker, FreshBroker):
    """A broker of the packages below `root`, whose instructions are counted."""

    start_seconds = 600  # under valgrind, on a busy machine
    root = revision.ROOT

    def _command(self) -> list[str]:
        counter = [
            "env",
            f"PYTHONPATH={revision.environment(self.root)['PYTHONPATH']}",
            "PYTHONHASHSEED=0",
            "valgrind",
            "--tool=cachegrind",
            "--cache-sim=no",
            "--cachegrind-out-file=/dev/null",
            f"--log-file={self._counts}",
        ]
        return [*counter, *super()._command()]

    @property
    def _counts(self) -> Path:
        return self.log_path.with_suffix(".counts")

    def instructions(self) -> int:
        """End the broker; return how many instructions it has executed."""
        self.signal(signal.SIGTERM)
        self.wait()
        report = self._counts.read_text()
        found = _COUNTED.search(report)
        assert found, f"no count in {report!r}"
        return int(found[1].replace(",", ""))


def frames() -> dict[str, bytes]:
    """Return the requests to count, by what they are."""

    def produced(topic: str, batch: bytes, partitions: int) -> bytes:
        data = [PartitionProduceData(index=one, records=batch) for one in range(partitions)]
        topics = [TopicProduceData(name=topic, partition_data=data)]
        return framed(ProduceRequest(acks=1, timeout_ms=1000, topic_data=topics), 8)

    small = records.make([(None, b"v" * 100)], RECORD_TIME_MS)
    large = records.make([(None, b"v" * 1000)] * (BATCH_BYTES // 1010), RECORD_TIME_MS)
    return {
        "Produce, one record of 100 bytes": produced("written", small, 1),
        "Produce, one batch of 64 KiB": produced("written", large, 1),
        f"Produce, {PARTITIONS} batches of 64 KiB": produced("written", large, PARTITIONS),
        "Fetch, 1 MiB near the end of the log": framed(fetch("short"), 11),
        "Fetch, 1 MiB far from its end": framed(fetch("written"), 11),
        "ListOffsets, the end of one partition": framed(list_offsets("short"), 6),
        "fill short": produced("short", large, 1),
    }


def list_offsets(topic: str) -> ListOffsetsRequest:
    """Return what Spark's consumers ask after each poll."""
    latest = ListOffsetsPartition(partition_index=0, current_leader_epoch=0, timestamp=-1)
    return ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[latest])]
    )


@dataclass(frozen=True, slots=True)
class Counts:
    """How requests are counted: the first ones of each broker, and whether over TLS."""

    filled: bytes
    warm: bytes
    over_tls: bool
    requests: int

    def per_request(self, root: Path, frame: bytes, idle: int) -> float:
        """Return the instructions of one request."""
        return (self.of_broker(root, frame, self.requests) - idle) / self.requests

    def of_broker(self, root: Path, frame: bytes, count: int) -> int:
        """Return what a fresh broker executes in its life, with `count` requests of a kind."""
        about = {"root": root, "protocols": {"TLS": "SSL"} if self.over_tls else {}}
        kind = type("CountedBrokerOfRevision", (CountedBroker,), about)
        with tempfile.TemporaryDirectory() as folder:
            own = certificates.Authority(Path(folder)).issue("broker", ["localhost"])
            settings = {**STEADY, **(own.settings() if self.over_tls else {})}
            with Cluster(Path(folder), 1, settings, {1: kind}) as cluster:
                broker = cluster.brokers[1]
                assert isinstance(broker, CountedBroker)
                create_topic(cluster.bootstrap, "short")
                create_topic(cluster.bootstrap, "written", PARTITIONS)
                buffer = memoryview(bytearray(4 * MEBIBYTE))
                with self._connection(broker, own) as sock:
                    for each, times in ((self.filled, 32), (self.warm, WARM_UP), (frame, count)):
                        for _ in range(times):
                            sock.sendall(each)
                            receive(sock, buffer)
                return broker.instructions()

    @contextlib.contextmanager
    def _connection(
        self, broker: CountedBroker, own: certificates.Issued
    ) -> Iterator[socket.socket]:
        if not self.over_tls:
            with broker.connect() as plain:
                yield plain
            return
        context = ssl.create_default_context(cafile=str(own.authority_path))
        address = ("127.0.0.1", broker.ports["TLS"])
        with (
            socket.create_connection(address, 60) as lower,
            context.wrap_socket(lower, server_hostname="localhost") as tls,
        ):
            yield tls


def main() -> int:
    """Print the instructions per request here and there; return 1 if one is over the budget."""
    parser = argparse.ArgumentParser(description="Instructions per request, of two revisions.")
    parser.add_argument("--against", metavar="REV", required=True)
    parser.add_argument("--tls", action="store_true", help="requests over TLS")
    parser.add_argument("--only", metavar="WORD", default="", help="requests with this in the name")
    parser.add_argument("--requests", type=positive, default=REQUESTS, help="default: %(default)s")
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("bench_instructions: install valgrind (apt-get install valgrind)", file=sys.stderr)
        return 2
    # Whatever ends the process, brokers and folders go first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    asked = frames()
    filled, warm = asked.pop("fill short"), asked["Produce, one batch of 64 KiB"]
    counts = Counts(filled, warm, options.tls, options.requests)
    worst = 0.0
    try:
        with revision.sources(options.against) as root:
            roots = {options.against: root, "here": revision.ROOT}
            idle = {one: counts.of_broker(root, warm, 0) for one, root in roots.items()}
            for what, frame in asked.items():
                if options.only not in what:
                    continue
                each = {
                    one: counts.per_request(root, frame, idle[one]) for one, root in roots.items()
                }
                ratio = each["here"] / each[options.against]
                worst = max(worst, ratio)
                shown = ", ".join(f"{one} {value:.0f}" for one, value in each.items())
                print(f"{what:40} {shown}, ratio {ratio:.3f}", flush=True)
    except revision.UnknownRevisionError as error:
        print(f"bench_instructions: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bench_instructions: interrupted", file=sys.stderr)
        return 130
    return int(worst > BUDGET)


if __name__ == "__main__":
    sys.exit(main())
