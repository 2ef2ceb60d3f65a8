"""Authenticates the peer of one connection with SASL, before its requests are dispatched.

Until then only ApiVersions, SaslHandshake and SaslAuthenticate are answered, frames are small, and
the time is limited. The handshake names the mechanism. After version 0 of it tokens come as bare
frames, after version 1 within SaslAuthenticate. A peer that fails learns no reason, after a pause,
and the connection is closed. Where sessions are limited, a peer authenticates again on the same
connection, as the same principal with the same mechanism (KIP-368).
"""

from __future__ import annotations

import asyncio
import enum
import hmac
import logging
import secrets
import struct
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from odradek.clock import wall_ms
from odradek.listener_settings import SaslSettings
from odradek.net.client_info import Answer, ClientInfo, Dispatch
from odradek.net.connection import Connection
from odradek.net.frame import ProtocolViolation
from odradek.net.rare_log import RareLog
from odradek.oauth_settings import OAUTHBEARER
from odradek.properties import INT_MAX
from odradek.protocol import codec, headers
from odradek.protocol.api import APIS, ApiKey
from odradek.protocol.codec import MalformedError
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from odradek.protocol.regions import Part
from odradek.security import scram
from odradek.security.scram import ScramCredential, ScramError, ScramServer
from odradek.values import Principal

logger = logging.getLogger(__name__)

AUTHENTICATION_LIMIT_S: Final = 30.0
# Java's clients count nanoseconds, in 64 bits: 292 years.
_LONGEST_SESSION_MS: Final = 100 * 365 * 86_400_000
# Strangers choose what a reason quotes.
_LONGEST_REASON: Final = 200
_KEY_AND_VERSION: Final = struct.Struct(">hh")
_OF_SASL: Final = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})

FindCredential = Callable[[str, str], Awaitable[ScramCredential | None]]


class AuthenticationFailedError(Exception):
    """The peer did not prove who it is.

    The text is for the log only; `said` is what the peer learns, if that is anything. It learns it
    in answer to its next token if there is a `challenge`, which is sent to it first.
    """

    def __init__(
        self, reason: str, said: str | None = None, challenge: bytes | None = None
    ) -> None:
        super().__init__(reason)
        self.said = said
        self.challenge = challenge


@dataclass(frozen=True, slots=True)
class Proof:
    """Who the peer is; what proves it may end, in seconds since 1970."""

    user: str
    ends_s: float | None = None


class Mechanism(Protocol):
    """One exchange of tokens."""

    async def answer(self, token: bytes) -> tuple[bytes, Proof | None]:
        """Return the next token of the broker, and the user once it is proved.

        Raises AuthenticationFailedError.
        """


class _Plain:
    """PLAIN (RFC 4616): `[authzid] NUL user NUL password`."""

    def __init__(self, users: dict[str, str]) -> None:
        self._users = users

    async def answer(self, token: bytes) -> tuple[bytes, Proof | None]:
        try:
            authorized, user, password = token.decode().split("\0")
        except ValueError:
            raise AuthenticationFailedError("malformed token") from None
        expected = self._users.get(user)
        is_right = hmac.compare_digest((expected or "").encode(), password.encode())
        if expected is None or not user or not password or not is_right:
            raise AuthenticationFailedError(f"wrong name or password of {user!r}")
        if authorized not in ("", user):
            raise AuthenticationFailedError(f"{user!r} acts for {authorized!r}")
        return b"", Proof(user)


class _Scram:
    def __init__(self, mechanism: str, find: FindCredential, secret: bytes) -> None:
        self._mechanism = mechanism
        self._find = find
        self._server = ScramServer(mechanism, secrets.token_urlsafe(scram.NONCE_BYTES), secret)
        self._challenged = False

    async def answer(self, token: bytes) -> tuple[bytes, Proof | None]:
        server = self._server
        try:
            if self._challenged:
                return server.final(token), Proof(server.user)
            server.first(token)
            known = await self._find(self._mechanism, server.user)
            self._challenged = True
            return server.challenge(known), None
        except ScramError as error:
            raise AuthenticationFailedError(f"user {server.user!r}: {error}") from None


