"""TLS to ZooKeeper: a context of the present files of key and trust store."""

from __future__ import annotations

import logging
import ssl
import threading

from odradek.listener_settings import TlsSettings
from odradek.properties import ConfigError
from odradek.security import tls_contexts

logger = logging.getLogger(__name__)


class ZooKeeperTls:
    """The TLS context of the present files. Raises ConfigError if it cannot be made at first."""

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        # Connections are made in threads of their own.
        self._lock = threading.Lock()
        self._seen = tls_contexts.signature(settings)
        self._context = _made(settings)

    def context(self) -> ssl.SSLContext:
        """Return the context for the next connection."""
        with self._lock:
            seen = tls_contexts.signature(self._settings)
            if seen == self._seen:
                return self._context
            try:
                self._context = _made(self._settings)
            except ConfigError as error:
                logger.error("keeping the former certificates: %s", error)
            except Exception:
                # As for want of a descriptor: it is tried again with the next connection.
                logger.exception("keeping the former certificates for ZooKeeper")
                return self._context
            self._seen = seen
            return self._context


def _made(settings: TlsSettings) -> ssl.SSLContext:
    try:
        return tls_contexts.of_client(settings)
    except ConfigError as error:
        raise ConfigError(f"TLS to ZooKeeper: {error}") from None
