"""Create-, Renew-, Expire- and DescribeDelegationToken (KIP-48), refused: there are no tokens.

A Kafka broker without `delegation.token.secret.key` answers the same. A broker here that has the
setting does not start (see `security_settings`).
"""

from __future__ import annotations

from odradek import slices
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from odradek.values import ANONYMOUS

USER = "User"
"""The only type of principals that may renew tokens."""
NO_TIME_MS = -1


async def create_token(
    broker: Broker, request: CreateDelegationTokenRequest, context: RequestContext
) -> CreateDelegationTokenResponse:
    """Refuse; name the sender, who would own the token."""
    code = _refusal(broker, context)
    # Kafka looks at the renewers before it looks for its secret.
    if code is ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED and await _names_others(request):
        code = ErrorCode.INVALID_PRINCIPAL_TYPE
    return CreateDelegationTokenResponse(
        error_code=code,
        principal_type=context.principal.kind,
        principal_name=context.principal.name,
        issue_timestamp_ms=NO_TIME_MS,
        expiry_timestamp_ms=NO_TIME_MS,
        max_timestamp_ms=NO_TIME_MS,
        token_id="",
        hmac=b"",
    )


async def renew_token(
    broker: Broker, request: RenewDelegationTokenRequest, context: RequestContext
) -> RenewDelegationTokenResponse:
    """Refuse."""
    return RenewDelegationTokenResponse(
        error_code=_refusal(broker, context), expiry_timestamp_ms=NO_TIME_MS
    )


async def expire_token(
    broker: Broker, request: ExpireDelegationTokenRequest, context: RequestContext
) -> ExpireDelegationTokenResponse:
    """Refuse."""
    return ExpireDelegationTokenResponse(
        error_code=_refusal(broker, context), expiry_timestamp_ms=NO_TIME_MS
    )


async def describe_tokens(
    broker: Broker, request: DescribeDelegationTokenRequest, context: RequestContext
) -> DescribeDelegationTokenResponse:
    """Refuse."""
    return DescribeDelegationTokenResponse(error_code=_refusal(broker, context), tokens=[])


def _refusal(broker: Broker, context: RequestContext) -> ErrorCode:
    """Return the error for a request that came to this listener (KafkaApis.allowTokenRequests).

    Nobody may ask for tokens on PLAINTEXT listeners, nor on SSL without a certificate.
    """
    protocol = {one.name: one.protocol for one in broker.config.listeners}[context.listener]
    if protocol == "PLAINTEXT" or (protocol == "SSL" and context.principal == ANONYMOUS):
        return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    return ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED


async def _names_others(request: CreateDelegationTokenRequest) -> bool:
    """Return whether a renewer is no user."""
    for number, few in enumerate(slices.cut(request.renewers, slices.KEYS_AT_ONCE)):
        if number:
            await slices.pause()
        if any(one.principal_type != USER for one in few):
            return True
    return False
