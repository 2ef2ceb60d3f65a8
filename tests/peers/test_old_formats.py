"""Apache Kafka and this broker by turns on logs of the message formats before 0.11 (L4, L5).

Both write topics of an old message.format.version with every codec and compact them; each must
serve what the other wrote, and Kafka's dump must find nothing wrong in this broker's files.
"""

from __future__ import annotations

import itertools
import signal
import time
from functools import partial
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from odradek import values
from odradek.log.partition import checkpoints
from odradek.log.records import batch as batches
from tests.support import zookeeper
from tests.support.broker import Broker, wait_until
from tests.support.clients import QUIET, committed, create_topic
from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_peer import Tools
from tests.support.ports import free_port

CODECS = ("none", "gzip", "snappy", "lz4")
FORMATS = {"0.9.0": 0, "0.10.2": 1}
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
TOPICS = {
    f"magic-{magic}-{kind}": {
        "message.format.version": version,
        "segment.bytes": "4000",
        "index.interval.bytes": "300",
        **config,
    }
    for version, magic in FORMATS.items()
    for kind, config in {
        "kept": {},
        "compacted": COMPACTED,
        "stamped": {"message.timestamp.type": "LogAppendTime"},
    }.items()
    if (magic, kind) != (0, "stamped")  # magic 0 has no times
}
SETTINGS = {
    # A JVM on a busy machine may pause for seconds.
    "zookeeper.session.timeout.ms": "8000",
    "log.message.format.version": "0.10.2",
    "log.cleaner.backoff.ms": "200",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
}
GROUP = "readers"

Seen = dict[str, list[tuple[object, ...]]]


def commit(address: str, offset: int) -> None:
    """Note a position of the group in every topic, in a log of the broker's own format."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": GROUP, **QUIET})
    places = [TopicPartition(topic, 0, offset) for topic in TOPICS]
    wait_until(lambda: _is_committed(consumer, places), f"{offset} is committed")
    consumer.close()


def _is_committed(consumer: Consumer, places: list[TopicPartition]) -> bool:
    try:
        return all(one.error is None for one in consumer.commit(offsets=places, asynchronous=False))
    except confluent_kafka.KafkaException:
        return False  # the coordinator is not there yet


def fill(address: str, numbers: itertools.count[int]) -> None:
    """Forty records of each codec in every topic, in batches of five."""
    # Ahead of the clock: of a segment that compaction left empty Kafka takes the file's time, and
    # it would look there for whatever is older.
    start_ms = time.time_ns() // 1_000_000 + 3_600_000
    failures: list[object] = []
    for codec in CODECS:
        producer = Producer(
            {
                "bootstrap.servers": address,
                "compression.type": codec,
                "enable.idempotence": False,
                "linger.ms": 20,
                "batch.num.messages": 5,
                **QUIET,
            }
        )
        for _, topic in itertools.product(range(40), TOPICS):
            number = next(numbers)
            producer.produce(
                topic,
                key=b"key%d" % (number % 9 if topic.endswith("compacted") else number),
                value=None if number % 11 == 0 else b"value %d " % number * 4,
                partition=0,
                timestamp=start_ms + number * 40 - number % 5 * 100,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
        assert producer.flush(120) == 0
    assert failures == []


def seen_by_clients(address: str) -> tuple[Seen, dict[str, list[int]], list[int]]:
    """Every record of every topic, where readers from some moments begin, where the group is."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": GROUP,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
            **QUIET,
        }
    )
    consumer.assign(
        [TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING) for topic in TOPICS]
    )
    found: Seen = {topic: [] for topic in TOPICS}
    ended: set[str] = set()
    until = time.monotonic() + 120
    while len(ended) < len(TOPICS):
        assert time.monotonic() < until, f"only the ends of {ended} were reached"
        for one in consumer.consume(500, 0.1):
            name, error = one.topic(), one.error()
            assert name is not None
            if error is None:
                seen = one.offset(), one.timestamp(), one.key(), one.value()
                found[name].append(seen)
            else:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF
                ended.add(name)
    consumer.unassign()
    by_time: dict[str, list[int]] = {}
    for topic in TOPICS:
        if topic.startswith("magic-1"):
            moments = [seen[1][1] for seen in found[topic][::15]]  # type: ignore[index]
            asked = [
                [TopicPartition(topic, 0, moment + late)] for moment in moments for late in (0, 1)
            ]
            by_time[topic] = [consumer.offsets_for_times(one, 60)[0].offset for one in asked]
    places = [TopicPartition(topic, 0) for topic in TOPICS]
    positions = [one.offset for one in committed(consumer, places)]
    consumer.close()
    return found, by_time, positions


