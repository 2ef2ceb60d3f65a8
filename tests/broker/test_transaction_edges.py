"""Requests of transactions with fields at their edges: the answers are those of Kafka."""

from __future__ import annotations

from pathlib import Path

from tests.support import transaction_edges
from tests.support.broker import Cluster

CODES = Path(__file__).with_name("transaction_codes.txt")
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
