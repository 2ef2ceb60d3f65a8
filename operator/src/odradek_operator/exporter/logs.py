"""Topics and their logs: which partitions exist, and where each log starts and ends.

Topics are read from ZooKeeper, for the transaction that created a topic tells its lives apart.
Leaders are remembered until one does not answer for a partition: then they are read again, and a
new leader is asked in the same round.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from odradek.values import TopicPartition
from odradek.zk import znodes
from odradek.zk.payload import ZnodeError
from odradek_operator.exporter.brokers import RoundBrokers
from odradek_operator.group import coordinator, reset
from odradek_operator.shared.zookeeper import ZooKeeper

# Partitions per ListOffsets.
_BATCH: Final = 5000


@dataclass(frozen=True, slots=True)
class Topic:
    """The partitions of a topic, and its incarnation: the transaction that created it."""

    incarnation: int
    partitions: Collection[int]


@dataclass(frozen=True, slots=True)
class LogBounds:
    """The offset of the first record of a log, and the one after its last."""

    start: int
    end: int


def topics(zookeeper: ZooKeeper, names: Iterable[str]) -> tuple[dict[str, Topic], dict[str, str]]:
    """Return those of the topics that exist, and why others are unreadable.

    A topic whose deletion is requested does not exist any more.
    """
    listed = zookeeper.children([znodes.TOPICS_PATH, znodes.DELETE_TOPICS_PATH])
    deleting = set(listed[znodes.DELETE_TOPICS_PATH] or ())
    existing = set(listed[znodes.TOPICS_PATH] or ()) - deleting
    paths = {znodes.topic_path(name): name for name in names if name in existing}
    found: dict[str, Topic] = {}
    unreadable: dict[str, str] = {}
    for path, znode in zookeeper.cached.read(paths).items():
        if znode is None:
            continue
        try:
            assigned = znodes.decode_topic(path, znode.data).partitions
        except ZnodeError as error:
            unreadable[paths[path]] = str(error)
            continue
        found[paths[path]] = Topic(znode.created, assigned.keys())
    return found, unreadable


class Logs:
    """Asks leaders where logs start and end."""

    def __init__(self) -> None:
        self._leaders: dict[TopicPartition, int] = {}

    def read(
        self, zookeeper: ZooKeeper, brokers: RoundBrokers, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, LogBounds]:
        """Return the bounds of these partitions, without those whose leader does not answer."""
        known = {one: self._leaders[one] for one in partitions if one in self._leaders}
        unknown = [one for one in partitions if one not in known]
        self._leaders = known | _leaders(zookeeper, unknown)
        found = _bounds(brokers, self._leaders)
        moved = {
            one: leader
            for one, leader in _leaders(zookeeper, known.keys() - found.keys()).items()
            if leader != self._leaders[one]
        }
        self._leaders |= moved
        return found | _bounds(brokers, moved)


def _leaders(
    zookeeper: ZooKeeper, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    paths = {znodes.state_path(*one): one for one in partitions}
    found: dict[TopicPartition, int] = {}
    for path, znode in zookeeper.read(paths).items():
        if znode is None:
            continue
        try:
            found[paths[path]] = znodes.decode_state(path, znode.data).leader
        except ZnodeError:
            continue
    return found


def _bounds(
    brokers: RoundBrokers, leaders: Mapping[TopicPartition, int]
) -> dict[TopicPartition, LogBounds]:
    by_leader: dict[int, list[TopicPartition]] = {}
    for partition, leader in leaders.items():
        by_leader.setdefault(leader, []).append(partition)
    found: dict[TopicPartition, LogBounds] = {}
    for part in brokers.each(
        by_leader, lambda broker_id, partitions: _bounds_of(brokers, broker_id, partitions)
    ).values():
        found |= part
    return found


def _bounds_of(
    brokers: RoundBrokers, broker_id: int, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, LogBounds]:
    """Ask one leader. Raises BrokerError."""
    found: dict[TopicPartition, LogBounds] = {}
    for begin in range(0, len(partitions), _BATCH):
        batch = partitions[begin : begin + _BATCH]
        # One after the other: a broker may read no more before a large answer is taken.
        starts, ends = (
            coordinator.offsets_answered(
                brokers.client.call(broker_id, coordinator.offsets_request(batch, at), 2)
            )
            for at in (reset.EARLIEST, reset.LATEST)
        )
        for partition in starts.keys() & ends.keys():
            found[partition] = LogBounds(starts[partition], ends[partition])
    return found
