"""Runs Apache Kafka 2.8.2's broker as a child process, beside this project's brokers."""

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
    """One Apache Kafka broker, with the settings of its neighbours beside `SMALL`."""

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
    """Uses Kafka 2.1's inter-broker protocol and message format, as this project's brokers do."""

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
