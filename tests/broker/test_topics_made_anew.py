"""A broker that was away while a topic was deleted and created again shows no record of the former
topic (KIP-516), and loses none of a topic whose id a tool dropped. Consumers read all of it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from odradek.log.partition import topic_identity
from odradek.values import BrokerId, TopicPartition
from odradek.zk import admin, operations, znodes
from odradek.zk.znodes import TopicAssignment
from tests.support.broker import STEADY, Broker, Cluster, start_together, wait_until
from tests.support.clients import QUIET, await_leaders, consume_all, produce_all
from tests.support.sampling import some_of

FORMER = [b"former %d" % number for number in range(30)]
PRESENT = [b"present %d" % number for number in range(5)]
EVERYWHERE = (BrokerId(1), BrokerId(2), BrokerId(3))
BACK = 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {**STEADY, "auto.leader.rebalance.enable": "false"}
    with Cluster(tmp_path_factory.mktemp("anew"), brokers=3, settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def zookeeper(cluster: Cluster) -> Iterator[KazooClient]:
    with cluster.zookeeper.client() as client:
        yield client


def make(cluster: Cluster, client: KazooClient, topic: str, values: list[bytes]) -> None:
    """Create a topic on every broker, also on one that is away, and fill it.

    Each record is a batch of its own: a follower can truncate anywhere.
    """
    assignment = admin.with_new_id(TopicAssignment({0: EVERYWHERE}))
    operations.commit(client, admin.create_topic(topic, assignment, {}))

    def all_have_it() -> bool:
        running = [one for one in EVERYWHERE if cluster.brokers[one].running]
        kept = [identity(cluster, broker_id, topic) for broker_id in running]
        return {one.topic_id if one else None for one in kept} == {assignment.topic_id}

    # Until a broker has heard of it, it may lead the former one, and would take its records.
    wait_until(all_have_it, "the brokers have logs of this topic")
    await_leaders(cluster.bootstrap, topic)
    produce_all(cluster.bootstrap, topic, values, **{"batch.num.messages": 1})


def state(client: KazooClient, topic: str) -> znodes.PartitionState | None:
    path = znodes.state_path(topic, 0)
    try:
        return znodes.decode_state(path, client.get(path)[0])
    except NoNodeError:
        return None


def topic_id(client: KazooClient, topic: str) -> str | None:
    path = znodes.topic_path(topic)
    return znodes.decode_topic(path, client.get(path)[0]).topic_id


def is_whole(client: KazooClient, topic: str) -> bool:
    found = state(client, topic)
    return found is not None and set(found.isr) == {1, 2, 3}


def identity(cluster: Cluster, broker_id: int, topic: str) -> topic_identity.TopicIdentity | None:
    return topic_identity.read(str(cluster.brokers[broker_id].log_dir / f"{topic}-0"))


def lead(cluster: Cluster, client: KazooClient, topic: str, broker_id: int) -> None:
    """Make a broker leader: it becomes the preferred replica, and is elected."""
    partition = TopicPartition(topic, 0)
    order = (broker_id, *sorted({1, 2, 3} - {broker_id}))
    client.create(znodes.REASSIGN_PARTITIONS_PATH, znodes.encode_reassignment({partition: order}))
    wait_until(lambda: not client.exists(znodes.REASSIGN_PARTITIONS_PATH), "the order is taken")
    client.create(znodes.PREFERRED_ELECTION_PATH, znodes.encode_preferred_election([partition]))

    def leads() -> bool:
        found = state(client, topic)
        return found is not None and found.leader == broker_id

    wait_until(leads, f"broker {broker_id} leads {topic}")
    await_leaders(cluster.bootstrap, topic)


def move_away_and_delete(cluster: Cluster, client: KazooClient, topic: str) -> None:
    """Delete a topic for good while broker 3 is away: its replica has moved to the others."""
    target = {TopicPartition(topic, 0): (1, 2)}
    client.create(znodes.REASSIGN_PARTITIONS_PATH, znodes.encode_reassignment(target))
    wait_until(lambda: not client.exists(znodes.REASSIGN_PARTITIONS_PATH), "the replica is moved")
    cluster.delete_topic(topic)


def await_gone(broker: Broker, topic: str) -> None:
    told = AdminClient({"bootstrap.servers": broker.address, **QUIET})
    wait_until(
        lambda: topic not in told.list_topics(timeout=30).topics,
        f"broker {broker.broker_id} knows that the topic is gone",
    )


def remove_by_hand(cluster: Cluster, client: KazooClient, topic: str) -> None:
    """Remove a topic's znodes, as people do whose deletion does not end."""
    client.delete(znodes.topic_path(topic), recursive=True)
    client.delete(znodes.topic_config_path(topic))
    for broker in cluster.brokers.values():
        if broker.running:
            await_gone(broker, topic)


