"""The znodes of users as Kafka writes them: SCRAM credentials, quotas and ACLs, with their notices.

    /config/users/<sanitized>       credentials by mechanism, and quotas, side by side
    /kafka-acl*/<type>/<pattern>    the ACLs of all principals for a pattern

Each change reads, keeps what it is not about, and writes on the version that it read, in one
transaction with the notice. Where others are faster it reads again. Passwords become credentials
here and go nowhere else.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, TypeVar

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from odradek.quotas import entities
from odradek.quotas.entities import WHOLE, QuotaKey
from odradek.security import acl_znodes, scram
from odradek.security.acls import AclEntry, ResourcePattern
from odradek.zk import admin, znodes
from odradek.zk.operations import Create, Delete, Operation, SetData, TransactionFailedError
from odradek.zk.payload import ZnodeError
from odradek_operator.shared.zookeeper import RefusedError, ZnodeReader, ZooKeeper

MECHANISMS: Final = tuple(scram.DIGESTS)
ITERATIONS: Final = scram.MIN_ITERATIONS
MOST_ATTEMPTS: Final = 10
# Of many znodes that cannot be read, a log line names so many.
_NAMED: Final = 10
_CONFIG_PATHS: Final = ("/config/users", znodes.CONFIG_CHANGES_PATH)

Entries = Mapping[str, str]
Changes = Mapping[str, str | None]
Acls = tuple[AclEntry, ...]
Value = TypeVar("Value")

log = logging.getLogger(__name__)


class OvertakenError(Exception):
    """Others changed a znode each time before it could be written."""


class FullZnodeError(Exception):
    """ZooKeeper cannot hold what a znode would be."""


# --- /config/users --------------------------------------------------------------------------------


def user_path(user: str) -> str:
    """Return the znode with the credentials and quotas of a user."""
    return znodes.config_path(entities.USERS, entities.sanitize(user))


def read_entries(reader: ZnodeReader, users: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return what /config/users holds of each user, by name of entry. Raises ZnodeError."""
    paths = {user_path(user): user for user in users}
    found = reader.read(paths)
    return {
        user: znodes.decode_config(path, None if (one := found[path]) is None else one.data)
        for path, user in paths.items()
    }


def scram_entry(mechanism: str, password: str) -> str:
    """Return a new credential of a password, with a salt of its own, as its entry holds it."""
    salt = secrets.token_bytes(scram.NONCE_BYTES)
    return _credential(mechanism, password, salt, ITERATIONS).encoded()


def is_of_password(entry: str | None, mechanism: str, password: str) -> bool:
    """Return whether an entry is a sound credential of this password."""
    if entry is None:
        return False
    try:
        known = scram.decode_credential(entry)
    except ValueError:
        return False
    if not scram.MIN_ITERATIONS <= known.iterations <= scram.MAX_ITERATIONS:
        return False
    wanted = _credential(mechanism, password, known.salt, known.iterations)
    return hmac.compare_digest(
        wanted.stored_key + wanted.server_key, known.stored_key + known.server_key
    )


def _credential(
    mechanism: str, password: str, salt: bytes, iterations: int
) -> scram.ScramCredential:
    # Kafka prepares a password in no way but this (ScramFormatter.normalize).
    salted = hashlib.pbkdf2_hmac(scram.DIGESTS[mechanism], password.encode(), salt, iterations)
    return scram.credential(mechanism, salted, salt, iterations)


def quota_entries(quotas: Mapping[QuotaKey, float]) -> dict[str, str | None]:
    """Return the entries of quotas, as AlterClientQuotas writes them; None for those not set."""
    return {
        key.value: None if (value := quotas.get(key)) is None else _number(key, value)
        for key in QuotaKey
    }


def _number(key: QuotaKey, value: float) -> str:
    return str(int(value)) if key in WHOLE else str(float(value))


def set_password(zookeeper: ZooKeeper, user: str, mechanism: str, password: str) -> bool:
    """Give a user a password for a mechanism; return whether that needed a write.

    Other mechanisms and quotas stay. Raises as `update_entries` does.
    """

    def change(present: Entries) -> Changes:
        if is_of_password(present.get(mechanism), mechanism, password):
            return {}
        return {mechanism: scram_entry(mechanism, password)}

    return update_entries(zookeeper, user, change)


def delete_credentials(
    zookeeper: ZooKeeper, user: str, mechanisms: Iterable[str] = MECHANISMS
) -> bool:
    """Delete a user's SCRAM credentials; quotas stay. Return whether that needed a write."""
    deleted: Changes = dict.fromkeys(mechanisms)
    return update_entries(zookeeper, user, lambda _: deleted)


def set_quotas(zookeeper: ZooKeeper, user: str, quotas: Mapping[QuotaKey, float]) -> bool:
    """Set a user's quotas, and remove the others; credentials stay. Return whether it wrote."""
    wanted = quota_entries(quotas)
    return update_entries(zookeeper, user, lambda _: wanted)


def update_entries(zookeeper: ZooKeeper, user: str, change: Callable[[Entries], Changes]) -> bool:
    """Change entries of a user; return whether that needed a write.

    `change` gets the present entries and returns those to set, None to remove. A user without any
    keeps an empty znode, as in Kafka 2.8. Raises UnreachableError, ZnodeError, OvertakenError, or
    FullZnodeError.
    """
    path = user_path(user)

    def plan(data: bytes | None, version: int | None) -> list[Operation]:
        present = znodes.decode_config(path, data)
        changed = {**present, **change(present)}
        wanted = {name: text for name, text in changed.items() if text is not None}
        if wanted == present:
            return []
        _check_size(path, znodes.encode_config(wanted), data)
        return admin.change_config(entities.USERS, entities.sanitize(user), wanted, version)

    return _update(zookeeper, path, _CONFIG_PATHS, plan)


