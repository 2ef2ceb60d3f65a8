"""What brokers are told in one step of the controller, in how many messages."""

from __future__ import annotations

from odradek.controller.events import Leadership, PartitionMetadata, UpdateMetadata
from odradek.controller.metadata_batch import Described, MetadataBatch
from odradek.values import TopicPartition
from tests.controller.transcript import brokers
from tests.controller.values import broker_ids, partition_state

ONE, TWO = broker_ids(1, 2)
ALL = broker_ids(1, 2, 3)
LIVE = brokers(["1", "2", "3"])


def described(**epochs: int) -> Described:
    """Return descriptions of partitions 0 of topics, by their leader epochs."""
    found = {}
    for topic, epoch in epochs.items():
        partition = TopicPartition(topic, 0)
        leadership = Leadership(partition_state(1, epoch, (1, 2), 1), 0)
        found[partition] = PartitionMetadata(partition, leadership, ALL, ())
    return found


def told(batch: MetadataBatch) -> list[tuple[tuple[int, ...], dict[str, int]]]:
    """Return to whom each message goes, and the leader epochs in it."""
    return [(one.to, epochs(one)) for one in batch.messages(LIVE.keys(), LIVE)]


def epochs(message: UpdateMetadata) -> dict[str, int]:
    return {one.partition.topic: one.leadership.state.leader_epoch for one in message.partitions}


def test_each_broker_is_told_what_was_added_last() -> None:
    batch = MetadataBatch()
    batch.add(ALL, described(a=1, b=1))
    batch.add([ONE], described(a=2))
    batch.add(ALL, described(b=2))
    assert told(batch) == [((1,), {"a": 2, "b": 2}), ((2, 3), {"a": 1, "b": 2})]


def test_brokers_that_are_told_otherwise_of_the_same_partitions_get_their_own_message() -> None:
    batch = MetadataBatch()
    batch.add([ONE], described(a=1))
    batch.add([TWO], described(a=2))
    assert told(batch) == [((1,), {"a": 1}), ((2,), {"a": 2})]


def test_brokers_that_are_told_the_same_in_different_parts_share_a_message() -> None:
    batch = MetadataBatch()
    batch.add([ONE], described(a=1))
    batch.add(ALL, {})
    batch.add([TWO], described(a=1))
    assert told(batch) == [((1, 2), {"a": 1}), ((3,), {})]
