"""TLS to ZooKeeper: a context of the present files of key and trust store.

A valid certificate is kept instead of one whose time is over, or has not come yet.
"""

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
        self._refused: tuple[object, ...] | None = None
        try:
            self._context, self._validity = tls_contexts.of_client_and_validity(settings)
        except ConfigError as error:
            raise ConfigError(f"TLS to ZooKeeper: {error}") from None

    def context(self) -> ssl.SSLContext:
        """Return the context for the next connection.

        Files that are refused are tried again with each connection, and logged once.
        """
        with self._lock:
            seen = tls_contexts.signature(self._settings)
            if seen != self._seen:
                try:
                    self._renew()
                except ConfigError as error:
                    if seen != self._refused:
                        logger.error("keeping the former certificates for ZooKeeper: %s", error)
                    self._refused = seen
                except Exception:
                    # As for want of a descriptor: it is tried again with the next connection.
                    logger.exception("keeping the former certificates for ZooKeeper")
                else:
                    self._seen = seen
            return self._context

    def _renew(self) -> None:
        context, validity = tls_contexts.of_client_and_validity(self._settings)
        if self._validity is not None and validity is not None:
            self._validity.check_successor(validity)
        self._context, self._validity = context, validity
