"""UpdateFeatures (KIP-584), refused: the brokers have no features to finalize.

Kafka 2.8 answers the same where brokers speak a protocol before 2.7 among themselves, as these do.
ApiVersions then names no features, and no epoch of them. The znode /feature is left alone.
"""

from __future__ import annotations

from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.features import UpdateFeaturesRequest, UpdateFeaturesResponse


async def update_features(
    broker: Broker, request: UpdateFeaturesRequest, context: RequestContext
) -> UpdateFeaturesResponse:
    """Refuse as a whole: NOT_CONTROLLER, or INVALID_REQUEST from the controller."""
    if not broker.controller.active:
        return _refused(ErrorCode.NOT_CONTROLLER, "This is not the controller.")
    return _refused(ErrorCode.INVALID_REQUEST, "These brokers have no features to finalize.")


def _refused(code: ErrorCode, message: str) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(error_code=code, error_message=message, results=[])
