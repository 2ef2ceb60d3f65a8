"""How a client connects to brokers: over TLS, with SASL, as their listener asks.

A broker is a client of the others; a command is one, too.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
from collections.abc import Callable
from typing import Final

from odradek import access_tokens
from odradek.access_tokens import AccessTokens, NoTokenError
from odradek.listener_settings import SaslLogin
from odradek.net import transport as transports
from odradek.net.client import Ask, NoCredentialsError
from odradek.net.handshakes import Handshakes
from odradek.net.transport import TlsTransport, Transport
from odradek.protocol.errors import ErrorCode, name_of
from odradek.protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from odradek.security import scram
from odradek.security.scram import ScramClient, ScramError

_HANDSHAKE_VERSION: Final = 1
_AUTHENTICATE_VERSION: Final = 1


class AuthenticationError(ConnectionError):
    """The broker refused who we are, or did not prove who it is."""


class ClientSecurity:
    """Makes connections to brokers (see `client.PeerSecurity`).

    Without `context` they are plain, without `login` nobody says who we are.
    """

    def __init__(
        self,
        handshakes: Handshakes,
        context: Callable[[], ssl.SSLContext] | None,
        login: SaslLogin | AccessTokens | None,
    ) -> None:
        self._handshakes = handshakes
        self._context = context
        self._login = login

    async def secure(self, sock: socket.socket, host: str) -> Transport:
        """Return the transport over a connected socket. Raises OSError."""
        if self._context is None:
            return transports.plain(sock)
        transport = TlsTransport(
            sock, self._context, self._handshakes, is_server=False, server_hostname=host
        )
        try:
            await transport.handshake()
        except BaseException:
            transport.close()
            raise
        return transport

    async def authenticate(self, ask: Ask) -> float | None:
        """Prove who we are; return the seconds that it holds, None: always. Raises OSError."""
        if self._login is None:
            return None
        mechanism = self._login.mechanism
        chosen = await ask(SaslHandshakeRequest(mechanism=mechanism), _HANDSHAKE_VERSION)
        if chosen.error_code != ErrorCode.NONE:
            offered = f"; the listener has {', '.join(chosen.mechanisms) or 'none'}"
            raise AuthenticationError(f"SASL handshake: {name_of(chosen.error_code)}{offered}")
        if isinstance(self._login, AccessTokens):
            lifetime_ms = await _show_token(ask, self._login)
        else:
            lifetime_ms = await _prove_password(ask, self._login)
        return lifetime_ms / 1000 if lifetime_ms else None


async def _prove_password(ask: Ask, login: SaslLogin) -> int:
    """Return for how many ms the broker takes it, 0: always. Raises OSError."""
    mechanism, user, password = login.mechanism, login.username, login.password
    if mechanism == "PLAIN":
        return (await _exchange(ask, f"\0{user}\0{password}".encode()))[1]
    nonce = secrets.token_urlsafe(scram.NONCE_BYTES)
    client = ScramClient(mechanism, user, password, nonce)
    try:
        challenge, _ = await _exchange(ask, client.first())
        proof = await asyncio.to_thread(client.final, challenge)
        answer, lifetime_ms = await _exchange(ask, proof)
        client.check(answer)
    except ScramError as error:
        raise AuthenticationError(f"{mechanism}: {error}") from None
    return lifetime_ms


async def _show_token(ask: Ask, tokens: AccessTokens) -> int:
    """Return for how many ms the broker takes it, 0: always. Raises OSError."""
    try:
        first = await asyncio.to_thread(tokens.first_message)
    except NoTokenError as error:
        raise NoCredentialsError(str(error), is_mistake=error.is_mistake) from error
    refusal, lifetime_ms = await _exchange(ask, first)
    if refusal:
        # The answer to this is the error (RFC 7628, 3.2.3).
        await _exchange(ask, access_tokens.REFUSED)
        raise AuthenticationError(f"{tokens.mechanism}: {refusal.decode(errors='replace')}")
    return lifetime_ms


async def _exchange(ask: Ask, token: bytes) -> tuple[bytes, int]:
    answer = await ask(SaslAuthenticateRequest(auth_bytes=token), _AUTHENTICATE_VERSION)
    if answer.error_code != ErrorCode.NONE:
        raise AuthenticationError(f"{name_of(answer.error_code)}: {answer.error_message}")
    return answer.auth_bytes, answer.session_lifetime_ms
