"""The topics of the cluster, and their records as they are, by librdkafka: without Spark."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
)
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from odradek_spark.broker_access import BrokerAccess
from odradek_spark.client_errors import Refusals, starting_threads
from odradek_spark.sql.errors import SqlError

_TIMEOUT_S = 10.0
_POLL_S = 0.2
_REFRESH_INTERVAL_S = 5.0
# Ctrl-C waits for it.
_REFRESH_TIMEOUT_S = 1.0
_INTERNAL = ("__consumer_offsets", "__transaction_state")
_GONE = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
)


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """A topic as SHOW TOPICS lists it."""

    name: str
    partitions: int
    replicas: int

    @property
    def is_internal(self) -> bool:
        """Whether it is one of Kafka's own."""
        return self.name in _INTERNAL


class Topics:
    """The cluster that `access` reaches. Calls raise SqlError if no broker answers."""

    def __init__(self, access: BrokerAccess) -> None:
        self._access = access
        self._refusals = Refusals()
        self._admin: AdminClient | None = None

    def summaries(self) -> dict[str, TopicSummary]:
        """Return all topics by name.

        It asks for all of them: to ask for a missing one by its name may create it.
        """
        try:
            if self._admin is None:
                with starting_threads():
                    self._admin = AdminClient(
                        {
                            **self._access.client_settings(),
                            "log_level": 0,
                            "error_cb": self._refusals,  # type: ignore[dict-item]  # a callable
                            "client.id": "odradek-sql",
                        }
                    )
            found = self._admin.list_topics(timeout=_TIMEOUT_S).topics
        except KafkaException as error:
            if self._admin is not None:
                self._admin.poll(0)
            where, why = self._access.bootstrap, self._refusals.text()
            raise SqlError(f"no broker answers at {where}: {_text(error)}{why}") from error
        return {
            name: TopicSummary(
                name,
                len(topic.partitions),
                max((len(one.replicas) for one in topic.partitions.values()), default=0),
            )
            for name, topic in sorted(found.items())
            if topic.error is None
        }

    def require(self, topic: str) -> TopicSummary:
        """Return the topic. Raises SqlError if it does not exist."""
        found = self.summaries().get(topic)
        if found is None:
            raise SqlError(f"topic {topic} does not exist; SHOW TOPICS lists those that do")
        return found

    def records(
        self,
        topic: str,
        from_beginning: bool,
        ready: Callable[[], None] = lambda: None,
        idle: Callable[[], None] = lambda: None,
    ) -> Iterator[Message]:
        """Yield the records of a topic without end. Raises SqlError if it does not exist, or goes.

        `ready` is called as soon as all records that follow will be read, and `idle` now and then
        while there are none. Partitions that are added meanwhile are read from their beginning.
        """
        partitions = self.require(topic).partitions
        with starting_threads():
            consumer = Consumer(
                {
                    **self._access.client_settings(),
                    "group.id": "odradek-sql",  # required by the library; nothing is committed
                    "client.id": "odradek-sql",
                    "enable.auto.commit": False,
                    # What is skipped is told, and not passed over.
                    "auto.offset.reset": "error",
                    "allow.auto.create.topics": False,
                    "log_level": 0,
                }
            )
        try:
            start = OFFSET_BEGINNING if from_beginning else OFFSET_END
            places = [ClientPartition(topic, number, start) for number in range(partitions)]
            if not from_beginning:
                places = [self._end(consumer, place) for place in places]
            consumer.assign(places)
            ready()
            yield from _poll(consumer, topic, partitions, idle)
        except KafkaException as error:
            raise SqlError(f"failed to read {topic}: {_text(error)}") from error
        finally:
            consumer.close()

    def _end(self, consumer: Consumer, place: ClientPartition) -> ClientPartition:
        """Return the end of a partition as a number: OFFSET_END is looked up some time later."""
        _, end = consumer.get_watermark_offsets(place, timeout=_TIMEOUT_S)
        return ClientPartition(place.topic, place.partition, end)


def _poll(
    consumer: Consumer, topic: str, partitions: int, idle: Callable[[], None]
) -> Iterator[Message]:
    refresh_at = time.monotonic() + _REFRESH_INTERVAL_S
    while True:
        if time.monotonic() >= refresh_at:
            partitions = _with_added(consumer, topic, partitions)
            refresh_at = time.monotonic() + _REFRESH_INTERVAL_S
        message = consumer.poll(_POLL_S)
        if message is None:
            idle()
            continue
        error = message.error()
        if error is None:
            yield message
        elif error.code() in _GONE:
            raise SqlError(f"topic {topic} was deleted")
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise SqlError(
                f"partition {message.partition()} of topic {topic} does not have the next offset "
                "any more: its records were deleted, or the topic was made anew"
            )
        elif error.fatal() or error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise KafkaException(error)


def _with_added(consumer: Consumer, topic: str, partitions: int) -> int:
    """Begin to read partitions that were added; return how many are read now.

    One whose leader does not tell its offsets yet is left for the next time, with those behind it:
    who knows nothing of its new role answers as if there were no such partition.
    """
    added: list[ClientPartition] = []
    with suppress(KafkaException):  # no broker answers now
        # Its name creates no topic: the consumer is not allowed to.
        found = consumer.list_topics(topic, timeout=_REFRESH_TIMEOUT_S).topics[topic]
        for number in range(partitions, len(found.partitions)):
            place = ClientPartition(topic, number, OFFSET_BEGINNING)
            consumer.get_watermark_offsets(place, timeout=_REFRESH_TIMEOUT_S)
            added.append(place)
    if added:
        consumer.incremental_assign(added)
    return partitions + len(added)


def describe(message: Message) -> str:
    """Return a record as one line of text, in the way of KSQL's PRINT."""
    kind, stamp = message.timestamp()
    known = kind != TIMESTAMP_NOT_AVAILABLE and stamp >= 0
    seconds, millis = divmod(stamp, 1000)
    moment = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(seconds))}.{millis:03}"
    key, value = _decoded(message.key()), _decoded(message.value())
    rowtime = moment if known else "unknown"
    return f"rowtime: {rowtime}, key: {key}, value: {value}, partition: {message.partition()}"


def _decoded(data: str | bytes | None) -> str:
    if data is None:
        return "<null>"
    return data if isinstance(data, str) else data.decode(errors="replace")


def _text(error: KafkaException) -> str:
    reason = error.args[0]
    return str(reason.str() if isinstance(reason, KafkaError) else reason)
