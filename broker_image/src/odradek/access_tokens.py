"""The tokens that clients of ours show (OAUTHBEARER): from an issuer's endpoint, or from a file.

An endpoint is asked as Kafka's OAuthBearerLoginCallbackHandler does it: by client credentials (RFC
6749, 4.4), in a POST with the login in its header. Its token is shown until 80 % of its time is
over (`sasl.login.refresh.window.factor`), and until its end if there is no other. A file is read
each time: whoever put it there, such as the kubelet, renews it.

Nobody checks signatures here; that is for brokers. What is read of a token is when it ends.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import quote_plus, urlencode

from odradek import https_request, tls_errors
from odradek.https_request import MOST_BYTES
from odradek.listener_settings import TlsSettings
from odradek.oauth_settings import OAUTHBEARER, OauthLogin
from odradek.properties import ConfigError

REFUSED: Final = b"\x01"
"""What a client answers to a broker that does not take its token; then it learns of an error."""
_SHOWN_UNTIL: Final = 0.8
_LONGEST_REASON: Final = 200
# What brokers take as one, and its claims.
_JWT: Final = re.compile(r"[-_a-zA-Z0-9]+\.([-_a-zA-Z0-9]+)\.[-_a-zA-Z0-9]*")
# Beyond it a float cannot tell seconds apart.
_LATEST_S: Final = 2**53


class NoTokenError(OSError):
    """There is no token to show; `is_mistake` if another try would end the same way."""

    def __init__(self, message: str, *, is_mistake: bool) -> None:
        super().__init__(message)
        self.is_mistake = is_mistake


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A JWT, whose it is as it says itself (may be empty), and its end in seconds since 1970."""

    text: str = field(repr=False)
    user: str
    expires_s: float


class AccessTokens:
    """The tokens of one client, for any threads. `context` is of connections to the endpoint."""

    mechanism: Final = OAUTHBEARER

    def __init__(
        self,
        login: OauthLogin,
        context: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.login = login
        self._context = context
        self._clock = clock
        self._one_asks = threading.Lock()
        self._token: AccessToken | None = None
        self._shown_until = 0.0

    def get(self) -> AccessToken:
        """Return a token that has not ended; may take seconds. Raises NoTokenError."""
        with self._one_asks:
            token, now = self._token, self._clock()
            if token is not None and now < self._shown_until:
                return token
            try:
                token = self._read() if self.login.path is not None else self._ask()
            except NoTokenError:
                if token is None or token.expires_s <= now:
                    raise
                return token
            self._token = token
            is_kept = self.login.path is None
            self._shown_until = now + _SHOWN_UNTIL * (token.expires_s - now) if is_kept else 0.0
            return token

    def take_over(self, former: AccessTokens) -> None:
        """Go on with the token of the same client, whose settings were read before."""
        if former.login == self.login:
            self._token, self._shown_until = former._token, former._shown_until

    def first_message(self) -> bytes:
        """Return what a client sends first, with a token (see `security.tokens.parse`).

        Raises NoTokenError.
        """
        return message(self.get().text, self.login.extensions)

    def _ask(self) -> AccessToken:
        place = f"token from {self.login.url}"
        form = {"grant_type": "client_credentials"}
        if self.login.scope:
            form["scope"] = self.login.scope
        headers = {
            "Authorization": f"Basic {self._credentials()}",
            "Cache-Control": "no-cache",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        try:
            status, body = https_request.fetch(
                self.login.url, self._context, urlencode(form).encode(), headers
            )
        except (OSError, HTTPException, ValueError) as error:
            reason = tls_errors.describe(error)
            raise NoTokenError(f"failed to get a {place}: {reason}", is_mistake=False) from error
        if status not in (HTTPStatus.OK, HTTPStatus.CREATED):
            is_mistake = HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.INTERNAL_SERVER_ERROR
            if status in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS):
                is_mistake = False
            raise NoTokenError(
                f"failed to get a {place}: HTTP status {status}{_said(body)}", is_mistake=is_mistake
            )
        text = _object(body).get("access_token")
        if not isinstance(text, str):
            raise NoTokenError(
                f"failed to get a {place}: the answer has no access_token", is_mistake=True
            )
        return self._checked(text, place)

    def _credentials(self) -> str:
        pair = (self.login.client_id, self.login.client_secret)
        if self.login.url_encodes:
            pair = (quote_plus(pair[0]), quote_plus(pair[1]))
        return base64.b64encode(":".join(pair).encode()).decode()

    def _read(self) -> AccessToken:
        path = self.login.path
        assert path is not None
        place = f"token in {path}"
        try:
            with path.open("rb") as file:
                text = file.read(MOST_BYTES).decode("ascii").strip()
        except OSError as error:
            reason = f"cannot read the {place}: {error.strerror}"
            raise NoTokenError(reason, is_mistake=True) from error
        except UnicodeDecodeError:
            text = ""
        return self._checked(text, place)

    def _checked(self, text: str, place: str) -> AccessToken:
        try:
            token = read(text)
        except ValueError as error:
            raise NoTokenError(f"cannot use the {place}: {error}", is_mistake=True) from None
        if token.expires_s <= self._clock():
            raise NoTokenError(f"cannot use the {place}: it has expired", is_mistake=True)
        return token


def read(text: str) -> AccessToken:
    """Return what a token says of itself. Raises ValueError if it is no JWT, or never ends.

    Kafka's clients take no other tokens (ClientJwtValidator).
    """
    found = _JWT.fullmatch(text)
    if found is None:
        raise ValueError("it is no JWT")
    try:
        claims = _object(base64.urlsafe_b64decode(found[1] + "=" * (-len(found[1]) % 4)))
    except binascii.Error:
        raise ValueError("it is no JWT") from None
    ends = claims.get("exp")
    if isinstance(ends, bool) or not isinstance(ends, int | float) or not 0 < ends < _LATEST_S:
        raise ValueError("it does not say when it ends (exp)")
    user = claims.get("sub")
    return AccessToken(text, user if isinstance(user, str) else "", float(ends))


def endpoint_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the context of connections to an endpoint, where `security.tls_contexts` is not.

    It trusts certificates in PEM, or the authorities of the system. Raises ConfigError.
    """
    store = settings.trust_store
    if settings.key_store.given or (store.given and store.kind != "PEM"):
        raise ConfigError(
            f"{OAUTHBEARER}: only ssl.truststore with ssl.truststore.type=PEM is supported here"
        )
    try:
        context = ssl.create_default_context(
            cafile=store.location or None, cadata=store.certificates or None
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{OAUTHBEARER}: cannot use ssl.truststore: {tls_errors.describe(error)}"
        ) from None
    context.check_hostname = settings.checks_host
    return context


def message(token: str, extensions: Mapping[str, str]) -> bytes:
    """Return the first message of RFC 7628, with Kafka's extensions (KIP-342)."""
    pairs = "".join(f"{name}={text}\x01" for name, text in extensions.items())
    return f"n,,\x01auth=Bearer {token}\x01{pairs}\x01".encode()


def _object(body: bytes) -> dict[str, Any]:
    """Return a JSON object; what is none is empty."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _said(body: bytes) -> str:
    """Return what an endpoint says of its refusal (RFC 6749, 5.2), after a colon."""
    answer = _object(body)
    texts = [answer.get(name) for name in ("error", "error_description")]
    said = ": ".join(one for one in texts if isinstance(one, str) and one)
    printable = "".join(char if char.isprintable() else " " for char in said[:_LONGEST_REASON])
    return f": {printable}" if printable else ""
