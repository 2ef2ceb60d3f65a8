"""Requests to the controller and broker overrides, read from znodes."""

from __future__ import annotations

from collections.abc import Iterable

from odradek.values import TopicPartition
from odradek.zk import znodes
from odradek.zk.payload import ZnodeError
from odradek_operator.shared.zookeeper import ZooKeeper


def read_request(zookeeper: ZooKeeper, path: str) -> dict[TopicPartition, tuple[int, ...]] | None:
    """Return the pending request to the controller to move or to elect; None if there is none.

    Raises ZnodeError for a request to move that cannot be read.
    """
    found = zookeeper.read([path])[path]
    if found is None:
        return None
    if path == znodes.PREFERRED_ELECTION_PATH:
        try:
            return dict.fromkeys(znodes.decode_preferred_election(path, found.data), ())
        except ZnodeError:
            # As for controllers, Kafka's too: it names no partition, and they delete it.
            return {}
    return {
        one: tuple(replicas)
        for one, replicas in znodes.decode_reassignment(path, found.data).items()
    }


def broker_configs(
    zookeeper: ZooKeeper, ids: Iterable[int]
) -> dict[int, tuple[dict[str, str], int | None]]:
    """Return the overrides of brokers with the version of their znode, None without one."""
    paths = {znodes.broker_config_path(str(one)): one for one in sorted(ids)}
    return {
        paths[path]: (znodes.decode_config(path, one.data), one.version) if one else ({}, None)
        for path, one in zookeeper.read(paths).items()
    }
