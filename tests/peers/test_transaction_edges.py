"""What Apache Kafka answers to requests of transactions with fields at their edges.

`tests/broker/transaction_codes.txt` has the answers of 2.8.2, to compare ours with, and
`transaction_states.txt` those of 3.9.1 to requests that 2.8.2 lacks. To make them anew:

    ODRADEK_FULL_COUNTS=1 ODRADEK_WRITE_CODES=1 pytest tests/peers/test_transaction_edges.py
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support import transaction_edges, transaction_state_edges, zookeeper
from tests.support.kafka_broker import KafkaBroker, NewerKafkaBroker

RECORDED = Path(__file__).parents[1] / "broker"


@pytest.mark.full(
    "tests/broker/test_transaction_edges.py::test_answers_at_the_edges_are_those_of_kafka"
)
def test_the_recorded_answers_are_those_of_kafka(tmp_path: Path) -> None:
    with _running(tmp_path, KafkaBroker) as broker:
        found = transaction_edges.results(broker.port)
    _compare(RECORDED / "transaction_codes.txt", found)


@pytest.mark.full(
    "tests/broker/test_transaction_edges.py::test_states_of_transactions_are_told_as_by_kafka"
)
def test_the_recorded_states_are_those_of_kafka(tmp_path: Path) -> None:
    with _running(tmp_path, NewerKafkaBroker) as broker:
        found = transaction_state_edges.results(broker.port)
    _compare(RECORDED / "transaction_states.txt", found)


@contextlib.contextmanager
def _running(folder: Path, kind: type[KafkaBroker]) -> Iterator[KafkaBroker]:
    chroot = zookeeper.Chroot()
    chroot.start()
    broker = kind(folder, 1, chroot.connect, transaction_edges.SETTINGS)
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()
        chroot.close()


def _compare(path: Path, found: Mapping[str, str]) -> None:
    lines = [f"{case} -> {said}\n" for case, said in found.items()]
    if os.environ.get("ODRADEK_WRITE_CODES"):
        path.write_text("".join(lines))
    assert path.read_text().splitlines(keepends=True) == lines
