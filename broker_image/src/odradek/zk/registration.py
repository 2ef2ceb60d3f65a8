"""Registration of a broker: its ephemeral /brokers/ids/N, and the cluster id.

The znode exists as long as the session. After a crash the znode of the previous process remains
until its session expires, so an existing znode is waited for. If it outlives the wait, it belongs
to a live broker with the same id, and registration fails. After a lost session the broker registers
again and then calls its listeners, among them the controller candidate: a broker must be registered
before it may be elected.
"""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable

from odradek.quarantine import Quarantines, Work
from odradek.values import BrokerId
from odradek.zk import znodes
from odradek.zk.session import (
    ConnectionLoss,
    NodeExistsError,
    NoNodeError,
    Session,
    SessionExpiredError,
    SessionState,
    WatchEvent,
)
from odradek.zk.znodes import BrokerRegistration

logger = logging.getLogger(__name__)

# A server rounds the end of a session up to its next tick and asks its leader; one and a half
# session timeouts cover both.
LINGER_FACTOR = 1.5


class DuplicateBrokerError(Exception):
    """A live broker has this broker.id."""


class ForeignClusterError(Exception):
    """The log directories belong to another cluster than the one in ZooKeeper."""


async def create_persistent_paths(
    session: Session, paths: Iterable[str] = znodes.PERSISTENT_PATHS
) -> None:
    """Create znodes where they are missing: those of every cluster, or others.

    They have null data, not empty data: for Kafka an empty block of producer ids is damaged, and it
    would not start in this cluster. Raises KazooException, and then nothing goes on.
    """
    try:
        async with asyncio.TaskGroup() as group:
            for path in paths:
                group.create_task(_create_persistent(session, path))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None


async def _create_persistent(session: Session, path: str) -> None:
    while True:
        with contextlib.suppress(NodeExistsError, ConnectionLoss, SessionExpiredError):
            if await session.exists(path) is not None:
                return
            await session.create(path, None, make_parents=True)


async def ensure_cluster_id(session: Session, expected: str | None = None) -> str:
    """Return the cluster id; generate one for a new cluster.

    `expected` is the cluster id in the log directories; raises ForeignClusterError if it differs.
    """
    await session.ensure("/cluster")
    while True:
        try:
            data, _ = await session.get(znodes.CLUSTER_ID_PATH)
        except NoNodeError:
            fresh = expected or znodes.new_cluster_id(uuid.uuid4())
            try:
                await session.create(znodes.CLUSTER_ID_PATH, znodes.encode_cluster_id(fresh))
            except (NodeExistsError, ConnectionLoss):
                continue  # another broker created it, or the answer was lost: read again
            return fresh
        found = znodes.decode_cluster_id(znodes.CLUSTER_ID_PATH, data)
        if expected is not None and found != expected:
            raise ForeignClusterError(f"log directories belong to cluster {expected}, not {found}")
        return found


async def registration_disappears(session: Session, broker_id: int) -> bool:
    """Return whether the znode that blocked the registration disappears after all.

    A server that was stopped or waited for its disk expired no session meanwhile, and a watch does
    not fire if its connection was lost. So only an answer that comes at once counts.
    """
    linger = session.negotiated_timeout_ms / 1000 * (LINGER_FACTOR - 1)
    path, clock = znodes.broker_path(BrokerId(broker_id)), asyncio.get_running_loop().time
    while True:
        asked_at = clock()
        # A new session follows one that ends meanwhile.
        with contextlib.suppress(SessionExpiredError):
            if await session.exists(path) is None:
                return True
            if clock() - asked_at < linger / 4:
                return False
        await asyncio.sleep(linger)


