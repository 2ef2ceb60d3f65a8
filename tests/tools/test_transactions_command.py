"""`odradek transactions` against a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, ResourceType

from odradek.tools import transaction_states
from odradek.tools.command_line import connected
from odradek.values import TopicPartition as OwnPartition
from tests.support import clients, preloaded, secured_cluster
from tests.support.asking import ADMIN, Connection
from tests.support.broker import Cluster, wait_until
from tests.support.hanging_transactions import (
    UNVERIFIED,
    begun,
    find_coordinator,
    leave_hanging,
    write,
)
from tests.support.transaction_edges import Producer

TOPIC = "orders"
_ID = ResourceType.TRANSACTIONAL_ID


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), settings=UNVERIFIED) as running:
        clients.create_topic(running.bootstrap, TOPIC, 8)
        yield running


@pytest.fixture
def connection(cluster: Cluster) -> Iterator[Connection]:
    with closing(Connection(cluster.brokers[1].port, ADMIN)) as opened:
        yield opened


def run(cluster: Cluster, *arguments: str, status: int = 0) -> str:
    """Return what a command printed; on stderr if it was to fail."""
    done = preloaded.run(
        *("odradek", "transactions", *arguments, "--bootstrap-server", cluster.bootstrap),
        timeout=120,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr if status else done.stdout


def document(cluster: Cluster, *arguments: str) -> Any:
    return json.loads(run(cluster, *arguments, "-o", "json"))


def last_stable_offset(cluster: Cluster, partition: int) -> int:
    """Return where consumers of committed records end."""
    consumer = Consumer(
        {
            **clients.settings(cluster.bootstrap),
            "group.id": "g",
            "isolation.level": "read_committed",
        }
    )
    _, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), 60)
    consumer.close()
    return int(end)


def place(partition: int) -> tuple[str, ...]:
    return "--topic", TOPIC, "--partition", str(partition)


def test_ids_are_listed_and_described(cluster: Cluster, connection: Connection) -> None:
    producer = begun(connection, "open")
    producer.add((TOPIC, [0]))
    write(producer, TOPIC, 0)
    idle = begun(connection, "idle \n id")
    listed = {
        "transactionalId": "open",
        "coordinator": 1,
        "producerId": producer.producer_id,
        "state": "Ongoing",
    }
    of_idle = ("--producer-id", str(idle.producer_id))
    assert document(cluster, "list", "--state", "ONGOING") == [listed]
    assert [one["state"] for one in document(cluster, "list", *of_idle)] == ["Empty"]
    assert document(cluster, "list", "--state", "PrepareAbort") == []
    assert document(cluster, "list", "--state", "Ongoing", "--duration-filter", "3600000") == []
    assert "\nidle \\n id " in run(cluster, "list")
    [described] = document(cluster, "describe", "open", "open")
    assert described.pop("durationMs") >= 0
    assert described.pop("startMs") > 0
    del listed["state"]
    assert described == {
        **listed,
        "producerEpoch": producer.epoch,
        "state": "Ongoing",
        "timeoutMs": 60_000,
        "partitions": [f"{TOPIC}-0"],
    }
    [described] = document(cluster, "describe", "idle \n id")
    assert described["startMs"] is described["durationMs"] is None
    assert "'odd \\x1b id' does not exist" in run(cluster, "describe", "odd \x1b id", status=2)
    # Its coordinator will end it.
    assert document(cluster, "find-hanging", *place(0)) == []
    producer.end()


def test_hanging_transaction_is_found_and_aborted(cluster: Cluster, connection: Connection) -> None:
    producer = leave_hanging(connection, "hanging", TOPIC, 1)
    write(producer, TOPIC, 1, 1)
    assert last_stable_offset(cluster, 1) == 0
    [one] = document(cluster, "find-hanging")
    [same] = document(cluster, "find-hanging", "--broker-id", "1", *place(1))
    # Another minute may have begun between the two.
    assert 15 < one.pop("durationMin") <= same.pop("durationMin")
    assert one == same
    assert one.pop("lastTimestamp") > 0
    assert one == {
        "topic": TOPIC,
        "partition": 1,
        "producerId": producer.producer_id,
        "producerEpoch": producer.epoch,
        "coordinatorEpoch": -1,
        "startOffset": 0,
    }
    assert run(cluster, "abort", *place(1), "--start-offset", "1", status=2) == (
        f"odradek: no open transaction begins at offset 1 of {TOPIC}-1; open ones begin at 0\n"
    )
    assert run(cluster, "abort", *place(1), "--start-offset", "0") == (
        f"aborted the transaction of producer {producer.producer_id}, epoch {producer.epoch}, "
        f"in {TOPIC}-1 from offset 0\n"
    )
    assert last_stable_offset(cluster, 1) == 3
    assert document(cluster, "find-hanging", "--topic", TOPIC) == []
    assert "none is open there" in run(cluster, "abort", *place(1), "--start-offset", "0", status=2)


def test_transaction_is_aborted_by_its_producer(cluster: Cluster, connection: Connection) -> None:
    producer = leave_hanging(connection, "hanging by producer", TOPIC, 2)
    of_producer = (*place(2), "--producer-id", str(producer.producer_id), "--producer-epoch")
    said = run(cluster, "abort", *of_producer, "7", "--coordinator-epoch", "-1", status=2)
    assert f"has epoch {producer.epoch} and coordinator epoch -1" in said
    epochs = (str(producer.epoch), "--coordinator-epoch", "-1")
    run(cluster, "abort", *of_producer, *epochs)
    assert last_stable_offset(cluster, 2) == 2
    assert "has no open transaction" in run(cluster, "abort", *of_producer, *epochs, status=2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["list", "--state", "Hanging"], "is not one of"),
        (["list", "--producer-id", "-1"], "is not in the range"),
        (["describe"], "Missing argument"),
        (["describe", ""], "INVALID_REQUEST"),
        (["find-hanging", "--topic", "none"], "topic none does not exist"),
        (["find-hanging", "--partition", "0"], "--partition needs --topic"),
        (["find-hanging", *place(8)], f"topic {TOPIC} has no partition 8"),
        (["find-hanging", "--broker-id", "9"], "there is no live broker 9"),
        (["abort", *place(0)], "give either"),
        (["abort", *place(8), "--start-offset", "0"], "has no partition 8"),
        (["abort", *place(0), "--start-offset", "0", "--producer-id", "1"], "give either"),
        (["abort", *place(0), "--producer-id", "1"], "go together"),
        (["abort", *place(0), "--start-offset", str(2**63)], "is not in the range"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else "",
)
def test_mistakes_end_with_one_line(cluster: Cluster, words: list[str], said: str) -> None:
    assert said in run(cluster, *words, status=2)


async def test_transaction_that_ends_meanwhile_is_not_called_hanging(
    cluster: Cluster, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = begun(connection, "ends meanwhile")
    producer.add((TOPIC, [3]))
    write(producer, TOPIC, 3)

    async def listed(*arguments: Any, **filters: Any) -> Any:
        producer.end()
        wait_until(lambda: last_stable_offset(cluster, 3) == 2, "the marker is written")
        return await real(*arguments, **filters)

    real = transaction_states.listed
    monkeypatch.setattr(transaction_states, "listed", listed)
    key = OwnPartition(TOPIC, 3)
    async with connected(cluster.bootstrap, None) as brokers:
        assert [one.partition for one in await transaction_states.open_in(brokers, key)] == [key]
        assert await transaction_states.hanging(brokers, {1: [key]}, 2**62) == ([], [])


def test_nothing_is_called_hanging_while_a_coordinator_is_away(tmp_path: Path) -> None:
    with Cluster(tmp_path, 2, UNVERIFIED) as cluster:
        clients.create_topic(cluster.bootstrap, TOPIC, 2)
        told = AdminClient(clients.settings(cluster.bootstrap)).list_topics(TOPIC, 60)
        [led] = [one.id for one in told.topics[TOPIC].partitions.values() if one.leader == 1]
        with closing(Connection(cluster.brokers[1].port, ADMIN)) as connection:
            find_coordinator(connection, "made up")
            producer = Producer(connection, "made up")
            producer.producer_id, producer.epoch = 900_000, 0
            write(producer, TOPIC, led)
        [one] = document(cluster, "find-hanging")
        assert one["producerId"] == 900_000
        cluster.brokers[2].kill()

        def is_refused() -> bool:
            done = preloaded.run(
                *("odradek", "transactions", "find-hanging"),
                *("--bootstrap-server", cluster.brokers[1].address),
                timeout=120,
            )
            return "__transaction_state" in done.stderr and done.returncode == 1

        wait_until(is_refused, "a coordinator is away")


def test_nothing_is_called_hanging_by_who_may_not_look_at_its_id(tmp_path: Path) -> None:
    with secured_cluster.running(tmp_path) as secured:
        clients.create_topic(secured.cluster.bootstrap, TOPIC, 2)
        with closing(Connection(secured.cluster.brokers[1].port, ADMIN)) as connection:
            producers = {name: begun(connection, name) for name in ("hidden", "seen")}
            for partition, producer in enumerate(producers.values()):
                producer.add((TOPIC, [partition]))
                write(producer, TOPIC, partition)
        read = ResourceType.TOPIC, TOPIC, AclOperation.READ
        secured.add_user("viewer", "pw", read, (_ID, "seen", AclOperation.DESCRIBE))
        secured.add_user("judge", "pw", read, (_ID, "*", AclOperation.DESCRIBE))

        def found(user: str) -> tuple[int, str, str]:
            done = preloaded.run(
                *("odradek", "transactions", "find-hanging"),
                *("--bootstrap-server", secured.bootstrap),
                *("--command-config", str(secured.properties(user, "pw"))),
                *("-o", "json"),
                timeout=120,
            )
            return done.returncode, done.stdout.strip(), done.stderr

        for user in ("viewer", "judge"):
            secured.await_rights(user, "pw", TOPIC)
        assert found("judge") == (0, "[]", "")
        assert found("viewer") == (
            2,
            "[]",
            "odradek: whether 1 other open transactions hang is not known, as in orders-0: "
            "that needs Describe on every transactional id\n",
        )
