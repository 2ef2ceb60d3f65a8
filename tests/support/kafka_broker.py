"""Runs Apache Kafka's broker (2.8.2, or 3.9.1) as a child process, beside this project's."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType

from tests.support import kafka_peer
from tests.support.broker import FreshBroker

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


class KafkaBroker(FreshBroker):
    """One Apache Kafka broker, with the settings of its neighbours beside `SMALL`."""

    kind = "kafka"
    says_when_up = " started (kafka.server.KafkaServer)\n"
    defaults: Mapping[str, str] = MappingProxyType(SMALL)
    release = kafka_peer.CURRENT

    @functools.cached_property
    def _tools(self) -> kafka_peer.Tools:
        own = self.log_path.with_suffix("")
        own.mkdir(exist_ok=True)
        return kafka_peer.Tools(own, HEAP, "INFO", self.release)

    def _command(self) -> list[str]:
        return self._tools.command(PROGRAM)

    def wait(self, seconds: float = 120) -> int:
        """Wait for the process to end by itself; its exit status."""
        status = super().wait(seconds)
        self._tools.keep_archive(PROGRAM)
        return status


class OldKafkaBroker(KafkaBroker):
    """Uses Kafka 2.1's inter-broker protocol and message format, as this project's brokers do."""

    defaults = MappingProxyType(
        {
            **SMALL,
            "inter.broker.protocol.version": "2.1",
            "log.message.format.version": "2.1",
        }
    )


class NewerKafkaBroker(KafkaBroker):
    """Kafka 3.9.1 with ZooKeeper."""

    release = kafka_peer.NEWER