class Registration:
    """Keeps one broker registered. `epoch` is the broker epoch, the czxid of its znode (KIP-380).

    `registration` returns the payload at the time of writing. `start` registers once, `run` again
    after each lost session, until cancelled. Both raise DuplicateBrokerError.
    """

    def __init__(
        self,
        session: Session,
        registration: Callable[[], BrokerRegistration],
        quarantines: Quarantines | None = None,
    ) -> None:
        self.epoch = -1
        self._session = session
        self._registration = registration
        self._quarantines = quarantines or Quarantines()
        self._expired = asyncio.Event()
        self._registered = asyncio.Event()
        # When the creation of the present znode was requested, on the loop's clock.
        self._asked_at = 0.0
        self._listeners: list[Callable[[], Awaitable[None]]] = []

    def on_registered(self, listener: Callable[[], Awaitable[None]]) -> None:
        """Call `listener` after each registration that follows a lost session."""
        self._listeners.append(listener)

    async def admits_request(self) -> bool:
        """Return whether a request of the controller that came now is for this registration.

        While there is none, the controller still assumes the previous registration, with its
        leaderships and its log. A request that comes after the creation of the znode was requested
        may be for the new registration: it waits for the outcome.
        """
        if self.epoch != -1:
            return True
        came = asyncio.get_running_loop().time()
        await self._registered.wait()
        return came >= self._asked_at

    async def start(self) -> None:
        """Register for the first time; may be called again after a failure."""
        forget = self._session.on_state(self._note_state)
        try:
            while self.epoch == -1:
                # A new session follows one that ends meanwhile.
                with contextlib.suppress(SessionExpiredError):
                    await self._register()
        except DuplicateBrokerError:
            forget()
            raise

    async def run(self) -> None:
        """Register again after each lost session, until cancelled."""
        while True:
            await self._expired.wait()
            self._expired.clear()
            try:
                await self._register()
                if not self._expired.is_set():
                    for listener in self._listeners:
                        await listener()
            except SessionExpiredError:
                # Lost again meanwhile: begin the next round.
                self._expired.set()
            except DuplicateBrokerError:
                if not await registration_disappears(self._session, self._broker_id()):
                    raise
                self._expired.set()
            except Exception as error:
                # Nobody takes this broker for alive, or its listeners do not know that it is.
                await asyncio.sleep(self._quarantines.put(Work.REGISTRATION, "broker", error))
                self._expired.set()
            else:
                self._quarantines.release(Work.REGISTRATION, "broker")

    def _broker_id(self) -> BrokerId:
        return self._registration().broker_id

    def _note_state(self, state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            self.epoch = -1
            self._registered.clear()
            self._expired.set()

    async def _register(self) -> None:
        registration = self._registration()
        path = znodes.broker_path(registration.broker_id)
        data = znodes.encode_broker(registration)
        give_up = asyncio.get_running_loop().time() + (
            self._session.negotiated_timeout_ms / 1000 * LINGER_FACTOR
        )
        unanswered: float | None = None
        while True:
            asked_at = asyncio.get_running_loop().time()
            try:
                await self._session.create(path, data, ephemeral=True, make_parents=True)
            except NodeExistsError:
                if not await self._settle_existing(path, data, give_up):
                    unanswered = None
                    continue
                asked_at = unanswered or asked_at  # the controller may have seen it since then
            except ConnectionLoss:
                unanswered = asked_at
                continue
            except SessionExpiredError:
                unanswered = None  # its znode, if any, was deleted with the session
                continue
            stat = await self._session.exists(path)
            if stat is not None and stat.owner == self._session.session_id:
                self.epoch, self._asked_at = stat.czxid, asked_at
                self._registered.set()
                logger.info(
                    "registered broker %d, broker epoch %d", registration.broker_id, self.epoch
                )
                return

    async def _settle_existing(self, path: str, data: bytes, give_up: float) -> bool:
        """Return True if the znode is of this session, False once it is gone and may be created."""
        gone = asyncio.Event()

        def notice(_: WatchEvent) -> None:
            gone.set()

        try:
            found, stat = await self._session.get(path, notice)
        except NoNodeError:
            return False
        if stat.owner == self._session.session_id:
            await self._session.set(path, data)
            return True
        try:
            async with asyncio.timeout_at(give_up):
                logger.info("waiting for the end of session %#x, which owns %s", stat.owner, path)
                await gone.wait()
        except TimeoutError:
            holder = znodes.decode_broker(path, found)
            raise DuplicateBrokerError(
                f"broker.id {holder.broker_id} is taken by a living broker at "
                f"{', '.join(map(str, holder.endpoints))}; stop it, or give one of them another "
                "broker.id and log.dirs of its own"
            ) from None
        return False
