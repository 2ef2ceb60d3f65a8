"""The leader epochs at a reader's positions: they tell a topic made anew from the one that it read.

The log of a topic made anew may reach beyond a reader's position by the time it is seen. Its leader
epochs are others then, as after an election, and the leader is asked where the last one that was
read ends in its log (KIP-320). Topic ids would tell, too, but brokers give none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from odradek.log.records import batch
from odradek.log.records.batch import NO_EPOCH, CorruptBatchError
from odradek.tools.client import ToolClient
from odradek.values import TopicPartition


def why_gone(partition: TopicPartition, position: int) -> str:
    """Return what to say where the log that was read has its next offset no more, or is gone."""
    return (
        f"{partition} has no offset {position} any more: its records were deleted, or the topic "
        "was made anew"
    )


class ReaderEpochs:
    """The leader epoch of what a reader has read of each partition, where it is known."""

    def __init__(self) -> None:
        self._known: dict[TopicPartition, int] = {}

    def note(self, partition: TopicPartition, epoch: int) -> None:
        """Keep the epoch of a reader's position; `NO_EPOCH` makes it unknown."""
        self._known[partition] = epoch

    async def other_logs(
        self,
        client: ToolClient,
        leader: int,
        fetched: Iterable[tuple[TopicPartition, bytes]],
        positions: Mapping[TopicPartition, int],
    ) -> set[TopicPartition]:
        """Return which partitions have another log than the one that was read to their positions,
        after the batches that were fetched there.

        The leader is asked only where their epoch is a new one. Raises ToolError if it fails.
        """
        others: set[TopicPartition] = set()
        later: dict[TopicPartition, int] = {}
        for partition, data in fetched:
            known, epoch = self._known.get(partition, NO_EPOCH), _first_epoch(data)
            if NO_EPOCH in (known, epoch):
                continue
            if epoch < known:
                # In one log they only rise.
                others.add(partition)
            elif epoch > known:
                later[partition] = known
        ends = await client.ends_of_epochs(leader, later) if later else {}
        return others | {one for one, end in ends.items() if 0 <= end < positions[one]}


def _first_epoch(data: bytes) -> int:
    try:
        for _, header in batch.scan(data):
            return header.leader_epoch
    except CorruptBatchError:
        pass  # who decodes it says so
    return NO_EPOCH
