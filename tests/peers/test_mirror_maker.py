"""MirrorMaker 2 copies a topic to another cluster exactly once, and offsets of a group with it.

It dies in the middle of a transaction, and starts again. Who reads committed records of the copy
must see each record once and in order, and the group must find its place there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.support import clients, kafka_peer
from tests.support.broker import STEADY, Broker, Cluster, wait_until
from tests.support.kafka_applications import Application
from tests.support.kafka_broker import KafkaBroker
from tests.support.ports import free_port

VERSIONS = ["3.9.1", "4.1.0"]
KINDS = {"odradek": Broker, "kafka": KafkaBroker}
# The kinds of the source and of the target.
PAIRS = [("odradek", "odradek"), ("odradek", "kafka"), ("kafka", "odradek")]
CASES = [(version, *pair) for version in VERSIONS for pair in PAIRS]
PROGRAM = "org.apache.kafka.connect.mirror.MirrorMaker"
TOPIC, COPY, GROUP = "lines", "source.lines", "readers"
PART, READ = 200, 120
BROKERS = {
    **STEADY,
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
MIRROR = {
    "clusters": "source, target",
    "source->target.enabled": "true",
    "target.exactly.once.source.support": "enabled",
    "source.consumer.isolation.level": "read_committed",
    "dedicated.mode.enable.internal.rest": "true",
    "target.plugin.discovery": "service_load",
    "replication.factor": "1",
    "checkpoints.topic.replication.factor": "1",
    "heartbeats.topic.replication.factor": "1",
    "offset-syncs.topic.replication.factor": "1",
    "config.storage.replication.factor": "1",
    "offset.storage.replication.factor": "1",
    "status.storage.replication.factor": "1",
    "offset.storage.partitions": "1",
    "status.storage.partitions": "1",
    "sync.group.offsets.enabled": "true",
    "sync.group.offsets.interval.seconds": "1",
    "emit.checkpoints.interval.seconds": "1",
    "refresh.groups.interval.seconds": "1",
    # The place of each record is kept, and not of every hundredth.
    "offset.lag.max": "0",
}
ONE_LONG_TRANSACTION = {
    "source->target.transaction.boundary": "interval",
    "source->target.transaction.boundary.interval.ms": "3600000",
}


@contextlib.contextmanager
def two_clusters(folder: Path, kinds: Sequence[str]) -> Iterator[tuple[Cluster, Cluster]]:
    """Start a broker for each side, of these kinds."""
    with contextlib.ExitStack() as running:
        sides = []
        for side, kind in zip(("source", "target"), kinds, strict=True):
            own = folder / side
            own.mkdir()
            sides.append(running.enter_context(Cluster(own, 1, BROKERS, kind=KINDS[kind])))
        yield sides[0], sides[1]


class Mirror(Application):
    """MirrorMaker 2 as a process of its own."""

    def __init__(self, source: Cluster, target: Cluster, folder: Path, version: str) -> None:
        self._properties = folder / "mirror.properties"
        self._settings = {
            **MIRROR,
            "source.bootstrap.servers": source.bootstrap,
            "target.bootstrap.servers": target.bootstrap,
            "listeners": f"http://127.0.0.1:{free_port()}",
        }
        release = kafka_peer.connect(version)
        super().__init__(
            folder / "mirror.log", release, (PROGRAM, self._properties, "--clusters", "target")
        )

    def configure(self, boundary: dict[str, str]) -> None:
        """Write the settings that count from the next start on."""
        settings = {**self._settings, **boundary}
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))


def values(begin: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(begin, end)]


def read_copy(target: Cluster, count: int, isolation: str = "read_committed") -> list[bytes]:
    settings = {"isolation.level": isolation}
    return clients.consume_all(target.bootstrap, COPY, 1, count, **settings)


def member(cluster: Cluster) -> Consumer:
    settings = {"group.id": GROUP, "enable.auto.commit": False}
    return Consumer({**clients.settings(cluster.bootstrap), **settings})


def commit(source: Cluster) -> None:
    """Let the group have read some records."""
    with contextlib.closing(member(source)) as consumer:
        consumer.commit(offsets=[TopicPartition(TOPIC, 0, READ)], asynchronous=False)


def await_place(target: Cluster) -> int:
    """Return where the group goes on in the copy, once it is told."""
    with contextlib.closing(member(target)) as consumer:
        place = TopicPartition(COPY, 0)
        found = [place]

        def has_offset() -> bool:
            found[:] = clients.committed(consumer, [place])
            return found[0].offset > 0

        wait_until(has_offset, f"{GROUP} has an offset in {COPY}")
        return found[0].offset


def read_from(target: Cluster, offset: int, last: bytes) -> list[bytes]:
    """Return the committed records of the copy from an offset to the one with this value."""
    with contextlib.closing(member(target)) as consumer:
        consumer.assign([TopicPartition(COPY, 0, offset)])
        found: list[bytes] = []

        def is_last() -> bool:
            records = consumer.consume(PART, 1)
            found.extend(one.value() or b"" for one in records if not one.error())
            return found[-1:] == [last]

        wait_until(is_last, f"{COPY} is read to its end")
        return found


@pytest.mark.full(
    "tests/peers/test_connect.py::test_each_line_is_written_once_though_a_worker_and_a_broker_die"
)
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_each_record_is_copied_once_though_mirror_maker_dies(
    tmp_path: Path, case: tuple[str, str, str]
) -> None:
    version, *kinds = case
    with two_clusters(tmp_path, kinds) as (source, target):
        clients.create_topic(source.bootstrap, TOPIC)
        clients.produce_all(source.bootstrap, TOPIC, values(0, PART))
        mirror = Mirror(source, target, tmp_path, version)
        mirror.configure(ONE_LONG_TRANSACTION)
        with mirror:
            assert len(read_copy(target, PART, "read_uncommitted")) == PART
            assert read_copy(target, 0) == []
            mirror.kill()
            mirror.configure({})
            mirror.start()
            read_copy(target, PART)
            clients.produce_all(source.bootstrap, TOPIC, values(PART, 2 * PART))
            found = read_copy(target, 2 * PART)
            commit(source)
            begin = await_place(target)
        assert found == values(0, 2 * PART)
        rest = read_from(target, begin, found[-1])
        # Its place may lie before what it committed, and never after it.
        assert rest[-PART - PART + READ :] == values(READ, 2 * PART)
        assert len(read_copy(target, 0, "read_uncommitted")) > len(found), "one was aborted"
