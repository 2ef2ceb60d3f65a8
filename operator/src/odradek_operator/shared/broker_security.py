"""TLS and SASL for connections of the operator and the exporter to brokers, blocking."""

from __future__ import annotations

import os
import secrets
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, TypeVar

from odradek import access_tokens, listener_settings, properties
from odradek.access_tokens import AccessTokens
from odradek.listener_settings import SaslLogin, TlsSettings
from odradek.oauth_settings import OauthLogin
from odradek.properties import ConfigError
from odradek.protocol.errors import ErrorCode, name_of
from odradek.protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from odradek.protocol.schema import Request
from odradek.security import scram
from odradek.security.scram import ScramClient, ScramError

ResponseT = TypeVar("ResponseT")
_VERSION: Final = 1


class SendRequest(Protocol):
    """Sends a request on a new connection and returns its response. Raises OSError."""

    def __call__(self, request: Request[ResponseT], version: int) -> ResponseT:
        """Send a request in a version and return its response."""


@dataclass(frozen=True, slots=True)
class OperatorSecurity:
    """What connections to brokers need: TLS, a login, both or neither.

    With a `problem` there are no connections: it says what is missing.
    """

    tls: ssl.SSLContext | None = None
    login: SaslLogin | AccessTokens | None = field(default=None, repr=False)
    problem: str | None = None

    def secure(self, sock: socket.socket, host: str) -> socket.socket:
        """Return the connection over a connected socket. Raises OSError; then it is closed."""
        if self.tls is None:
            return sock
        try:
            return self.tls.wrap_socket(sock, server_hostname=host)
        except BaseException:
            sock.close()
            raise

    def authenticate(self, ask: SendRequest) -> None:
        """Prove who we are. Raises OSError."""
        if self.login is None:
            return
        mechanism = self.login.mechanism
        chosen = ask(SaslHandshakeRequest(mechanism=mechanism), _VERSION)
        if chosen.error_code != ErrorCode.NONE:
            raise ConnectionError(f"SASL handshake: {name_of(chosen.error_code)}")
        if isinstance(self.login, AccessTokens):
            if refusal := _exchange(ask, self.login.first_message()):
                _exchange(ask, access_tokens.REFUSED)
                raise ConnectionError(f"{mechanism}: {refusal.decode(errors='replace')}")
            return
        nonce = secrets.token_urlsafe(scram.NONCE_BYTES)
        client = ScramClient(mechanism, self.login.username, self.login.password, nonce)
        try:
            client.check(_exchange(ask, client.final(_exchange(ask, client.first()))))
        except ScramError as error:
            raise ConnectionError(f"{mechanism}: {error}") from None


def _exchange(ask: SendRequest, token: bytes) -> bytes:
    answer = ask(SaslAuthenticateRequest(auth_bytes=token), _VERSION)
    if answer.error_code != ErrorCode.NONE:
        raise ConnectionError(f"{name_of(answer.error_code)}: {answer.error_message}")
    return answer.auth_bytes


def trusting(authority: str) -> ssl.SSLContext:
    """Return a context that trusts certificates in PEM. Raises OSError or ValueError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority)
    return context


def show(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Show a certificate to brokers. Raises OSError or ValueError.

    OpenSSL takes it from files only; this one has no place on a disk.
    """
    descriptor = os.memfd_create("identity", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "w", encoding="ascii", closefd=False) as file:
            file.write(f"{key}\n{certificate}")
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def of_settings(values: Mapping[str, str]) -> OperatorSecurity:
    """Read the settings of Kafka's clients: SCRAM or tokens, and trusted certificates in PEM.

    Raises ConfigError.
    """
    found, _ = listener_settings.of_client(values)
    tls = None if found.tls is None else _context(found.tls)
    if isinstance(found.login, OauthLogin):
        trusted = found.oauth_tls
        endpoint = None if trusted is None else access_tokens.endpoint_context(trusted)
        return OperatorSecurity(tls, AccessTokens(found.login, endpoint))
    if found.login is not None and found.login.mechanism not in scram.DIGESTS:
        raise ConfigError(f"sasl.mechanism {found.login.mechanism} is not supported here")
    return OperatorSecurity(tls, found.login)


def _context(settings: TlsSettings) -> ssl.SSLContext:
    store = settings.trust_store
    if not store.given or store.kind != "PEM":
        raise ConfigError("ssl.truststore with ssl.truststore.type=PEM is needed")
    try:
        text = store.certificates or Path(store.location).read_text(encoding="utf-8")
        return trusting(text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot use ssl.truststore: {error}") from None


class SecurityFile:
    """A properties file with the settings of Kafka's clients, which changes now and then."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tokens: AccessTokens | None = None

    def present(self) -> OperatorSecurity:
        """Return what the file asks for now; an unusable file is a problem of each connection."""
        try:
            found = of_settings(properties.read_file(self._path))
        except ConfigError as error:
            return OperatorSecurity(problem=f"{self._path}: {error}")
        if isinstance(found.login, AccessTokens):
            if self._tokens is not None:
                found.login.take_over(self._tokens)
            self._tokens = found.login
        return found
