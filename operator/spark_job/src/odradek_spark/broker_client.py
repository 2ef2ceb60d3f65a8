"""What the driver asks the brokers beside Spark: partitions, ends of logs, time stamps.

Spark's own connections live in the JVM and tell nothing while no batch runs, so the lag of an idle
or stuck query is measured from here. librdkafka reconnects by itself; a call that fails while a
broker restarts raises `confluent_kafka.KafkaException`, and the caller keeps what it knew.
"""

import re
import time
from collections.abc import Iterable, Mapping

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from odradek.values import TopicPartition
from odradek.zk import consumers

_REQUEST_TIMEOUT_S = 10.0
_STAMPS_TIMEOUT_S = 3.0
_CONSUME_AT_ONCE = 100


class DriverClient:
    """Two clients of the cluster at `bootstrap`. Not for use by several threads at once."""

    def __init__(self, bootstrap: str, client_id: str) -> None:
        common: dict[str, str | int | float | bool] = {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "reconnect.backoff.max.ms": 2000,
            "log_level": 3,
        }
        self._admin = AdminClient(common)
        self._consumer = Consumer(
            common
            | {
                "group.id": client_id,  # demanded by the library; nothing is ever committed with it
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "allow.auto.create.topics": False,
                # One record a partition is wanted; a broker sends the first batch whole anyway.
                "max.partition.fetch.bytes": 1024,
                "queued.min.messages": 1,
                "queued.max.messages.kbytes": 1024,
            }
        )
        self._stamps: dict[TopicPartition, tuple[int, int | None]] = {}

    def partitions(self, topics: tuple[str, ...], pattern: str | None) -> list[TopicPartition]:
        """Return the partitions of those topics that exist, sorted. Raises KafkaException.

        All topics are asked for, because asking for one that is missing may create it.
        """
        found = self._admin.list_topics(timeout=_REQUEST_TIMEOUT_S).topics
        if pattern is not None:
            topics = tuple(consumers.topics_matched(re.compile(pattern), found))
        return sorted(
            TopicPartition(name, number)
            for name, topic in found.items()
            if topic.error is None and name in topics
            for number in topic.partitions
        )

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Return the end of each partition's log; None where no leader tells it."""
        return self._offsets(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Return the first offset of each partition's log; None where no leader tells it."""
        return self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def begins(
        self, partitions: Iterable[TopicPartition], start: str | int
    ) -> dict[TopicPartition, int | None]:
        """Return where a group without offsets begins: earliest, latest, or a time stamp in ms.

        A partition without a record that late begins at its end. None where no leader tells.
        """
        if start == "latest":
            return self.ends(partitions)
        if isinstance(start, str):
            return self.starts(partitions)
        after = self._offsets(partitions, OffsetSpec.for_timestamp(start))
        none_so_late = [partition for partition, offset in after.items() if offset == -1]
        return {**after, **self.ends(none_so_late)}

    def _offsets(
        self, partitions: Iterable[TopicPartition], place: OffsetSpec
    ) -> dict[TopicPartition, int | None]:
        asked = {ClientPartition(p.topic, p.partition): place for p in partitions}
        if not asked:
            return {}  # the library refuses an empty question
        found: dict[TopicPartition, int | None] = {}
        futures = self._admin.list_offsets(asked, request_timeout=_REQUEST_TIMEOUT_S)
        for partition, future in futures.items():
            try:
                offset = future.result().offset
            except KafkaException:
                offset = None
            found[TopicPartition(partition.topic, partition.partition)] = offset
        return found

    def timestamps(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the time stamp (ms) of the first record at or after each position.

        Answers are kept until a position changes. A record that cannot be read within the bounded
        wait is left out, and one without a time stamp (of a format before 0.10, or -1).
        """
        self._stamps = {p: s for p, s in self._stamps.items() if positions.get(p) == s[0]}
        missing = {p: o for p, o in positions.items() if p not in self._stamps}
        if missing:
            self._read_stamps(missing)
        return {part: stamp for part, (_, stamp) in self._stamps.items() if stamp is not None}

    def _read_stamps(self, positions: Mapping[TopicPartition, int]) -> None:
        waiting = dict(positions)
        self._consumer.assign(
            [ClientPartition(p.topic, p.partition, offset) for p, offset in waiting.items()]
        )
        deadline = time.monotonic() + _STAMPS_TIMEOUT_S
        while waiting and time.monotonic() < deadline:
            for message in self._consumer.consume(_CONSUME_AT_ONCE, timeout=0.2):
                if message.error() is not None:
                    continue
                key = TopicPartition(str(message.topic()), int(message.partition() or 0))
                position = waiting.pop(key, None)
                if position is not None:
                    kind, stamp = message.timestamp()
                    is_known = kind != TIMESTAMP_NOT_AVAILABLE and stamp >= 0
                    self._stamps[key] = (position, stamp if is_known else None)
                    self._consumer.incremental_unassign([ClientPartition(key.topic, key.partition)])
        self._consumer.unassign()

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()