class ListenerAuthentication:
    """What the authenticators of one listener share.

    `failed` counts by mechanism; `secret` is of this broker alone. `start_bearer` begins an
    exchange of OAUTHBEARER, where that is enabled.
    """

    def __init__(
        self,
        listener: str,
        settings: SaslSettings,
        find: FindCredential,
        secret: bytes,
        start_bearer: Callable[[], Mechanism] | None = None,
    ) -> None:
        self.settings = settings
        self.log = RareLog(logger)
        self.failed: Counter[str] = Counter(dict.fromkeys((*settings.mechanisms, "none"), 0))
        self.listener = listener
        self._find = find
        self._secret = secret
        self._start_bearer = start_bearer

    def guard(self, connection: Connection, dispatch: Dispatch) -> Dispatch:
        """Return what serves a new connection (see `connection.Guard`)."""
        return Authenticator(self, connection, dispatch).dispatch

    def start(self, mechanism: str) -> Mechanism:
        """Return a new exchange."""
        if mechanism == "PLAIN":
            return _Plain(self.settings.users(mechanism))
        if mechanism == OAUTHBEARER:
            assert self._start_bearer is not None
            return self._start_bearer()
        return _Scram(mechanism, self._find, self._secret)


class _State(enum.Enum):
    HANDSHAKE = enum.auto()
    BARE_TOKENS = enum.auto()
    TOKENS = enum.auto()
    AUTHENTICATED = enum.auto()
    FAILED = enum.auto()


