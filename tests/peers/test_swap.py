"""Apache Kafka and this broker by turns on one log directory and one ZooKeeper (L1-L6, R5, G3).

Whoever runs writes: every codec, keys, headers, tombstones, transactions, commits of a group; it
compacts and deletes. The next one must serve exactly what the one before served, and end the
transactions that the one before left open, or decided.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import confluent_kafka
import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from odradek import values
from odradek.log.partition import checkpoints, topic_identity
from odradek.log.partition.topic_identity import TopicIdentity
from odradek.net.client import PeerClient
from odradek.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from odradek.values import BrokerId
from odradek.zk import znodes
from tests.support import zookeeper
from tests.support.broker import Broker, wait_until
from tests.support.clients import OUTLIVES_BROKERS, QUIET, await_controller, committed
from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_peer import Tools
from tests.support.ports import free_port
from tests.support.sampling import how_many
from tests.support.swapped_transactions import SwappedTransactions, check_states

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BATCHES = 12
IN_A_BATCH = 10
GROUP = "readers"
HOUR_MS = 3_600_000
# What a lookup by time answers where no record is as late.
NOTHING = (-1, -1)
# How each is ended before the other one begins, in order.
ENDS = (signal.SIGTERM, signal.SIGKILL)
SMALL_SEGMENTS = {"segment.bytes": "8000", "index.interval.bytes": "300"}
COMPACTION = {
    **SMALL_SEGMENTS,
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "100",
}
COMPACTED_TOPICS = ("compacted", "decided-compacted")
TOPICS = {
    "codecs": SMALL_SEGMENTS,
    "stamped": {**SMALL_SEGMENTS, "message.timestamp.type": "LogAppendTime"},
    **dict.fromkeys(COMPACTED_TOPICS, COMPACTION),
    "shortened": SMALL_SEGMENTS,
    "expired": {**SMALL_SEGMENTS, "retention.ms": "-1"},
    "decided": SMALL_SEGMENTS,
    "undecided": SMALL_SEGMENTS,
}
SETTINGS = {
    # A JVM on a busy machine may pause for seconds.
    "zookeeper.session.timeout.ms": "8000",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "log.cleaner.backoff.ms": "200",
    "log.retention.check.interval.ms": "500",
    "log.flush.offset.checkpoint.interval.ms": "200",
    "log.flush.start.offset.checkpoint.interval.ms": "200",
}


@dataclass(frozen=True, slots=True)
class Record:
    """What a client sees of a record."""

    offset: int
    timestamp: tuple[int, int]
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """What clients see of a topic and of the group's position in it."""

    bounds: tuple[int, int]
    records: list[Record]
    committed_records: list[int]
    by_time: dict[int, tuple[int, int]]
    position: tuple[int, str]


def _consumer(address: str, **settings: object) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": address,
            "group.id": GROUP,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_uncommitted",
            "fetch.wait.max.ms": 50,
            **QUIET,
            **settings,
        }
    )


def seen_by_clients(address: str) -> dict[str, Seen]:
    """Everything a broker serves, by topic."""
    consumer = _consumer(address)
    read = _read(consumer)
    places = [TopicPartition(topic, 0) for topic in TOPICS]
    bounds = {one.topic: consumer.get_watermark_offsets(one, 120) for one in places}
    positions = {one.topic: (one.offset, one.metadata or "") for one in committed(consumer, places)}
    consumer.close()
    careful = _consumer(address, **{"isolation.level": "read_committed"})
    decided = _read(careful)
    careful.close()
    by_time = asyncio.run(_offsets_by_time(int(address.rpartition(":")[2]), read))
    return {
        topic: Seen(
            bounds[topic],
            [_record(one) for one in read[topic]],
            [offset_of(one) for one in decided[topic]],
            by_time[topic],
            positions[topic],
        )
        for topic in TOPICS
    }


def _read(consumer: Consumer) -> dict[str, list[Message]]:
    """Every record of every topic."""
    consumer.assign(
        [TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING) for topic in TOPICS]
    )
    found: dict[str, list[Message]] = {topic: [] for topic in TOPICS}
    ended: set[str] = set()
    until = time.monotonic() + 120
    while len(ended) < len(TOPICS):
        assert time.monotonic() < until, f"only the ends of {ended} were reached"
        for message in consumer.consume(500, 0.1):
            topic, error = topic_of(message), message.error()
            if error is None:
                found[topic].append(message)
            else:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF
                ended.add(topic)
    return found


