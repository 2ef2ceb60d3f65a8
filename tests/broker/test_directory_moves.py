"""A broker that is killed while a replica moves between log directories loses nothing (KIP-113)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import confluent_kafka

from odradek.log.partition import future
from odradek.net.client import PeerClient
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.admin import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from tests.support.broker import STEADY, Broker, Cluster, wait_until
from tests.support.clients import QUIET, consume_all, create_topic, produce_all

TOPIC = "orders"
FOLDER = f"{TOPIC}-0"


class Writer:
    """An idempotent producer that writes one record after the other, whatever becomes of the
    broker.
    """

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: list[bytes] = []
        self.refused: list[str] = []
        settings = {"acks": "all", "enable.idempotence": True, "linger.ms": 2, **QUIET}
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, **settings})
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        for number in itertools.count():
            if self._enough.wait(0.002):
                break
            self._producer.produce(TOPIC, b"live %d" % number, on_delivery=self._delivered)
            self._producer.poll(0)
        self._producer.flush(120)

    def _delivered(self, error: object, message: confluent_kafka.Message) -> None:
        if error is None:
            self.acknowledged.append(message.value() or b"")
        else:
            self.refused.append(str(error))

    def close(self) -> None:
        self._enough.set()
        self._thread.join(150)
        assert not self.refused


def ask(broker: Broker, path: Path) -> int:
    """Ask for the move of the topic's replica; return the error code."""

    async def call() -> int:
        client = PeerClient("127.0.0.1", broker.port, "asker")
        topic = AlterReplicaLogDirTopic(name=TOPIC, partitions=[0])
        asked = AlterReplicaLogDir(path=str(path), topics=[topic])
        answer = await client.call(AlterReplicaLogDirsRequest(dirs=[asked]), 2, 60_000)
        await client.close()
        return answer.results[0].partitions[0].error_code

    return asyncio.run(call())


def watch(condition: Callable[[], bool]) -> None:
    """Wait for a state that may last for microseconds."""
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until


def begun(target: Path) -> bool:
    return any(target.glob(f"{FOLDER}.*-future"))


def filled(target: Path) -> bool:
    return any(target.glob(f"{FOLDER}.*-future/{future.MARK}")) or switched(target)


def switched(target: Path) -> bool:
    return (target / FOLDER).exists()


def over(target: Path) -> bool:
    return switched(target) and not (target / FOLDER / future.MARK).exists()


def test_whenever_the_broker_is_killed_nothing_acknowledged_is_lost_or_doubled(
    tmp_path: Path,
) -> None:
    disks = [tmp_path / "disk-1", tmp_path / "disk-2"]
    settings = {
        **STEADY,
        "log.dirs": ",".join(map(str, disks)),
        "log.segment.bytes": "1000000",
        "replica.fetch.max.bytes": "100000",
    }
    with Cluster(tmp_path, settings=settings) as cluster:
        broker = cluster.brokers[1]
        create_topic(cluster.bootstrap, TOPIC)
        produce_all(
            cluster.bootstrap, TOPIC, [b"%d" % number + bytes(1000) for number in range(3000)]
        )
        with contextlib.closing(Writer(cluster.bootstrap)) as writer:
            for moment in (begun, filled, switched, over):
                target = next(disk for disk in disks if not (disk / FOLDER).exists())
                # A broker that has just started has no role yet.
                wait_until(
                    lambda target=target: ask(broker, target) == ErrorCode.NONE,  # type: ignore[misc]
                    "the broker moves the replica",
                )
                watch(lambda moment=moment, target=target: moment(target))  # type: ignore[misc]
                cluster.crash(1)
                broker.start()
                wait_until(lambda target=target: over(target), "the move went on")  # type: ignore[misc]
                [left] = [disk for disk in disks if (disk / FOLDER).exists()]
                assert left == target
            before = len(writer.acknowledged)
            wait_until(lambda: len(writer.acknowledged) > before, "records are taken")
        found = Counter(consume_all(cluster.bootstrap, TOPIC, 1, 3000 + len(writer.acknowledged)))
        assert [found[value] for value in writer.acknowledged] == [1] * len(writer.acknowledged)
        assert found.total() == 3000 + len(writer.acknowledged)
        assert "Traceback" not in broker.log_text()
