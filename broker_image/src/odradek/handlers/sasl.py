"""SaslHandshake and SaslAuthenticate where there is nothing to authenticate, as Kafka answers them.

On a listener with SASL the authenticator of the connection answers them.
"""

from __future__ import annotations

from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)


async def sasl_handshake(
    broker: Broker, request: SaslHandshakeRequest, context: RequestContext
) -> SaslHandshakeResponse:
    """Refuse: the listener has no SASL, or its sessions have no limit."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


async def sasl_authenticate(
    broker: Broker, request: SaslAuthenticateRequest, context: RequestContext
) -> SaslAuthenticateResponse:
    """Refuse: no handshake came before."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
    )
