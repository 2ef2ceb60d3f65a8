"""TLS of one listener: transports of accepted sockets, and the principals of certificates."""

from __future__ import annotations

import socket

from odradek.listener_settings import TlsSettings
from odradek.net.client_info import Dispatch
from odradek.net.connection import Connection
from odradek.net.frame import ProtocolViolation
from odradek.net.handshakes import Handshakes
from odradek.net.transport import TlsTransport, Transport
from odradek.security import principals
from odradek.security.tls_contexts import TlsContexts
from odradek.values import ANONYMOUS, Principal


class ListenerTls:
    """TLS of one listener."""

    def __init__(self, name: str, settings: TlsSettings) -> None:
        self.contexts = TlsContexts(name, settings)
        self.handshakes = Handshakes()
        self._rules = settings.principal_rules
        self._asks = settings.client_auth != "none"

    def secure(self, sock: socket.socket) -> Transport:
        """Return the transport of an accepted socket."""
        return TlsTransport(sock, self.contexts.server, self.handshakes)

    def own_principal(self) -> Principal:
        """Return whom the certificate of this broker stands for on this listener.

        Raises ValueError if no rule matches its subject.
        """
        if not self._asks:
            return ANONYMOUS
        return Principal(
            "User", principals.mapped(principals.of_java(self.contexts.subject), self._rules)
        )

    def guard(self, connection: Connection, dispatch: Dispatch) -> Dispatch:
        """Name the peer by its certificate (see `connection.Guard`)."""
        try:
            connection.identify(
                principals.of_certificate(connection.peer_certificate(), self._rules)
            )
        except ValueError as error:
            raise ProtocolViolation(str(error)) from error
        return dispatch
