"""Real clients, used the same way in many tests.

kafka-python is imported here without the warnings that its import raises under Python 3.11.
"""

import functools
import time
import warnings
from collections.abc import Mapping, Sequence

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


def create_topic(
    bootstrap: str,
    topic: str,
    partitions: int = 1,
    replicas: int = 1,
    config: Mapping[str, str] | None = None,
) -> None:
    """Create a topic through the Admin API and wait until its leaders serve it."""
    client = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    make_topic(client, NewTopic(topic, partitions, replicas, config=dict(config or {})))
    await_leaders(bootstrap, topic, partitions)


def make_topic(client: AdminClient, wanted: NewTopic) -> None:
    """Have the controller make a topic, whoever that is by then.

    librdkafka passes on what a broker says that is controller no more; other clients ask the next.
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

    librdkafka hardly asks again when a broker that has just started told it that there is none.
    """
    wait_until(lambda: client.list_topics(timeout=30).controller_id >= 0, "there is a controller")


def await_leaders(bootstrap: str, topic: str, partitions: int = 1) -> None:
    """Wait until each partition's leader answers for it.

    Whoever made a topic was told that it has leaders, which may not know of that themselves yet.
    They refuse until then, as Kafka's do: a client that asks once, or sends without an answer, or
    several batches at a time, has another outcome than the test is about.
    """
    client = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    asked = {
        confluent_kafka.TopicPartition(topic, number): OffsetSpec.latest()  # type: ignore[no-untyped-call]
        for number in range(partitions)
    }

    def all_answer() -> bool:
        answers = client.list_offsets(asked, request_timeout=60)
        return all(one.result(120).offset >= 0 for one in answers.values())

    wait_until(all_answer, f"the leaders of {topic} serve it")


def committed(
    consumer: confluent_kafka.Consumer, places: Sequence[confluent_kafka.TopicPartition]
) -> list[confluent_kafka.TopicPartition]:
    """What a group has committed there, once its coordinator has loaded that: librdkafka does not
    ask for long.
    """
    found: list[confluent_kafka.TopicPartition] = []

    def told() -> bool:
        found[:] = consumer.committed([*places], 120)
        return all(one.error is None for one in found)

    wait_until(told, "the coordinator tells what is committed")
    return found


def produce_all(
    bootstrap: str, topic: str, values: Sequence[bytes], partitions: int = 1, **settings: object
) -> list[int]:
    """Send with acks=all, spread over the partitions; the offsets in the order of the values.

    What is sent again, as a leader moves or an answer is late, is there once and in order.
    """
    offsets: dict[int, int] = {}
    failures: list[object] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 2,
            **QUIET,
            **settings,
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
    assert not failures
    return [offsets[number] for number in range(len(values))]


def consume_all(bootstrap: str, topic: str, partitions: int, count: int) -> list[bytes]:
    """Every value from the beginnings on, until `count` came and nothing follows them."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            **QUIET,
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
            values.append(message.value() or b"")
        elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
            assert partition is not None
            ended.add(partition)
    consumer.close()
    return values