class Authenticator:
    """Serves one connection: authenticates its peer, then passes frames on."""

    def __init__(
        self, shared: ListenerAuthentication, connection: Connection, dispatch: Dispatch
    ) -> None:
        self._shared = shared
        self._connection = connection
        self._inner = dispatch
        self._loop = asyncio.get_running_loop()
        self._state = _State.HANDSHAKE
        self._mechanism_name = ""
        self._mechanism: Mechanism | None = None
        self._refusal: AuthenticationFailedError | None = None
        self._principal: Principal | None = None
        self._session_ends: float | None = None
        self._lifetime_ms = 0
        connection.limit_frames(shared.settings.max_receive_bytes)
        # It must not keep a connection that ended.
        known = weakref.ref(connection)
        self._limit = self._loop.call_later(AUTHENTICATION_LIMIT_S, _abort, known)

    def dispatch(self, frame: memoryview, peer: ClientInfo) -> Awaitable[Answer]:
        """Answer a frame. Raises ProtocolViolation."""
        if self._state is _State.AUTHENTICATED:
            if self._session_ends is None:
                return self._inner(frame, peer)
            key, _ = _key_and_version(frame)
            if key != ApiKey.SASL_HANDSHAKE:
                if self._loop.time() >= self._session_ends:
                    raise ProtocolViolation("its session ended without a new authentication")
                return self._inner(frame, peer)
        return self._authenticate(frame, peer)

    async def _authenticate(self, frame: memoryview, peer: ClientInfo) -> Answer:
        if self._state is _State.BARE_TOKENS:
            return await self._take_bare_token(bytes(frame))
        key, version = _key_and_version(frame)
        if key == ApiKey.API_VERSIONS and self._state is _State.HANDSHAKE:
            return await self._inner(frame, replace(peer, is_stranger=True))
        expected = (
            ApiKey.SASL_AUTHENTICATE if self._state is _State.TOKENS else ApiKey.SASL_HANDSHAKE
        )
        if key != expected or self._state is _State.FAILED:
            raise ProtocolViolation(f"request {key} before authentication")
        api = APIS[key]
        if not api.min_version <= version <= api.max_version:
            raise ProtocolViolation(f"{api.name} version {version} is not served")
        try:
            header, position = headers.decode_request_header(frame)
            request, _ = codec.decode(api.request, version, frame, position)
        except MalformedError as error:
            raise ProtocolViolation(str(error)) from error
        answer: object
        if isinstance(request, SaslHandshakeRequest):
            answer = self._choose(request.mechanism, version)
        else:
            assert isinstance(request, SaslAuthenticateRequest)
            answer = await self._take_token(request.auth_bytes)
        return headers.encode_response(api, version, header.correlation_id, answer)

    def _choose(self, mechanism: str, version: int) -> SaslHandshakeResponse:
        """Begin an exchange with the mechanism that the peer chose."""
        offered = list(self._shared.settings.mechanisms)
        is_known = mechanism in offered
        if not is_known or self._mechanism_name not in ("", mechanism):
            self._note_failure("none", f"mechanism {mechanism!r}")
            self._end()
            code = (
                ErrorCode.ILLEGAL_SASL_STATE if is_known else ErrorCode.UNSUPPORTED_SASL_MECHANISM
            )
            return SaslHandshakeResponse(error_code=code, mechanisms=offered)
        self._mechanism_name = mechanism
        self._mechanism = self._shared.start(mechanism)
        self._state = _State.TOKENS if version else _State.BARE_TOKENS
        return SaslHandshakeResponse(mechanisms=offered)

    async def _take_bare_token(self, token: bytes) -> Sequence[Part]:
        try:
            return [await self._next_token(token)]
        except AuthenticationFailedError:
            await self._pause()
            raise ProtocolViolation("authentication failed") from None

    async def _take_token(self, token: bytes) -> SaslAuthenticateResponse:
        try:
            answer = await self._next_token(token)
        except AuthenticationFailedError as error:
            await self._pause()
            return SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
                error_message=error.said
                or "Authentication failed during authentication due to invalid "
                f"credentials with SASL mechanism {self._mechanism_name}",
            )
        lifetime_ms = self._lifetime_ms if self._state is _State.AUTHENTICATED else 0
        return SaslAuthenticateResponse(auth_bytes=answer, session_lifetime_ms=lifetime_ms)

    async def _next_token(self, token: bytes) -> bytes:
        if self._refusal is not None:
            self._end()
            raise self._refusal
        assert self._mechanism is not None
        try:
            answer, proof = await self._mechanism.answer(token)
            if proof is not None:
                self._succeed(proof)
        except AuthenticationFailedError as error:
            self._note_failure(self._mechanism_name, str(error))
            if error.challenge is not None:
                # Some clients leave without an answer to it.
                self._refusal = error
                return error.challenge
            self._end()
            raise
        return answer

    def _succeed(self, proof: Proof) -> None:
        principal = Principal("User", proof.user)
        if self._principal not in (None, principal):
            raise AuthenticationFailedError(f"{self._principal} became {principal}")
        self._principal = principal
        self._state = _State.AUTHENTICATED
        self._mechanism = None
        self._limit.cancel()
        most_ms = self._shared.settings.max_reauth_ms[self._mechanism_name]
        self._lifetime_ms = _session_ms(most_ms, proof.ends_s)
        if self._lifetime_ms:
            self._session_ends = self._loop.time() + self._lifetime_ms / 1000
        self._connection.identify(principal)
        self._connection.limit_frames(INT_MAX)

    def _note_failure(self, cause: str, reason: str) -> None:
        self._shared.failed[cause] += 1
        peer = self._connection.peer
        self._shared.log.log(
            logging.INFO,
            "failed authentication of %s:%s on listener %s: %s",
            peer.host,
            peer.port,
            self._shared.listener,
            reason[:_LONGEST_REASON],
        )

    def _end(self) -> None:
        self._state = _State.FAILED
        self._limit.cancel()
        self._connection.finish()

    async def _pause(self) -> None:
        await asyncio.sleep(self._shared.settings.failure_delay_ms / 1000)


def _session_ms(most_ms: int, ends_s: float | None) -> int:
    """Return how long a session lasts, 0: without end (KIP-368).

    What ended within the time that clocks may differ is no session without end.
    """
    if ends_s is None:
        return most_ms
    left_ms = min(max(1, int(1000 * ends_s) - wall_ms()), _LONGEST_SESSION_MS)
    return min(left_ms, most_ms) if most_ms else left_ms


def _abort(connection: weakref.ref[Connection]) -> None:
    if (found := connection()) is not None:
        found.abort("authentication")


def _key_and_version(frame: memoryview) -> tuple[int, int]:
    if len(frame) < _KEY_AND_VERSION.size:
        raise ProtocolViolation("frame without a request header")
    key, version = _KEY_AND_VERSION.unpack_from(frame)
    return int(key), int(version)
