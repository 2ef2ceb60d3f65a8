"""Apache Flink copies a topic exactly once, under faults.

The broker that coordinates its transactions dies and comes back. Then Flink dies when a checkpoint
is complete and its transactions are not committed yet, and starts again from there: another process
commits what the dead one wrote, and aborts what it wrote later. Who reads committed records of the
copy must see each record once. ODRADEK_JUDGE=kafka runs it against Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.support import clients, jvm, kafka_peer
from tests.support.broker import Cluster, wait_until
from tests.support.judged_cluster import TRANSACTIONS, judged_cluster
from tests.support.kafka_applications import Application

VERSIONS = ["1.20.5", "2.2.1"]
PROGRAM = Path(__file__).with_name("FlinkCopy.java")
PARTITIONS, PART = 2, 200
START_SECONDS = 600
# What Flink's serializers look into.
OPEN = [
    word
    for package in ("lang", "util")
    for word in ("--add-opens", f"java.base/java.{package}=ALL-UNNAMED")
]
SETTINGS = {
    "parallelism.default": "2",
    "execution.checkpointing.interval": "300ms",
    "execution.checkpointing.storage": "filesystem",
    "execution.checkpointing.tolerable-failed-checkpoints": "1000",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "1000",
    "restart-strategy.fixed-delay.delay": "300ms",
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three brokers, of which one may die. One of them coordinates all transactions."""
    with judged_cluster(
        tmp_path, {**TRANSACTIONS, "transaction.state.log.num.partitions": "1"}
    ) as running:
        yield running


class Flink(Application):
    """A job and its cluster in one process. While `hold` exists, a checkpoint stops it."""

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        name: str,
        version: str,
        checkpoint: Path | None = None,
    ) -> None:
        release = kafka_peer.flink(version)
        classes = jvm.compiled(PROGRAM, kafka_peer.classpath(release))
        self.hold = folder / "hold"
        self._checkpoints = folder / f"{name}-checkpoints"
        settings = {**SETTINGS, "execution.checkpointing.dir": self._checkpoints.as_uri()}
        if checkpoint is not None:
            settings["execution.state-recovery.path"] = checkpoint.as_uri()
        words: tuple[str | Path, ...] = (*OPEN, PROGRAM.stem, cluster.bootstrap, self.hold)
        given = (f"{key}={value}" for key, value in settings.items())
        super().__init__(folder / f"{name}.log", release, (*words, *given), [classes])

    @property
    def is_held(self) -> bool:
        return "held\n" in self.log_text()

    def last_checkpoint(self) -> Path:
        """Return the folder of the last checkpoint that is complete."""
        complete = self._checkpoints.glob("*/chk-*/_metadata")
        return max((one.parent for one in complete), key=lambda one: int(one.name.split("-")[1]))


def write(cluster: Cluster, part: int) -> None:
    clients.produce_all(cluster.bootstrap, "source", values(part, part + 1), PARTITIONS)


def values(begin: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(begin * PART, end * PART)]


def read_copy(cluster: Cluster) -> list[bytes]:
    """Return the committed records of the copy."""
    return clients.consume_all(cluster.bootstrap, "target", PARTITIONS, 0)


def await_copy(cluster: Cluster, parts: int) -> None:
    """Wait until the copy has as many parts."""
    wait_until(
        lambda: len(read_copy(cluster)) >= parts * PART,
        f"{parts} parts are copied",
        START_SECONDS,
    )


def coordinator(cluster: Cluster) -> int:
    admin = AdminClient(clients.settings(cluster.bootstrap))
    return admin.list_topics(timeout=120).topics["__transaction_state"].partitions[0].leader


@pytest.mark.full(
    "tests/peers/test_transactional_copy.py::test_each_record_is_copied_once_though_a_coordinator_dies"
)
@pytest.mark.parametrize("version", VERSIONS)
def test_each_record_is_copied_once_though_a_broker_and_flink_die(
    cluster: Cluster, tmp_path: Path, version: str
) -> None:
    clients.create_topic(cluster.bootstrap, "source", PARTITIONS, 3)
    clients.create_topic(cluster.bootstrap, "target", PARTITIONS, 3)
    write(cluster, 0)
    first = Flink(cluster, tmp_path, "first", version)
    with first:
        await_copy(cluster, 1)
        victim = coordinator(cluster)
        cluster.crash(victim)
        write(cluster, 1)
        await_copy(cluster, 2)
        cluster.brokers[victim].start()
        first.hold.touch()
        write(cluster, 2)
        wait_until(lambda: first.is_held, "a checkpoint is complete", START_SECONDS)
        assert len(read_copy(cluster)) == 2 * PART, "its transactions are not committed"
        first.kill()
    first.hold.unlink()
    with Flink(cluster, tmp_path, "second", version, first.last_checkpoint()):
        write(cluster, 3)
        await_copy(cluster, 4)
    assert sorted(read_copy(cluster)) == sorted(values(0, 4))
