"""What Apache Kafka 2.8.2 answers to requests of transactions with fields at their edges.

`tests/broker/transaction_codes.txt` has it, to compare ours with. To make it anew:

    ODRADEK_FULL_COUNTS=1 ODRADEK_WRITE_CODES=1 pytest tests/peers/test_transaction_edges.py
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import transaction_edges, zookeeper
from tests.support.kafka_broker import KafkaBroker

CODES = Path(__file__).parents[1] / "broker" / "transaction_codes.txt"


@pytest.mark.full(
    "tests/broker/test_transaction_edges.py::test_answers_at_the_edges_are_those_of_kafka"
)
def test_the_recorded_answers_are_those_of_kafka(tmp_path: Path) -> None:
    chroot = zookeeper.Chroot()
    chroot.start()
    broker = KafkaBroker(tmp_path, 1, chroot.connect, transaction_edges.SETTINGS)
    try:
        broker.start()
        found = transaction_edges.results(broker.port)
    finally:
        broker.kill()
        chroot.close()
    lines = [f"{case} -> {said}\n" for case, said in found.items()]
    if os.environ.get("ODRADEK_WRITE_CODES"):
        CODES.write_text("".join(lines))
    assert CODES.read_text().splitlines(keepends=True) == lines
