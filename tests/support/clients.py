"""Common steps with real Kafka clients: create topics, produce, consume.

kafka-python is imported here without the warnings that its import raises under Python 3.11.
"""

import functools
import itertools
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import cast

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.support.broker import wait_until

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import kafka
    from kafka import admin as kafka_admin

__all__ = [
    "await_controller",
    "await_leaders",
    "committed",
    "consume_all",
    "create_topic",
    "kafka",
    "kafka_admin",
    "make_topic",
    "produce_all",
]

QUIET = {"log_level": 0}
# For clients that outlive their only broker. When that goes, librdkafka 2.16 begins anew with its
# bootstrap servers, and now and then waits for ever for the thread of the former connection.
OUTLIVES_BROKERS = {"metadata.recovery.strategy": "none"}
# What clients of a broker need, by its address.
_LOGINS: dict[str, Mapping[str, str]] = {}


def log_in(bootstrap: str, login: Mapping[str, str]) -> None:
    """Let all clients of these brokers have the settings, which are librdkafka's."""
    for address in bootstrap.split(","):
        _LOGINS[address] = login


def login(bootstrap: str) -> Mapping[str, str]:
    """Return the settings of `log_in`, {} for brokers in plain text."""
    return _LOGINS.get(bootstrap.split(",")[0], {})


def settings(bootstrap: str) -> dict[str, str | int | float | bool]:
    """Return the settings that every client of these brokers needs."""
    return {"bootstrap.servers": bootstrap, **QUIET, **login(bootstrap)}


def create_topic(
    bootstrap: str,
    topic: str,
    partitions: int = 1,
    replicas: int = 1,
    config: Mapping[str, str] | None = None,
) -> None:
    """Create a topic through the Admin API and wait until its leaders serve it."""
    client = AdminClient(settings(bootstrap))
    make_topic(client, NewTopic(topic, partitions, replicas, config=dict(config or {})))
    await_leaders(bootstrap, topic, partitions)


def make_topic(client: AdminClient, wanted: NewTopic) -> None:
    """Create a topic, and retry if the controller changes meanwhile.

    librdkafka reports NOT_CONTROLLER to the application; other clients retry by themselves.
    """
    until = time.monotonic() + 120
    while True:
        await_controller(client)
        made = client.create_topics([wanted], operation_timeout=60, request_timeout=90)
        try:
            made[wanted.topic].result(120)
        except KafkaException as refusal:
            if refusal.args[0].code() != KafkaError.NOT_CONTROLLER or time.monotonic() > until:
                raise
        else:
            return


def await_controller(client: AdminClient) -> None:
    """Wait until the client knows a controller.

    If a starting broker reports that there is none, librdkafka refreshes its metadata late.
    """
    wait_until(lambda: client.list_topics(timeout=30).controller_id >= 0, "there is a controller")


def await_leaders(bootstrap: str, topic: str, partitions: int = 1) -> None:
    """Wait until the leader of each partition serves it.

    After the creation of a topic, its leaders may not know their role yet and reject requests, as
    Kafka's do. That would disturb a client that tries once, produces with acks=0, or has several
    batches in flight.
    """
    asked = {
        confluent_kafka.TopicPartition(topic, number): OffsetSpec.latest()  # type: ignore[no-untyped-call]
        for number in range(partitions)
    }

    # librdkafka asks a leader that it learned first, though it died, until the request times out.
    patience = itertools.chain((1, 2, 5, 10, 20), itertools.repeat(60))

    def all_answer() -> bool:
        # librdkafka keeps the leader epochs that it learned first, and would be fenced for minutes.
        client = AdminClient(settings(bootstrap))
        answers = client.list_offsets(asked, request_timeout=next(patience))
        return all(one.result(120).offset >= 0 for one in answers.values())

    wait_until(all_answer, f"the leaders of {topic} serve it")


def committed(
    consumer: confluent_kafka.Consumer, places: Sequence[confluent_kafka.TopicPartition]
) -> list[confluent_kafka.TopicPartition]:
    """Return a group's committed offsets, and retry while the coordinator loads them.

    librdkafka does not retry for long.
    """
    found: list[confluent_kafka.TopicPartition] = []

    def told() -> bool:
        found[:] = consumer.committed([*places], 120)
        return all(one.error is None for one in found)

    wait_until(told, "the coordinator tells what is committed")
    return found


def produce_all(
    bootstrap: str, topic: str, values: Sequence[bytes], partitions: int = 1, **more: object
) -> list[int]:
    """Produce with acks=all, spread over the partitions; return the offsets of the values in order.

    The producer is idempotent, so a retry causes no duplicates.
    """
    offsets: dict[int, int] = {}
    failures: list[object] = []
    producer = confluent_kafka.Producer(
        {
            **settings(bootstrap),
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 2,
            **more,
        }
    )

    def delivered(number: int, error: object, message: confluent_kafka.Message) -> None:
        offset = message.offset()
        if error is None and offset is not None:
            offsets[number] = offset
        else:
            failures.append(error)

    for number, value in enumerate(values):
        producer.produce(
            topic,
            value,
            partition=number % partitions,
            on_delivery=functools.partial(delivered, number),
        )
    assert producer.flush(120) == 0
    assert not failures, failures[0]
    return [offsets[number] for number in range(len(values))]


def consume_all(
    bootstrap: str, topic: str, partitions: int, count: int, **more: object
) -> list[bytes]:
    """Return all values from the start of the logs, once there are `count` and no more follow."""
    consumer = confluent_kafka.Consumer(
        {
            **settings(bootstrap),
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            **more,
        }
    )
    consumer.assign(
        [confluent_kafka.TopicPartition(topic, index, 0) for index in range(partitions)]
    )
    values: list[bytes] = []
    ended: set[int] = set()
    until = time.monotonic() + 120
    while (len(values) < count or len(ended) < partitions) and time.monotonic() < until:
        message = consumer.poll(1)
        if message is None:
            continue
        error, partition = message.error(), message.partition()
        if error is None:
            # None for a record that deletes its key, which is not the same as an empty value.
            values.append(cast("bytes", message.value()))
        elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
            assert partition is not None
            ended.add(partition)
    consumer.close()
    return values
