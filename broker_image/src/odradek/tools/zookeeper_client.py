"""The client of commands that ask ZooKeeper: plain, with TLS of a file, with Kafka's JAAS file."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

import click
from kazoo.exceptions import ConnectionClosedError, ConnectionLoss, SessionExpiredError

from odradek import properties, zookeeper_settings
from odradek.properties import ConfigError, zookeeper_servers
from odradek.terminal_text import tell
from odradek.tools.errors import ToolError
from odradek.zk.client import Client, ZooKeeperAccess
from odradek.zk.failures import meaning

P = ParamSpec("P")
T = TypeVar("T")

_CONNECT_S: Final = 15.0
_ANSWER_S: Final = 30.0
_SESSION_S: Final = 10.0
_PAUSE_S: Final = 0.3

zk_tls_config_option = click.option(
    "--zk-tls-config-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Properties for TLS to ZooKeeper: zookeeper.ssl.*.",
)


def connect(
    zookeeper: str, tls_file: Path | None = None, *, must_authenticate: bool = False
) -> Client:
    """Return a started client of `host:port,.../chroot`. Raises ToolError.

    `tls_file` is that of `--zk-tls-config-file`, the environment may have KAFKA_OPTS.
    """
    access = _access(tls_file, must_authenticate=must_authenticate)
    try:
        client = Client(zookeeper_servers(zookeeper), _SESSION_S, access, answer_s=_ANSWER_S)
    except ValueError as error:
        raise ToolError(f"{zookeeper!r} is not HOST:PORT,.../CHROOT: {error}") from error
    # kazoo would log each of its attempts; the error says what the last one met.
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    # `start` would print a warning if the chroot is missing.
    client.start_async().wait(_CONNECT_S)
    if not client.connected:
        why = f": {client.failure}" if client.failure else ""
        client.stop()
        client.close()
        raise ToolError(f"ZooKeeper at {zookeeper} does not answer{why}", 1)
    return client


def ask(request: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Return the answer to a request that may be carried out twice; send it again if the connection
    is lost, as `retries` does with brokers.

    Raises KazooException, also for a connection that is lost again and again.
    """
    until: float | None = None
    while True:
        try:
            # kazoo sends it once it is connected.
            return request(*args, **options)
        except ConnectionClosedError:  # a SessionExpiredError, after which kazoo sends nothing
            raise
        except (ConnectionLoss, SessionExpiredError) as error:
            now = time.monotonic()
            if until is None:
                until = now + _ANSWER_S
                tell(f"ZooKeeper: {meaning(error)}; retrying for up to {_ANSWER_S:g} s")
            elif now >= until:
                raise
            time.sleep(_PAUSE_S)


def _access(tls_file: Path | None, *, must_authenticate: bool) -> ZooKeeperAccess:
    try:
        if tls_file is None:
            security = zookeeper_settings.ZooKeeperSecurity(
                login=zookeeper_settings.login(os.environ)
            )
        else:
            security = _of_file(tls_file)
        if must_authenticate and not security.authenticates:
            raise ConfigError(
                "it takes a login: a JAAS file that KAFKA_OPTS names, or --zk-tls-config-file with "
                "a key store"
            )
        if security.tls is None:
            login = security.login
            return ZooKeeperAccess(None, None if login is None else lambda: login)
        # Loads a large library, which SASL alone does not need.
        from odradek.security import zookeeper

        return zookeeper.access(security)
    except ConfigError as error:
        raise ToolError(str(error)) from None


def _of_file(path: Path) -> zookeeper_settings.ZooKeeperSecurity:
    values = properties.read_file(path)
    try:
        security, ignored = zookeeper_settings.of_tools(values, os.environ)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if ignored:
        tell(f"warning: {path}: no effect: {', '.join(ignored)}")
    return security
