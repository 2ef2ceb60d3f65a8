"""Brokers that show their metrics, which tests read."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping
from pathlib import Path

from tests.support.broker import Broker
from tests.support.ports import free_port


class WithMetrics(Broker):
    """A broker that shows its metrics."""

    def __init__(
        self, directory: Path, broker_id: int, connect: str, settings: Mapping[str, str]
    ) -> None:
        self.metrics_port = free_port()
        with_metrics = {**settings, "odradek.metrics.port": str(self.metrics_port)}
        super().__init__(directory, broker_id, connect, with_metrics)

    def metric(self, name: str) -> float:
        """Return the value of a series without labels."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=60) as answer:
            text: str = answer.read().decode()
        return next(
            float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} ")
        )
