"""Rounds of the exporter over 1000 groups of 100 partitions, on one real broker.

    python -m tests.bench.bench_exporter [rounds]

Prints the seconds of each round, those of its processor time, and the most memory that the exporter
has taken, and ends with status 1 if they exceed its goals. It runs in a process of its own. Seconds
depend on what else the machine does, so the goal is one of processor time. After as many rounds as
a verdict needs, the histories are full.
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from odradek.http_server import HttpRequest
from odradek_operator.exporter.rounds import Exporter, Options
from odradek_operator.group.lag import LONGEST_WINDOW
from tests.bench.bench_groups import GROUPS, PARTITIONS, SETTINGS, TOPIC, fill
from tests.support.broker import Cluster
from tests.support.clients import create_topic, produce_all

PROCESSOR_SECONDS = 5.0
MIB = 200.0


def measure(connect: str, rounds: int) -> bool:
    """Print what each round takes, and return whether all keep within the goals."""
    exporter = Exporter(Options(connect, 15))
    most_processor = most_memory = 0.0
    for _ in range(rounds):
        began, used = time.perf_counter(), time.process_time()
        exporter.round()
        seconds, processor = time.perf_counter() - began, time.process_time() - used
        most_processor = max(most_processor, processor)
        most_memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{seconds:6.2f} s, {processor:6.2f} s of processor, {most_memory:6.0f} MiB")
    body = exporter.answer(HttpRequest("GET", "/metrics", "", {})).body
    exporter.close()
    lags = body.count(b"\nkafka_consumergroup_lag{")
    print(f"{lags} lags; goal {PROCESSOR_SECONDS:.0f} s of processor, {MIB:.0f} MiB", flush=True)
    complete = lags == GROUPS * PARTITIONS
    return complete and most_processor <= PROCESSOR_SECONDS and most_memory <= MIB


def main(rounds: int) -> None:
    """Fill a cluster, and measure the exporter beside it."""
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder), 1, SETTINGS) as cluster:
        create_topic(cluster.bootstrap, TOPIC, PARTITIONS)
        produce_all(cluster.bootstrap, TOPIC, [b"x"] * 10 * PARTITIONS, PARTITIONS)
        asyncio.run(fill(cluster.brokers[1]))
        call = f"sys.exit(not measure({cluster.zookeeper.connect!r}, {rounds}))"
        program = [sys.executable, "-c", f"from {__spec__.name} import *; {call}"]
        sys.exit(subprocess.run(program, check=False).returncode)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else LONGEST_WINDOW + 1)