# --- /kafka-acl -----------------------------------------------------------------------------------


def read_acls(
    reader: ZnodeReader, patterns: Iterable[ResourcePattern]
) -> dict[ResourcePattern, Acls]:
    """Return the ACLs of each pattern, those of all principals. Raises ZnodeError."""
    paths = {acl_znodes.acl_path(one): one for one in patterns}
    found = reader.read(paths)
    return {
        pattern: _decode_acls(path, None if (one := found[path]) is None else one.data)
        for path, pattern in paths.items()
    }


# Each of a thousand Users may have an ACL of the same pattern, and is looked at each minute. The
# patterns that many share stay among the last ones; each may have a mebibyte.
_DECODED: Final = 64


@lru_cache(_DECODED)
def _decode_acls(path: str, data: bytes | None) -> Acls:
    return acl_znodes.decode_acls(path, data)


def every_acl(reader: ZnodeReader) -> dict[ResourcePattern, Acls]:
    """Return the ACLs of every pattern that can be read; log what cannot.

    What one znode holds must not stop work on the ACLs in all others. Raises UnreachableError.
    """
    parents = {
        acl_znodes.type_path(kind, each): (kind, each)
        for kind in acl_znodes.PATTERN_TYPES
        for each in acl_znodes.RESOURCE_TYPES
    }
    listed, refused = _permitted(reader.children, list(parents))
    patterns = {
        acl_znodes.acl_path(pattern): pattern
        for path, (kind, each) in parents.items()
        for name in listed.get(path) or ()
        for pattern in [ResourcePattern(each, name, kind)]
    }
    found, unreadable = _permitted(reader.read, list(patterns))
    acls: dict[ResourcePattern, Acls] = {}
    for path, one in found.items():
        try:
            acls[patterns[path]] = acl_znodes.decode_acls(path, None if one is None else one.data)
        except ZnodeError as error:
            unreadable.append(str(error))
    if skipped := [*refused, *unreadable]:
        more = f"; and {len(skipped) - _NAMED} more" if len(skipped) > _NAMED else ""
        log.warning("skipping ACLs that cannot be read: %s%s", "; ".join(skipped[:_NAMED]), more)
    return acls


def _permitted(
    read: Callable[[Iterable[str]], Mapping[str, Value]], paths: Sequence[str]
) -> tuple[dict[str, Value], list[str]]:
    """Read what ZooKeeper lets the operator read; return it, and a reason per path that it does
    not. One refusal ends a read of many: halves are read until it is found.
    """
    try:
        return dict(read(paths)), []
    except RefusedError as error:
        if len(paths) == 1:
            return {}, [str(error)]
    middle = len(paths) // 2
    first, refused_first = _permitted(read, paths[:middle])
    second, refused_second = _permitted(read, paths[middle:])
    return {**first, **second}, [*refused_first, *refused_second]


def update_acls(
    zookeeper: ZooKeeper,
    pattern: ResourcePattern,
    added: Iterable[AclEntry] = (),
    removed: Iterable[AclEntry] = (),
) -> bool:
    """Add ACLs to a pattern and remove others; all others stay. Return whether that needed a write.

    A pattern without ACLs has no znode. Raises UnreachableError, ZnodeError, OvertakenError, or
    FullZnodeError.
    """
    path = acl_znodes.acl_path(pattern)
    new, doomed = tuple(added), frozenset(removed)

    def plan(data: bytes | None, version: int | None) -> list[Operation]:
        present = acl_znodes.decode_acls(path, data)
        kept = (one for one in present if one not in doomed)
        wanted = tuple(dict.fromkeys((*kept, *new)))
        if wanted == present:
            return []
        notice = acl_znodes.change_notice(pattern)
        payload = acl_znodes.encode_acls(wanted)
        _check_size(path, payload, data)
        if version is None:
            return [Create(path, payload), notice]
        return [SetData(path, payload, version) if wanted else Delete(path, version), notice]

    return _update(zookeeper, path, acl_znodes.persistent_paths(), plan)


# --- both -----------------------------------------------------------------------------------------


def _check_size(path: str, data: bytes, present: bytes | None) -> None:
    """Raise FullZnodeError for what grows beyond the limit; Kafka may have written more there."""
    if len(data) > max(admin.LARGEST_CONFIG, len(present or b"")):
        raise FullZnodeError(
            f"{path} would take {len(data)} bytes in ZooKeeper; the limit is {admin.LARGEST_CONFIG}"
        )


def _update(
    zookeeper: ZooKeeper,
    path: str,
    parents: Iterable[str],
    plan: Callable[[bytes | None, int | None], list[Operation]],
) -> bool:
    """Read a znode and commit what `plan` makes of its data and version, until nobody was faster.

    `parents` are the persistent paths that all this is below; a cluster whose brokers have not run
    yet lacks them. Return whether anything was written.
    """
    for _ in range(MOST_ATTEMPTS):
        found = zookeeper.read([path])[path]
        data, version = (None, None) if found is None else (found.data, found.version)
        operations = plan(data, version)
        if not operations:
            return False
        try:
            zookeeper.commit(operations)
        except TransactionFailedError as failure:
            if isinstance(failure.error, NoNodeError) and version is None:
                zookeeper.ensure(parents)
            elif not isinstance(failure.error, BadVersionError | NodeExistsError | NoNodeError):
                raise
            continue
        log.info("changed %s", path)
        return True
    raise OvertakenError(f"others changed {path} in each of {MOST_ATTEMPTS} attempts")
