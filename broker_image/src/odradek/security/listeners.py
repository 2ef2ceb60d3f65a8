"""The security of a broker's listeners: transports, guards, and connections to other brokers."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from odradek.config import BrokerConfig
from odradek.net import transport as transports
from odradek.net.client import PeerSecurity
from odradek.net.connection import Guard
from odradek.net.handshakes import Handshakes
from odradek.net.transport import Transport
from odradek.properties import split_principals
from odradek.security.authenticator import FindCredential, ListenerAuthentication
from odradek.security.peers import ClientSecurity
from odradek.values import ANONYMOUS, Principal

if TYPE_CHECKING:
    from odradek.security.bearer import BearerTokens
    from odradek.security.listener_tls import ListenerTls

SECRET_BYTES = 32


class BrokerSecurity:
    """The security of all listeners of one broker.

    Raises ConfigError, one line that names the setting and the file, if a key store or a trust
    store cannot be used.
    """

    def __init__(self, config: BrokerConfig, find: FindCredential) -> None:
        secret = secrets.token_bytes(SECRET_BYTES)
        self._tls: dict[str, ListenerTls] = {}
        self._sasl: dict[str, ListenerAuthentication] = {}
        self._bearer: dict[str, BearerTokens] = {}
        for name, security in config.security.items():
            if security.tls is not None:
                # Loads a large library, which plain brokers need not have in memory.
                from odradek.security.listener_tls import ListenerTls

                self._tls[name] = ListenerTls(name, security.tls)
            if security.sasl is not None:
                start = None
                if security.sasl.oauth is not None:
                    from odradek.security.bearer import BearerTokens

                    refused = split_principals(config.refused_token_principals)
                    self._bearer[name] = BearerTokens(name, security.sasl, refused)
                    start = self._bearer[name].start
                self._sasl[name] = ListenerAuthentication(name, security.sasl, find, secret, start)
        self._inter_broker = config.inter_broker_listener_name

    def transport(self, listener: str, sock: socket.socket) -> Transport:
        """Return the transport of a socket that a listener accepted."""
        tls = self._tls.get(listener)
        return transports.plain(sock) if tls is None else tls.secure(sock)

    def guard(self, listener: str) -> Guard | None:
        """Return what learns who a peer is; None where nobody does."""
        if listener in self._sasl:
            return self._sasl[listener].guard
        if listener in self._tls:
            return self._tls[listener].guard
        return None

    def own_principal(self) -> Principal:
        """Return whom this broker is for others, and for itself, on the listener of brokers.

        Raises ValueError if no rule of that listener is for the subject of its certificate.
        """
        if self._inter_broker in self._sasl:
            settings = self._sasl[self._inter_broker].settings
            return Principal("User", settings.options[settings.client_mechanism]["username"])
        if self._inter_broker in self._tls:
            return self._tls[self._inter_broker].own_principal()
        return ANONYMOUS

    def of_peers(self) -> PeerSecurity | None:
        """Return how to connect to other brokers; None for plain connections."""
        tls, sasl = self._tls.get(self._inter_broker), self._sasl.get(self._inter_broker)
        if tls is None and sasl is None:
            return None
        return ClientSecurity(
            Handshakes() if tls is None else tls.handshakes,
            None if tls is None else tls.contexts.client,
            None if sasl is None else sasl.settings.login(),
        )

    def failed_handshakes(self) -> dict[str, Mapping[str, int]]:
        """Return how many TLS handshakes failed, by listener and cause."""
        return {name: tls.handshakes.failed for name, tls in self._tls.items()}

    def failed_authentications(self) -> dict[str, Mapping[str, int]]:
        """Return how many authentications failed, by listener and mechanism."""
        return {name: sasl.failed for name, sasl in self._sasl.items()}

    def certificates(self) -> dict[str, float]:
        """Return when certificates expire, in seconds since 1970, by listener."""
        return {name: tls.contexts.not_after_s for name, tls in self._tls.items()}

    def token_keys(self) -> dict[str, tuple[float, int]]:
        """Return age and failed fetches of the keys that sign tokens, by listener."""
        return {name: (one.jwks.age_s, one.jwks.failed) for name, one in self._bearer.items()}

    async def run(self) -> None:
        """Look for changed certificates and for the keys of tokens until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for bearer in self._bearer.values():
                tasks.create_task(bearer.jwks.run(), name="keys of tokens")
            for tls in self._tls.values():
                tasks.create_task(tls.contexts.run(), name="certificates")
