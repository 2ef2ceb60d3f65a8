"""A group as its znodes hold it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from odradek import lag as rule
from odradek.values import TopicPartition
from odradek.zk import consumers
from odradek.zk.payload import ZnodeError
from odradek_operator.shared.zookeeper import ZnodeReader


@dataclass(frozen=True, slots=True)
class ObservedGroup:
    """A group as its offset stores hold it; `exists` if any of them knows it.

    `written` has the ZooKeeper transaction of each commit that is a znode, `coordinated` the
    commits of the coordinator. In a `simple` group those who commit are no members.
    """

    exists: bool
    members: int
    committed: Mapping[TopicPartition, int]
    written: Mapping[TopicPartition, int] = field(default_factory=dict)
    coordinated: Mapping[TopicPartition, int] = field(default_factory=dict)
    simple: bool = False

    def of_topics(self, present: Mapping[str, int]) -> ObservedGroup:
        """Return the group without the znodes that are older than the topics that are there, where
        the coordinator has a commit: it deletes those of a former topic. `present` are the
        transactions that created the topics.
        """
        replaced = {
            one: self.coordinated[one]
            for one, zxid in self.written.items()
            if one in self.coordinated
            and rule.is_of_former_topic(zxid, present.get(one.topic, zxid))
        }
        return replace(
            self,
            committed={**self.committed, **replaced},
            written={one: zxid for one, zxid in self.written.items() if one not in replaced},
        )


@dataclass(frozen=True, slots=True)
class ZnodeOffset:
    """A committed offset, and the ZooKeeper transaction that wrote it."""

    offset: int
    written: int


@dataclass(frozen=True, slots=True)
class ZnodeGroup:
    """A group as its znodes hold it."""

    exists: bool
    members: int
    committed: Mapping[TopicPartition, ZnodeOffset]


def read_group(zookeeper: ZnodeReader, name: str) -> ObservedGroup:
    """Return a group as its znodes hold it."""
    found = read_groups(zookeeper, [name])[name]
    committed = {partition: one.offset for partition, one in found.committed.items()}
    written = {partition: one.written for partition, one in found.committed.items()}
    return ObservedGroup(found.exists, found.members, committed, written)


def read_groups(zookeeper: ZnodeReader, names: Collection[str]) -> dict[str, ZnodeGroup]:
    """Return groups as their znodes hold them, in a few round trips for all."""
    listed = zookeeper.children(path for name in names for path in _parents(name))
    topics = [(name, topic) for name in names for topic in listed[_parents(name)[2]] or ()]
    numbers = zookeeper.children(consumers.offsets_path(*one) for one in topics)
    places = {
        consumers.offset_path(name, topic, partition): (name, TopicPartition(topic, partition))
        for name, topic in topics
        for number in numbers[consumers.offsets_path(name, topic)] or ()
        if (partition := consumers.partition_of(number)) is not None
    }
    committed: dict[str, dict[TopicPartition, ZnodeOffset]] = {name: {} for name in names}
    for path, one in zookeeper.read(places).items():
        if one is None:
            continue
        name, key = places[path]
        try:
            offset = consumers.decode_commit(path, one.data)
        except ZnodeError:
            continue
        committed[name][key] = ZnodeOffset(offset, one.written)
    return {
        name: ZnodeGroup(listed[root] is not None, len(listed[ids] or ()), committed[name])
        for name in names
        for root, ids, _ in (_parents(name),)
    }


def _parents(name: str) -> tuple[str, str, str]:
    """Return /consumers/G, and those of its members and of its offsets."""
    root = consumers.group_path(name)
    return root, consumers.consumer_ids_path(name), f"{root}/offsets"
