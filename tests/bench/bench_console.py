"""Pages of the console of a cluster with 10 000 topics and 1 000 groups, on three real brokers.

    python -m tests.bench.bench_console [topics]

Prints for each page its bytes, the seconds until it is there, and the processor time that the
console and the brokers take for it, the worst of some tries, each after what the console keeps for
a moment is too old; and ends with status 1 if a page takes more than its goal. Seconds depend on
what else the machine does, so the goal is one of processor time: on an idle machine a page takes no
longer. The rounds that measure lags are part of it, and of what the console does while nobody asks.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlencode

from confluent_kafka.admin import AdminClient, NewTopic

from tests.bench.bench_groups import PARTITIONS, SETTINGS, TOPIC, fill
from tests.bench.bench_partitions import processor_s
from tests.console.running import Running
from tests.support.broker import Cluster, wait_until
from tests.support.clients import QUIET, create_topic, produce_all
from tests.support.memory_use import resident_bytes

TOPICS = 10_000
BATCH = 500
TRIES = 5
GOAL_S = 1.0
# What the console keeps of the cluster is older then.
PAUSE_S = 4.0
IDLE_S = 30.0
MIB = 1024 * 1024
BROKERS = 3


def make_topics(bootstrap: str, count: int) -> None:
    """Create topics of one partition."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    for first in range(0, count, BATCH):
        names = [f"orders-{number:05}" for number in range(first, min(count, first + BATCH))]
        made = admin.create_topics(
            [NewTopic(name, 1, 1) for name in names], operation_timeout=120, request_timeout=240
        )
        for one in made.values():
            one.result(300)
    wanted = count

    def is_led() -> bool:
        found = admin.list_topics(timeout=120).topics.values()
        led = [one for one in found if (one.topic or "").startswith("orders-")]
        return len(led) == wanted and all(
            part.leader >= 0 for one in led for part in one.partitions.values()
        )

    wait_until(is_led, "every topic has a leader", 600)


def coordinator(bootstrap: str) -> int:
    """Return the broker that has all groups."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    found: list[int] = []

    def is_known() -> bool:
        # Who asks for a group makes the topic.
        group = admin.describe_consumer_groups(["group-0"], request_timeout=30)["group-0"]
        group.result(60)
        topics = admin.list_topics("__consumer_offsets", timeout=30).topics
        found[:] = [one.leader for one in topics["__consumer_offsets"].partitions.values()]
        return found != [] and found[0] >= 0

    wait_until(is_known, "the groups have a coordinator")
    return found[0]


def pages(topics: int) -> list[str]:
    """Return the addresses of all pages of brokers, topics, records and groups."""
    last = f"orders-{topics - 1:05}"
    return [
        *("/", "/brokers/1"),
        *("/topics", "/topics?page=100", "/topics?q=099", "/topics?state=under-replicated"),
        *(f"/topics/{last}", f"/topics/{TOPIC}"),
        f"/topics/{TOPIC}/records",
        f"/topics/{TOPIC}/records?key=nobody",
        *("/groups", "/groups?page=20", "/groups?q=99"),
    ]


def measure(console: Running, path: str, processes: list[int]) -> bool:
    """Print what a page takes, and return whether that is within the goal."""
    seconds, processor, size = 0.0, 0.0, 0
    for _ in range(TRIES):
        time.sleep(PAUSE_S)
        used, began = sum(map(processor_s, processes)), time.perf_counter()
        size = len(console.page(path))
        seconds = max(seconds, time.perf_counter() - began)
        processor = max(processor, sum(map(processor_s, processes)) - used)
    print(f"{path:40} {size:8} B {seconds:6.2f} s {processor:6.2f} s of processor", flush=True)
    return processor <= GOAL_S


def main(topics: int) -> None:
    """Fill a cluster, and look at every page of it."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(Path(folder), BROKERS, SETTINGS) as cluster,
    ):
        place = Path(folder) / "console"
        place.mkdir()
        create_topic(cluster.bootstrap, TOPIC, PARTITIONS)
        produce_all(cluster.bootstrap, TOPIC, [b"x"] * 10 * PARTITIONS, PARTITIONS)
        asyncio.run(fill(cluster.brokers[coordinator(cluster.bootstrap)]))
        began = time.monotonic()
        make_topics(cluster.bootstrap, topics)
        print(f"{topics} topics were made in {time.monotonic() - began:.0f} s", flush=True)
        console = Running(place, cluster.bootstrap)
        own = console.process.pid
        processes = [own, *(one.pid for one in cluster.brokers.values())]
        paths = [*pages(topics), "/group?" + urlencode({"name": "group-500"})]
        kept = [measure(console, path, processes) for path in paths]
        used, began = processor_s(own), time.monotonic()
        time.sleep(IDLE_S)
        idle = (processor_s(own) - used) / (time.monotonic() - began)
        print(f"{resident_bytes(own) / MIB:.0f} MiB; {idle:.1%} of a processor between pages")
        console.end()
        sys.exit(not all(kept))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else TOPICS)
