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

from odradek.log.records import records
from odradek.protocol import codec, headers
from odradek.protocol.api import ApiKey
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from odradek.protocol.primitives import LENGTH32
from odradek.zk import znodes
from tests.support.broker import STEADY, Cluster, wait_until
from tests.support.clients import QUIET, consume_all, create_topic, produce_all
from tests.support.logs import START_MS

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


def produce_frame(number: int) -> bytes:
    """A Produce of one record with acks=all."""
    written = PartitionProduceData(index=0, records=records.make([(None, b"v")], START_MS))
    request = ProduceRequest(
        acks=-1,
        timeout_ms=120_000,
        topic_data=[TopicProduceData(name=TOPIC, partition_data=[written])],
    )
    header = headers.encode_request_header(headers.RequestHeader(ApiKey.PRODUCE, 8, number, "c"))
    body = header + codec.encode(request, 8)
    return LENGTH32.pack(len(body)) + body


def test_records_are_written_while_those_before_them_wait_for_replicas(tmp_path: Path) -> None:
    """Followers that come back copy the records of three requests at once (ADR 22)."""
    patient = {**SETTINGS, **STEADY, "replica.lag.time.max.ms": "60000"}
    with Cluster(tmp_path, brokers=3, settings=patient) as cluster:
        create_topic(cluster.bootstrap, TOPIC, partitions=1, replicas=3)
        with cluster.zookeeper.client() as client:
            leader = cluster.brokers[led(client).leader]
        followers = [one for one in cluster.brokers.values() if one is not leader]
        [log] = (leader.log_dir / f"{TOPIC}-0").glob("*.log")
        for follower in followers:
            follower.signal(signal.SIGSTOP)
        with leader.connect() as sock, sock.makefile("rb") as answers:
            sock.sendall(b"".join(map(produce_frame, range(3))))
            whole = 3 * len(records.make([(None, b"v")], START_MS))
            wait_until(lambda: log.stat().st_size == whole, "all three are in the leader's log")
            for follower in followers:
                follower.signal(signal.SIGCONT)
            for number in range(3):
                (size,) = LENGTH32.unpack(answers.read(LENGTH32.size))
                answer = answers.read(size)
                assert LENGTH32.unpack_from(answer)[0] == number
                found, _ = codec.decode(ProduceResponse, 8, answer, LENGTH32.size)
                [one] = found.responses[0].partition_responses
                assert (one.error_code, one.base_offset) == (ErrorCode.NONE, number)
