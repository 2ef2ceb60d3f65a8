"""A broker's parts around a replica manager on real logs, for handlers called directly."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from odradek.group.coordinator import GroupCoordinator
from odradek.handlers import group_offsets
from odradek.handlers.context import Broker
from odradek.metrics.counters import BrokerCounters
from odradek.protocol.errors import ErrorCode
from odradek.values import OFFSETS_TOPIC
from odradek.zk.producer_ids import ProducerIdManager
from tests.handlers.large_requests import COMMITS, GROUP, collector_on, context, update
from tests.support.one_partition import OnePartition
from tests.support.replicas import Replicas
from tests.support.verifiers import TrustingVerifier


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
        transactions=SimpleNamespace(),  # type: ignore[arg-type]
        verifier=TrustingVerifier(),  # type: ignore[arg-type]
        metrics=BrokerCounters(),
        random=Random(1),
    )


@pytest.fixture
async def wide(broker: Broker) -> AsyncIterator[Broker]:
    """A broker that knows a topic with many partitions."""
    broker.metadata.update(update())
    yield broker
    await collector_on()


@pytest.fixture
async def coordinating(wide: Broker, replicas: Replicas) -> AsyncIterator[Broker]:
    """The broker with a coordinator, where a group has committed the offset 5 everywhere."""
    coordinator = GroupCoordinator(
        replicas.config,
        replicas.manager,
        OnePartition(),  # type: ignore[arg-type]
        lambda _: True,
    )
    await replicas.lead(topic=OFFSETS_TOPIC)
    coordinator.notice_roles()
    while coordinator.find(GROUP)[0] is not ErrorCode.NONE:
        await asyncio.sleep(0)
    serving = dataclasses.replace(wide, groups=coordinator)
    await group_offsets.offset_commit(serving, COMMITS, context(8))
    yield serving
    coordinator.close()
