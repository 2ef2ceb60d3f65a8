"""A broker's parts around a replica manager on real logs, for handlers called directly."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from odradek.handlers.context import Broker
from odradek.metrics import BrokerMetrics
from odradek.zk.producer_ids import ProducerIdManager
from tests.support.replicas import Replicas


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[Replicas]:
    async with Replicas(tmp_path) as built:
        yield built


class Registered:
    """The registration of a broker that is there.

    A request that is not `in_time` came before the broker knew that it is registered.
    """

    epoch = 100
    in_time = True

    async def admits_request(self) -> bool:
        return self.in_time


@pytest.fixture
def broker(replicas: Replicas) -> Broker:
    """Broker 1, which is not controller and has been told nothing."""
    return Broker(
        config=replicas.config,
        cluster_id="the-cluster",
        replicas=replicas.manager,
        metadata=replicas.metadata,
        session=replicas.session,  # type: ignore[arg-type]
        controller=SimpleNamespace(active=False),  # type: ignore[arg-type]
        registration=Registered(),
        producer_ids=ProducerIdManager(replicas.session, 1),  # type: ignore[arg-type]
        groups=SimpleNamespace(forget_partitions=lambda deleted: None),  # type: ignore[arg-type]
        metrics=BrokerMetrics(),
        random=Random(1),
    )
