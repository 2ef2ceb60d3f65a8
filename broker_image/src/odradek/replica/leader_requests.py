"""The requests of a follower to its leader.

Fetch v10, OffsetForLeaderEpoch v2 and ListOffsets v4, as between Kafka brokers with
inter.broker.protocol.version 2.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from odradek.protocol.messages.fetch import FetchRequest, FetchTopic, ForgottenTopic
from odradek.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from odradek.values import TopicPartition

if TYPE_CHECKING:
    from odradek.config import BrokerConfig
    from odradek.replica.leader_session import SessionRequest

FETCH_VERSION = 10
OFFSET_FOR_LEADER_EPOCH_VERSION = 2
LIST_OFFSETS_VERSION = 4
LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2


def end_offsets(
    broker_id: int, asked: Mapping[TopicPartition, tuple[int, int]]
) -> OffsetForLeaderEpochRequest:
    """Return a request for the ends of epochs; `asked` has (leader epoch, epoch) by partition."""
    topics: dict[str, OffsetForLeaderTopic] = {}
    for key, (leader_epoch, epoch) in asked.items():
        topic = topics.setdefault(key.topic, OffsetForLeaderTopic(topic=key.topic, partitions=[]))
        topic.partitions.append(
            OffsetForLeaderPartition(
                partition=key.partition, current_leader_epoch=leader_epoch, leader_epoch=epoch
            )
        )
    return OffsetForLeaderEpochRequest(replica_id=broker_id, topics=list(topics.values()))


def fetch(config: BrokerConfig, session: SessionRequest) -> FetchRequest:
    """Return a Fetch of a session; its partitions are in the order in which it names them."""
    topics: dict[str, FetchTopic] = {}
    for key, partition in session.named:
        topic = topics.get(key.topic)
        if topic is None:
            topic = topics[key.topic] = FetchTopic(topic=key.topic, partitions=[])
        topic.partitions.append(partition)
    forgotten: dict[str, ForgottenTopic] = {}
    for key in session.forgotten:
        left = forgotten.setdefault(key.topic, ForgottenTopic(topic=key.topic, partitions=[]))
        left.partitions.append(key.partition)
    return FetchRequest(
        replica_id=config.broker_id,
        max_wait_ms=config.replica_fetch_wait_max_ms,
        min_bytes=config.replica_fetch_min_bytes,
        max_bytes=config.replica_fetch_response_max_bytes,
        session_id=session.session_id,
        session_epoch=session.epoch,
        topics=list(topics.values()),
        forgotten_topics_data=list(forgotten.values()),
    )


def offset(
    broker_id: int, key: TopicPartition, leader_epoch: int, timestamp: int
) -> ListOffsetsRequest:
    """Return a request for the offset of one partition at a timestamp."""
    partition = ListOffsetsPartition(
        partition_index=key.partition, current_leader_epoch=leader_epoch, timestamp=timestamp
    )
    return ListOffsetsRequest(
        replica_id=broker_id, topics=[ListOffsetsTopic(name=key.topic, partitions=[partition])]
    )
