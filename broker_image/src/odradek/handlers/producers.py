"""InitProducerId: producer ids for idempotent producers (KIP-98)."""

from __future__ import annotations

from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse

NO_ID = -1
FIRST_EPOCH = 0
NO_EPOCH = -1


async def init_producer_id(
    broker: Broker, request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse:
    """Return a new id with epoch 0, also to a producer that names its previous id and epoch.

    Transactional ids are refused with a fatal error: transactions are not supported.
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
