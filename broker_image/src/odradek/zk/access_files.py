"""How to connect to ZooKeeper by the files of a mounted Secret, or of a JAAS file that changes.

Files that changed count for the connections to come. A Secret of the operator's has up to three:

| file | what |
|---|---|
| `ca.crt` | whom to trust; empty: the authorities of the system |
| `user.pem` | the key and the certificate to show |
| `zookeeper.jaas` | a JAAS file whose section `Client` has the login |
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Final

from odradek import tls_errors
from odradek.properties import ConfigError
from odradek.zk.client import ZooKeeperAccess
from odradek.zookeeper_settings import JaasSection, ZooKeeperLogin

AUTHORITY: Final = "ca.crt"
IDENTITY: Final = "user.pem"
JAAS: Final = "zookeeper.jaas"
SECTION: Final = "Client"

logger = logging.getLogger(__name__)


class FileLogin:
    """The login that a JAAS file has at present; the former one while it cannot be used."""

    def __init__(self, known: ZooKeeperLogin, jaas: JaasSection | None) -> None:
        self._known = known
        self._jaas = jaas

    def get(self) -> ZooKeeperLogin:
        """Return the login for the next connection."""
        if self._jaas is not None:
            try:
                self._known = self._jaas.login() or self._known
            except ConfigError as error:
                logger.error("keeping the former login for ZooKeeper: %s", error)
        return self._known


def of_folder(folder: Path) -> ZooKeeperAccess:
    """Return how to connect by the files of a folder: over TLS with one of the first two.

    Raises ConfigError for files that cannot be used.
    """
    jaas = JaasSection(folder / JAAS, SECTION)
    login = jaas.login() if jaas.path.exists() else None
    over_tls = any((folder / name).exists() for name in (AUTHORITY, IDENTITY))

    def context() -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        authority = folder / AUTHORITY
        if authority.exists() and authority.stat().st_size:
            made.load_verify_locations(authority)
        else:
            made.load_default_certs()
        if (folder / IDENTITY).exists():
            made.load_cert_chain(folder / IDENTITY)
        return made

    if over_tls:
        try:
            context()
        except OSError as error:
            said = tls_errors.describe(error, "zookeeper.")
            raise ConfigError(f"{folder}: TLS to ZooKeeper: {said}") from None
    return ZooKeeperAccess(
        context if over_tls else None,
        None if login is None else FileLogin(login, jaas).get,
    )
