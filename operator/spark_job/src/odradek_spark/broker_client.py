"""The driver's own Kafka client, beside Spark's: partitions, offsets and record timestamps.

Spark's consumers live in the JVM and report nothing while no micro-batch runs. This client measures
the lag of an idle or stuck query too. librdkafka reconnects by itself; a call that fails while a
broker restarts raises `confluent_kafka.KafkaException`.
"""

import re
import time
from collections.abc import Iterable, Mapping

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from odradek.values import TopicPartition
from odradek.zk import consumers
from odradek_spark.broker_access import BrokerAccess

_REQUEST_TIMEOUT_S = 10.0
_TIMESTAMPS_TIMEOUT_S = 3.0
_MESSAGES_PER_CALL = 100


class DriverClient:
    """An admin client and a consumer of one cluster. Not thread-safe.

    With ACLs it needs Describe on `group`.
    """

    def __init__(self, access: BrokerAccess, client_id: str, group: str = "") -> None:
        common: dict[str, str | int | float | bool] = {
            **access.client_settings(),
            "client.id": client_id,
            "reconnect.backoff.max.ms": 2000,
            "log_level": 3,
        }
        self._admin = AdminClient(common)
        self._consumer = Consumer(
            common
            | {
                # The library requires one and looks for its coordinator; this client never commits.
                "group.id": group or client_id,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "allow.auto.create.topics": False,
                # One record per partition is enough; a broker sends the first batch whole anyway.
                "max.partition.fetch.bytes": 1024,
                "queued.min.messages": 1,
                "queued.max.messages.kbytes": 1024,
            }
        )
        # Offset -> timestamp of the record there, per partition.
        self._timestamps: dict[TopicPartition, tuple[int, int | None]] = {}

    def partitions(self, topics: tuple[str, ...], pattern: str | None) -> list[TopicPartition]:
        """Return the sorted partitions of the existing topics. Raises KafkaException.

        Requests the metadata of all topics: requesting a missing one by name may create it.
        """
        found = self._admin.list_topics(timeout=_REQUEST_TIMEOUT_S).topics
        if pattern is not None:
            topics = tuple(consumers.topics_matched(re.compile(pattern), found))
        return sorted(
            TopicPartition(name, number)
            for name in found.keys() & topics
            if found[name].error is None
            for number in found[name].partitions
        )

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Return the end offset per partition; None if no leader answers."""
        return self._offsets(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def start_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int | None]:
        """Return the log start offset per partition; None if no leader answers."""
        return self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def initial_offsets(
        self, partitions: Iterable[TopicPartition], start: str | int
    ) -> dict[TopicPartition, int | None]:
        """Return where a group without offsets begins: earliest, latest, or a timestamp in ms.

        A partition without a record at or after the timestamp begins at its end offset. None if no
        leader answers.
        """
        if start == "latest":
            return self.end_offsets(partitions)
        if isinstance(start, str):
            return self.start_offsets(partitions)
        after = self._offsets(partitions, OffsetSpec.for_timestamp(start))
        without_record = [partition for partition, offset in after.items() if offset == -1]
        return {**after, **self.end_offsets(without_record)}

    def _offsets(
        self, partitions: Iterable[TopicPartition], spec: OffsetSpec
    ) -> dict[TopicPartition, int | None]:
        asked = {ClientPartition(p.topic, p.partition): spec for p in partitions}
        if not asked:
            return {}  # the library rejects an empty request
        found = self._listed(asked)
        if fenced := [one for one, answer in found.items() if _is_fenced(answer)]:
            # The library names the leader epoch that it knows, and asks for no newer one by itself.
            self._admin.list_topics(timeout=_REQUEST_TIMEOUT_S)
            found |= self._listed({one: asked[one] for one in fenced})
        return {
            TopicPartition(one.topic, one.partition): None
            if isinstance(answer, KafkaError)
            else answer
            for one, answer in found.items()
        }

    def _listed(
        self, asked: Mapping[ClientPartition, OffsetSpec]
    ) -> dict[ClientPartition, int | KafkaError]:
        """Return an offset per partition, or why there is none."""
        found: dict[ClientPartition, int | KafkaError] = {}
        futures = self._admin.list_offsets(dict(asked), request_timeout=_REQUEST_TIMEOUT_S)
        for partition, future in futures.items():
            try:
                found[partition] = future.result().offset
            except KafkaException as failure:
                found[partition] = failure.args[0]
        return found

    def timestamps(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the timestamp (ms) of the first record at or after each position.

        Caches each answer until its position changes. Leaves out records that cannot be read in
        time, and records without a timestamp (of a format before 0.10, or -1).
        """
        self._timestamps = {
            partition: (position, timestamp)
            for partition, (position, timestamp) in self._timestamps.items()
            if positions.get(partition) == position
        }
        missing = {p: o for p, o in positions.items() if p not in self._timestamps}
        if missing:
            self._read_timestamps(missing)
        return {
            partition: timestamp
            for partition, (_, timestamp) in self._timestamps.items()
            if timestamp is not None
        }

    def _read_timestamps(self, positions: Mapping[TopicPartition, int]) -> None:
        waiting = dict(positions)
        self._consumer.assign(
            [ClientPartition(p.topic, p.partition, offset) for p, offset in waiting.items()]
        )
        deadline = time.monotonic() + _TIMESTAMPS_TIMEOUT_S
        while waiting and time.monotonic() < deadline:
            for message in self._consumer.consume(_MESSAGES_PER_CALL, timeout=0.2):
                if message.error() is not None:
                    continue
                key = TopicPartition(str(message.topic()), int(message.partition() or 0))
                position = waiting.pop(key, None)
                if position is not None:
                    kind, timestamp = message.timestamp()
                    is_known = kind != TIMESTAMP_NOT_AVAILABLE and timestamp >= 0
                    self._timestamps[key] = (position, timestamp if is_known else None)
                    self._consumer.incremental_unassign([ClientPartition(key.topic, key.partition)])
        self._consumer.unassign()

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()


def _is_fenced(answer: int | KafkaError) -> bool:
    return isinstance(answer, KafkaError) and answer.code() == KafkaError.FENCED_LEADER_EPOCH
