"""Changes of ACLs in ZooKeeper: conditional on the version that was read, and tried again.

The change and its notice are one transaction. A pattern without entries has no znode.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable

from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.security import acl_znodes
from odradek.security.acls import AclEntry, ResourcePattern
from odradek.zk.admin import LARGEST_CONFIG
from odradek.zk.failures import meaning
from odradek.zk.operations import Create, Delete, Operation, SetData, TransactionFailedError
from odradek.zk.payload import ZnodeError
from odradek.zk.session import Session

# More entries do not fit into LARGEST_CONFIG, however short their principals and hosts are.
MOST_ENTRIES = LARGEST_CONFIG // 64
MOST_ATTEMPTS = 10
LONGEST_PAUSE_S = 0.1

Entries = tuple[AclEntry, ...]

logger = logging.getLogger(__name__)


async def add(session: Session, pattern: ResourcePattern, entries: Iterable[AclEntry]) -> None:
    """Add entries to a pattern; those that it has stay. Raises KafkaError.

    Too many are refused before they are encoded, of which the size is known only then.
    """
    added = tuple(entries)
    if len(added) > MOST_ENTRIES:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{len(added)} ACLs of {pattern} do not fit into ZooKeeper; the limit is below "
            f"{MOST_ENTRIES}.",
        )

    def change(present: Entries) -> Entries:
        return tuple(dict.fromkeys((*present, *added)))

    await _update(session, pattern, change)


async def remove(
    session: Session, pattern: ResourcePattern, is_doomed: Callable[[AclEntry], bool]
) -> Entries:
    """Remove entries from a pattern and return them. Raises KafkaError."""

    def change(present: Entries) -> Entries:
        return tuple(one for one in present if not is_doomed(one))

    present = await _update(session, pattern, change)
    return tuple(one for one in present if is_doomed(one))


async def _update(
    session: Session, pattern: ResourcePattern, change: Callable[[Entries], Entries]
) -> Entries:
    """Change the entries of a pattern; return those that were there before. Raises KafkaError."""
    try:
        for attempt in range(MOST_ATTEMPTS):
            if attempt:
                await asyncio.sleep(random.uniform(0, LONGEST_PAUSE_S))  # noqa: S311 (no secret)
            present, is_done = await _try_update(session, pattern, change)
            if is_done:
                return present
    except ZnodeError as error:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error
    except KazooException as failure:
        logger.warning("failed to change the ACLs of %s: ZooKeeper: %r", pattern, failure)
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper: {meaning(failure)}") from failure
    raise KafkaError(
        ErrorCode.UNKNOWN_SERVER_ERROR,
        f"Others changed the ACLs of {pattern} in each of {MOST_ATTEMPTS} attempts.",
    )


async def _try_update(
    session: Session, pattern: ResourcePattern, change: Callable[[Entries], Entries]
) -> tuple[Entries, bool]:
    """Return the present entries, and whether the change was made or needed none."""
    path = acl_znodes.acl_path(pattern)
    found = (await session.get_all([path])).get(path)
    present = () if found is None else acl_znodes.decode_acls(path, found[0])
    wanted = change(present)
    if wanted == present:
        return present, True
    operation: Operation
    if not wanted:
        assert found is not None, "a change that leaves nothing had something"
        operation = Delete(path, found[1].version)
    else:
        data = acl_znodes.encode_acls(wanted)
        # Kafka writes more into a znode; it must be possible to take rights away there.
        if len(data) > max(LARGEST_CONFIG, len(found[0]) if found else 0):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"The ACLs of {pattern} take {len(data)} bytes in ZooKeeper; "
                f"the limit is {LARGEST_CONFIG}.",
            )
        operation = Create(path, data) if found is None else SetData(path, data, found[1].version)
    try:
        await session.multi([operation, acl_znodes.change_notice(pattern)])
    except TransactionFailedError as failure:
        overtaken = isinstance(failure.error, BadVersionError | NodeExistsError)
        removed = isinstance(failure.error, NoNodeError) and found is not None
        if failure.index == 0 and (overtaken or removed):
            return present, False
        raise failure.error from failure
    logger.info("ACLs of %s are now %s", pattern, [_shown(one) for one in wanted])
    return present, True


def _shown(entry: AclEntry) -> str:
    return (
        f"{entry.permission_type.name} {entry.principal} {entry.operation.name} from {entry.host}"
    )
