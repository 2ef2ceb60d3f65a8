"""Requests of transactions with fields at their edges: the answers are those of Kafka."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import confluent_kafka
import pytest
from confluent_kafka import KafkaException

from tests.support import clients, transaction_edges, transaction_state_edges
from tests.support.broker import STEADY, Cluster, wait_until

CODES = Path(__file__).with_name("transaction_codes.txt")
STATES = CODES.with_name("transaction_states.txt")
# Markers of no producer: Kafka fails with its own error, after which a coordinator asks again.
REFUSED = "=87"
UNEXPECTED = "=-1"


def test_answers_at_the_edges_are_those_of_kafka(tmp_path: Path) -> None:
    recorded = dict(
        line.rstrip("\n").split(" -> ", 1) for line in CODES.read_text().splitlines(keepends=True)
    )
    with Cluster(tmp_path, settings=transaction_edges.SETTINGS) as cluster:
        found = transaction_edges.results(cluster.brokers[1].port)
        assert "Traceback" not in cluster.brokers[1].log_text()
    assert found == {case: said.replace(UNEXPECTED, REFUSED) for case, said in recorded.items()}


def test_states_of_transactions_are_told_as_by_kafka(tmp_path: Path) -> None:
    recorded = dict(line.split(" -> ", 1) for line in STATES.read_text().splitlines())
    with Cluster(tmp_path, settings=transaction_edges.SETTINGS) as cluster:
        found = transaction_state_edges.results(cluster.brokers[1].port)
        assert "Traceback" not in cluster.brokers[1].log_text()
    assert found == recorded


def test_producer_on_too_few_brokers_waits_and_the_log_says_what_to_do(tmp_path: Path) -> None:
    with Cluster(tmp_path, settings=STEADY) as cluster:
        producer = confluent_kafka.Producer(
            {**clients.settings(cluster.bootstrap), "transactional.id": "t"}
        )
        waiting = Thread(target=producer.init_transactions, args=(120,))
        waiting.start()
        said = "lower transaction.state.log.replication.factor and transaction.state.log.min.isr"
        wait_until(lambda: said in cluster.brokers[1].log_text(), "a warning")
        # Others may have it made with what they think is right.
        clients.create_topic(cluster.bootstrap, "__transaction_state", 3)
        waiting.join(120)
        assert not waiting.is_alive()
        assert cluster.brokers[1].log_text().count(said) < 20
        producer.begin_transaction()
        producer.abort_transaction(60)


def test_log_says_what_to_do_where_too_few_replicas_are_in_sync(tmp_path: Path) -> None:
    settings = {**transaction_edges.SETTINGS, "transaction.state.log.min.isr": "2"}
    with Cluster(tmp_path, settings=settings) as cluster:
        producer = confluent_kafka.Producer(
            {**clients.settings(cluster.bootstrap), "transactional.id": "t"}
        )
        with pytest.raises(KafkaException):
            producer.init_transactions(5)
        assert "lower the topic's min.insync.replicas" in cluster.brokers[1].log_text()
