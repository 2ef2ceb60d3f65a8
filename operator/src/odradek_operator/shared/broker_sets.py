"""The StatefulSets of a cluster's brokers, and the ids of the brokers in each. Pure.

With spec.brokers.perNode N there are N sets, each with at most one broker per node. Ids in the
first begin at 0, in the second at 100, in the third at 200, and so on. So whatever becomes of
perNode and replicas, a broker keeps its id, its pod and its volume. A cluster with one set has any
number of brokers in it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

# The distance between the first ids of two sets: as many brokers fit into each.
SET_SIZE: Final = 100
_LETTERS: Final = "abcdefghij"


def set_name(cluster: str, number: int) -> str:
    """Name of a StatefulSet and its ConfigMap; the first one has no letter."""
    return f"{cluster}-broker" + (f"-{_LETTERS[number]}" if number else "")


def broker_id_of(cluster: str, pod: str) -> int | None:
    """Return the id of the broker in a pod of this name; None where it is no broker's."""
    found = re.fullmatch(rf"{re.escape(cluster)}-broker(-[b-j])?-([0-9]{{1,3}})", pod)
    return int(found[2]) if found else None


@dataclass(frozen=True, slots=True)
class BrokerSets(Collection[int]):
    """The brokers of a cluster, as how many there are in each set; a collection of their ids."""

    counts: tuple[int, ...]

    @classmethod
    def spread(cls, replicas: int, per_node: int) -> BrokerSets:
        """Return so many brokers in `per_node` sets, of which the first ones have more."""
        share, more = divmod(replicas, per_node)
        return cls(tuple(share + (number < more) for number in range(per_node)))

    def __iter__(self) -> Iterator[int]:
        for number, count in enumerate(self.counts):
            yield from range(number * SET_SIZE, number * SET_SIZE + count)

    def __contains__(self, broker_id: object) -> bool:
        if not isinstance(broker_id, int) or broker_id < 0:
            return False
        number = self.set_of(broker_id)
        return number < len(self.counts) and broker_id - number * SET_SIZE < self.counts[number]

    def __len__(self) -> int:
        return sum(self.counts)

    @property
    def share_nodes(self) -> bool:
        """Return whether a node may have several of them."""
        return len(self.counts) > 1

    def set_of(self, broker_id: int) -> int:
        """Return the number of the set that a broker with this id is in."""
        return broker_id // SET_SIZE if self.share_nodes else 0

    def replicas_with(self, per_node: int) -> int | None:
        """Return the fewest replicas that, spread over `per_node` sets, have all these brokers.

        None where no number does, and where there is one set, which has as many as there are.
        """
        if per_node == 1 or any(self.counts[per_node:]):
            return None
        last = [(count - 1, number) for number, count in enumerate(self.counts) if count]
        return max((rows * per_node + number + 1 for rows, number in last), default=0)

    def pod(self, cluster: str, broker_id: int) -> str:
        """Return the name of a broker's pod."""
        return f"{set_name(cluster, self.set_of(broker_id))}-{broker_id}"


NO_BROKERS: Final = BrokerSets((0,))
