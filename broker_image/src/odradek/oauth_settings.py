"""The settings of OAUTHBEARER (KIP-255, KIP-768) by Kafka's names: for listeners and for clients.

Those of a listener say which tokens it takes, those of a client where it gets its token. A setting
of one listener may have the mechanism before it, as
`listener.name.clients.oauthbearer.sasl.oauthbearer.expected.issuer`. Kafka's default takes, and
shows, tokens that nobody signed. Here there is no such way: keys of an endpoint are needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from odradek.properties import (
    LONG_MAX,
    ConfigError,
    Parser,
    boolean,
    integer,
    non_empty,
    parsed,
    words,
)

OAUTHBEARER: Final = "OAUTHBEARER"
LOGIN_MODULE: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
ALLOWED_URLS: Final = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
_SETTINGS: Final = "sasl.oauthbearer."
_URL: Final = f"{_SETTINGS}jwks.endpoint.url"
_HANDLER: Final = "sasl.server.callback.handler.class"
# The handler of Kafka that checks signatures, in 3.1 to 3.3 and since.
_HANDLERS: Final = (
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerValidatorCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
)
LOGIN_HANDLER: Final = "sasl.login.callback.handler.class"
# Those that get a token from an endpoint or a file. The second is the name since Kafka 3.4.
LOGIN_HANDLERS: Final = (
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
)
_TOKEN_URL: Final = f"{_SETTINGS}token.endpoint.url"
CLIENT_ID: Final = f"{_SETTINGS}client.credentials.client.id"
CLIENT_SECRET: Final = f"{_SETTINGS}client.credentials.client.secret"
SCOPE: Final = f"{_SETTINGS}scope"
_URL_ENCODE: Final = f"{_SETTINGS}header.urlencode"
_RETRIEVER: Final = f"{_SETTINGS}jwt.retriever.class"
CLIENT_SETTINGS: Final = frozenset(
    {LOGIN_HANDLER, _TOKEN_URL, CLIENT_ID, CLIENT_SECRET, SCOPE, _URL_ENCODE, _RETRIEVER}
)
_RETRIEVERS: Final = tuple(
    f"org.apache.kafka.common.security.oauthbearer.{name}JwtRetriever"
    for name in ("Default", "ClientCredentials", "File")
)
_EXTENSION: Final = "extension_"
# Name and value of an extension (KIP-342), as OAuthBearerClientInitialResponse takes them.
_EXTENSION_NAME: Final = re.compile("[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]+")


@dataclass(frozen=True, slots=True)
class OauthSettings:
    """Which tokens a listener takes, and where the keys are that sign them.

    `url` is of https or file. An issuer that is empty and audiences that are none are not compared;
    a token for an audience is then refused, as in Kafka.
    """

    url: str
    refresh_ms: int = 3_600_000
    backoff_ms: int = 100
    backoff_max_ms: int = 10_000
    issuer: str = ""
    audiences: tuple[str, ...] = ()
    clock_skew_s: int = 30
    user_claim: str = "sub"
    scope_claim: str = "scope"

    @property
    def path(self) -> Path | None:
        """Return the file with the keys; None if they are fetched."""
        return _path(self.url)


@dataclass(frozen=True, slots=True)
class OauthLogin:
    """Where a client gets its tokens: from an endpoint, with its credentials, or from a file.

    `url` is of https or file. `url_encodes`: for the header with the credentials (RFC 6749, 2.3.1).
    """

    url: str
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str = ""
    url_encodes: bool = False
    extensions: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path | None:
        """Return the file with the token; None if it is asked for."""
        return _path(self.url)


def _path(url: str) -> Path | None:
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def read(values: Mapping[str, str], listener: str) -> OauthSettings:
    """Return what the settings of a listener say about OAUTHBEARER. Raises ConfigError.

    `values` have no prefix of a listener any more.
    """

    def value(name: str, default: str, parse: Parser) -> Any:
        own = f"{OAUTHBEARER.lower()}.{name}"
        return parsed(values, own if own in values else name, default, parse)

    def setting(name: str, default: str, parse: Parser) -> Any:
        return value(_SETTINGS + name, default, parse)

    handler = value(_HANDLER, _HANDLERS[-1], str)
    if handler not in _HANDLERS:
        raise ConfigError(
            f"listener {listener}: {_HANDLER} must be {_HANDLERS[-1]}; {handler} is not supported"
        )
    url = setting("jwks.endpoint.url", "", str)
    _check_url(url, values.get(ALLOWED_URLS, ""), listener)
    least, most = (
        setting(f"jwks.endpoint.retry.backoff.{name}", default, integer(1, LONG_MAX))
        for name, default in (("ms", "100"), ("max.ms", "10000"))
    )
    return OauthSettings(
        url,
        setting("jwks.endpoint.refresh.ms", "3600000", integer(1, LONG_MAX)),
        min(least, most),
        most,
        setting("expected.issuer", "", str),
        setting("expected.audience", "", words()),
        setting("clock.skew.seconds", "30", integer(0, 3600)),
        setting("sub.claim.name", "sub", non_empty),
        setting("scope.claim.name", "scope", non_empty),
    )


def _check_url(url: str, allowed: str, listener: str) -> None:
    """Refuse an endpoint that does not work, or that nobody allowed (CVE-2025-27817)."""
    if not url:
        raise ConfigError(
            f"listener {listener}: {OAUTHBEARER} needs {_URL}: tokens must be signed by its keys"
        )
    if not _is_usable(url):
        raise ConfigError(f"listener {listener}: {_URL} {url} is not a URL of https or file")
    if url not in words()(allowed):
        raise ConfigError(
            f"listener {listener}: {_URL} {url} is not in {ALLOWED_URLS}, the list of the URLs "
            "that this broker may ask"
        )


def _is_usable(url: str) -> bool:
    """Return whether it is a URL of https or file, without a login in it."""
    try:
        parts = urlsplit(url)
        good = (parts.scheme == "https" and bool(parts.hostname) and parts.port != 0) or (
            parts.scheme == "file" and not parts.netloc and len(parts.path) > 1
        )
    except ValueError:
        return False
    is_plain = url.isascii() and url.isprintable() and " " not in url and "%00" not in url
    return good and is_plain and parts.username is None


# --- clients --------------------------------------------------------------------------------------


def read_login(values: Mapping[str, str], options: Mapping[str, str]) -> OauthLogin:
    """Return where a client gets its tokens. Raises ConfigError.

    `options` are those of `sasl.jaas.config`, where Kafka before 4.1 has credentials and scope.
    """
    for name, known in ((LOGIN_HANDLER, LOGIN_HANDLERS), (_RETRIEVER, _RETRIEVERS)):
        given = values.get(name, "").strip()
        if given and given not in known:
            raise ConfigError(f"{name} {given} is not supported")
    url = values.get(_TOKEN_URL, "").strip()
    if not url:
        raise ConfigError(f"sasl.mechanism {OAUTHBEARER} needs {_TOKEN_URL}")
    if not _is_usable(url):
        raise ConfigError(f"{_TOKEN_URL} {url} is not a URL of https or file")
    extensions = {
        name.removeprefix(_EXTENSION): text
        for name, text in options.items()
        if name.startswith(_EXTENSION)
    }
    for name, text in extensions.items():
        is_named = _EXTENSION_NAME.fullmatch(name) is not None and name != "auth"
        if not is_named or _EXTENSION_VALUE.fullmatch(text) is None:
            raise ConfigError(f"sasl.jaas.config: {_EXTENSION}{name} cannot be an extension")
    if _path(url) is not None:
        return OauthLogin(url, extensions=extensions)

    def credential(name: str, option: str) -> str:
        text = values.get(name, "") or options.get(option, "")
        if not text.strip():
            raise ConfigError(f"{_TOKEN_URL} {url} needs {name}, or {option} in sasl.jaas.config")
        return text

    return OauthLogin(
        url,
        credential(CLIENT_ID, "clientId"),
        credential(CLIENT_SECRET, "clientSecret"),
        (values.get(SCOPE, "") or options.get("scope", "")).strip(),
        bool(parsed(values, _URL_ENCODE, "false", boolean)),
        extensions,
    )
