"""Transactions in a cluster of Apache Kafka 2.8.2 and this project's brokers.

Kafka speaks as 2.1 (inter.broker.protocol.version). Either side coordinates transactions and
groups, and leads partitions of a transaction whose coordinator is the other one. Coordinators
change sides while transactions are open, and while their ends are decided but not written
everywhere: for that, a broker that leads one of their partitions is dead meanwhile.
"""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from odradek.coordination.partitioning import partition_of
from odradek.transaction import records
from odradek.transaction.states import IDLE, TransactionState
from odradek.values import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from odradek.zk import znodes
from tests.peers import test_transactional_clients as steady
from tests.peers import test_transactional_copy as copies
from tests.support import jvm, kafka_peer
from tests.support.broker import Cluster, wait_until
from tests.support.clients import await_leaders, consume_all, create_topic, make_topic, settings
from tests.support.judged_cluster import TRANSACTIONS
from tests.support.kafka_broker import OldKafkaBroker
from tests.support.kafka_peer import Tools
from tests.support.open_transactions import TransactionalProducer
from tests.support.sampling import some_of
from tests.support.transactional_clients import Librdkafka
from tests.support.transactional_steps import LATE_TIMEOUT_MS, Outcome, transact

KAFKA, OURS, HOLDER = 1, 2, 3
SIDES = (KAFKA, OURS)
LEDGER = "ledger"
# Only one broker has it; without that broker no transaction of it ends.
HELD = "held"
PARTITIONS = {LEDGER: 2, HELD: 1}
MOVED = (TRANSACTIONS_TOPIC, OFFSETS_TOPIC, LEDGER)
SETTINGS = {
    **TRANSACTIONS,
    "offsets.topic.replication.factor": "2",
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.min.isr": "1",
    "min.insync.replicas": "1",
    "auto.leader.rebalance.enable": "false",
}
COMPACTED = {"cleanup.policy": "compact"}


def at(partition: int, name: str) -> str:
    """Return an id that belongs to one of the two partitions of a coordinator's topic."""
    names = (f"{name}-{number}" for number in itertools.count())
    return next(one for one in names if partition_of(one, 2) == partition)


class Steps:
    """The cluster, and where its leaders are."""

    def __init__(self, cluster: Cluster, client: KazooClient, tools: Tools) -> None:
        self.cluster = cluster
        self._client = client
        self._tools = tools
        self._admin = AdminClient(settings(cluster.bootstrap))

    def make_topics(self) -> None:
        """Have each side lead a partition of each topic, and follow in the other."""
        crosswise = [[KAFKA, OURS], [OURS, KAFKA]]
        make_topic(self._admin, NewTopic(LEDGER, 2, replica_assignment=crosswise))
        make_topic(self._admin, NewTopic(HELD, 1, replica_assignment=[[HOLDER]]))
        for topic in (TRANSACTIONS_TOPIC, OFFSETS_TOPIC):
            shape = NewTopic(topic, 2, replica_assignment=crosswise, config=COMPACTED)
            make_topic(self._admin, shape)
            await_leaders(self.cluster.bootstrap, topic, 2)

    def leaders(self, topic: str) -> list[int]:
        """Return who leads the two partitions that both sides have."""
        paths = [znodes.state_path(topic, number) for number in range(2)]
        return [znodes.decode_state(one, self._client.get(one)[0]).leader for one in paths]

    def in_sync(self) -> bool:
        """Return whether both sides are in sync in all that they share."""
        paths = [znodes.state_path(topic, number) for topic in MOVED for number in range(2)]
        states = [znodes.decode_state(one, self._client.get(one)[0]) for one in paths]
        return all(sorted(one.isr) == [*SIDES] for one in states)

    def exchange(self, topics: tuple[str, ...]) -> None:
        """Let each side lead what the other one leads, by preferred elections."""
        wanted = {topic: self.leaders(topic)[::-1] for topic in topics}
        plan = [
            {"topic": topic, "partition": number, "replicas": [leader, sum(SIDES) - leader]}
            for topic, leaders in wanted.items()
            for number, leader in enumerate(leaders)
        ]
        wait_until(self.in_sync, "both sides are in sync")
        self._tools.run(
            *("kafka.admin.ReassignPartitionsCommand", "--execute"),
            *("--bootstrap-server", self.cluster.bootstrap, "--reassignment-json-file"),
            self._tools.file("order.json", json.dumps({"version": 1, "partitions": plan})),
        )
        partitions = [TopicPartition(topic, number) for topic in topics for number in range(2)]

        def are_elected() -> bool:
            self._admin.elect_leaders(ElectionType.PREFERRED, partitions).result(60)
            return wanted == {topic: self.leaders(topic) for topic in topics}

        wait_until(are_elected, "the preferred replicas lead")

    def take_away(self, broker_id: int, number: signal.Signals) -> None:
        """End a broker of one side by a signal; the other side leads everything then."""
        wait_until(self.in_sync, "both sides are in sync")
        if number is signal.SIGKILL:
            self.cluster.crash(broker_id)
        else:
            self.cluster.brokers[broker_id].terminate()
        left = [sum(SIDES) - broker_id] * 2
        wait_until(lambda: {*map(tuple, map(self.leaders, MOVED))} == {(*left,)}, "others lead")

    def states(self) -> dict[str, TransactionState]:
        """Return the state of every transactional id, as its last record has it."""
        consumer = Consumer(
            {**settings(self.cluster.bootstrap), "group.id": "none", "enable.partition.eof": True}
        )
        consumer.assign([TopicPartition(TRANSACTIONS_TOPIC, number, 0) for number in range(2)])
        found: dict[str, TransactionState] = {}
        ends = 0
        while ends < 2:
            for message in consumer.consume(500, 0.1):
                key, value = message.key(), message.value()
                if message.error() is not None:
                    ends += 1
                elif isinstance(key, bytes) and value is not None:
                    transactional_id = records.decode_key(key)
                    if transactional_id:
                        found[transactional_id] = records.decode(transactional_id, value).state
        consumer.close()
        return found


