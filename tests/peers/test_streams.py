"""Kafka Streams with exactly-once processing: counts and a join, under faults.

Two instances share the work. One dies in the middle of a transaction, and with it the broker that
coordinates their group, which comes back later. The other one restores the counts from their
changelog. Who reads committed records must see what two instances without faults would write.
ODRADEK_JUDGE=kafka runs it against Apache Kafka.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from odradek.coordination import partitioning
from tests.support import clients, jvm, kafka_peer
from tests.support.broker import Cluster, wait_until
from tests.support.judged_cluster import TRANSACTIONS, judged_cluster
from tests.support.kafka_applications import Application
from tests.support.sampling import some_of

PROGRAM = Path(__file__).with_name("WordCount.java")
CASES = [
    ("2.8.2", "exactly_once"),
    ("2.8.2", "exactly_once_beta"),
    ("3.9.1", "exactly_once_v2"),
    ("4.1.0", "exactly_once_v2"),
]
APPLICATION = "word-count"
CHANGELOG = f"{APPLICATION}-totals-changelog"
PARTITIONS = 2
PART = 400
WORDS = ("ape", "bee", "cat", "dog", "elk")
USERS = ("u1", "u2", "u3")
# The partitions of a dead instance are given away when its session times out, and may be read on
# when its transaction does. One that lives and is late for either starts over.
SETTINGS = (
    "replication.factor=3",
    "commit.interval.ms=200",
    "auto.offset.reset=earliest",
    "consumer.session.timeout.ms=6000",
    "producer.transaction.timeout.ms=6000",
    "producer.linger.ms=5",
    # It asks a dead leader that it knows until then, and the group waits for it.
    "admin.default.api.timeout.ms=5000",
    "admin.request.timeout.ms=5000",
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three brokers, of which one may die."""
    with judged_cluster(tmp_path, TRANSACTIONS) as running:
        yield running


@pytest.fixture
def admin(cluster: Cluster) -> AdminClient:
    """Looks at the group and at the ends of topics."""
    return AdminClient(clients.settings(cluster.bootstrap))


class Lines:
    """What was written to `lines`, and what must come of it."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({**clients.settings(bootstrap), "enable.idempotence": True})
        self.words = Counter[str]()
        self.joined: list[bytes] = []
        for user in USERS:
            self._producer.produce("users", user.upper(), user)
        assert self._producer.flush(120) == 0

    def write(self, extra: str = "") -> None:
        """Write a part more; the line in its middle has one more word."""
        begin = len(self.joined)
        for number in range(begin, begin + PART):
            words = [WORDS[number % len(WORDS)], WORDS[number // 7 % len(WORDS)], f"n{number}"]
            if extra and number == begin + PART // 2:
                words.append(extra)
            line, user = " ".join(words), USERS[number % len(USERS)]
            self._producer.produce("lines", line, user, number % PARTITIONS)
            self.words.update(words)
            self.joined.append(f"{user.upper()}:{line}".encode())
        assert self._producer.flush(120) == 0

    @property
    def counts(self) -> list[bytes]:
        """Every count that each word had."""
        return [
            f"{word}:{count}".encode()
            for word, total in self.words.items()
            for count in range(1, total + 1)
        ]


class Instance(Application):
    """One of the processes that count. While `hold` exists, that word stops it."""

    def __init__(self, cluster: Cluster, folder: Path, name: str, case: tuple[str, str]) -> None:
        version, guarantee = case
        release = kafka_peer.streams(version)
        classes = jvm.compiled(PROGRAM, kafka_peer.classpath(release))
        self.hold = folder / "hold"
        words = (PROGRAM.stem, cluster.bootstrap, APPLICATION, folder / name, self.hold)
        settings = (*SETTINGS, f"processing.guarantee={guarantee}")
        super().__init__(folder / f"{name}.log", release, (*words, *settings), [classes])

    @property
    def is_held(self) -> bool:
        return "held\n" in self.log_text()

    @property
    def has_work(self) -> bool:
        # What librdkafka's admin client makes of a group of Kafka Streams may end the process.
        return "Restored and ready to run" in self.log_text()


def coordinator(admin: AdminClient) -> int:
    """Return the broker that leads the partition of the group's offsets."""
    partitions = admin.list_topics(timeout=120).topics["__consumer_offsets"].partitions
    return partitions[partitioning.partition_of(APPLICATION, len(partitions))].leader


