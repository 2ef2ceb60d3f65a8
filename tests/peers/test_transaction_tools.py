"""Kafka's kafka-transactions.sh, of releases that have it, against a broker of ours (KIP-664)."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.support import clients, kafka_peer
from tests.support.asking import ADMIN, Connection
from tests.support.broker import Cluster
from tests.support.hanging_transactions import UNVERIFIED, begun, leave_hanging, write
from tests.support.kafka_peer import Tools
from tests.tools.test_transactions_command import TOPIC, last_stable_offset, place

TOOL = "org.apache.kafka.tools.TransactionsCommand"


def rows(said: str) -> list[list[str]]:
    return [line.split() for line in said.splitlines() if line.strip()]


@pytest.mark.parametrize("version", ["3.9.1", "4.1.0"])
def test_hanging_transaction_is_found_and_aborted(tmp_path: Path, version: str) -> None:
    with (
        Cluster(tmp_path, settings=UNVERIFIED) as cluster,
        Tools(tmp_path, release=kafka_peer.tools(version)) as tools,
        closing(Connection(cluster.brokers[1].port, ADMIN)) as connection,
    ):
        clients.create_topic(cluster.bootstrap, TOPIC, 3)

        def run(*arguments: str, statuses: tuple[int, ...] = (0,)) -> str:
            at = ("--bootstrap-server", cluster.bootstrap)
            return tools.run(TOOL, *at, *arguments, statuses=statuses)

        ongoing = begun(connection, "open")
        ongoing.add((TOPIC, [0]))
        write(ongoing, TOPIC, 0)
        producer = leave_hanging(connection, "hanging", TOPIC, 1)
        assert sorted(rows(run("list"))[1:]) == [
            ["hanging", "1", str(producer.producer_id), "Empty"],
            ["open", "1", str(ongoing.producer_id), "Ongoing"],
        ]
        assert [one[0] for one in rows(run("list", "--duration-filter", "3600000"))[1:]] == [
            "hanging"
        ]
        [described] = rows(run("describe", "--transactional-id", "open"))[1:]
        assert described[:6] == ["1", "open", str(ongoing.producer_id), "0", "Ongoing", "60000"]
        assert described[-1] == f"{TOPIC}-0"
        refused = run("describe", "--transactional-id", "unknown", statuses=(1,))
        assert "could not be found" in refused
        [known] = rows(run("describe-producers", *place(1)))[1:]
        assert known[:4] == [str(producer.producer_id), "0", "-1", "0"]
        assert known[-1] == "0"
        [found] = rows(run("find-hanging", "--broker-id", "1"))[1:]
        assert found[:6] == [TOPIC, "1", str(producer.producer_id), "0", "-1", "0"]
        assert last_stable_offset(cluster, 1) == 0
        missing = run("abort", *place(1), "--start-offset", "1", statuses=(1,))
        assert "Could not find any open transactions" in missing
        run("abort", *place(1), "--start-offset", "0")
        assert last_stable_offset(cluster, 1) == 2
        assert rows(run("find-hanging", "--topic", TOPIC))[1:] == []
        [known] = rows(run("describe-producers", *place(1)))[1:]
        assert known[-1] == "None"
