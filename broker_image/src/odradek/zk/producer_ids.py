"""Producer ids for idempotent producers (KIP-98), allocated from blocks in ZooKeeper.

A block has a thousand ids. `/latest_producer_id_block` names the last block that a broker took; a
conditional write takes the next one. A broker that stops wastes the rest of its block.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from kazoo.exceptions import BadVersionError, KazooException

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.values import BrokerId
from odradek.zk.payload import Fields, ZnodeError, dump
from odradek.zk.session import Session
from odradek.zk.znodes import PRODUCER_ID_BLOCK_PATH

BLOCK_SIZE = 1000
LARGEST_ID = 2**63 - 1

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """Producer ids `first` to `last`, both included, that one broker may allocate."""

    broker_id: BrokerId
    first: int
    last: int


def encode_producer_id_block(block: ProducerIdBlock) -> bytes:
    """Return the block taken last; the bounds are strings in Kafka."""
    return dump(
        {
            "version": 1,
            "broker": block.broker_id,
            "block_start": str(block.first),
            "block_end": str(block.last),
        }
    )


def decode_producer_id_block(path: str, data: bytes | None) -> ProducerIdBlock | None:
    """Read the block taken last, or None before the first."""
    if not data:
        return None
    fields = Fields.parse(path, data)
    fields.require_version(1)
    first, last = fields.integer("block_start"), fields.integer("block_end")
    if not 0 <= first <= last:
        raise ZnodeError(path, f"block {first} to {last} is not a range of producer ids")
    return ProducerIdBlock(BrokerId(fields.integer("broker")), first, last)


class ProducerIdManager:
    """Allocates producer ids that no other broker allocates."""

    def __init__(self, session: Session, broker_id: int) -> None:
        self._session = session
        self._broker_id = BrokerId(broker_id)
        self._next = 0
        self._last = -1
        self._taking = asyncio.Lock()

    async def take(self) -> int:
        """Return the next id.

        Raises KafkaError. Without ZooKeeper the code is COORDINATOR_LOAD_IN_PROGRESS: clients then
        repeat the request, whereas other retriable codes make them look for a coordinator.
        """
        async with self._taking:
            if self._next > self._last:
                try:
                    block = await self._take_block()
                except KazooException as failure:
                    logger.warning("failed to allocate a block of producer ids: %r", failure)
                    raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) from failure
                except ZnodeError as error:
                    logger.error("failed to allocate a block of producer ids: %s", error)
                    raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error
                self._next, self._last = block.first, block.last
            producer_id = self._next
            self._next += 1
            return producer_id

    async def _take_block(self) -> ProducerIdBlock:
        path = PRODUCER_ID_BLOCK_PATH
        while True:
            data, stat = await self._session.get(path)
            taken = decode_producer_id_block(path, data)
            first = 0 if taken is None else taken.last + 1
            if first > LARGEST_ID - BLOCK_SIZE:
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "producer ids are used up")
            block = ProducerIdBlock(self._broker_id, first, first + BLOCK_SIZE - 1)
            try:
                await self._session.set(path, encode_producer_id_block(block), stat.version)
            except BadVersionError:
                continue
            return block
