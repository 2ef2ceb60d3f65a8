"""OAUTHBEARER (RFC 7628, KIP-255) on one listener: tokens, checked with the keys of their issuer.

A peer whose token is refused gets `{"status":"invalid_token"}` as a challenge, answers it, and
learns the same as an error, as from Kafka. Why it is refused is for the log.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from odradek.listener_settings import SaslSettings
from odradek.oauth_settings import OAUTHBEARER
from odradek.security import tls_contexts, tokens
from odradek.security.authenticator import AuthenticationFailedError, Mechanism, Proof
from odradek.security.jwks import Jwks
from odradek.security.tokens import MalformedMessageError, TokenError, TokenIdentity
from odradek.values import Principal

_REFUSAL = '{"status":"invalid_token"}'


class BearerTokens:
    """What the exchanges of one listener share. Raises ConfigError for unusable stores.

    Tokens may not name who is `refused`, whatever their issuer says.
    """

    def __init__(
        self, listener: str, settings: SaslSettings, refused: Iterable[Principal] = ()
    ) -> None:
        assert settings.oauth is not None
        self.settings = settings.oauth
        self._refused = tuple(refused)
        tls = settings.oauth_tls
        context = None if tls is None else tls_contexts.of_client(tls)
        self.jwks = Jwks(listener, self.settings, context)

    def start(self) -> Mechanism:
        """Return a new exchange."""
        return _Bearer(self)

    async def identify(self, token: str) -> TokenIdentity:
        """Return whose token it is. Raises TokenError."""
        header = tokens.read_header(token)
        keys = await self.jwks.find(header)
        if not keys:
            known = "" if math.isfinite(self.jwks.age_s) else "; there are no keys yet"
            raise TokenError(f"no key {header.kid!r} for {header.algorithm!r}{known}")
        identity = tokens.check(token, header, keys, self.settings)
        if not tokens.may_name(identity.user, self._refused):
            raise TokenError(f"tokens may not name {identity.user!r}")
        return identity


class _Bearer:
    def __init__(self, shared: BearerTokens) -> None:
        self._shared = shared

    async def answer(self, token: bytes) -> tuple[bytes, Proof | None]:
        try:
            message = tokens.parse(token)
            identity = await self._shared.identify(message.token)
        except MalformedMessageError as error:
            raise AuthenticationFailedError(f"{OAUTHBEARER}: {error}") from None
        except TokenError as error:
            raise AuthenticationFailedError(
                f"{OAUTHBEARER}: {error}", said=_REFUSAL, challenge=_REFUSAL.encode()
            ) from None
        if message.acts_for not in ("", identity.user):
            raise AuthenticationFailedError(f"{identity.user!r} acts for {message.acts_for!r}")
        return b"", Proof(identity.user, identity.expires_s)
