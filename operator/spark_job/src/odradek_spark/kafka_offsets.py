"""Commits and fetches a group's offsets at its coordinator, for members that are in ZooKeeper.

Old consumers call this offsets.storage=kafka: the coordinator sees commits of a group without
members. It cannot check who commits; the member checks that in ZooKeeper first.
"""

from collections.abc import Iterable, Mapping

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from odradek.values import TopicPartition
from odradek_spark.broker_access import BrokerAccess

_TIMEOUT_S = 10.0


class KafkaOffsets:
    """Offsets of `group` in `__consumer_offsets`. Methods raise KafkaException, from any thread."""

    def __init__(self, access: BrokerAccess, group: str) -> None:
        self._consumer = Consumer(
            {
                **access.client_settings(),
                "client.id": f"odradek-offsets-{group}",
                "group.id": group,
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 2000,
                "log_level": 2,  # the member logs each failed try
            }
        )

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return committed offsets; partitions without one are left out."""
        asked = [ClientPartition(part.topic, part.partition) for part in partitions]
        found = self._consumer.committed(asked, _TIMEOUT_S) if asked else []
        return {
            TopicPartition(part.topic, part.partition): part.offset
            for part in found
            if part.offset >= 0
        }

    def commit(self, ends: Mapping[TopicPartition, int]) -> None:
        """Commit offsets and wait until all of them are acknowledged."""
        offsets = [ClientPartition(p.topic, p.partition, offset) for p, offset in ends.items()]
        if not offsets:
            return
        for part in self._consumer.commit(offsets=offsets, asynchronous=False) or []:
            if part.error is not None:
                raise KafkaException(part.error)

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()