def stop(cluster: Cluster, broker_id: int) -> None:
    cluster.brokers[broker_id].terminate()


def kill(cluster: Cluster, broker_id: int) -> None:
    cluster.crash(broker_id)


@pytest.mark.parametrize("elections", [0, 2])
def test_consumer_at_the_end_of_a_topic_reads_all_records_once_it_is_made_anew(
    cluster: Cluster, zookeeper: KazooClient, elections: int
) -> None:
    """It is filled to the same length. With Kafka 2.8.2, such a consumer may skip them; once there
    were elections, librdkafka waits in vain for a leader epoch as high as the former.
    """
    topic = f"refilled-{elections}"
    make(cluster, zookeeper, topic, FORMER)
    for number in range(elections):
        lead(cluster, zookeeper, topic, 2 - number)
    present = [b"present" + value for value in FORMER]
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "none", **QUIET}
    consumer = confluent_kafka.Consumer({**settings, "auto.offset.reset": "earliest"})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    values: list[bytes] = []

    def has(count: int) -> bool:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            values.append(message.value() or b"")
        return len(values) >= count

    wait_until(lambda: has(len(FORMER)), "the consumer is at the end")
    cluster.delete_topic(topic)
    make(cluster, zookeeper, topic, present)
    wait_until(lambda: has(len(FORMER) + len(present)), "the consumer has read the new topic")
    consumer.close()
    assert sorted(values[len(FORMER) :]) == sorted(present)


def test_idempotent_producer_goes_on_once_its_topic_is_made_anew(
    cluster: Cluster, zookeeper: KazooClient
) -> None:
    make(cluster, zookeeper, "written-on", [])
    settings = {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, **QUIET}
    producer = confluent_kafka.Producer(settings)
    outcomes: list[object] = []

    def send(values: list[bytes]) -> None:
        for value in values:
            producer.produce(
                "written-on", value, on_delivery=lambda *done: outcomes.append(done[0])
            )
        assert producer.flush(120) == 0

    send(FORMER)
    cluster.delete_topic("written-on")
    make(cluster, zookeeper, "written-on", [])
    send(PRESENT)
    assert outcomes == [None] * (len(FORMER) + len(PRESENT))
    assert consume_all(cluster.bootstrap, "written-on", 1, len(PRESENT)) == PRESENT


@pytest.mark.parametrize("leave", some_of([stop, kill], [kill]))
@pytest.mark.parametrize("delete", [move_away_and_delete, remove_by_hand])
def test_broker_that_was_away_shows_no_record_of_the_former_topic(
    cluster: Cluster,
    zookeeper: KazooClient,
    leave: Callable[[Cluster, int], None],
    delete: Callable[[Cluster, KazooClient, str], None],
) -> None:
    topic = f"{leave.__name__}-{delete.__name__}"
    make(cluster, zookeeper, topic, FORMER)
    former = identity(cluster, BACK, topic)
    leave(cluster, BACK)
    delete(cluster, zookeeper, topic)
    make(cluster, zookeeper, topic, PRESENT)
    cluster.brokers[BACK].start()
    wait_until(lambda: is_whole(zookeeper, topic), "the broker is back in sync")
    lead(cluster, zookeeper, topic, BACK)
    assert sorted(consume_all(cluster.bootstrap, topic, 1, len(PRESENT))) == sorted(PRESENT)
    present = identity(cluster, BACK, topic)
    assert former is not None
    assert present is not None
    assert present.topic_id == topic_id(zookeeper, topic) != former.topic_id
    assert present == identity(cluster, 1, topic)


def test_running_brokers_notice_a_topic_made_anew_by_hand(
    cluster: Cluster, zookeeper: KazooClient
) -> None:
    make(cluster, zookeeper, "by-hand", FORMER)
    remove_by_hand(cluster, zookeeper, "by-hand")
    make(cluster, zookeeper, "by-hand", PRESENT)
    wait_until(lambda: is_whole(zookeeper, "by-hand"), "all are in sync")
    for broker_id in (1, 2, 3):
        lead(cluster, zookeeper, "by-hand", broker_id)
        found = consume_all(cluster.bootstrap, "by-hand", 1, len(PRESENT))
        assert sorted(found) == sorted(PRESENT)