NAMES = ("open-commit", "open-abort", "fenced", "prepared-commit", "prepared-abort")


class Transactions:
    """Ten producers: of each name one for each partition of `__transaction_state`. Their groups'
    offsets are at the same side, or at the other one.
    """

    def __init__(self, steps: Steps, label: str) -> None:
        self._steps = steps
        self._label = label
        self._of = {
            name: [
                TransactionalProducer(
                    steps.cluster.bootstrap,
                    at(side, f"{label}-{name}"),
                    at((side + crossed) % 2, f"{label}-{name}"),
                    PARTITIONS,
                )
                for side in range(2)
            ]
            for crossed, name in enumerate(NAMES)
        }

    def _all(self) -> list[TransactionalProducer]:
        return [one for some in self._of.values() for one in some]

    def prepare(self) -> None:
        """Begin transactions with all, and decide some, which cannot be completed."""
        for name, some in self._of.items():
            for one in some:
                one.begin(LEDGER, *([HELD] if name.startswith("prepared") else []))
        self._steps.cluster.crash(HOLDER)
        for one in self._of["prepared-commit"]:
            one.commit()
        for one in self._of["prepared-abort"]:
            one.abort()
        self.check_prepared()

    def renew(self) -> None:
        """Go on with new producers."""
        for one in self._all():
            one.renew()

    def check_prepared(self) -> None:
        """What is decided stays so, and is not complete."""
        states = self._steps.states()
        for name, state in (
            ("prepared-commit", TransactionState.PREPARE_COMMIT),
            ("prepared-abort", TransactionState.PREPARE_ABORT),
        ):
            assert [states[one.transactional_id] for one in self._of[name]] == [state, state]

    def go_on(self) -> None:
        """End what is open with the new coordinators, complete the rest, and look at it all."""
        self.check_prepared()
        for one in self._of["open-commit"]:
            one.write(LEDGER)
            one.commit()
        for one in self._of["open-abort"]:
            one.write(LEDGER)
            one.abort()
        for one in self._of["fenced"]:
            one.fence()
            one.begin(LEDGER)
            one.commit()
        self.check_prepared()
        self._steps.cluster.brokers[HOLDER].start()
        self.check_end()

    def check_end(self) -> None:
        """Everything is complete: readers get what was committed, and groups their offsets."""
        ids = {one.transactional_id for one in self._all()}

        def are_complete() -> bool:
            found = {state for one, state in self._steps.states().items() if one in ids}
            return found <= IDLE

        wait_until(are_complete, "all transactions are complete")
        for one in self._all():
            wait_until(one.has_offset, f"the offset of {one.transactional_id}")
        bootstrap, committed_only = (
            self._steps.cluster.bootstrap,
            {"isolation.level": "read_committed"},
        )
        found = (
            value.decode()
            for topic, count in PARTITIONS.items()
            for value in consume_all(bootstrap, topic, count, 0, **committed_only)
        )
        wanted = sorted(value for one in self._all() for value in one.committed)
        assert sorted(one for one in found if one.startswith(self._label)) == wanted


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory, tools: Tools) -> Iterator[Steps]:
    """Kafka, and two brokers of ours."""
    folder = tmp_path_factory.mktemp("mixed")
    with (
        Cluster(folder, 3, SETTINGS, {KAFKA: OldKafkaBroker}) as cluster,
        cluster.zookeeper.client() as client,
    ):
        made = Steps(cluster, client, tools)
        made.make_topics()
        yield made


