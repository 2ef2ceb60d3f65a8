"""Kafka's performance tools in a warm JVM, as clients of any broker."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tests.support.kafka_peer import Tools

MEGA: Final = 1_000_000
BATCH_BYTES: Final = 65_536
_RATE: Final = re.compile(r"([\d.]+) records/sec")


class WarmTools(Tools):
    """The JVM has the optimizing compiler, and goes on between runs. Speeds are MB/s.

    `config` is a file with further settings of the client.
    """

    java = ("java", "-server")

    def produce(
        self,
        bootstrap: str,
        topic: str,
        count: int,
        size: int,
        *,
        acks: str,
        codec: str = "none",
        batch_bytes: int = BATCH_BYTES,
        config: Path | None = None,
    ) -> float:
        """Write so many records of so many bytes with ProducerPerformance."""
        said = self.run(
            *("org.apache.kafka.tools.ProducerPerformance", "--topic", topic),
            *("--num-records", str(count), "--record-size", str(size), "--throughput", "-1"),
            *(() if config is None else ("--producer.config", config)),
            *("--producer-props", f"bootstrap.servers={bootstrap}", f"acks={acks}"),
            *("linger.ms=5", f"batch.size={batch_bytes}", f"compression.type={codec}"),
        )
        return float(_RATE.findall(said)[-1]) * size / MEGA

    def consume(
        self, bootstrap: str, topic: str, count: int, size: int, *, config: Path | None = None
    ) -> float:
        """Read them with ConsumerPerformance; without the time in which the group forms."""
        said = self.run(
            *("kafka.tools.ConsumerPerformance", "--bootstrap-server", bootstrap),
            *("--topic", topic, "--messages", str(count), "--timeout", "60000"),
            *("--group", f"group-of-{topic}"),
            *(() if config is None else ("--consumer.config", config)),
        )
        columns = said.splitlines()[-1].split(", ")
        assert int(columns[4]) >= count, said
        return count * size / (float(columns[7]) / 1000) / MEGA
