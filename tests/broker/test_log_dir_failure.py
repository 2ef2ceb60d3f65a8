"""A log directory that fails takes its partitions away and nothing else (KIP-112)."""

from __future__ import annotations

import asyncio
import resource
from functools import partial
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from odradek.net.client import PeerClient
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.admin import DescribeLogDirsRequest
from odradek.zk import znodes
from tests.support.broker import STEADY, Broker, Cluster, FreshBroker, wait_until
from tests.support.clients import QUIET, create_topic, produce_all

LARGEST_FILE = 25 * 1024 * 1024


def test_failed_directory_moves_leadership_and_the_broker_stays(tmp_path: Path) -> None:
    """The kernel's limit on file sizes stands for a disk that refuses writes."""
    settings = {**STEADY, "log.index.size.max.bytes": "1000000"}
    cluster = Cluster(tmp_path, brokers=2, settings=settings, kind=FreshBroker)
    limited = cluster.brokers[1]
    folders = ",".join(str(tmp_path / f"disk-{number}") for number in (1, 2))
    with cluster:
        limited.terminate()
        limited.spawn_limits = {resource.RLIMIT_FSIZE: LARGEST_FILE}
        limited.start("--override", f"log.dirs={folders}")
        cluster.wait_for_members()
        for topic in ("doomed", "spared"):
            create_topic(cluster.bootstrap, topic, replicas=2)
        with cluster.zookeeper.client() as client:

            def state(topic: str) -> znodes.PartitionState:
                path = znodes.state_path(topic, 0)
                return znodes.decode_state(path, client.get(path)[0])

            def both_in_sync(topic: str) -> bool:
                return len(state(topic).isr) == 2

            for topic in ("doomed", "spared"):
                wait_until(partial(both_in_sync, topic), "both in sync")
            fill(cluster.bootstrap, "doomed", LARGEST_FILE + 2_000_000)
            wait_until(lambda: state("doomed").isr == (2,), "the failed replica is out")
            wait_until(lambda: state("doomed").leader == 2, "the other replica leads")
            wait_until(lambda: 1 in state("spared").isr, "its other directory is in sync")
        assert asyncio.run(described(limited)) == {
            str(tmp_path / "disk-1"): (ErrorCode.KAFKA_STORAGE_ERROR, []),
            str(tmp_path / "disk-2"): (ErrorCode.NONE, ["spared"]),
        }
        assert limited.running
        assert "is offline" in limited.log_text()
        produce_all(cluster.bootstrap, "doomed", [b"goes on"])
        produce_all(cluster.bootstrap, "spared", [b"goes on"])


def test_directory_that_fails_while_it_is_loaded(tmp_path: Path) -> None:
    """The broker goes on with the others, and does not start without any."""
    disks = [tmp_path / "disk-1", tmp_path / "disk-2"]
    settings = {**STEADY, "log.dirs": ",".join(map(str, disks))}
    with Cluster(tmp_path, settings=settings, kind=FreshBroker) as cluster:
        broker = cluster.brokers[1]
        create_topic(cluster.bootstrap, "orders", partitions=2)
        broker.terminate()
        spoil(disks[0])
        broker.start()
        assert "is offline" in broker.log_text()
        assert "Traceback" not in broker.log_text()
        broker.terminate()
        spoil(disks[1])
        broker.spawn()
        assert broker.wait() == 1
        assert "none of log.dirs can be used" in broker.log_text()


def test_partition_whose_log_failed_for_a_passing_reason_gets_its_leader_back(
    tmp_path: Path,
) -> None:
    """A link to itself has the name of its first file; the broker is asked again without it."""
    with Cluster(tmp_path, settings=STEADY, kind=FreshBroker) as cluster:
        broker = cluster.brokers[1]
        obstacle = broker.log_dir / "hindered-0" / f"{0:020}.log"
        obstacle.parent.mkdir()
        obstacle.symlink_to(obstacle)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
        admin.create_topics([NewTopic("hindered", 1, 1)])["hindered"].exception(120)
        with cluster.zookeeper.client() as client:

            def leader() -> int:
                path = znodes.state_path("hindered", 0)
                if client.exists(path) is None:
                    return 1  # not even created
                return int(znodes.decode_state(path, client.get(path)[0]).leader)

            wait_until(lambda: leader() == -1, "it has no leader")
            obstacle.unlink()
            notice = znodes.encode_log_dir_event(1)
            client.create(
                f"{znodes.LOG_DIR_EVENTS_PATH}/{znodes.LOG_DIR_EVENT_PREFIX}", notice, sequence=True
            )
            wait_until(lambda: leader() == 1, "it is led again")
        produce_all(cluster.bootstrap, "hindered", [b"goes on"])


def spoil(disk: Path) -> None:
    """Have a log in the directory fail when it is opened."""
    log = next(disk.glob("orders-*/*.log"))
    log.unlink()
    log.mkdir()


async def described(broker: Broker) -> dict[str, tuple[int, list[str]]]:
    """Error code and topics of each directory, as DescribeLogDirs tells them."""
    client = PeerClient("127.0.0.1", broker.port, "asker")
    answer = await client.call(DescribeLogDirsRequest(topics=None), 1, 60_000)
    await client.close()
    return {
        one.log_dir: (one.error_code, [topic.name for topic in one.topics])
        for one in answer.results
    }


def fill(bootstrap: str, topic: str, size: int) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, **QUIET}
    )
    errors: list[object] = []
    for _ in range(size // 100_000):
        producer.produce(
            topic,
            b"x" * 100_000,
            partition=0,
            on_delivery=lambda error, _: errors.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(120) == 0
    assert not errors