def ends(admin: AdminClient, topic: str, isolation: IsolationLevel) -> list[int]:
    """Return how far readers of a kind may read each partition."""
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = {TopicPartition(topic, number): latest for number in range(PARTITIONS)}
    answers = admin.list_offsets(asked, isolation_level=isolation)
    return [one.result(120).offset for one in answers.values()]


def await_end(cluster: Cluster) -> None:
    """Wait until every line is committed, and no transaction is open."""
    member = Consumer({**clients.settings(cluster.bootstrap), "group.id": APPLICATION})
    lines = [TopicPartition("lines", number) for number in range(PARTITIONS)]

    def is_end() -> bool:
        # librdkafka keeps the leader epochs that it learned first, and would be fenced for minutes.
        admin = AdminClient(clients.settings(cluster.bootstrap))
        offsets = [one.offset for one in clients.committed(member, lines)]
        return offsets == ends(admin, "lines", IsolationLevel.READ_UNCOMMITTED) and all(
            ends(admin, topic, IsolationLevel.READ_COMMITTED)
            == ends(admin, topic, IsolationLevel.READ_UNCOMMITTED)
            for topic in ("counts", "joined", CHANGELOG)
        )

    wait_until(is_end, "every line is committed")
    member.close()


@pytest.mark.parametrize("case", some_of(CASES, CASES[-1:]), ids="-".join)
def test_each_line_counts_once_though_an_instance_and_a_broker_die(
    cluster: Cluster, admin: AdminClient, tmp_path: Path, case: tuple[str, str]
) -> None:
    def read(topic: str, count: int = 0, isolation: str = "read_committed") -> list[bytes]:
        settings = {"isolation.level": isolation}
        return clients.consume_all(cluster.bootstrap, topic, PARTITIONS, count, **settings)

    for topic in ("lines", "users", "counts", "joined"):
        clients.create_topic(cluster.bootstrap, topic, PARTITIONS, 3)
    lines = Lines(cluster.bootstrap)
    instances = [Instance(cluster, tmp_path, name, case) for name in ("one", "two")]
    with instances[0], instances[1]:
        wait_until(lambda: all(one.has_work for one in instances), "each instance has its share")
        lines.write()
        read("counts", lines.words.total())
        instances[0].hold.touch()
        lines.write(extra="hold")
        wait_until(lambda: any(one.is_held for one in instances), "an instance is held")
        wait_until(
            lambda: b"hold:1" in read("counts", isolation="read_uncommitted"),
            "it has written in a transaction",
        )
        victim = coordinator(admin)
        cluster.crash(victim)
        next(one for one in instances if one.is_held).kill()
        instances[0].hold.unlink()
        lines.write()
        read("counts", lines.words.total())
        cluster.brokers[victim].start()
        lines.write()
        read("counts", lines.words.total())
        await_end(cluster)
    assert read("counts", isolation="read_uncommitted").count(b"hold:1") > 1, "one was aborted"
    counts = read("counts")
    assert sorted(counts) == sorted(lines.counts)
    for word in WORDS:
        of_word = [one for one in counts if one.startswith(f"{word}:".encode())]
        assert of_word == [one for one in lines.counts if one in of_word], "in order"
    assert sorted(read("joined")) == sorted(lines.joined)
    changes = sorted(int.from_bytes(one, "big") for one in read(CHANGELOG))
    assert changes == sorted(int(one.partition(b":")[2]) for one in lines.counts)