def is_compacted(broker: Broker, topic: str) -> bool:
    """Whether the cleaner has reached the segment that is being written."""
    known = checkpoints.read_offsets(str(broker.log_dir / checkpoints.CLEANER_OFFSETS))
    newest = max(int(path.stem) for path in (broker.log_dir / f"{topic}-0").glob("*.log"))
    return known.get(values.TopicPartition(topic, 0), 0) == newest > 0


def work(
    broker: Broker, numbers: itertools.count[int], position: int
) -> tuple[Seen, dict[str, list[int]], list[int]]:
    """Write, commit and compact; what clients see then."""
    fill(broker.address, numbers)
    commit(broker.address, position)
    for topic in TOPICS:
        if topic.endswith("compacted"):
            wait_until(partial(is_compacted, broker, topic), f"{topic} is compacted")
    return seen_by_clients(broker.address)


def check_files(tools: Tools, broker: Broker) -> None:
    """Kafka's dump reads every message and finds nothing wrong in any file."""
    folders = [broker.log_dir / f"{topic}-0" for topic in TOPICS]
    kinds = ("*.log", "*.index", "*.timeindex")
    files = [path for kind in kinds for one in folders for path in sorted(one.glob(kind))]
    said = tools.run(
        *("kafka.tools.DumpLogSegments", "--deep-iteration", "--verify-index-only"),
        *("--files", ",".join(map(str, files))),
    ).splitlines()
    assert [line for line in said if line.startswith("Dumping ")] == [f"Dumping {f}" for f in files]
    messages = [line for line in said if line.startswith(("offset: ", "| offset: "))]
    assert [line for line in messages if "isvalid: true" not in line.lower()] == []
    assert len(messages) > len(TOPICS) * 100
    quiet = ("Dumping ", "Starting offset: ", "offset: ", "| offset: ")
    told = [line for line in said if not line.startswith(quiet)]
    undated = [f"{folder}/" for folder in folders if "magic-0" in folder.name]
    empty = [line for line in told if line.endswith((".index is empty.", ".timeindex is empty."))]
    assert told == empty
    assert [
        line for line in empty if "timeindex" in line and not line.startswith(tuple(undated))
    ] == []


def magic_on_disk(broker: Broker, topic: str) -> set[int]:
    return {
        header.magic
        for path in (broker.log_dir / f"{topic}-0").glob("*.log")
        for _, header in batches.scan(path.read_bytes())
    }


@pytest.mark.full("tests/peers/test_swap.py::test_each_serves_what_the_other_wrote")
def test_each_serves_the_old_formats_that_the_other_wrote(tmp_path: Path, tools: Tools) -> None:
    numbers = itertools.count()
    with zookeeper.Server(tmp_path) as server:
        port = free_port()
        apache = KafkaBroker(tmp_path, 1, server.connect, SETTINGS, port)
        ours = Broker(tmp_path, 1, server.connect, SETTINGS, port)
        try:
            apache.start()
            for topic, config in TOPICS.items():
                create_topic(apache.address, topic, config=config)
            seen = work(apache, numbers, 7)
            assert seen[2] == [7] * len(TOPICS)
            assert [len(seen[0][topic]) for topic in TOPICS if topic.endswith("kept")] == [160] * 2
            apache.terminate()
            ours.start()
            assert seen_by_clients(ours.address) == seen
            seen = work(ours, numbers, 8)
            assert seen[2] == [8] * len(TOPICS)
            assert magic_on_disk(ours, "__consumer_offsets") == {1}
            assert [len(seen[0][topic]) for topic in TOPICS if topic.endswith("kept")] == [320] * 2
            for topic in TOPICS:
                assert magic_on_disk(ours, topic) == {int(topic.split("-")[1])}
            ours.signal(signal.SIGKILL)
            ours.wait()
            ours.start()
            assert seen_by_clients(ours.address) == seen
            ours.terminate()
            check_files(tools, ours)
            apache.start()
            assert seen_by_clients(apache.address) == seen
        finally:
            apache.kill()
            ours.kill()
