"""Transactions of each client, as applications use them: Java, librdkafka, Python, Go and Node.

Every client does the same with topics of its own, and tells what it saw:

- it commits a transaction over two partitions, aborts one, and reads both isolation levels;
- it consumes, transforms and produces, with the offsets in a transaction that it aborts and in one
  that it commits;
- a second producer with the same transactional id fences the first one, whose transaction is open;
- the coordinator aborts a transaction that is open for too long, while all this goes on;
- Java asks for a longer timeout than the broker allows.

Then librdkafka looks at what is in the topics. ODRADEK_JUDGE=kafka runs it against Apache Kafka.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support import clients, jvm, kafka_peer
from tests.support.apiserver import require_programs
from tests.support.broker import Cluster
from tests.support.judged_cluster import TRANSACTIONS, judged_cluster
from tests.support.node_packages import node_path
from tests.support.transactional_clients import Aiokafka, KafkaPython, Librdkafka
from tests.support.transactional_steps import (
    LATE_TIMEOUT_MS,
    PARTITIONS,
    SOURCE_RECORDS,
    Outcome,
    transact,
)

# kafka-python reads its message definitions by a function that Python 3.11 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")

HERE = Path(__file__).parent
JAVA = [HERE / "JavaTransactions.java", HERE / "JavaClient.java"]
TOPICS = {"ends": PARTITIONS, "source": PARTITIONS, "copies": PARTITIONS, "fenced": 1, "late": 1}
COMMITTED = [*(f"committed {number}" for number in range(4)), "end 0", "end 1"]
ABORTED = [f"aborted {number}" for number in range(4)]
SOURCE = [f"source {number}" for number in range(SOURCE_RECORDS)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers, the coordinators of transactions and groups replicated on all of them."""
    with judged_cluster(tmp_path_factory.mktemp("cluster"), TRANSACTIONS) as running:
        yield running


def make_topics(bootstrap: str, prefix: str) -> None:
    admin = AdminClient(clients.settings(bootstrap))
    clients.await_controller(admin)
    made = admin.create_topics(
        [NewTopic(f"{prefix}-{name}", count, 3) for name, count in TOPICS.items()]
    )
    for one in made.values():
        one.result(120)
    for name, count in TOPICS.items():
        clients.await_leaders(bootstrap, f"{prefix}-{name}", count)
    values = [value.encode() for value in SOURCE]
    clients.produce_all(bootstrap, f"{prefix}-source", values, PARTITIONS)


def check(cluster: Cluster, prefix: str, outcome: Outcome, fenced: str, late: str) -> None:
    assert outcome == {
        "read_committed": COMMITTED,
        "read_uncommitted": sorted(ABORTED + COMMITTED),
        "before": {"0": -1, "1": -1},
        "after": {"0": SOURCE_RECORDS // PARTITIONS, "1": SOURCE_RECORDS // PARTITIONS},
        "late_read": ["after"],
        "fenced": fenced,
        "late": late,
    }
    copies = [f"copy of {value}" for value in SOURCE]
    for name, committed, aborted in (
        ("ends", COMMITTED, ABORTED),
        ("source", SOURCE, []),
        ("copies", copies, [f"no {copy}" for copy in copies]),
        ("fenced", ["heir"], ["zombie"]),
        ("late", ["after"], ["late"]),
    ):
        topic = f"{prefix}-{name}"
        assert read(cluster, topic, "read_committed", committed) == committed
        everything = sorted(committed + aborted)
        assert read(cluster, topic, "read_uncommitted", everything) == everything


def read(cluster: Cluster, topic: str, isolation: str, awaited: list[str]) -> list[str]:
    """All values of a topic in order. The markers of a transaction may come after its end."""
    partitions = TOPICS[topic.rpartition("-")[2]]
    settings = {"isolation.level": isolation, "fetch.wait.max.ms": 10}
    found = clients.consume_all(cluster.bootstrap, topic, partitions, len(awaited), **settings)
    return sorted(value.decode() for value in found)


def run(
    command: Sequence[str | Path], task: dict[str, Any] | None = None, **environment: str
) -> Outcome:
    """What a client's program tells."""
    done = subprocess.run(
        command,
        input=json.dumps(task),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    outcome: Outcome = json.loads(done.stdout)
    return outcome


def task_of(cluster: Cluster, prefix: str) -> dict[str, Any]:
    return {
        "bootstrap": cluster.bootstrap.split(","),
        "prefix": prefix,
        "partitions": PARTITIONS,
        "sourceRecords": SOURCE_RECORDS,
        "lateMs": LATE_TIMEOUT_MS,
    }


@pytest.mark.parametrize("version", ["2.8.2", "3.9.1", "4.1.0"])
def test_java_client_sees_whole_transactions_only(
    cluster: Cluster, version: str, tmp_path: Path
) -> None:
    prefix = f"java-{version}"
    make_topics(cluster.bootstrap, prefix)
    classpath = kafka_peer.classpath(kafka_peer.clients(version))
    everything = f"{jvm.compiled(JAVA[0], classpath, *JAVA[1:])}:{classpath}"
    outcome = run(
        [
            *(*kafka_peer.JAVA, kafka_peer.scratch(tmp_path), "-Xmx256m", "-cp", everything),
            *(JAVA[0].stem, cluster.bootstrap, prefix, str(LATE_TIMEOUT_MS)),
        ]
    )
    assert outcome.pop("open") == [0, 1], "ends of a log with an open transaction"
    assert "transaction.max.timeout.ms" in outcome.pop("refused")
    check(cluster, prefix, outcome, "ProducerFencedException", "ProducerFencedException")


def test_librdkafka_sees_whole_transactions_only(cluster: Cluster) -> None:
    make_topics(cluster.bootstrap, "librdkafka")
    outcome = transact(Librdkafka(cluster.bootstrap), "librdkafka")
    check(cluster, "librdkafka", outcome, "_FENCED", "_FENCED")


def test_kafka_python_sees_whole_transactions_only(cluster: Cluster) -> None:
    make_topics(cluster.bootstrap, "kafka-python")
    outcome = transact(KafkaPython(cluster.bootstrap), "kafka-python")
    check(cluster, "kafka-python", outcome, "ProducerFencedError", "ProducerFencedError")


def test_aiokafka_sees_whole_transactions_only(cluster: Cluster) -> None:
    make_topics(cluster.bootstrap, "aiokafka")
    with Aiokafka.running(cluster.bootstrap) as client:
        outcome = transact(client, "aiokafka")
    check(cluster, "aiokafka", outcome, "ProducerFenced", "ProducerFenced")


@pytest.mark.parametrize(
    ("client", "fenced"), [("franz-go", "PRODUCER_FENCED"), ("sarama", "PRODUCER_FENCED")]
)
def test_go_client_sees_whole_transactions_only(cluster: Cluster, client: str, fenced: str) -> None:
    make_topics(cluster.bootstrap, client)
    program = require_programs(f"{client}-client") / f"{client}-client"
    outcome = run([program, "transactions"], task_of(cluster, client))
    check(cluster, client, outcome, fenced, fenced)


def test_kafkajs_sees_whole_transactions_only(cluster: Cluster) -> None:
    make_topics(cluster.bootstrap, "kafkajs")
    program: list[str | Path] = ["node", HERE / "node/client.js", "transactions"]
    outcome = run(program, task_of(cluster, "kafkajs"), NODE_PATH=node_path(HERE / "node"))
    check(cluster, "kafkajs", outcome, "INVALID_PRODUCER_EPOCH", "INVALID_PRODUCER_EPOCH")
