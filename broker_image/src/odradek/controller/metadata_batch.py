"""The UpdateMetadata messages of one step of the core.

Brokers that are told the same share one message. So a step holds each description once, not once
per broker: a cluster of 1000 brokers with 200 000 partitions would need 200 000 000 of them.
"""

from collections.abc import Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet

from odradek.controller.events import LiveBroker, PartitionMetadata, UpdateMetadata
from odradek.values import BrokerId, TopicPartition

Described = dict[TopicPartition, PartitionMetadata]


class MetadataBatch:
    """Collects what brokers are to be told; of a partition, each is told what was added last."""

    def __init__(self) -> None:
        self._parts: list[Described] = []
        # Of each broker the numbers of its parts, in the order in which they were added.
        self._parts_of: dict[BrokerId, list[int]] = {}
        self._last: frozenset[BrokerId] = frozenset()

    def add(self, to: Collection[BrokerId], described: Described) -> None:
        """Tell brokers who is alive, and these partitions."""
        group = frozenset(to)
        if not group:
            return
        if group == self._last:
            self._parts[-1].update(described)
            return
        self._last = group
        for broker_id in group:
            self._parts_of.setdefault(broker_id, []).append(len(self._parts))
        self._parts.append(dict(described))

    def messages(
        self, to_whom: AbstractSet[BrokerId], brokers: Mapping[BrokerId, LiveBroker]
    ) -> Iterator[UpdateMetadata]:
        """Yield one message per group of these brokers that are told the same."""
        same_parts: dict[tuple[int, ...], list[BrokerId]] = {}
        for broker_id in sorted(self._parts_of.keys() & to_whom):
            # A part without partitions says only who is alive, as every message does.
            parts = tuple(one for one in self._parts_of[broker_id] if self._parts[one])
            same_parts.setdefault(parts, []).append(broker_id)
        alike: list[tuple[list[BrokerId], Described]] = []
        for parts, group in same_parts.items():
            described = self._joined(parts)
            to = next((others for others, theirs in alike if theirs == described), None)
            if to is None:
                alike.append((group, described))
            else:
                to += group
        live = tuple(brokers[broker_id] for broker_id in sorted(brokers))
        for to, described in alike:
            yield UpdateMetadata(tuple(sorted(to)), live, tuple(described.values()))

    def _joined(self, parts: tuple[int, ...]) -> Described:
        if len(parts) == 1:
            return self._parts[parts[0]]
        joined: Described = {}
        for part in parts:
            joined |= self._parts[part]
        return joined
