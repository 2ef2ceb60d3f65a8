"""Consumers with a rack read from the follower in it (KIP-392), and from the leader without it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import confluent_kafka
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from odradek.config import RACK_AWARE_SELECTOR
from tests.support.broker import STEADY, Cluster, await_partitions
from tests.support.clients import await_leaders, make_topic, produce_all, settings
from tests.support.racks import BrokerInRack, in_rack
from tests.support.transactional_steps import PATIENCE_S

BROKERS = (1, 2, 3)
LEADER, FOLLOWER = 1, 2
NEAR = "rack-2"
SETTINGS = {
    **STEADY,
    "replica.selector.class": RACK_AWARE_SELECTOR,
    "auto.leader.rebalance.enable": "false",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
# Longer than the test waits: only what is committed may end it.
LONG_WAIT = {"fetch.wait.max.ms": 200_000, "socket.timeout.ms": 250_000}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("racks")
    with Cluster(folder, brokers=3, settings=SETTINGS, kind=BrokerInRack) as running:
        yield running


def create(cluster: Cluster, topic: str) -> None:
    """Create a topic that broker 1 leads, with replicas on all brokers."""
    admin = AdminClient(settings(cluster.bootstrap))
    make_topic(admin, NewTopic(topic, 1, replica_assignment=[[1, 2, 3]]))
    await_partitions(cluster, topic, 1)
    await_leaders(cluster.bootstrap, topic)


def reader(cluster: Cluster, topic: str, rack: str, **more: object) -> Consumer:
    consumer = Consumer(
        {
            **settings(cluster.bootstrap),
            "group.id": "none",
            "enable.auto.commit": False,
            "client.rack": rack,
            "fetch.error.backoff.ms": 50,
            **more,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    return consumer


def read(consumer: Consumer, count: int) -> list[bytes]:
    """Return the next values, once there are so many."""
    values: list[bytes] = []
    until = time.monotonic() + PATIENCE_S
    while len(values) < count:
        assert time.monotonic() < until, f"{len(values)} of {count} records were read"
        message = consumer.poll(1)
        if message is not None:
            error = message.error()
            assert error is None or error.retriable(), error
            if error is None:
                values.append(message.value() or b"")
    return values


def numbered(begin: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(begin, end)]


def test_a_consumer_reads_from_the_follower_in_its_rack(cluster: Cluster) -> None:
    create(cluster, "near")
    produce_all(cluster.bootstrap, "near", numbered(0, 100))
    consumer = reader(cluster, "near", NEAR, **LONG_WAIT)
    assert read(consumer, 100) == numbered(0, 100)
    # The wait at the follower ends as soon as it knows that there is more.
    for number in range(100, 103):
        produce_all(cluster.bootstrap, "near", numbered(number, number + 1))
        assert read(consumer, 1) == numbered(number, number + 1)
    consumer.close()
    assert [one for one in BROKERS if in_rack(cluster, one).bytes_out("near") > 0] == [FOLLOWER]
    elsewhere = reader(cluster, "near", "rack-4")
    assert read(elsewhere, 103) == numbered(0, 103)
    elsewhere.close()
    assert in_rack(cluster, LEADER).bytes_out("near") > 0


def test_a_follower_gives_committed_records_and_tells_what_was_aborted(cluster: Cluster) -> None:
    create(cluster, "decided")
    producer = confluent_kafka.Producer(
        {**settings(cluster.bootstrap), "transactional.id": "near", "linger.ms": 0}
    )
    producer.init_transactions(PATIENCE_S)
    for value, is_kept in ((b"kept", True), (b"aborted", False), (b"last", True)):
        producer.begin_transaction()
        producer.produce("decided", value)
        assert producer.flush(PATIENCE_S) == 0
        if is_kept:
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.abort_transaction(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("decided", b"open")
    assert producer.flush(PATIENCE_S) == 0
    consumer = reader(cluster, "decided", NEAR, **{"isolation.level": "read_committed"})
    everything = reader(cluster, "decided", NEAR, **{"isolation.level": "read_uncommitted"})
    assert read(consumer, 2) == [b"kept", b"last"]
    assert read(everything, 4) == [b"kept", b"aborted", b"last", b"open"]
    assert consumer.poll(1) is None
    producer.commit_transaction(PATIENCE_S)
    assert read(consumer, 1) == [b"open"]
    consumer.close()
    everything.close()
    assert in_rack(cluster, LEADER).bytes_out("decided") == 0
    assert in_rack(cluster, FOLLOWER).bytes_out("decided") > 0


def test_a_consumer_goes_to_the_leader_and_back_where_its_follower_is_killed(
    cluster: Cluster,
) -> None:
    create(cluster, "killed")
    follower = in_rack(cluster, FOLLOWER)
    # It reads ahead little: most is still to be read when the follower dies.
    little = {"fetch.message.max.bytes": 100, "queued.min.messages": 10}
    consumer = reader(cluster, "killed", NEAR, **little)
    produce_all(cluster.bootstrap, "killed", numbered(0, 1000), **{"batch.num.messages": 2})
    assert read(consumer, 300) == numbered(0, 300)
    assert in_rack(cluster, LEADER).bytes_out("killed") == 0
    cluster.crash(FOLLOWER)
    assert read(consumer, 700) == numbered(300, 1000)
    assert in_rack(cluster, LEADER).bytes_out("killed") > 0
    follower.start()
    for number in itertools.count(1000):
        produce_all(cluster.bootstrap, "killed", numbered(number, number + 1))
        assert read(consumer, 1) == numbered(number, number + 1)
        if follower.bytes_out("killed") > 0:
            break
    consumer.close()
