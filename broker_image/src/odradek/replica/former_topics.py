"""What this broker still knows of the producers of topics that were deleted.

A producer does not notice that its topic was deleted and made anew, and goes on with its sequence
numbers. The leader of the new topic refuses a batch that overtook another, as in any topic: it
knows what the last one in the former topic was. In memory only: a broker that had no replica of it,
or restarted since, knows nothing, and lets its producers begin anywhere. That there was a former
topic, the folder of the log says after a restart (`topic_identity.FORMER_MARK`).
"""

from __future__ import annotations

from collections import OrderedDict

from odradek.log.partition.producers import FormerProducers
from odradek.values import TopicPartition

MOST_FORMER_PRODUCERS = 100_000
"""How many producers are remembered, and partitions without any: some 40 MiB at most."""


class FormerTopics:
    """The producers of deleted partitions. Of too many, those deleted longest ago are forgotten."""

    def __init__(self, most: int = MOST_FORMER_PRODUCERS) -> None:
        self._most = most
        # In a plain dictionary, the first of very many takes long to find.
        self._producers: OrderedDict[TopicPartition, FormerProducers] = OrderedDict()
        self._size = 0

    def __contains__(self, key: TopicPartition) -> bool:
        return key in self._producers

    def remember(self, key: TopicPartition, producers: FormerProducers) -> None:
        """Note the producers of a partition whose topic is deleted."""
        self.take(key)
        self._producers[key] = producers
        self._size += _size(producers)
        while self._size > self._most:
            _, longest_ago = self._producers.popitem(last=False)
            self._size -= _size(longest_ago)

    def take(self, key: TopicPartition) -> FormerProducers | None:
        """Return the producers of a former partition once, None if nothing is known of it."""
        producers = self._producers.pop(key, None)
        if producers is not None:
            self._size -= _size(producers)
        return producers


def _size(producers: FormerProducers) -> int:
    return 1 + len(producers.last)
