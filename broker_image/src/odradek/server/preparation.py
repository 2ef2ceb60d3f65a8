"""Steps of a start before others know of the broker: what fails in one ends the start."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterable

from kazoo.exceptions import KazooException

from odradek import long_lived, slices
from odradek.config import BrokerConfig
from odradek.dynamic_config import PER_IP_OVERRIDES
from odradek.log.directory import LogDirError
from odradek.log.manager import LogManager
from odradek.log.partition import checkpoints
from odradek.net.connection_quotas import ConnectionQuotas
from odradek.oauth_settings import OAUTHBEARER
from odradek.properties import split_principals
from odradek.quarantine import Quarantines
from odradek.security.acl_watcher import AclWatcher
from odradek.security.authorizer import Authorizer
from odradek.security.listeners import BrokerSecurity
from odradek.server.dynamic_settings import DynamicSettings
from odradek.server.errors import StartError
from odradek.zk import registration, znodes
from odradek.zk.failures import describe
from odradek.zk.session import Session

logger = logging.getLogger(__name__)


async def cluster_id(session: Session, log_dirs: Iterable[str]) -> str:
    """Return the id of the cluster, which the first broker makes up."""
    try:
        await registration.create_persistent_paths(session)
        return await registration.ensure_cluster_id(session, _remembered_cluster(log_dirs))
    except (registration.ForeignClusterError, znodes.ZnodeError, LogDirError) as error:
        raise StartError(str(error)) from error
    except KazooException as failure:
        raise StartError(
            f"failed to read the cluster id: ZooKeeper: {describe(failure)}"
        ) from failure


def _remembered_cluster(log_dirs: Iterable[str]) -> str | None:
    """Return the cluster id in the log directories, None if they are new."""
    for path in log_dirs:
        try:
            meta = checkpoints.read_meta(os.path.join(path, checkpoints.META_PROPERTIES))
        except (OSError, checkpoints.CorruptCheckpointError):
            continue  # loading the directories reports it
        if meta is not None and meta.cluster_id is not None:
            return meta.cluster_id
    return None


async def load_logs(logs: LogManager) -> None:
    """Load the logs in a thread. If cancelled, recovery stops after the present batch."""
    began = time.monotonic()
    working = asyncio.create_task(asyncio.to_thread(logs.load), name="load")
    try:
        with slices.collector_paused():
            await asyncio.shield(working)
    except LogDirError as error:
        raise StartError(str(error)) from error
    except asyncio.CancelledError:
        logs.stop_loading()
        await asyncio.gather(working, return_exceptions=True)
        raise
    long_lived.freeze_loaded()
    logger.info("loaded %d partitions in %.1f s", len(logs.logs()), time.monotonic() - began)


async def connection_quotas(settings: DynamicSettings) -> ConnectionQuotas:
    """Return the quotas of connections."""
    try:
        return await settings.connection_quotas()
    except OSError as error:
        raise StartError(f"{PER_IP_OVERRIDES}: {error}") from error


async def authorizer(
    config: BrokerConfig, session: Session, quarantines: Quarantines
) -> Authorizer | None:
    """Return the authorizer with all ACLs, None if everybody may do everything."""
    if not config.authorizer_class_name:
        if config.super_users:
            logger.warning("super.users has no effect without authorizer.class.name")
        return None
    watcher = AclWatcher(session, config.allow_everyone_if_no_acl_found, quarantines=quarantines)
    found = Authorizer(watcher, split_principals(config.super_users))
    try:
        await watcher.start()
    except (KazooException, ConnectionError) as failure:
        raise StartError(f"failed to read the ACLs: ZooKeeper: {describe(failure)}") from failure
    return found


def warn_of_readable_secrets(config: BrokerConfig) -> None:
    """Name the listeners on which clients send passwords or tokens as they are."""
    for name, security in config.security.items():
        if security.sasl is None or security.tls is not None:
            continue
        if sent := [one for one in security.sasl.mechanisms if one in ("PLAIN", OAUTHBEARER)]:
            logger.warning(
                "listener %s has no TLS: who reads its connections can use what clients of %s send",
                name,
                " and ".join(sent),
            )


def warn_of_lockout(listener: str, security: BrokerSecurity, authorizer: Authorizer | None) -> None:
    """Say if this broker is somebody whom brokers refuse: nothing would work then."""
    try:
        principal = security.own_principal()
    except ValueError as error:
        logger.warning("brokers refuse each other's connections on %s: %s", listener, error)
        return
    if authorizer is not None and authorizer.locks_out(principal):
        logger.warning(
            "brokers are %s on listener %s, which super.users does not contain and no ACL "
            "allows ClusterAction: they refuse each other's requests",
            principal,
            listener,
        )
