"""Transactions that are not over when a broker stops; another one on the same files ends them."""

from __future__ import annotations

import re
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from odradek.values import TRANSACTIONS_TOPIC
from tests.support.broker import Broker, wait_until
from tests.support.clients import consume_all, make_topic, settings
from tests.support.kafka_peer import Tools
from tests.support.open_transactions import TransactionalProducer
from tests.support.prepared_transactions import LeaderlessTopic, PreparedProducer

TOPIC = "unfinished"
OPEN = ("open-commit", "open-abort", "fenced")
PREPARED = {"prepared-commit": True, "prepared-abort": False}
STATES = {
    **dict.fromkeys(OPEN, "Ongoing"),
    "prepared-commit": "PrepareCommit",
    "prepared-abort": "PrepareAbort",
}
_LINE = re.compile(r"transactionalId=([\w-]+) payload: .*state=(\w+),")


class SwappedTransactions:
    """Producers that live longer than the brokers, of which one runs at a time."""

    def __init__(self, client: KazooClient, swaps: int) -> None:
        self._swaps = 0
        self._leaderless = LeaderlessTopic(client, "leaderless", swaps)
        self._open: dict[str, TransactionalProducer] = {}
        self._prepared: list[PreparedProducer] = []

    def start(self, broker: Broker) -> None:
        """Make the topic, and the producers."""
        make_topic(AdminClient(settings(broker.address)), NewTopic(TOPIC, 1, 1))
        self._open = {
            name: TransactionalProducer(broker.address, name, name, {TOPIC: 1}) for name in OPEN
        }
        self._prepared = [
            PreparedProducer(broker.port, name, TOPIC, commits=commits)
            for name, commits in PREPARED.items()
        ]

    def leave(self) -> None:
        """Leave transactions open, and others decided but not complete."""
        for producer in self._open.values():
            producer.renew()
            producer.begin(TOPIC)
        for one in self._prepared:
            one.initialize()
            one.prepare(self._leaderless, self._swaps)

    def let_end(self, broker: Broker) -> None:
        """Have the next broker lead what holds up the ends, while none runs."""
        self._leaderless.give(self._swaps, broker.broker_id)
        self._swaps += 1

    def end(self, broker: Broker) -> None:
        """End what is open, see the rest completed, and look at it all."""
        for one in self._prepared:
            one.initialize()
            one.check_offset()
        for producer in self._open.values():
            if producer.is_cut_off():
                # A new one ends what it left open, and begins another.
                producer.renew()
                producer.forget()
                producer.begin(TOPIC)
        for name in ("open-commit", "open-abort"):
            self._open[name].write(TOPIC)
        self._open["open-commit"].commit()
        self._open["open-abort"].abort()
        self._open["fenced"].fence()
        wanted = [
            *(value for one in self._open.values() for value in one.committed),
            *(value for one in self._prepared for value in one.values),
        ]

        def is_read() -> bool:
            found = consume_all(
                broker.address, TOPIC, 1, 0, **{"isolation.level": "read_committed"}
            )
            return sorted(value.decode() for value in found) == sorted(wanted)

        wait_until(is_read, f"readers get {wanted}")
        for producer in self._open.values():
            wait_until(producer.has_offset, f"the offset of {producer.transactional_id}")


def check_states(tools: Tools, broker: Broker) -> None:
    """Kafka's dump reads from the records of a stopped broker what the transactions were."""
    found: dict[str, str] = {}
    folder: Path = broker.log_dir / f"{TRANSACTIONS_TOPIC}-0"
    for path in sorted(folder.glob("*.log")):
        said = tools.run(
            *("kafka.tools.DumpLogSegments", "--transaction-log-decoder", "--files", path)
        )
        found |= _LINE.findall(said)
    assert {name: state for name, state in found.items() if name in STATES} == STATES
