"""A broker is added and gets its share while clients write with acks=all: none notices, none loses.

The operator, the API server, ZooKeeper, the brokers and the clients are the real ones. The test
starts the new broker, as a kubelet would.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.reconcile.conftest import Operator, Place
from tests.reconcile.test_reassignment_flow import reassignment
from tests.support.apiserver import ApiServer
from tests.support.broker import STEADY, Broker, Cluster
from tests.support.clients import QUIET, await_leaders, kafka, produce_all
from tests.support.kubectl import eventually

NAMESPACE = "scale-up"
TOPIC = "grown"
PARTITIONS = 6
NEWCOMER = 3
PAUSE_SECONDS = 0.004
# A replica that a pause puts out of sync could not be elected just then.
SETTINGS = {
    **STEADY,
    "offsets.topic.replication.factor": "2",
    "replica.lag.time.max.ms": "30000",
}
# Operator, API server, ZooKeeper and three brokers start first.
pytestmark = pytest.mark.timeout(900)

# Offset and value of records, by partition.
Records = dict[int, list[tuple[int, bytes]]]


class Writer:
    """A client that writes until it is told to end; a thread. `acknowledged` is as it was sent."""

    def __init__(self, name: str, write: Callable[[Writer], None]) -> None:
        self.name = name
        self.acknowledged: Records = defaultdict(list)
        self.errors: list[object] = []
        self._write = write
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._write(self)
        except Exception as error:
            self.errors.append(error)

    def values(self) -> Iterator[tuple[int, bytes]]:
        """Partitions and values, at a pace, until the end."""
        for number in itertools.count():
            if self._end.wait(PAUSE_SECONDS):
                return
            yield number % PARTITIONS, b"%s %08d" % (self.name.encode(), number) + b"." * 500

    def count(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    def end(self) -> None:
        self._end.set()
        self._thread.join(300)
        assert not self._thread.is_alive()


def record_of(message: confluent_kafka.Message) -> tuple[int, tuple[int, bytes]]:
    """Return the partition of a message, and its offset with its value."""
    partition, offset, value = message.partition(), message.offset(), message.value()
    assert partition is not None
    assert offset is not None
    assert value is not None
    return partition, (offset, value)


def write_with_librdkafka(bootstrap: str) -> Callable[[Writer], None]:
    def write(writer: Writer) -> None:
        # Its own defaults but for the idempotence, without which a retry may change the order.
        settings = {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True}
        producer = confluent_kafka.Producer({**settings, **QUIET})

        def note(error: object, message: confluent_kafka.Message) -> None:
            if error is not None:
                writer.errors.append(error)
            else:
                partition, record = record_of(message)
                writer.acknowledged[partition].append(record)

        for partition, value in writer.values():
            producer.produce(TOPIC, value, partition=partition, on_delivery=note)
            producer.poll(0)
        writer.errors += ["not delivered"] * producer.flush(240)

    return write


def write_with_kafka_python(bootstrap: str) -> Callable[[Writer], None]:
    def write(writer: Writer) -> None:
        # All by default: acks=all, retries without end, idempotence.
        producer = kafka.KafkaProducer(bootstrap_servers=bootstrap)

        def note(partition: int, value: bytes, told: kafka.producer.future.RecordMetadata) -> None:
            writer.acknowledged[partition].append((told.offset, value))

        for partition, value in writer.values():
            sent = producer.send(TOPIC, value, partition=partition)
            sent.add_callback(lambda told, at=partition, what=value: note(at, what, told))
            sent.add_errback(writer.errors.append)
        producer.flush(240)
        producer.close()

    return write


class Reader:
    """A consumer that reads along from the beginning; a thread."""

    def __init__(self, bootstrap: str) -> None:
        self.read: Records = defaultdict(list)
        self.errors: list[object] = []
        self._end = threading.Event()
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "none",
                "enable.auto.commit": False,
                # A position that a leader does not know would be an error, and not the beginning.
                "auto.offset.reset": "error",
                **QUIET,
            }
        )
        self._consumer.assign(
            [confluent_kafka.TopicPartition(TOPIC, one, 0) for one in range(PARTITIONS)]
        )
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.is_set():
            for message in self._consumer.consume(500, 0.2):
                if message.error() is not None:
                    self.errors.append(message.error())
                else:
                    partition, record = record_of(message)
                    self.read[partition].append(record)

    def count(self) -> int:
        return sum(map(len, self.read.values()))

    def end(self) -> None:
        self._end.set()
        self._thread.join(60)
        self._consumer.close()


def ends(bootstrap: str) -> list[int]:
    """Where the partitions end: how many records were ever appended to each."""
    client = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    asked = {
        confluent_kafka.TopicPartition(TOPIC, one): OffsetSpec.latest()  # type: ignore[no-untyped-call]
        for one in range(PARTITIONS)
    }
    return [one.result(120).offset for one in client.list_offsets(asked).values()]


@contextmanager
def two_brokers(api: ApiServer, folder: Path) -> Iterator[tuple[Cluster, Place]]:
    """Brokers 1 and 2 with an operator, and a topic whose records both must have."""
    api.create_namespace(NAMESPACE)
    with (
        Cluster(folder, 2, SETTINGS, own_zookeeper=True) as cluster,
        cluster.zookeeper.client() as client,
    ):
        place = Place(api, cluster.zookeeper, client, NAMESPACE)
        place.kubectl.apply(
            {
                "apiVersion": "odradek.io/v1alpha1",
                "kind": "KafkaCluster",
                "metadata": {"name": "main"},
                "spec": {
                    "zookeeper": {"connect": cluster.zookeeper.connect},
                    # Ids begin at 0 on Kubernetes.
                    "brokers": {"replicas": NEWCOMER},
                },
            }
        )
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
        layout = [[1, 2], [2, 1]] * (PARTITIONS // 2)
        wanted = NewTopic(
            TOPIC, PARTITIONS, replica_assignment=layout, config={"min.insync.replicas": "2"}
        )
        admin.create_topics([wanted], operation_timeout=60)[TOPIC].result(120)
        await_leaders(cluster.bootstrap, TOPIC, PARTITIONS)
        with Operator(api, NAMESPACE, folder / "operator.log", "operator-0"):
            yield cluster, place
        print((folder / "operator.log").read_text())


@pytest.mark.full(
    "tests/reconcile/test_moves_with_brokers.py::test_a_new_broker_gets_its_share_with_all_the_data"
)
def test_a_new_broker_gets_its_share_and_leads_while_clients_write_and_read(
    api: ApiServer, tmp_path: Path
) -> None:
    with two_brokers(api, tmp_path) as (cluster, place):
        bootstrap = cluster.bootstrap
        old = [b"old %08d" % one + b"." * 4000 for one in range(3000)]
        offsets = produce_all(bootstrap, TOPIC, old, PARTITIONS)
        writers = [
            Writer("librdkafka", write_with_librdkafka(bootstrap)),
            Writer("kafka-python", write_with_kafka_python(bootstrap)),
        ]
        reader = Reader(bootstrap)

        def has_passed(writer: Writer, count: int) -> bool:
            return writer.count() > count

        def all_write() -> None:
            """Wait until each client has written on, and was told so."""
            before = [one.count() for one in writers]
            for one, reached in zip(writers, before, strict=True):
                eventually(
                    partial(has_passed, one, reached + 100), f"{one.name} to write", pause_s=0.1
                )

        all_write()
        larger = {"spec": {"brokers": {"replicas": NEWCOMER + 1}}}
        place.kubectl(
            "patch", "kafkacluster", "main", "--type=merge", f"--patch={json.dumps(larger)}"
        )
        newcomer = Broker(tmp_path, NEWCOMER, cluster.zookeeper.connect, SETTINGS)
        try:
            newcomer.start()
            all_write()
            place.kubectl.apply(
                reassignment(
                    "fill",
                    "AddBrokers",
                    brokers=[NEWCOMER],
                    excludedTopics=["__consumer_offsets"],
                    throttleBytesPerSec=3_000_000,
                    maxConcurrentPartitions=2,
                )
            )
            place.wait_for("reassignment", "fill", "Completed")
            all_write()
            layout = place.read(TOPIC).partitions
            place.kubectl.apply(reassignment("lead", "PreferredLeader", topics=[TOPIC]))
            place.wait_for("reassignment", "lead", "Completed")
            all_write()
            for writer in writers:
                writer.end()
                assert writer.errors == [], writer.name
            sent = len(old) + sum(writer.count() for writer in writers)
            eventually(lambda: reader.count() >= sent, "all records to be read", 120, 0.2)
            reader.end()
            assert reader.count() == sent == sum(ends(bootstrap))
            assert reader.errors == []
        finally:
            newcomer.kill()
        assert sum(NEWCOMER in replicas for replicas in layout.values()) == PARTITIONS * 2 // 3
        assert any(replicas[0] == NEWCOMER for replicas in layout.values())
        acknowledged = {"old": old_records(old, offsets)} | {
            writer.name: writer.acknowledged for writer in writers
        }
        for name, records in acknowledged.items():
            for partition in range(PARTITIONS):
                mine = [
                    one for one in reader.read[partition] if one[1].startswith(name.encode() + b" ")
                ]
                assert mine == records[partition], (name, partition)


def old_records(values: list[bytes], offsets: list[int]) -> Records:
    """What `produce_all` wrote, by partition."""
    found: Records = defaultdict(list)
    for number, (offset, value) in enumerate(zip(offsets, values, strict=True)):
        found[number % PARTITIONS].append((offset, value))
    return found
