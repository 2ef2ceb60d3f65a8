"""A disk that is full, and one whose fsync fails: its directory goes offline, the others serve on,
and what was acknowledged is there after a restart, at its offset.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import KafkaError

from odradek.values import BrokerId
from odradek.zk import znodes
from tests.support.broker import STEADY, Cluster, FreshBroker, wait_until
from tests.support.clients import QUIET, consume_all, create_topic, produce_all
from tests.support.small_disk import SmallDisk

SMALL_DISK = "12m"
ENLARGED = "64m"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path / "disk", SMALL_DISK) as small:
        yield small


class Writer:
    """Sends one record after the other without retries, and knows which were acknowledged."""

    def __init__(self, bootstrap: str, topic: str, size: int) -> None:
        self.acknowledged: dict[int, bytes] = {}
        self.error: KafkaError | None = None
        self._topic = topic
        self._size = size
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "retries": 0, **QUIET}
        )

    def write(self) -> None:
        """One more; `error` is set where it is refused."""
        value = (b"%d " % len(self.acknowledged)).ljust(self._size, b"x")

        def delivered(error: KafkaError | None, message: confluent_kafka.Message) -> None:
            if error is None:
                offset = message.offset()
                assert offset is not None
                self.acknowledged[offset] = value
            else:
                self.error = error

        self._producer.produce(self._topic, value, partition=0, on_delivery=delivered)
        assert self._producer.flush(120) == 0


def check_after_restart(cluster: Cluster, writer: Writer) -> None:
    """Every acknowledged record is at its offset, and the log goes on behind them."""
    found = consume_all(cluster.bootstrap, "doomed", 1, len(writer.acknowledged))
    kept = dict(enumerate(found))
    assert {offset: kept.get(offset) for offset in writer.acknowledged} == writer.acknowledged
    assert produce_all(cluster.bootstrap, "doomed", [b"goes on"]) == [len(found)]
    assert len(consume_all(cluster.bootstrap, "spared", 1, 2)) == 2


def test_a_full_disk_takes_its_directory_offline_and_nothing_acknowledged_is_lost(
    tmp_path: Path, disk: SmallDisk
) -> None:
    small, namespace = disk.path, disk.namespace
    settings = {**STEADY, "log.dirs": f"{small},{tmp_path / 'large'}"}
    with Cluster(tmp_path, settings=settings, kinds={1: disk.broker_class()}) as cluster:
        broker = cluster.brokers[1]
        for topic in ("doomed", "spared"):
            create_topic(cluster.bootstrap, topic)
        produce_all(cluster.bootstrap, "spared", [b"before"])
        writer = Writer(cluster.bootstrap, "doomed", 300_000)
        while writer.error is None:
            writer.write()
        assert writer.error.code() == KafkaError.KAFKA_STORAGE_ERROR
        assert len(writer.acknowledged) > 30
        assert f"log directory {small} is offline: [Errno 28]" in broker.log_text()
        assert broker.running
        produce_all(cluster.bootstrap, "spared", [b"after"])
        broker.kill()
        with cluster.zookeeper.client() as client:
            # Else what is left of the killed one's session would be waited for.
            client.delete(znodes.broker_path(BrokerId(1)))
            client.delete(znodes.CONTROLLER_PATH)
        enter = ["nsenter", f"--target={namespace}", "--mount"]
        subprocess.run([*enter, "mount", "-o", f"remount,size={ENLARGED}", small], check=True)
        broker.start()
        check_after_restart(cluster, writer)


def test_a_failed_fsync_takes_its_directory_offline_and_is_never_acknowledged(
    tmp_path: Path,
) -> None:
    bad = tmp_path / "bad"
    settings = {**STEADY, "log.dirs": f"{bad},{tmp_path / 'good'}"}
    with Cluster(tmp_path, settings=settings, kind=FreshBroker) as cluster:
        broker = cluster.brokers[1]
        for topic in ("doomed", "spared"):
            create_topic(cluster.bootstrap, topic, config={"flush.messages": "1"})
        produce_all(cluster.bootstrap, "spared", [b"before"])
        writer = Writer(cluster.bootstrap, "doomed", 1000)
        for _ in range(5):
            writer.write()
        assert writer.error is None
        assert broker._process is not None
        (log,) = (bad / "doomed-0").glob("*.log")
        attach = ["strace", "--follow-forks", f"--attach={broker._process.pid}", "-o", "/dev/null"]
        inject = ["--trace=fsync", "--inject=fsync:error=EIO", f"--trace-path={log}"]
        with subprocess.Popen([*attach, *inject], stderr=subprocess.PIPE) as strace:
            assert strace.stderr is not None
            assert b"attached" in strace.stderr.readline()
            writer.write()
            assert writer.error is not None
            assert writer.error.code() == KafkaError.KAFKA_STORAGE_ERROR
            wait_until(
                lambda: f"log directory {bad} is offline: [Errno 5]" in broker.log_text(),
                "the directory is offline",
            )
            produce_all(cluster.bootstrap, "spared", [b"after"])
            strace.send_signal(signal.SIGINT)
            strace.wait(120)
        assert broker.running
        broker.terminate()
        broker.start()
        check_after_restart(cluster, writer)
