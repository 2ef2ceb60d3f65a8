"""Identities of idempotent producers."""

from odradek.protocol.schema import Request, int16, int32, int64, message, string


@message(versions=(0, 4), flexible_from=2)
class InitProducerIdResponse:
    """The producer id and epoch to write into batches."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16()


@message(versions=(0, 4), flexible_from=2)
class InitProducerIdRequest(Request[InitProducerIdResponse]):
    """Ask for a producer id, or from version 3 on for a new epoch of one (KIP-360)."""

    transactional_id: str | None = string(nullable_since=0, default=None)
    transaction_timeout_ms: int = int32()
    producer_id: int = int64(since=3, default=-1)
    producer_epoch: int = int16(since=3, default=-1)