def java(cluster: Cluster, folder: Path, prefix: str) -> Outcome:
    """Return what a Java client saw."""
    classpath = kafka_peer.classpath()
    program = steady.JAVA[0]
    everything = f"{jvm.compiled(program, classpath, *steady.JAVA[1:])}:{classpath}"
    line = [*kafka_peer.JAVA, kafka_peer.scratch(folder), "-Xmx256m", "-cp", everything]
    outcome = steady.run([*line, program.stem, cluster.bootstrap, prefix, str(LATE_TIMEOUT_MS)])
    assert outcome.pop("open") == [0, 1], "ends of a log with an open transaction"
    assert "transaction.max.timeout.ms" in outcome.pop("refused")
    return outcome


def test_clients_see_whole_transactions_only(steps: Steps, tmp_path: Path) -> None:
    # Where one has its coordinators, each id and each group, the other has the other ones.
    clients = {
        "java-a": lambda: java(steps.cluster, tmp_path, "java-a"),
        "librdkafka-a": lambda: transact(Librdkafka(steps.cluster.bootstrap), "librdkafka-a"),
        "librdkafka-b": lambda: transact(Librdkafka(steps.cluster.bootstrap), "librdkafka-b"),
        "java-b": lambda: java(steps.cluster, tmp_path, "java-b"),
    }
    names = some_of([*clients], ["librdkafka-a", "librdkafka-b"])
    for name in names:
        steady.make_topics(steps.cluster.bootstrap, name)
    with ThreadPoolExecutor() as pool:
        running = {name: pool.submit(clients[name]) for name in names}
    for name, done in running.items():
        fenced = "ProducerFencedException" if name.startswith("java") else "_FENCED"
        steady.check(steps.cluster, name, done.result(), fenced, fenced)


def test_transactions_are_ended_by_the_other_side(steps: Steps) -> None:
    transactions = Transactions(steps, "elected")
    for topics in some_of([MOVED, (TRANSACTIONS_TOPIC,)], [MOVED]):
        transactions.prepare()
        steps.exchange(topics)
        transactions.go_on()


@pytest.mark.full(
    "tests/peers/test_mixed_transactions.py::test_transactions_are_ended_by_the_other_side"
)
def test_transactions_are_ended_by_who_is_left(steps: Steps, tmp_path: Path) -> None:
    cluster = steps.cluster
    for topic in ("source", "target"):
        create_topic(cluster.bootstrap, topic, copies.PARTITIONS, 3)
    copier = copies.Copier(cluster, tmp_path, 0)
    transactions = Transactions(steps, "left")
    parts = itertools.count()
    for number, leaves in itertools.product((signal.SIGTERM, signal.SIGKILL), SIDES):
        copies.write(cluster, next(parts))
        copies.await_commits([copier], copier.committed() + 1)
        transactions.renew()
        transactions.prepare()
        steps.take_away(leaves, number)
        before = copier.committed()
        copies.write(cluster, next(parts))
        transactions.go_on()
        copies.await_commits([copier], before + 1)
        cluster.brokers[leaves].start()
        wait_until(steps.in_sync, f"{leaves} is in sync")
    wanted = sorted(b"%d" % one for one in range(next(parts) * copies.PART))
    consume_all(cluster.bootstrap, "target", copies.PARTITIONS, len(wanted))
    assert copier.end() == 0
    assert sorted(consume_all(cluster.bootstrap, "target", copies.PARTITIONS, 0)) == wanted
