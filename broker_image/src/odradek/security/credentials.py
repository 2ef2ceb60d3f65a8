"""The SCRAM credentials of users, in /config/users/NAME beside their quotas.

A credential is read when its user first authenticates, and kept until a notification under
/config/changes names the user, or until the session is lost. That there is none is kept too: else
the time of an answer would tell which users there are. While ZooKeeper is away, users who
authenticated before can do so again.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from kazoo.exceptions import KazooException

from odradek.net.rare_log import RareLog
from odradek.protocol.primitives import MAX_STRING
from odradek.security import scram
from odradek.security.scram import ScramCredential
from odradek.zk import znodes
from odradek.zk.session import Session

logger = logging.getLogger(__name__)

# Users whose credentials are kept, and others; beyond that all of the kind are read again.
MOST_KEPT: Final = 10_000
# Sanitized, the longest name that a request can give a credential to. ZooKeeper ends the session's
# connection for a path above 1 MiB, and a token may have such a name before authentication.
LONGEST_NAME: Final = 3 * MAX_STRING
# Longer names are kept by their digest.
_LONGEST_KEPT: Final = 256


def sanitized(user: str) -> str:
    """Return a user's name as a name of a znode (Kafka's Sanitizer: Java's URLEncoder)."""
    return quote(user, safe="").replace("~", "%7E")


def is_znode_name(name: str) -> bool:
    """Return whether ZooKeeper takes a sanitized name."""
    return name not in ("", ".", "..") and len(name) <= LONGEST_NAME


def decode(path: str, entries: Mapping[str, str]) -> dict[str, ScramCredential]:
    """Return the credentials among the entries of a user, by mechanism; log unreadable ones."""
    found: dict[str, ScramCredential] = {}
    for mechanism in scram.DIGESTS:
        if mechanism not in entries:
            continue
        try:
            found[mechanism] = scram.decode_credential(entries[mechanism])
        except ValueError as error:
            logger.error("ignoring %s of %s: %s", mechanism, path, error)
    return found


class ScramCredentials:
    """The credentials of all users."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: dict[str, dict[str, ScramCredential]] = {}
        self._without: dict[str, dict[str, ScramCredential]] = {}
        self._changes = 0
        self._log = RareLog(logger)

    async def find(self, mechanism: str, user: str) -> ScramCredential | None:
        """Return a user's credential; None if there is none, or nobody can tell."""
        name = sanitized(user)
        if not is_znode_name(name):
            return None
        key = _key(name)
        known = self._known.get(key, self._without.get(key))
        if known is None:
            changes = self._changes
            path = znodes.config_path("users", name)
            try:
                found = (await self._session.get_all([path])).get(path)
                known = {} if found is None else decode(path, znodes.decode_config(path, found[0]))
            except (KazooException, znodes.ZnodeError) as error:
                self._log.log(logging.WARNING, "failed to read %.150s: %.200r", path, error)
                return None
            if changes == self._changes:
                kept = self._known if known else self._without
                if len(kept) >= MOST_KEPT:
                    kept.clear()
                kept[key] = known
        return known.get(mechanism)

    def forget(self, name: str) -> None:
        """Read the credentials of a user again, who has this name as a znode."""
        self._changes += 1
        self._known.pop(_key(name), None)
        self._without.pop(_key(name), None)

    async def forget_all(self) -> None:
        """Read all credentials again, after a lost session."""
        self._changes += 1
        self._known.clear()
        self._without.clear()


def _key(name: str) -> str:
    return name if len(name) <= _LONGEST_KEPT else hashlib.sha256(name.encode()).hexdigest()
