"""What coordinators need of the replicas on this broker: to lead partitions, and append to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from odradek.log.records.batch import Origin
from odradek.values import TopicPartition

if TYPE_CHECKING:
    from odradek.replica.appends import AppendOutcome
    from odradek.replica.partition import Partition


class Replicas(Protocol):
    """What a coordinator needs of the `ReplicaManager`."""

    @property
    def partitions(self) -> Mapping[TopicPartition, Partition]:
        """Return the replicas on this broker."""

    async def append(
        self,
        entries: Sequence[tuple[TopicPartition, bytes]],
        acks: int,
        timeout_ms: int,
        origin: Origin,
    ) -> list[AppendOutcome]:
        """Return one outcome per entry, once acknowledged as `acks` requires."""
