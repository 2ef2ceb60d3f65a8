"""Real clients against a real broker process (rows P1, P2, P3)."""

from __future__ import annotations

import asyncio
import subprocess
import time
import uuid
from functools import partial

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic
from kazoo.client import KazooClient

from tests.support.broker import Cluster, wait_until
from tests.support.clients import kafka

# kafka-python reads its message definitions by a function that Python 3.11 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def fresh_topic(cluster: Cluster, partitions: int = 1, **config: str) -> str:
    """Create a topic of its own for a test."""
    name = f"topic-{uuid.uuid4().hex[:8]}"
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin(cluster).create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(120)
    return name


_admins: dict[str, AdminClient] = {}


def admin(cluster: Cluster) -> AdminClient:
    """One client a cluster: its answers fail when the client is collected before they come."""
    if cluster.bootstrap not in _admins:
        _admins[cluster.bootstrap] = AdminClient(
            {"bootstrap.servers": cluster.bootstrap, "log_level": 0}
        )
    return _admins[cluster.bootstrap]


def produce(cluster: Cluster, topic: str, values: list[bytes], **settings: object) -> list[int]:
    """Send with acks=all; the offsets, in the order of the values."""
    offsets: dict[int, int] = {}
    failures: list[object] = []

    def delivered(number: int, error: object, message: confluent_kafka.Message) -> None:
        offset = message.offset()
        if error is None and offset is not None:
            offsets[number] = offset
        else:
            failures.append(error)

    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, **settings})
    for number, value in enumerate(values):
        producer.produce(
            topic,
            value,
            partition=0,
            on_delivery=partial(delivered, number),
        )
    assert producer.flush(120) == 0
    assert not failures
    return [offsets[number] for number in range(len(values))]


