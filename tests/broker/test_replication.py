"""Three brokers, replication factor 3: nothing that was acknowledged is lost (rows R1 to R7)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import confluent_kafka
import pytest
from kazoo.client import KazooClient

from odradek.zk import znodes
from tests.support.broker import Cluster, wait_until
from tests.support.clients import QUIET, consume_all, create_topic, produce_all

TOPIC = "replicated"
SETTINGS = {
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "5000",
    "replica.fetch.wait.max.ms": "100",
    "replica.fetch.backoff.ms": "200",
}


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, brokers=3, settings=SETTINGS) as running:
        create_topic(running.bootstrap, TOPIC, partitions=1, replicas=3)
        yield running


def led(client: KazooClient) -> znodes.PartitionState:
    """The state once there is a leader: a session may end on a busy machine by itself."""
    wait_until(lambda: state(client).leader != -1, "a leader")
    return state(client)


def state(client: KazooClient) -> znodes.PartitionState:
    path = znodes.state_path(TOPIC, 0)
    return znodes.decode_state(path, client.get(path)[0])


class Writer:
    """Produces numbered records until told to stop; knows which of them were acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: dict[bytes, int] = {}
        self._stop = threading.Event()
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 1,
                "message.timeout.ms": 300_000,
                "topic.metadata.refresh.interval.ms": 1000,
                **QUIET,
            }
        )
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(0.002):
            self._producer.produce(TOPIC, b"%d" % number, partition=0, on_delivery=self._note)
            self._producer.poll(0)
            number += 1

    def _note(self, error: object, message: confluent_kafka.Message) -> None:
        if error is None:
            value, offset = message.value(), message.offset()
            assert value is not None
            assert offset is not None
            self.acknowledged[value] = offset

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(300) == 0

    def wait_for_more(self, count: int) -> None:
        """Wait until `count` further records are acknowledged."""
        wanted = len(self.acknowledged) + count
        wait_until(lambda: len(self.acknowledged) >= wanted, f"{count} more acknowledgements")


def check_nothing_is_lost_or_doubled(cluster: Cluster, writer: Writer) -> None:
    values = consume_all(cluster.bootstrap, TOPIC, 1, len(writer.acknowledged))
    assert len(set(values)) == len(values)
    assert set(writer.acknowledged) <= set(values)
    for value, offset in writer.acknowledged.items():
        assert values[offset] == value


def check_replicas_are_identical(cluster: Cluster) -> None:
    """Stop every broker, and compare the segments byte by byte."""
    for broker in cluster.brokers.values():
        broker.kill()
    segments = [
        b"".join(
            path.read_bytes() for path in sorted((broker.log_dir / f"{TOPIC}-0").glob("*.log"))
        )
        for broker in cluster.brokers.values()
    ]
    shortest = min(map(len, segments))
    assert shortest > 0
    assert len({one[:shortest] for one in segments}) == 1


def test_every_replica_gets_every_record_byte_for_byte(three: Cluster) -> None:
    produce_all(three.bootstrap, TOPIC, [b"%d" % number for number in range(500)])
    with three.zookeeper.client() as client:
        wait_until(lambda: len(state(client).isr) == 3, "all replicas in sync")
    check_replicas_are_identical(three)


def has_other_leader(client: KazooClient, former: int) -> bool:
    return state(client).leader not in (former, -1)


def test_killed_leader_loses_no_acknowledged_record_and_comes_back_in_sync(three: Cluster) -> None:
    with three.zookeeper.client() as client, Writer(three.bootstrap) as writer:
        for _ in range(2):
            writer.wait_for_more(200)
            before = led(client)
            three.crash(before.leader)
            wait_until(partial(has_other_leader, client, before.leader), "a new leader")
            assert state(client).leader_epoch > before.leader_epoch
            writer.wait_for_more(200)
            three.brokers[before.leader].start()
            wait_until(lambda: len(state(client).isr) == 3, "all replicas in sync")
    check_nothing_is_lost_or_doubled(three, writer)
    check_replicas_are_identical(three)


def test_paused_leader_loses_no_acknowledged_record(three: Cluster) -> None:
    with three.zookeeper.client() as client, Writer(three.bootstrap) as writer:
        writer.wait_for_more(200)
        before = led(client)
        three.brokers[before.leader].signal(signal.SIGSTOP)
        wait_until(lambda: state(client).leader not in (before.leader, -1), "a new leader")
        writer.wait_for_more(200)
        three.brokers[before.leader].signal(signal.SIGCONT)
        wait_until(lambda: len(state(client).isr) == 3, "all replicas in sync")
        writer.wait_for_more(200)
    check_nothing_is_lost_or_doubled(three, writer)
    check_replicas_are_identical(three)


def test_rolling_sigterm_moves_leaderships_and_loses_nothing(three: Cluster) -> None:
    with three.zookeeper.client() as client, Writer(three.bootstrap) as writer:
        for broker in three.brokers.values():
            writer.wait_for_more(100)
            assert broker.terminate() == 0
            writer.wait_for_more(100)
            broker.start()
            wait_until(lambda: len(state(client).isr) == 3, "all replicas in sync")
    check_nothing_is_lost_or_doubled(three, writer)


def test_too_few_replicas_refuse_acks_all(three: Cluster) -> None:
    produce_all(three.bootstrap, TOPIC, [b"x"])
    with three.zookeeper.client() as client:
        leader = led(client).leader
        for broker_id in three.brokers:
            if broker_id != leader:
                three.crash(broker_id)
        wait_until(lambda: state(client).isr == (leader,), "only the leader is in sync")
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": three.bootstrap,
            "acks": "all",
            "retries": 0,
            "message.timeout.ms": 100_000,
            **QUIET,
        }
    )
    errors: list[int | None] = []

    def is_refused() -> bool:
        """The controller writes who is in sync before the leader is told: then the first record is
        written and has too few copies.
        """
        producer.produce(
            TOPIC,
            b"y",
            partition=0,
            on_delivery=lambda error, _: errors.append(error.code() if error else None),
        )
        assert producer.flush(120) == 0
        return errors[-1] == confluent_kafka.KafkaError.NOT_ENOUGH_REPLICAS

    wait_until(is_refused, "the leader knows that it is alone, and refuses")
    assert None not in errors


def test_returning_broker_with_an_empty_disk_copies_everything(three: Cluster) -> None:
    import shutil

    produce_all(three.bootstrap, TOPIC, [b"%d" % number for number in range(300)])
    with three.zookeeper.client() as client:
        follower = next(
            broker for one, broker in three.brokers.items() if one != state(client).leader
        )
        three.crash(follower.broker_id)
        shutil.rmtree(follower.log_dir)
        wait_until(lambda: follower.broker_id not in state(client).isr, "out of the set")
        follower.start()
        wait_until(lambda: follower.broker_id in state(client).isr, "in sync again")
    check_replicas_are_identical(three)
