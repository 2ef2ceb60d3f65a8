"""A group as its znodes hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from odradek.values import TopicPartition
from odradek.zk import consumers
from odradek.zk.payload import ZnodeError
from odradek_operator.shared.zookeeper import ZooKeeper


@dataclass(frozen=True, slots=True)
class ObservedGroup:
    """A group as its offset stores hold it; `exists` if any of them knows it."""

    exists: bool
    members: int
    committed: Mapping[TopicPartition, int]


def read_group(zookeeper: ZooKeeper, name: str) -> ObservedGroup:
    """Return a group as its znodes hold it."""
    offsets = f"{consumers.group_path(name)}/offsets"
    root = consumers.group_path(name)
    found = zookeeper.children([root, consumers.consumer_ids_path(name), offsets])
    by_topic = zookeeper.children(
        consumers.offsets_path(name, topic) for topic in found[offsets] or ()
    )
    paths = {
        consumers.offset_path(name, topic, int(number)): TopicPartition(topic, int(number))
        for topic in found[offsets] or ()
        for number in by_topic[consumers.offsets_path(name, topic)] or ()
        if number.isdigit()
    }
    committed: dict[TopicPartition, int] = {}
    for path, one in zookeeper.read(paths).items():
        if one is None:
            continue
        try:
            committed[paths[path]] = consumers.decode_offset(path, one.data)
        except ZnodeError:
            continue
    return ObservedGroup(
        exists=found[root] is not None,
        members=len(found[consumers.consumer_ids_path(name)] or ()),
        committed=committed,
    )