def consume(cluster: Cluster, topic: str, count: int, offset: int = 0) -> list[bytes]:
    """The next `count` values of partition 0 from an offset on."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "none", "enable.auto.commit": False}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, offset)])
    values: list[bytes] = []
    until = time.monotonic() + 120
    while len(values) < count and time.monotonic() < until:
        message = consumer.poll(1)
        if message is not None:
            assert message.error() is None
            value = message.value()
            assert value is not None
            values.append(value)
    consumer.close()
    return values


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("idempotent", [False, True])
def test_records_of_every_codec_come_back_in_order(
    cluster: Cluster, codec: str, idempotent: bool
) -> None:
    topic = fresh_topic(cluster)
    values = [f"{number}-{codec}".encode() * 10 for number in range(500)]
    offsets = produce(
        cluster,
        topic,
        values,
        **{"compression.type": codec, "enable.idempotence": idempotent, "linger.ms": 5},
    )
    assert offsets == list(range(500))
    assert consume(cluster, topic, 500) == values


def test_reading_starts_at_the_offset_asked_for_also_inside_a_batch(cluster: Cluster) -> None:
    topic = fresh_topic(cluster)
    values = [str(number).encode() for number in range(100)]
    produce(cluster, topic, values, **{"linger.ms": 50})
    assert consume(cluster, topic, 37, offset=63) == values[63:]


def test_offsets_by_timestamp_are_those_of_the_first_record_not_older(cluster: Cluster) -> None:
    topic = fresh_topic(cluster)
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 50})
    for number in range(10):
        producer.produce(topic, b"v", partition=0, timestamp=1_700_000_000_000 + number * 1000)
    assert producer.flush(120) == 0
    consumer = kafka.KafkaConsumer(bootstrap_servers=cluster.bootstrap)
    part = kafka.TopicPartition(topic, 0)
    found = consumer.offsets_for_times({part: 1_700_000_004_500})
    assert (found[part].offset, found[part].timestamp) == (5, 1_700_000_005_000)
    assert consumer.offsets_for_times({part: 1_700_000_010_000})[part] is None
    assert consumer.beginning_offsets([part]) == {part: 0}
    assert consumer.end_offsets([part]) == {part: 10}
    consumer.close()


def test_kafka_python_produces_and_consumes(cluster: Cluster) -> None:
    topic = fresh_topic(cluster)
    producer = kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap, compression_type="gzip")
    sent = [producer.send(topic, str(n).encode(), partition=0) for n in range(50)]
    assert [one.get(120).offset for one in sent] == list(range(50))
    producer.close()
    consumer = kafka.KafkaConsumer(bootstrap_servers=cluster.bootstrap)
    part = kafka.TopicPartition(topic, 0)
    consumer.assign([part])
    consumer.seek_to_beginning(part)
    got: list[bytes] = []
    until = time.monotonic() + 120
    while len(got) < 50 and time.monotonic() < until:
        got += [one.value for one in consumer.poll(1000).get(part, [])]
    consumer.close()
    assert got == [str(n).encode() for n in range(50)]


async def test_aiokafka_produces_and_consumes(cluster: Cluster) -> None:
    topic = await asyncio.to_thread(fresh_topic, cluster)
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap, enable_idempotence=True
    )
    await producer.start()
    offsets = [(await producer.send_and_wait(topic, str(n).encode())).offset for n in range(20)]
    await producer.stop()
    assert offsets == list(range(20))
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap)
    await consumer.start()
    part = aiokafka.TopicPartition(topic, 0)
    consumer.assign([part])
    await consumer.seek_to_beginning(part)
    got = [(await consumer.getone()).value for _ in range(20)]
    await consumer.stop()
    assert got == [str(n).encode() for n in range(20)]


def kcat(cluster: Cluster, *arguments: str, text: str = "") -> str:
    return subprocess.run(
        ["kcat", "-m60", "-b", cluster.bootstrap, "-q", *arguments],
        input=text,
        capture_output=True,
        text=True,
        check=True,
        timeout=180,
    ).stdout


def test_kcat_creates_a_topic_by_writing_to_it_and_reads_it_back(cluster: Cluster) -> None:
    topic = f"made-{uuid.uuid4().hex[:8]}"
    kcat(cluster, "-P", "-t", topic, text="one\ntwo\n")
    assert kcat(cluster, "-C", "-t", topic, "-e") == "one\ntwo\n"
    assert f'topic "{topic}" with 1 partitions' in kcat(cluster, "-L")


def test_every_topic_setting_is_described_with_its_source(cluster: Cluster) -> None:
    topic = fresh_topic(cluster, retention_ms="12345")
    resource = ConfigResource("topic", topic)
    found = admin(cluster).describe_configs([resource])[resource].result(120)
    assert (found["retention.ms"].value, found["retention.ms"].is_default) == ("12345", False)
    assert found["segment.bytes"].value == "1073741824"


def test_topic_grows_and_keeps_what_it_has(cluster: Cluster) -> None:
    topic = fresh_topic(cluster)
    produce(cluster, topic, [b"old"])
    client = admin(cluster)
    client.create_partitions([NewPartitions(topic, 3)])[topic].result(120)
    described = client.list_topics(topic, timeout=30).topics[topic]
    assert sorted(described.partitions) == [0, 1, 2]
    assert consume(cluster, topic, 1) == [b"old"]


def is_gone(client: KazooClient, path: str) -> bool:
    return client.exists(path) is None


def test_deleted_topic_leaves_neither_znodes_nor_folders(cluster: Cluster) -> None:
    topic = fresh_topic(cluster, partitions=2, file_delete_delay_ms="0")
    produce(cluster, topic, [b"gone"])
    broker = cluster.brokers[1]
    wait_until(lambda: len(broker.partition_folders(topic)) == 2, "both partitions have folders")
    admin(cluster).delete_topics([topic])[topic].result(120)
    with cluster.zookeeper.client() as client:
        for path in (f"/brokers/topics/{topic}", f"/config/topics/{topic}"):
            wait_until(partial(is_gone, client, path), f"{path} is gone")
        wait_until(
            lambda: client.exists(f"/admin/delete_topics/{topic}") is None, "request is gone"
        )
    wait_until(lambda: not list(broker.log_dir.glob(f"{topic}-*")), "folders are gone")


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (NewTopic("bad name", 1, 1), "TOPIC_EXCEPTION"),
        (NewTopic("too-many-replicas", 1, 2), "INVALID_REPLICATION_FACTOR"),
        (NewTopic("no-partitions", 0, 1), "INVALID_PARTITIONS"),
        (NewTopic("unknown-setting", 1, 1, config={"no.such": "1"}), "INVALID_CONFIG"),
        (NewTopic("bad-setting", 1, 1, config={"retention.ms": "x"}), "INVALID_CONFIG"),
        (
            NewTopic("twice", replica_assignment=[[1, 1]], num_partitions=1),
            "INVALID_REPLICA_ASSIGNMENT",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value.topic,
)
def test_impossible_topic_is_refused_with_its_code(
    cluster: Cluster, topic: NewTopic, code: str
) -> None:
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        admin(cluster).create_topics([topic])[topic.topic].result(120)
    assert refused.value.args[0].code() == getattr(confluent_kafka.KafkaError, code)
    with cluster.zookeeper.client() as client:
        assert client.exists(f"/brokers/topics/{topic.topic}") is None


def test_topic_that_exists_is_refused(cluster: Cluster) -> None:
    topic = fresh_topic(cluster)
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        admin(cluster).create_topics([NewTopic(topic, 1, 1)])[topic].result(120)
    assert refused.value.args[0].code() == confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS


def test_validation_alone_creates_nothing(cluster: Cluster) -> None:
    admin(cluster).create_topics([NewTopic("only-checked", 1, 1)], validate_only=True)[
        "only-checked"
    ].result(120)
    with cluster.zookeeper.client() as client:
        assert client.exists("/brokers/topics/only-checked") is None
