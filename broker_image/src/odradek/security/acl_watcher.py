"""Keeps the ACLs that are in ZooKeeper: watches the notices of changes, then reads what changed.

Everything is read at the start and after each loss of the connection, when notices may have been
missed. While ZooKeeper is away the last ACLs count. A pattern whose znode nobody can read is denied
to everybody: it may have held a Deny. As with notices of configs, any broker deletes those that are
old enough for all brokers to have seen them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection

from odradek import slices
from odradek.clock import wall_ms
from odradek.quarantine import Quarantines, Work
from odradek.security import acl_znodes
from odradek.security.acls import (
    EVERYBODY,
    AclEntry,
    AclOperation,
    PermissionType,
    ResourcePattern,
)
from odradek.security.decisions import Acls
from odradek.zk import registration, znodes
from odradek.zk.changes import NOTICE_LIFETIME_MS, delete_notice
from odradek.zk.payload import fits_an_answer
from odradek.zk.session import (
    NoNodeError,
    Session,
    SessionExpiredError,
    SessionState,
    WatchEvent,
    WatchKind,
)
from odradek.zk.znodes import ZnodeError

DENY_ALL = AclEntry(EVERYBODY, PermissionType.DENY, AclOperation.ALL)
"""What counts for a pattern whose znode cannot be read."""
READ_AT_ONCE = 1000

logger = logging.getLogger(__name__)


class AclWatcher:
    """Owns the present ACLs: `acls`, which count once they are `loaded`."""

    def __init__(
        self,
        session: Session,
        allow_if_none: bool = False,
        *,
        now_ms: Callable[[], int] = wall_ms,
        monotonic_s: Callable[[], float] = time.monotonic,
        quarantines: Quarantines | None = None,
    ) -> None:
        self._session = session
        self._allow_if_none = allow_if_none
        self._now_ms = now_ms
        self._monotonic_s = monotonic_s
        self._quarantines = quarantines or Quarantines()
        self.acls = Acls(allow_if_none)
        self.loaded = False
        self._reload = True
        # The number of the newest notice that was handled, by parent.
        self._last = dict.fromkeys(acl_znodes.CHANGES_PATHS, -1)
        # When each notice was created: it is read once, though there may be thousands.
        self._created_ms: dict[str, int] = {}
        # Parents of notices that somebody removed.
        self._removed: set[str] = set()
        self._stale_since_s: float | None = None
        self._fired = asyncio.Event()
        self._reading = asyncio.Lock()

    @property
    def age_s(self) -> float:
        """Return for how long changes may have gone unseen; infinite before the first load."""
        if not self.loaded:
            return float("inf")
        since = self._stale_since_s
        return 0.0 if since is None else max(self._monotonic_s() - since, 0.0)

    async def start(self) -> None:
        """Create the parents of ACLs, watch for changes and read everything."""
        await registration.create_persistent_paths(self._session, acl_znodes.persistent_paths())
        self._session.on_state(self._note_state)
        try:
            await self._catch_up()
        except SessionExpiredError:
            logger.warning("failed to read the ACLs: session expired; retrying with the next one")
        self._fired.set()  # `run` deletes old notices, for which the start need not wait

    async def run(self) -> None:
        """Handle changes until cancelled."""
        while True:
            await self._fired.wait()
            self._fired.clear()
            try:
                await self._purge(await self._catch_up())
            except SessionExpiredError:
                logger.info("session expired; ACLs are read again with the next session")
            except Exception as error:
                self._note_stale()
                pause_s = self._quarantines.put(Work.ACLS, "ACLs", error)
                asyncio.get_running_loop().call_later(pause_s, self._fired.set)
            else:
                self._quarantines.release(Work.ACLS, "ACLs")

    async def refresh(self, patterns: Collection[ResourcePattern]) -> None:
        """Read the ACLs of these patterns again."""
        async with self._reading:
            for few in slices.cut(patterns, READ_AT_ONCE):
                paths = {acl_znodes.acl_path(one): one for one in few}
                found = await self._session.get_all(paths)
                for path, pattern in paths.items():
                    data = found[path][0] if path in found else None
                    self.acls.set(pattern, _entries(path, data))

    def _note_stale(self) -> None:
        if self._stale_since_s is None:
            self._stale_since_s = self._monotonic_s()

    def _note_state(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._reload = True  # the watches were lost with the old connection
            self._fired.set()
        else:
            self._note_stale()

    def _note_watch(self, event: WatchEvent) -> None:
        if event.kind is WatchKind.DELETED:
            self._removed.add(event.path)
        self._fired.set()

    async def _catch_up(self) -> list[str]:
        """Read what changed; return the paths of all notices."""
        reload, self._reload = self._reload, False
        try:
            notices = {parent: await self._list(parent) for parent in acl_znodes.CHANGES_PATHS}
            new = [
                f"{parent}/{name}"
                for parent, numbers in notices.items()
                for number, name in numbers
                if number > self._last[parent]
            ]
            changed = None if reload or self._reload else await self._changed(new)
            if changed is None:
                await self._load()
            else:
                await self.refresh(changed)
        except BaseException:
            self._reload = self._reload or reload
            raise
        for parent, numbers in notices.items():
            newest = max((number for number, _ in numbers), default=-1)
            # All that was listed before everything was read counts. The parent may be another one
            # than before the connection was lost.
            self._last[parent] = newest if changed is None else max(self._last[parent], newest)
        if not self._reload:
            self._stale_since_s = None
        return [f"{parent}/{name}" for parent in notices for _, name in notices[parent]]

    async def _list(self, parent: str) -> list[tuple[int, str]]:
        """Return (number, name) of the notices, and watch for more."""
        found = []
        for name in await self._names(parent):
            try:
                found.append((znodes.parse_sequence(name, acl_znodes.CHANGE_PREFIX), name))
            except ZnodeError:
                continue  # not a notice
        return found

    async def _names(self, parent: str) -> list[str]:
        """Return the names of all children of a parent, which is made again if somebody removed it.

        In one that was the numbers begin anew, and changes may have gone unseen.
        """
        while True:
            if parent in self._removed:
                self._removed.discard(parent)
                self._last[parent] = -1
                self._created_ms.clear()
                self._reload = True
                self._fired.set()
            try:
                return await self._session.children(parent, self._note_watch)
            except NoNodeError:
                logger.warning("%s was removed; making it again", parent)
                self._removed.add(parent)
                await self._session.ensure(parent)

    async def _changed(self, paths: list[str]) -> set[ResourcePattern] | None:
        """Return the patterns that notices name, None if there is one that cannot be read.

        One may be gone: a broker whose clock is fast deletes notices before others read them.
        """
        changed: set[ResourcePattern] = set()
        found = await self._session.get_all(paths)
        if len(found) < len(paths):
            logger.warning("reading all ACLs because a notice was deleted before it was read")
            return None
        for path, (data, _) in found.items():
            try:
                changed.add(acl_znodes.decode_change(path, data))
            except ZnodeError as error:
                logger.error("reading all ACLs because of a notice: %s", error)
                return None
        for pattern in changed:
            logger.info("ACLs of %s changed", pattern)
        return changed

    async def _load(self) -> None:
        """Read everything, then let it count at once."""
        async with self._reading:
            acls = Acls(self._allow_if_none)
            for kind in acl_znodes.PATTERN_TYPES:
                for resource_type in acl_znodes.RESOURCE_TYPES:
                    await self._load_type(acls, ResourcePattern(resource_type, "", kind))
            self.acls = acls
        if not self.loaded:
            logger.info("loaded the ACLs of %d patterns", sum(1 for _ in acls.patterns()))
        self.loaded = True

    async def _load_type(self, acls: Acls, of_type: ResourcePattern) -> None:
        parent = acl_znodes.type_path(of_type.pattern_type, of_type.resource_type)
        try:
            names = await self._session.children(parent)
        except NoNodeError:
            return
        # What no request can name, no ACL can be about, and no answer can tell.
        names = [name for name in names if fits_an_answer(name)]
        for few in slices.cut(names, READ_AT_ONCE):
            paths = {f"{parent}/{name}": name for name in few}
            for path, (data, _) in (await self._session.get_all(paths)).items():
                acls.set(of_type._replace(name=paths[path]), _entries(path, data))
            await slices.pause()

    async def _purge(self, paths: list[str]) -> None:
        created = self._created_ms
        unknown = [path for path in paths if path not in created]
        read = await self._session.get_all(unknown)
        self._created_ms = {path: created[path] for path in paths if path in created}
        self._created_ms |= {path: stat.created_ms for path, (_, stat) in read.items()}
        now_ms = self._now_ms()
        old = [path for path, ms in self._created_ms.items() if now_ms - ms > NOTICE_LIFETIME_MS]
        for few in slices.cut(old, READ_AT_ONCE):
            await asyncio.gather(*(delete_notice(self._session, one) for one in few))
            if self._fired.is_set():
                return  # there is a change, which does not wait; the others are deleted after it


def _entries(path: str, data: bytes | None) -> tuple[AclEntry, ...]:
    try:
        return acl_znodes.decode_acls(path, data)
    except ZnodeError as error:
        logger.error("failed to read ACLs: %s; denying everything that they are about", error)
        return (DENY_ALL,)
