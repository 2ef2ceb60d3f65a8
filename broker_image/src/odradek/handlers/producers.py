"""Producer ids for idempotent producers (KIP-98).

Brokers take ids from ZooKeeper in blocks of a thousand: `/latest_producer_id_block` names the block
taken last, and a conditional write takes the next. A broker that stops wastes the rest of its
block.
"""

from __future__ import annotations

import asyncio
import logging

from kazoo.exceptions import BadVersionError, KazooException

from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from odradek.values import BrokerId
from odradek.zk import znodes
from odradek.zk.session import Session

BLOCK_SIZE = 1000
LARGEST_ID = 2**63 - 1
NO_ID = -1
FIRST_EPOCH = 0
NO_EPOCH = -1

logger = logging.getLogger(__name__)


class ProducerIds:
    """Hands out producer ids that no other broker hands out."""

    def __init__(self, session: Session, broker_id: int) -> None:
        self._session = session
        self._broker_id = BrokerId(broker_id)
        self._next = 0
        self._last = -1
        self._taking = asyncio.Lock()

    async def take(self) -> int:
        """The next id.

        Raises KafkaError: without ZooKeeper COORDINATOR_LOAD_IN_PROGRESS, upon which clients ask
        again, where other retriable codes send them to look for a coordinator.
        """
        async with self._taking:
            if self._next > self._last:
                try:
                    block = await self._take_block()
                except KazooException as failure:
                    logger.warning("no block of producer ids to be had: %r", failure)
                    raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) from failure
                except znodes.ZnodeError as error:
                    logger.error("no block of producer ids to be had: %s", error)
                    raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error
                self._next, self._last = block.first, block.last
            producer_id = self._next
            self._next += 1
            return producer_id

    async def _take_block(self) -> znodes.ProducerIdBlock:
        path = znodes.PRODUCER_ID_BLOCK_PATH
        while True:
            data, stat = await self._session.get(path)
            taken = znodes.decode_producer_id_block(path, data)
            first = 0 if taken is None else taken.last + 1
            if first > LARGEST_ID - BLOCK_SIZE:
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "producer ids are used up")
            block = znodes.ProducerIdBlock(self._broker_id, first, first + BLOCK_SIZE - 1)
            try:
                await self._session.set(path, znodes.encode_producer_id_block(block), stat.version)
            except BadVersionError:
                continue
            return block


async def init_producer_id(
    broker: Broker, request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse:
    """A fresh id with epoch 0, also for a producer that names the id and epoch it had.

    A transactional id is refused for good: transactions are not served.
    """
    if request.transactional_id is not None:
        error = (
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            if request.transactional_id
            else ErrorCode.INVALID_REQUEST
        )
        return InitProducerIdResponse(error_code=error, producer_epoch=NO_EPOCH)
    if (request.producer_id == NO_ID) is not (request.producer_epoch == NO_EPOCH):
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=NO_EPOCH)
    try:
        producer_id = await broker.producer_ids.take()
    except KafkaError as refusal:
        return InitProducerIdResponse(error_code=refusal.code, producer_epoch=NO_EPOCH)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=FIRST_EPOCH)