def test_topic_made_anew_while_all_brokers_were_away_is_empty(
    cluster: Cluster, zookeeper: KazooClient
) -> None:
    make(cluster, zookeeper, "all-away", FORMER)
    for broker_id in cluster.brokers:
        kill(cluster, broker_id)
    assignment = znodes.decode_topic("t", zookeeper.get(znodes.topic_path("all-away"))[0])
    zookeeper.delete(znodes.topic_path("all-away"), recursive=True)
    # As tools before Kafka 2.8 do: no id.
    made = znodes.encode_topic(replace(assignment, topic_id=None))
    zookeeper.create(znodes.topic_path("all-away"), made)
    start_together(cluster.brokers.values())
    wait_until(lambda: is_whole(zookeeper, "all-away"), "all are in sync")
    await_leaders(cluster.bootstrap, "all-away")
    produce_all(cluster.bootstrap, "all-away", PRESENT)
    found = consume_all(cluster.bootstrap, "all-away", 1, len(PRESENT))
    assert sorted(found) == sorted(PRESENT)
    assert znodes.is_topic_id(topic_id(zookeeper, "all-away"))


@pytest.mark.parametrize("number", some_of([signal.SIGTERM, signal.SIGKILL], [signal.SIGKILL]))
def test_records_of_a_topic_whose_id_a_tool_dropped_stay(
    cluster: Cluster, zookeeper: KazooClient, number: signal.Signals
) -> None:
    topic = f"dropped-{number.name}"
    make(cluster, zookeeper, topic, FORMER)
    given = topic_id(zookeeper, topic)
    for broker in cluster.brokers.values():
        broker.signal(number)
    for broker in cluster.brokers.values():
        broker.wait()
    path = znodes.topic_path(topic)
    assignment = znodes.decode_topic(path, zookeeper.get(path)[0])
    zookeeper.set(path, znodes.encode_topic(replace(assignment, topic_id=None)))
    for broker_id in cluster.brokers:
        if zookeeper.exists(znodes.broker_path(broker_id)):
            cluster.zookeeper.end_session_of(znodes.broker_path(broker_id))
    start_together(cluster.brokers.values())
    wait_until(lambda: topic_id(zookeeper, topic) == given, "the id is restored")
    wait_until(lambda: is_whole(zookeeper, topic), "all are in sync")
    for broker_id in (2, 3):
        lead(cluster, zookeeper, topic, broker_id)
        assert sorted(consume_all(cluster.bootstrap, topic, 1, len(FORMER))) == sorted(FORMER)


def test_logs_are_adopted_by_topics_that_are_made_again_in_an_empty_zookeeper(
    cluster: Cluster, zookeeper: KazooClient
) -> None:
    """The last test: it takes everything away that the brokers had in ZooKeeper."""
    make(cluster, zookeeper, "rescued", FORMER)
    for broker_id in cluster.brokers:
        kill(cluster, broker_id)
    for name in set(zookeeper.get_children("/")) - {"zookeeper"}:
        zookeeper.delete(f"/{name}", recursive=True)
    start_together(cluster.brokers.values())
    cluster.wait_for_members()
    assignment = admin.with_new_id(TopicAssignment({0: EVERYWHERE}))
    operations.commit(zookeeper, admin.create_topic("rescued", assignment, {}))
    await_leaders(cluster.bootstrap, "rescued")
    found = consume_all(cluster.bootstrap, "rescued", 1, len(FORMER))
    assert sorted(found) == sorted(FORMER)

    def all_say_so() -> bool:
        kept = [identity(cluster, broker_id, "rescued") for broker_id in cluster.brokers]
        return {one.topic_id if one else None for one in kept} == {assignment.topic_id}

    wait_until(all_say_so, "the logs are of the topic that was made again")


def test_topic_that_is_made_anew_at_once_shows_no_record_of_the_former(
    cluster: Cluster, zookeeper: KazooClient
) -> None:
    topic = "at-once"
    make(cluster, zookeeper, topic, FORMER)
    former = topic_id(zookeeper, topic)
    anew = admin.with_new_id(TopicAssignment({0: EVERYWHERE}))
    operations.commit(
        zookeeper,
        [
            operations.Delete(znodes.state_path(topic, 0)),
            operations.Delete(znodes.partition_path(topic, 0)),
            operations.Delete(znodes.partitions_path(topic)),
            operations.Delete(znodes.topic_path(topic)),
            operations.Delete(znodes.topic_config_path(topic)),
            *admin.create_topic(topic, anew, {}),
        ],
    )
    wait_until(lambda: is_whole(zookeeper, topic), "the new topic has a state")
    wait_until(
        lambda: all(
            (found := identity(cluster, one, topic)) is not None and found.topic_id == anew.topic_id
            for one in EVERYWHERE
        ),
        "every broker has a log of the new topic",
    )
    assert former != anew.topic_id
    produce_all(cluster.bootstrap, topic, PRESENT, **{"batch.num.messages": 1})
    assert sorted(consume_all(cluster.bootstrap, topic, 1, len(PRESENT))) == sorted(PRESENT)
