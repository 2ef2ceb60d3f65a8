"""Apache Kafka 2.8.2's own broker as a child process, for tests beside this project's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.support import kafka_peer
from tests.support.broker import Broker

# What keeps a broker for tests small: threads, and the memory of the log cleaner.
SMALL = {
    "num.network.threads": "1",
    "num.io.threads": "2",
    "background.threads": "2",
    "log.cleaner.dedupe.buffer.size": "2097152",
    "controlled.shutdown.retry.backoff.ms": "500",
}
HEAP = "384m"
PROGRAM = "kafka.Kafka"


class KafkaBroker(Broker):
    """One process of Apache Kafka. The settings are those of its neighbours, on top of `SMALL`."""

    kind = "kafka"
    says_when_up = " started (kafka.server.KafkaServer)\n"

    def __init__(
        self,
        directory: Path,
        broker_id: int,
        connect: str,
        settings: Mapping[str, str],
        port: int | None = None,
    ) -> None:
        super().__init__(directory, broker_id, connect, {**SMALL, **settings}, port)
        own = directory / f"{self.kind}-{broker_id}"
        own.mkdir(exist_ok=True)
        self._tools = kafka_peer.Tools(own, HEAP, "INFO")

    def _command(self) -> list[str]:
        return self._tools.command(PROGRAM)

    def wait(self, seconds: float = 120) -> int:
        """Wait for the process to end by itself; its exit status."""
        status = super().wait(seconds)
        self._tools.keep_archive(PROGRAM)
        return status


class OldKafkaBroker(KafkaBroker):
    """Speaks to other brokers, and writes, as Kafka 2.1: beside brokers of this project."""

    def __init__(
        self,
        directory: Path,
        broker_id: int,
        connect: str,
        settings: Mapping[str, str],
        port: int | None = None,
    ) -> None:
        spoken = {"inter.broker.protocol.version": "2.1", "log.message.format.version": "2.1"}
        super().__init__(directory, broker_id, connect, {**spoken, **settings}, port)
