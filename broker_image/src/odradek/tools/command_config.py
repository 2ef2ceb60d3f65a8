"""Reads the file of `--command-config`: how commands connect to brokers with TLS and SASL.

It is a Java properties file with the keys of Kafka's clients. What secures connections is what
brokers use among themselves (`security.peers`).
"""

from __future__ import annotations

import ssl
from pathlib import Path

from odradek import listener_settings, properties
from odradek.access_tokens import AccessTokens
from odradek.listener_settings import ClientSettings, SaslLogin, TlsSettings
from odradek.net.handshakes import Handshakes
from odradek.oauth_settings import OauthLogin
from odradek.properties import ConfigError
from odradek.security.peers import ClientSecurity
from odradek.tools.client import Access
from odradek.tools.errors import ToolError


def load(path: Path) -> tuple[Access, list[str]]:
    """Return how to connect, and the names of the settings that have no effect.

    Raises ToolError, one line that names the file and the setting.
    """
    try:
        values = properties.read_file(path)
    except ConfigError as error:
        raise ToolError(str(error)) from None
    try:
        settings, ignored = listener_settings.of_client(values)
        context = None if settings.tls is None else _context(settings.tls)
        login = _login(settings)
    except ConfigError as error:
        raise ToolError(f"{path}: {error}") from None
    if settings.tls is None and login is None:
        return Access(settings.protocol), ignored
    security = ClientSecurity(Handshakes(), None if context is None else lambda: context, login)
    return Access(settings.protocol, security), ignored


def _login(settings: ClientSettings) -> SaslLogin | AccessTokens | None:
    if not isinstance(settings.login, OauthLogin):
        return settings.login
    of_endpoint = None if settings.oauth_tls is None else _context(settings.oauth_tls)
    return AccessTokens(settings.login, of_endpoint)


def _context(settings: TlsSettings) -> ssl.SSLContext:
    # Loads a large library, which SASL alone does not need.
    from odradek.security import tls_contexts

    return tls_contexts.of_client(settings)
