"""The settings of OAUTHBEARER (KIP-255, KIP-768) by Kafka's names: which tokens a listener takes.

A setting of one listener may have the mechanism before it, as
`listener.name.clients.oauthbearer.sasl.oauthbearer.expected.issuer`. Kafka's default takes tokens
that nobody signed. Here there is no such way: keys of an endpoint are needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from odradek.properties import LONG_MAX, ConfigError, Parser, integer, non_empty, parsed, words

OAUTHBEARER: Final = "OAUTHBEARER"
ALLOWED_URLS: Final = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
_SETTINGS: Final = "sasl.oauthbearer."
_URL: Final = f"{_SETTINGS}jwks.endpoint.url"
_HANDLER: Final = "sasl.server.callback.handler.class"
# The handler of Kafka that checks signatures, in 3.1 to 3.3 and since.
_HANDLERS: Final = (
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerValidatorCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
)


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
        parts = urlsplit(self.url)
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
    wrong = ConfigError(f"listener {listener}: {_URL} {url} is not a URL of https or file")
    try:
        parts = urlsplit(url)
        good = (parts.scheme == "https" and bool(parts.hostname) and parts.port != 0) or (
            parts.scheme == "file" and not parts.netloc and len(parts.path) > 1
        )
    except ValueError:
        raise wrong from None
    is_plain = url.isascii() and url.isprintable() and " " not in url
    if not good or not is_plain or parts.username is not None:
        raise wrong
    if url not in words()(allowed):
        raise ConfigError(
            f"listener {listener}: {_URL} {url} is not in {ALLOWED_URLS}, the list of the URLs "
            "that this broker may ask"
        )
