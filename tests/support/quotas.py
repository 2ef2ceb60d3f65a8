"""Client quotas through the protocol, with requests that no Python client sends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TypeVar

from odradek.log.records import records
from odradek.net.client import PeerClient
from odradek.protocol.messages.client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    QuotaAlteration,
    QuotaEntityData,
    QuotaOperation,
)
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from odradek.protocol.schema import Request
from tests.support.broker import Broker

ResponseT = TypeVar("ResponseT")
Parts = Sequence[tuple[str, str | None]]
LIMIT_MS = 120_000


def ask(
    broker: Broker, request: Request[ResponseT], version: int, client_id: str = "admin"
) -> ResponseT:
    """Return the answer to a request on a connection of its own."""

    async def call() -> ResponseT:
        client = PeerClient("127.0.0.1", broker.port, client_id)
        try:
            return await client.call(request, version, LIMIT_MS)
        finally:
            await client.close()

    return asyncio.run(call())


def alter(
    broker: Broker,
    entity: Parts,
    changes: Mapping[str, float | None],
    *,
    version: int = 1,
    validate_only: bool = False,
) -> AlterClientQuotasResponse:
    """Set quotas of an entity; None removes one."""
    operations = [
        QuotaOperation(key=key, value=value or 0.0, remove=value is None)
        for key, value in changes.items()
    ]
    alteration = QuotaAlteration(entity=data(entity), ops=operations)
    request = AlterClientQuotasRequest(entries=[alteration], validate_only=validate_only)
    return ask(broker, request, version)


def data(entity: Parts) -> list[QuotaEntityData]:
    """Return the parts of an entity as they are in requests."""
    return [QuotaEntityData(entity_type=kind, entity_name=name) for kind, name in entity]


def produce(topic: str, size: int, acks: int = 1) -> ProduceRequest:
    """Return a request with one record of so many bytes."""
    batch = records.make([(None, b"v" * size)], 1_700_000_000_000)
    part = PartitionProduceData(index=0, records=batch)
    topics = [TopicProduceData(name=topic, partition_data=[part])]
    return ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=topics)
