"""Notifications of changed configuration: /config/changes/config_change_N (row Z11).

A client that changes the overrides of an entity writes its znode and then a sequential notification
that names it. Every broker watches the notifications, remembers the number of the last one that it
handled, and reads the entity again for each newer one: a change needs no restart. Any broker
deletes notifications that are old enough for all brokers to have seen them.

A change that cannot be applied, for a reason that nobody foresaw, is tried again as long as its
notification exists; the others are applied.

`start` marks the present notifications as seen: a broker first watches and then reads its
configuration, so it misses no change.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from kazoo.exceptions import KazooException

from odradek.clock import wall_ms
from odradek.quarantine import Quarantines, Work
from odradek.zk import znodes
from odradek.zk.session import (
    NoNodeError,
    Session,
    SessionExpiredError,
    SessionState,
    WatchEvent,
    WatchKind,
)
from odradek.zk.znodes import ZnodeError

logger = logging.getLogger(__name__)

NOTICE_LIFETIME_MS = 15 * 60 * 1000  # Kafka's change expiration


class ConfigChanges:
    """Calls `on_change(entity_type, entity_name)` once per new notification, in order.

    The type is topics, brokers, clients or users; the name is a topic, a broker id, `<default>`, or
    for users `U/clients/C`.
    """

    def __init__(
        self,
        session: Session,
        on_change: Callable[[str, str], Awaitable[None]],
        now_ms: Callable[[], int] = wall_ms,
        quarantines: Quarantines | None = None,
    ) -> None:
        self._session = session
        self._on_change = on_change
        self._now_ms = now_ms
        self._quarantines = quarantines or Quarantines()
        self._last = -1
        self._failed: set[int] = set()
        # When each notification was created: it is read once, though there may be thousands.
        self._created_ms: dict[int, int] = {}
        self._was_removed = False
        self._fired = asyncio.Event()

    async def start(self) -> None:
        """Mark the present notifications as seen, and watch for others."""
        self._session.on_state(self._note_state)
        self._last = max((number for number, _ in await self._list()), default=-1)

    async def run(self) -> None:
        """Handle notifications until cancelled."""
        while True:
            await self._fired.wait()
            self._fired.clear()
            try:
                await self._handle(await self._list())
            except SessionExpiredError:
                logger.info(
                    "session expired; configuration changes are read again with the next session"
                )
            except Exception as error:
                pause_s = self._quarantines.put(Work.CONFIG, znodes.CONFIG_CHANGES_PATH, error)
                asyncio.get_running_loop().call_later(pause_s, self._fired.set)
            else:
                self._quarantines.release(Work.CONFIG, znodes.CONFIG_CHANGES_PATH)

    def _note_state(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._fired.set()  # the watch was lost with the old connection

    def _note_watch(self, event: WatchEvent) -> None:
        if event.kind is WatchKind.DELETED:
            self._was_removed = True
        self._fired.set()

    async def _list(self) -> list[tuple[int, str]]:
        """Return (number, path) of the notifications, oldest first, and watch for more."""
        found = []
        for name in await self._names():
            try:
                number = znodes.parse_sequence(name, znodes.CONFIG_CHANGE_PREFIX)
            except ZnodeError:
                continue  # not a notification
            found.append((number, f"{znodes.CONFIG_CHANGES_PATH}/{name}"))
        return sorted(found)

    async def _names(self) -> list[str]:
        """Return the names of all children. Their parent is made again if somebody removed it, and
        in one that was, the numbers begin anew.
        """
        while True:
            if self._was_removed:
                self._was_removed, self._last = False, -1
                self._failed.clear()
                self._created_ms.clear()
            try:
                return await self._session.children(znodes.CONFIG_CHANGES_PATH, self._note_watch)
            except NoNodeError:
                logger.warning("%s was removed; making it again", znodes.CONFIG_CHANGES_PATH)
                self._was_removed = True
                await self._session.ensure(znodes.CONFIG_CHANGES_PATH)

    async def _handle(self, notices: list[tuple[int, str]]) -> None:
        listed = {number for number, _ in notices}
        self._failed &= listed
        self._created_ms = {one: ms for one, ms in self._created_ms.items() if one in listed}
        read = await self._session.get_all(
            path
            for number, path in notices
            if number > self._last or number in self._failed or number not in self._created_ms
        )
        for number, path in notices:
            if path in read:
                data, stat = read[path]
                self._created_ms[number] = stat.created_ms
                if number > self._last or number in self._failed:
                    await self._tell_or_retry(number, path, data)
                    self._last = max(self._last, number)
                    continue
            created_ms = self._created_ms.get(number)  # None: another broker purged it meanwhile
            if created_ms is not None and self._now_ms() - created_ms > NOTICE_LIFETIME_MS:
                await delete_notice(self._session, path)

    async def _tell_or_retry(self, number: int, path: str, data: bytes) -> None:
        try:
            await self._tell(path, data)
        except SessionExpiredError:
            raise
        except Exception as error:
            self._failed.add(number)
            pause_s = self._quarantines.put(Work.CONFIG, path, error)
            asyncio.get_running_loop().call_later(pause_s, self._fired.set)
        else:
            self._failed.discard(number)
            self._quarantines.release(Work.CONFIG, path)

    async def _tell(self, path: str, data: bytes) -> None:
        try:
            change = znodes.decode_config_change(path, data)
        except ZnodeError as error:
            logger.error("ignoring a notification: %s", error)
            return
        logger.info("configuration of %s changed", change.entity_path)
        await self._on_change(change.entity_type, change.entity_name)


async def delete_notice(session: Session, path: str) -> None:
    """Delete an old notice; a failure is logged. Raises SessionExpiredError."""
    try:
        await session.delete(path)
    except NoNodeError:
        pass  # another broker was first
    except SessionExpiredError:
        raise
    except KazooException as error:
        logger.info("failed to delete %s: %s; retrying later", path, type(error).__name__)