async def _offsets_by_time(
    port: int, read: dict[str, list[Message]]
) -> dict[str, dict[int, tuple[int, int]]]:
    """Where a reader from a moment begins, for moments at and just behind some of the records':
    offset and timestamp, `NOTHING` where no record is as late.
    """
    client = PeerClient("127.0.0.1", port, "test")
    by_time: dict[str, dict[int, tuple[int, int]]] = {}
    for topic, messages in read.items():
        moments = [one.timestamp()[1] for one in messages[:: len(messages) // 6 + 1]]
        by_time[topic] = {}
        for moment in itertools.chain(moments, (one + 1 for one in moments)):
            asked = ListOffsetsPartition(partition_index=0, timestamp=moment)
            request = ListOffsetsRequest(
                replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[asked])]
            )
            answer = (await client.call(request, 4, 120_000)).topics[0].partitions[0]
            assert answer.error_code == 0
            by_time[topic][moment] = answer.offset, answer.timestamp
    await client.close()
    return by_time


def topic_of(message: Message) -> str:
    topic = message.topic()
    assert topic is not None
    return topic


def offset_of(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset


def _record(message: Message) -> Record:
    headers = tuple(cast("list[tuple[str, bytes | None]]", message.headers() or []))
    return Record(offset_of(message), message.timestamp(), message.key(), message.value(), headers)


class Writer:
    """Clients that outlive the swaps: an idempotent producer a codec, and numbers of what was
    written.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._numbers = itertools.count()
        self._sends = itertools.count()
        now_ms = time.time_ns() // 1_000_000
        # Behind the clock where records shall expire. Elsewhere ahead of it: Kafka takes a segment
        # that compaction left empty for as new as its file, and finds nothing by an older time.
        self._began_ms = dict.fromkeys(TOPICS, now_ms + HOUR_MS) | {"expired": now_ms - HOUR_MS}
        self.codecs = {codec: self._producer(compression_type=codec) for codec in CODECS}
        self._admin = AdminClient({"bootstrap.servers": address, **QUIET, **OUTLIVES_BROKERS})

    def _producer(self, **settings: object) -> Producer:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        return Producer(
            {
                "bootstrap.servers": self._address,
                "enable.idempotence": True,
                "linger.ms": 50,
                "batch.num.messages": IN_A_BATCH,
                "reconnect.backoff.max.ms": 500,
                **QUIET,
                **OUTLIVES_BROKERS,
                **named,
            }
        )

    def create_topics(self) -> None:
        """Make every topic, of one partition."""
        await_controller(self._admin)
        wanted = [NewTopic(topic, 1, 1, config=config) for topic, config in TOPICS.items()]
        for done in self._admin.create_topics(wanted, operation_timeout=60).values():
            done.result(120)

    def send(self, producer: Producer, topic: str, count: int, keys: int | None = None) -> None:
        """Send `count` records and wait until they are acknowledged."""
        failures: list[object] = []
        # Time goes back between sends but not within one: of a plain batch Kafka indexes the record
        # with the newest timestamp, and its dump tool finds fault where that is not the last.
        shift_ms = next(self._sends) % 3 * 700
        for _ in range(count):
            number = next(self._numbers)
            nothing = number % 7 == 0
            producer.produce(
                topic,
                key=b"key%d" % (number if keys is None else number % keys),
                value=None if nothing else b"value %d " % number * 9,
                partition=0,
                timestamp=self._began_ms[topic] + number * 40 - shift_ms,
                headers=[("number", b"%d" % number), ("empty", b""), ("null", None)],
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
            producer.poll(0)
        assert producer.flush(120) == 0
        assert failures == []

    def fill(self) -> None:
        """New records in every topic."""
        for producer in self.codecs.values():
            self.send(producer, "codecs", BATCHES * IN_A_BATCH)
            self.send(producer, "stamped", 2 * IN_A_BATCH)
            self.send(producer, "compacted", 5 * IN_A_BATCH, keys=23)
        plain = self.codecs["none"]
        for topic in ("shortened", "expired"):
            self.send(plain, topic, 20 * IN_A_BATCH)
        self.send(plain, "decided-compacted", 20 * IN_A_BATCH, keys=41)
        self.send(plain, "undecided", IN_A_BATCH)

    def fill_in_transactions(self) -> None:
        """Committed, aborted and committed records."""
        producer = self._producer(transactional_id="accountant", compression_type="lz4")
        producer.init_transactions(120)
        for commit in (True, False, True):
            producer.begin_transaction()
            self.send(producer, "decided", 5 * IN_A_BATCH)
            # The plain records behind them have other keys, too.
            self.send(producer, "decided-compacted", 5 * IN_A_BATCH, keys=83)
            if commit:
                producer.commit_transaction(120)
            else:
                producer.abort_transaction(120)

    def leave_open(self) -> None:
        """Write records of a transaction that nobody ends."""
        sleeper = self._producer(transactional_id="sleeper", transaction_timeout_ms=900_000)
        sleeper.init_transactions(120)
        sleeper.begin_transaction()
        self.send(sleeper, "undecided", IN_A_BATCH)

    def expire(self) -> None:
        """Let records of the topic `expired` grow too old, and wait until some are gone."""
        before = start_of(self._address, "expired")
        self._set_retention(HOUR_MS // 2)
        wait_until(lambda: start_of(self._address, "expired") > before, "old records are gone")
        self._set_retention(-1)

    def _set_retention(self, milliseconds: int) -> None:
        # It may have looked for the controller while the broker was just back.
        await_controller(self._admin)
        entry = ConfigEntry(
            "retention.ms", str(milliseconds), incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ResourceType.TOPIC, "expired", incremental_configs=[entry])
        self._admin.incremental_alter_configs([resource])[resource].result(120)

    def delete_records(self, count: int) -> None:
        """Delete the first `count` records of the topic `shortened`."""
        wanted = start_of(self._address, "shortened") + count
        place = TopicPartition("shortened", 0, wanted)
        assert self._admin.delete_records([place])[place].result(120).low_watermark == wanted

    def take_part(self) -> None:
        """Join the group, read on from where it stopped, commit with a remark and leave."""
        consumer = _consumer(self._address)
        consumer.subscribe(list(TOPICS))
        ended: set[str] = set()
        last: dict[str, int] = {}
        until = time.monotonic() + 120
        while ended != set(TOPICS):
            assert time.monotonic() < until, f"the group did not reach the ends: {ended}"
            for message in consumer.consume(500, 0.2):
                topic, error = topic_of(message), message.error()
                if error is None:
                    last[topic] = offset_of(message)
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    ended.add(topic)
        positions = [
            TopicPartition(topic, 0, offset - 3, f"remark on {topic}")
            for topic, offset in last.items()
        ]
        consumer.commit(offsets=positions, asynchronous=False)
        consumer.close()


def is_compacted(broker: Broker) -> bool:
    """Whether the cleaner has reached the segments that are being written."""
    known = checkpoints.read_offsets(str(broker.log_dir / checkpoints.CLEANER_OFFSETS))
    return all(
        known.get(values.TopicPartition(topic, 0), 0) == newest_segment(broker, topic) > 0
        for topic in COMPACTED_TOPICS
    )


def newest_segment(broker: Broker, topic: str) -> int:
    """The base offset of the segment that is being written."""
    return max(int(path.stem) for path in (broker.log_dir / f"{topic}-0").glob("*.log"))


def is_start_written(broker: Broker) -> bool:
    """Whether the log start that clients see is in the checkpoint."""
    known = checkpoints.read_offsets(str(broker.log_dir / checkpoints.LOG_START_OFFSETS))
    return known.get(values.TopicPartition("shortened", 0)) == start_of(broker.address, "shortened")


def start_of(address: str, topic: str) -> int:
    """The first offset that clients may read."""
    consumer = _consumer(address)
    start, _ = consumer.get_watermark_offsets(TopicPartition(topic, 0), 120)
    consumer.close()
    return int(start)


def check_files(tools: Tools, broker: Broker) -> None:
    """Kafka's dump finds nothing wrong in any file of any partition."""
    folders = [broker.log_dir / f"{topic}-0" for topic in TOPICS]
    indexes = [
        path
        for folder in folders
        for kind in ("*.index", "*.timeindex", "*.txnindex")
        for path in sorted(folder.glob(kind))
    ]
    logs = [path for folder in folders for path in sorted(folder.glob("*.log"))]
    said = tools.run(
        *("kafka.tools.DumpLogSegments", "--verify-index-only"),
        *("--files", ",".join(map(str, indexes + logs))),
    ).splitlines()
    told = [
        line
        for line in said
        if not line.startswith(("Dumping ", "Starting offset: ", "baseOffset: ", "version: 0 "))
        and not line.endswith(".index is empty.")
    ]
    assert told == [], told[:10]
    assert [line for line in said if "isvalid: false" in line] == []
    heads = [line for line in said if line.startswith("Dumping ")]
    assert heads == [f"Dumping {path}" for path in indexes + logs]


@pytest.mark.timeout(1200)
def test_each_serves_what_the_other_wrote(tmp_path: Path, tools: Tools) -> None:
    with zookeeper.Server(tmp_path) as server:
        port = free_port()
        apache = KafkaBroker(tmp_path, 1, server.connect, SETTINGS, port)
        ours = Broker(tmp_path, 1, server.connect, SETTINGS, port)
        try:
            with server.client() as client:
                transactions = SwappedTransactions(client, 2 * len(ENDS))
                swap(apache, ours, tools, server, transactions)
        finally:
            apache.kill()
            ours.kill()


def swap(
    apache: KafkaBroker,
    ours: Broker,
    tools: Tools,
    server: zookeeper.Server,
    transactions: SwappedTransactions,
) -> None:
    apache.start()
    writer = Writer(apache.address)
    writer.create_topics()
    writer.leave_open()
    transactions.start(apache)
    seen = work(writer, apache)
    assert len(seen["codecs"].records) == len(CODECS) * BATCHES * IN_A_BATCH
    assert len(seen["compacted"].records) < len(CODECS) * 5 * IN_A_BATCH
    decided, undecided = seen["decided"], seen["undecided"]
    assert (len(decided.records), len(decided.committed_records)) == (150, 100)
    assert (len(undecided.records), undecided.committed_records) == (20, [])
    for end in ENDS[: how_many(1, full=2)]:
        if end is signal.SIGKILL:
            # Kafka notes where a log starts only when it has run for half a minute, or stops.
            seen = work(writer, apache, delete=False)
        transactions.leave()
        stop(apache, end, server)
        told = topic_ids(server)
        transactions.let_end(ours)
        ours.start()
        compare(by_kafka=seen, by_ours=seen_by_clients(ours.address))
        transactions.end(ours)
        assert topic_ids(server) == told
        writer.expire()
        seen = work(writer, ours)
        wait_until(lambda: is_start_written(ours), "a crash will not bring deleted records back")
        transactions.leave()
        stop(ours, end, server)
        check_states(tools, ours)
        if end is signal.SIGTERM:
            check_files(tools, ours)
        kept = identities(ours)
        assert {topic: one.topic_id for topic, one in kept.items()} == told
        transactions.let_end(apache)
        apache.start()
        compare(by_kafka=seen_by_clients(apache.address), by_ours=seen)
        end_under_kafka(apache, transactions, server)
        assert identities(apache) == kept
        assert topic_ids(server) == told


def end_under_kafka(
    apache: KafkaBroker, transactions: SwappedTransactions, server: zookeeper.Server
) -> None:
    """End the transactions. Kafka 2.8.2 may leave one unfinished when it hears twice of another's
    marker in its first seconds. It is started once more then.
    """
    try:
        transactions.end(apache)
    except AssertionError:
        if "while trying to remove partitions whose txn marker" not in apache.log_text():
            raise
        stop(apache, signal.SIGTERM, server)
        apache.start()
        transactions.end(apache)


def topic_ids(server: zookeeper.Server) -> dict[str, str | None]:
    """The ids in the topics' znodes."""
    with server.client() as client:
        paths = {topic: znodes.topic_path(topic) for topic in TOPICS}
        return {
            topic: znodes.decode_topic(path, client.get(path)[0]).topic_id
            for topic, path in paths.items()
        }


def identities(broker: Broker) -> dict[str, TopicIdentity]:
    """What the folders of the topics say."""
    found = {topic: topic_identity.read(str(broker.log_dir / f"{topic}-0")) for topic in TOPICS}
    return {topic: one for topic, one in found.items() if one is not None}


def stop(broker: Broker, number: signal.Signals, server: zookeeper.Server) -> None:
    broker.signal(number)
    broker.wait()
    # Kafka does not start while its predecessor's session lasts.
    path = znodes.broker_path(BrokerId(broker.broker_id))
    with server.client() as client:
        wait_until(lambda: client.exists(path) is None, "the broker's session is over")


def work(writer: Writer, broker: Broker, *, delete: bool = True) -> dict[str, Seen]:
    """Write, compact, delete, commit; what clients see then."""
    writer.fill_in_transactions()
    writer.fill()
    if delete:
        writer.delete_records(33)
    writer.take_part()
    wait_until(lambda: is_compacted(broker), "the topic is compacted")
    return seen_by_clients(broker.address)


def compare(by_kafka: dict[str, Seen], by_ours: dict[str, Seen]) -> None:
    for topic in TOPICS:
        kafka, ours = by_kafka[topic], by_ours[topic]
        lacking = [one for one in kafka.records if one not in ours.records]
        added = [one for one in ours.records if one not in kafka.records]
        assert (topic, lacking[:3], added[:3]) == (topic, [], [])
        differing = {
            moment: (kafka.by_time.get(moment), at)
            for moment, at in ours.by_time.items()
            if at != kafka.by_time.get(moment)
        }
        if topic in COMPACTED_TOPICS:
            # A batch that compaction emptied keeps its time. Kafka looks no further than into the
            # first segment that is as new, and finds nothing there.
            differing = {moment: one for moment, one in differing.items() if one[0] != NOTHING}
        assert (topic, differing) == (topic, {})
        left_out: dict[str, Any] = {"records": [], "by_time": {}}
        assert replace(kafka, **left_out) == replace(ours, **left_out)
