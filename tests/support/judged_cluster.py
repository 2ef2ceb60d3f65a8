"""The cluster that tests of clients judge: this project's, or Apache Kafka's for comparison.

ODRADEK_JUDGE=kafka runs the same tests against Apache Kafka 2.8.2. Whoever writes one of them runs
it so by hand: what passes there is right about Kafka.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tests.support.broker import STEADY, Broker, Cluster
from tests.support.kafka_broker import KafkaBroker

TRANSACTIONS: Mapping[str, str] = MappingProxyType(
    {
        **STEADY,
        "offsets.topic.num.partitions": "2",
        "offsets.topic.replication.factor": "3",
        "transaction.state.log.num.partitions": "3",
        "transaction.state.log.replication.factor": "3",
        "transaction.state.log.min.isr": "2",
        # How often the coordinator looks for transactions to abort: ten seconds by default.
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
        "min.insync.replicas": "2",
    }
)
"""Settings for transactions that survive any one of three brokers."""


def judged_cluster(directory: Path, settings: Mapping[str, str]) -> Cluster:
    """Return three brokers of the kind that ODRADEK_JUDGE names, not started."""
    kinds: dict[str, type[Broker]] = {"": Broker, "kafka": KafkaBroker}
    kind = kinds[os.environ.get("ODRADEK_JUDGE", "")]
    return Cluster(directory, brokers=3, settings=settings, kind=kind)
