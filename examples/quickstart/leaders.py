"""Prints the leaders, ISRs and replicas of a topic's partitions; runs in a broker pod.

usage: python3 - HOST:PORT[,...][/CHROOT] TOPIC < leaders.py

Prints one JSON array with an object per partition: partition, leader (-1: none), isr, replicas.
Partitions without a state in ZooKeeper are left out.
"""

# ruff: noqa: T201 - the script prints its result

import json
import sys
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from odradek.zk import znodes


def read(client: KazooClient, topic: str) -> list[dict[str, Any]]:
    """Return the partitions of a topic that have a state, sorted by number."""
    path = znodes.topic_path(topic)
    try:
        assignment = znodes.decode_topic(path, client.get(path)[0])
    except NoNodeError:
        return []
    found = []
    for partition, replicas in sorted(assignment.partitions.items()):
        path = znodes.state_path(topic, partition)
        try:
            state = znodes.decode_state(path, client.get(path)[0])
        except NoNodeError:
            continue
        found.append(
            {
                "partition": partition,
                "leader": state.leader,
                "isr": list(state.isr),
                "replicas": list(replicas),
            }
        )
    return found


if __name__ == "__main__":
    zookeeper = KazooClient(sys.argv[1], read_only=True)
    zookeeper.start(timeout=15)
    try:
        print(json.dumps(read(zookeeper, sys.argv[2])))
    finally:
        zookeeper.stop()
        zookeeper.close()
