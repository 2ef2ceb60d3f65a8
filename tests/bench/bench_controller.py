"""Controllers of this project and of Apache Kafka 2.8.2 by turns, three brokers each.

    python -m tests.bench.bench_controller [rounds]

The time to create 1 000 topics on all brokers until each knows a leader of every one, and to delete
them until neither znodes nor folders are left; and the time from SIGKILL of the controller until
every partition has a living leader again in the metadata of every broker left, with 500, 1 000 and
2 000 partitions, and how much of it followed the end of the dead broker's session in ZooKeeper.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from odradek.zk import znodes
from tests.bench import side_by_side
from tests.bench.side_by_side import (
    Death,
    Figures,
    controller_of,
    metadata,
    restart,
    wait_for,
)
from tests.support.broker import Broker, Cluster
from tests.support.clients import QUIET, create_topic

TOPICS = 1000
SIZES = (500, 1000, 2000)  # partitions
REQUEST_SECONDS = 170.0
PATIENT = {"socket.timeout.ms": 170_000, **QUIET}


def leaders(broker: Broker, prefix: str, names: Sequence[str] | None = None) -> list[int]:
    """Of each partition of the topics with this prefix the leader, -1 where there is none.

    With `names` the broker is asked for these topics only.
    """
    return [
        one.leader_id
        for topic in metadata(broker, names).topics
        if topic.name.startswith(prefix)
        for one in topic.partitions
    ]


def create_many(cluster: Cluster, names: list[str], prefix: str) -> float:
    """Seconds until every broker knows a leader of each of the topics."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **PATIENT})
    wanted = [NewTopic(name, 1, side_by_side.BROKERS) for name in names]
    began = time.perf_counter()
    for answer in admin.create_topics(wanted, request_timeout=REQUEST_SECONDS).values():
        answer.result()

    def all_led() -> bool:
        found = [leaders(one, prefix) for one in cluster.brokers.values()]
        return all(len(one) == len(names) and min(one) > 0 for one in found)

    return wait_for(all_led, "every topic has a leader") - began


def delete_many(cluster: Cluster, names: list[str], prefix: str) -> float:
    """Seconds until the topics are neither in ZooKeeper nor on any disk, renamed folders aside."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **PATIENT})

    def is_over() -> bool:
        left = [*keeper.get_children(znodes.TOPICS_PATH), *keeper.get_children(requests)]
        folders = [
            one.name
            for broker in cluster.brokers.values()
            for one in broker.log_dir.iterdir()
            if not one.name.endswith("-delete")
        ]
        return not any(one.startswith(prefix) for one in [*left, *folders])

    requests = znodes.DELETE_TOPICS_PATH
    with cluster.zookeeper.client() as keeper:
        began = time.perf_counter()
        for answer in admin.delete_topics(names, request_timeout=REQUEST_SECONDS).values():
            answer.result()
        return wait_for(is_over, "every topic is gone") - began


def failover(cluster: Cluster, prefix: str) -> tuple[float, float]:
    """Seconds from the SIGKILL, and from the session's end, until every partition is led again."""
    dead = controller_of(cluster)
    left = [one for one in cluster.brokers.values() if one is not dead]
    with cluster.zookeeper.client() as keeper:
        death = Death(keeper, dead)
        # Nothing can happen before: nobody is asked, and so nobody is held up.
        wait_for(lambda: death.session_ended > 0, "the session ends")
        led = wait_for(
            lambda: all({-1, dead.broker_id}.isdisjoint(leaders(one, prefix)) for one in left),
            "every partition has a leader",
        )
    restart(cluster, dead)
    return led - death.killed, led - death.session_ended


def main(rounds: int) -> None:
    """Print each round's figures, and the medians' ratios."""
    figures = Figures()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        clusters = side_by_side.both(Path(folder), stack)
        for number in range(rounds):
            prefix = f"bulk-{number}-"
            names = [f"{prefix}{each}" for each in range(TOPICS)]
            for name, cluster in clusters.items():
                seconds = create_many(cluster, names, prefix)
                figures.note(name, f"{TOPICS} topics are created", seconds, "s")
                seconds = delete_many(cluster, names, prefix)
                figures.note(name, f"{TOPICS} topics are deleted", seconds, "s")
        for before, size in zip((0, *SIZES), SIZES, strict=False):
            for cluster in clusters.values():
                create_topic(cluster.bootstrap, f"wide-{size}", size - before, side_by_side.BROKERS)
            for _ in range(rounds):
                for name, cluster in clusters.items():
                    since_kill, since_end = failover(cluster, "wide-")
                    what = f"controller killed, {size} partitions led"
                    figures.note(name, what, since_kill * 1000, "ms")
                    figures.note(name, f"of that after its session, {size}", since_end * 1000, "ms")
    figures.print_ratios()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
