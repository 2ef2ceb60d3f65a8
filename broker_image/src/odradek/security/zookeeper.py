"""How a broker or a command connects to ZooKeeper, made of its settings.

Files of key and trust stores, and JAAS files, that changed count for the connections to come.
"""

from __future__ import annotations

from odradek.zk.access_files import FileLogin
from odradek.zk.client import ZooKeeperAccess
from odradek.zookeeper_settings import ZooKeeperSecurity


def access(settings: ZooKeeperSecurity) -> ZooKeeperAccess:
    """Return how to connect. Raises ConfigError for key stores that cannot be used."""
    context = None
    if settings.tls is not None:
        # Loads a large library, which a plain connection does not need.
        from odradek.security.zookeeper_tls import ZooKeeperTls

        context = ZooKeeperTls(settings.tls).context
    login = None if settings.login is None else FileLogin(settings.login, settings.jaas).get
    return ZooKeeperAccess(context, login, settings.set_acl)
