"""InitProducerId: producer ids of idempotent producers, and of transactional ids (KIP-98)."""

from __future__ import annotations

from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.api import ApiKey
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from odradek.transaction.decisions import Answer, error_for
from odradek.transaction.transaction import ProducerIdAndEpoch

NO_ID = -1
FIRST_EPOCH = 0
NO_EPOCH = -1


async def init_producer_id(
    broker: Broker, request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse:
    """Return a new id with epoch 0, also to a producer that names its previous id and epoch; to one
    with a transactional id, its id with the next epoch (KIP-360).

    A producer that has hung up may have asked again, and would fence itself.
    """
    if (request.producer_id == NO_ID) is not (request.producer_epoch == NO_EPOCH):
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=NO_EPOCH)
    if request.transactional_id is not None:
        if not context.is_connected():
            return InitProducerIdResponse(
                error_code=ErrorCode.NETWORK_EXCEPTION, producer_epoch=NO_EPOCH
            )
        return await _of_transactional_id(
            broker, request, request.transactional_id, context.version
        )
    try:
        producer_id = await broker.producer_ids.take()
    except KafkaError as refusal:
        return InitProducerIdResponse(error_code=refusal.code, producer_epoch=NO_EPOCH)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=FIRST_EPOCH)


async def _of_transactional_id(
    broker: Broker, request: InitProducerIdRequest, transactional_id: str, version: int
) -> InitProducerIdResponse:
    timeout_ms = request.transaction_timeout_ms
    if not transactional_id:
        found = Answer(ErrorCode.INVALID_REQUEST)
    elif not 0 < timeout_ms <= broker.config.transaction_max_timeout_ms:
        found = Answer(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
    else:
        named = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        found = await broker.transactions.init_producer_id(
            transactional_id, timeout_ms, None if named.producer_id == NO_ID else named
        )
    return InitProducerIdResponse(
        error_code=error_for(found.error, ApiKey.INIT_PRODUCER_ID, version),
        producer_id=found.producer.producer_id,
        producer_epoch=found.producer.epoch,
    )
