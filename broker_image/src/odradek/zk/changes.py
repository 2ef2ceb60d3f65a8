"""Notices of changed configuration: /config/changes/config_change_N (row Z11).

Whoever changes the overrides of an entity writes its znode and then a sequential notice that names
it. Every broker watches the notices, remembers the number of the last one it has handled, and reads
the entity again for each newer one, so that a change takes effect without a restart. Notices are
removed by any broker once they are old enough for all to have seen them.

`start` marks the present notices as seen: a broker starts watching first and reads its
configuration afterwards, and so misses nothing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from kazoo.exceptions import KazooException

from odradek.clock import wall_ms
from odradek.zk import znodes
from odradek.zk.session import NoNodeError, Session, SessionExpiredError, SessionState, WatchEvent
from odradek.zk.znodes import ZnodeError

logger = logging.getLogger(__name__)

NOTICE_LIFETIME_MS = 15 * 60 * 1000  # Kafka's change expiration


class ConfigChanges:
    """Calls `on_change(entity_type, entity_name)` once for every new notice, in their order.

    The type is topics, brokers, clients or users; the name is a topic, a broker id, `<default>`, or
    for users `U/clients/C`.
    """

    def __init__(
        self,
        session: Session,
        on_change: Callable[[str, str], Awaitable[None]],
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self._session = session
        self._on_change = on_change
        self._now_ms = now_ms
        self._last = -1
        self._fired = asyncio.Event()

    async def start(self) -> None:
        """Mark the present notices as seen and watch for others."""
        self._session.on_state(self._note_state)
        self._last = max((number for number, _ in await self._list()), default=-1)

    async def run(self) -> None:
        """Handle notices until cancelled."""
        while True:
            await self._fired.wait()
            self._fired.clear()
            try:
                await self._handle(await self._list())
            except SessionExpiredError:
                logger.info("configuration changes are looked at again with the next session")

    def _note_state(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._fired.set()  # the watch went with the old connection

    def _note_watch(self, _: WatchEvent) -> None:
        self._fired.set()

    async def _list(self) -> list[tuple[int, str]]:
        """Return (number, path) of the notices, oldest first, and watch for more."""
        found = []
        for name in await self._session.children(znodes.CONFIG_CHANGES_PATH, self._note_watch):
            try:
                number = znodes.parse_sequence(name, znodes.CONFIG_CHANGE_PREFIX)
            except ZnodeError:
                continue  # not a notice
            found.append((number, f"{znodes.CONFIG_CHANGES_PATH}/{name}"))
        return sorted(found)

    async def _handle(self, notices: list[tuple[int, str]]) -> None:
        read = await self._session.get_all(path for _, path in notices)
        for number, path in notices:
            if path not in read:
                continue
            data, stat = read[path]
            if number > self._last:
                await self._tell(path, data)
                self._last = number
            elif self._now_ms() - stat.created_ms > NOTICE_LIFETIME_MS:
                await self._purge(path)

    async def _tell(self, path: str, data: bytes) -> None:
        try:
            change = znodes.decode_config_change(path, data)
        except ZnodeError as error:
            logger.error("ignored: %s", error)
            return
        logger.info("configuration of %s changed", change.entity_path)
        await self._on_change(change.entity_type, change.entity_name)

    async def _purge(self, path: str) -> None:
        try:
            await self._session.delete(path)
        except NoNodeError:
            pass  # another broker was first
        except SessionExpiredError:
            raise
        except KazooException as error:
            logger.info("%s is purged later: %s", path, type(error).__name__)
