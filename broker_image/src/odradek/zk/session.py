"""A ZooKeeper session for asyncio, on top of kazoo.

kazoo runs the connection in its own thread. A call queues a request with kazoo and awaits a future.
The thread appends the answer to an inbox and wakes the loop once for all queued answers, so a
thousand pipelined reads cost a few wake-ups. Watches and state changes come to the loop the same
way, in the order of the connection: a watch fires before what was changed is read.

Reads are retried when the connection breaks. Writes are not: `ConnectionLoss` means that the
outcome is unknown, and the caller has to check it. While the connection is down, calls wait. If the
session has expired, they raise `SessionExpiredError`, kazoo starts a new session, and the owners of
ephemeral znodes and watches restore them on CONNECTED.

kazoo drops all watches when a connection breaks (it sends no SetWatches), so CONNECTED after
SUSPENDED means: read again and watch again. Watches lost this way do not fire.

`deadline` is the time until which the session surely lives. The leader of the ensemble ends
sessions. It counts the timeout from the last packet that it knows of, and it learns of packets to
other servers by the pings that it exchanges with them, two per tick. A server that was cut off from
its leader still answers reads, by default for ten seconds. So heartbeats are writes, which only the
quorum answers. An answered heartbeat shows that the leader knew of the one before it, or of the
handshake of the connection: messages between servers stay in order, and heartbeats are far enough
apart for a ping in between. The session lives until the start of that earlier one + timeout. kazoo
itself reports only SUSPENDED while it is disconnected.
"""

import asyncio
import contextlib
import enum
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
)
from kazoo.protocol.states import EventType, KazooState, KeeperState
from kazoo.retry import KazooRetry

from odradek import slices
from odradek.zk import acls, operations
from odradek.zk.batch_read import BatchRead, ReadAnswer
from odradek.zk.client import OPEN, Client, Handshake, ZooKeeperAccess
from odradek.zk.failures import LoginRequiredError, is_answer
from odradek.zk.operations import ANY_VERSION, Operation
from odradek.zk.pipelining import PromptWatch

__all__ = [
    "BadVersionError",
    "ConnectionLoss",
    "NoNodeError",
    "NodeExistsError",
    "NotEmptyError",
    "Session",
    "SessionExpiredError",
    "SessionState",
    "Stat",
    "WatchEvent",
]

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Heartbeats per session timeout, so `deadline` is a third of it or more away while all is well. As
# many as Java's clients send, and no more than kazoo: a request delays the next ping of kazoo, and
# kazoo needs an unanswered ping to notice that a server or the network has failed. A timeout is two
# ticks or more, so there are pings between servers from one heartbeat to the next.
HEARTBEATS_PER_TIMEOUT = 3
# A write without effect: every transaction goes through the quorum.
HEARTBEAT = (operations.Check("/", ANY_VERSION),)
FIRST_RECONNECT_SECONDS = 0.05
LONGEST_RECONNECT_SECONDS = 0.5
# Of one batch, so that the event loop has other turns. The server answers one meanwhile.
READS_AT_ONCE = 1000
BATCHES_UNDER_WAY = 2


class SessionState(enum.Enum):
    """The state of a session."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    EXPIRED = "expired"
    CLOSED = "closed"


class WatchKind(enum.Enum):
    """The kind of a change that a watch reports."""

    CREATED = EventType.CREATED
    DELETED = EventType.DELETED
    CHANGED = EventType.CHANGED
    CHILDREN = EventType.CHILD


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One firing of a one-shot watch."""

    kind: WatchKind
    path: str


class Stat(NamedTuple):
    """The metadata of a znode. A tuple, as a controller makes thousands of them.

    `owner` is the session of an ephemeral, `created_ms` the server's wall clock.
    """

    version: int
    cversion: int
    czxid: int
    mzxid: int
    created_ms: int
    owner: int
    children: int


Watch = Callable[[WatchEvent], None]
StateListener = Callable[[SessionState], None]


@dataclass(frozen=True, slots=True)
class _KazooWatch(PromptWatch):
    """Passes kazoo's event to the loop; equal for equal callbacks: kazoo keeps one per path."""

    session: "Session"
    callback: Watch

    def __call__(self, event: Any) -> None:
        if event.type != EventType.NONE:  # NONE: the connection broke, see the module's docstring
            fired = WatchEvent(WatchKind(event.type), event.path)
            self.session._post(self.callback, fired)


class Session:
    """A session with the servers of a connect string `host:port[,host:port...][/chroot]`.

    Used from one event loop only. `timeout_ms` is the requested session timeout; the servers may
    grant another one (`negotiated_timeout_ms`).
    """

    def __init__(
        self,
        connect: str,
        timeout_ms: int,
        connection_timeout_ms: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        access: ZooKeeperAccess = OPEN,
    ) -> None:
        self.connect = connect
        self.timeout_ms = timeout_ms
        self.negotiated_timeout_ms = timeout_ms
        self.state = SessionState.CLOSED
        self.generation = 0
        self.deadline = float("-inf")
        self._connection_timeout_ms = connection_timeout_ms or timeout_ms
        self._clock = clock
        self._access = access
        self._listeners: list[StateListener] = []
        self._inbox: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._inbox_lock = threading.Lock()
        self._client: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._heartbeat: asyncio.TimerHandle | None = None
        self._heartbeats = 0  # numbers them: only the last one sent counts
        # Starts of the last complete handshake, and of what the next heartbeat shows to be known.
        self._handshake_at = float("-inf")
        self._vouched_at = float("-inf")
        self._connected = asyncio.Event()

    # --- life ---

    async def start(self) -> None:
        """Connect, creating the chroot where it is missing. Raises ConnectionError.

        If it is cancelled, it returns at once, and a thread closes the connection: one to a silent
        server takes as long as a handshake may.
        """
        self._loop = asyncio.get_running_loop()
        hosts, slash, chroot = self.connect.partition("/")
        if slash and chroot.strip("/"):
            await self._create_chroot(hosts, "/" + chroot.strip("/"))
        self._client = self._new_client(self.connect, self._note_handshake)
        self._client.add_listener(self._kazoo_state)
        self._client.start_async()
        try:
            async with asyncio.timeout(self._connection_timeout_ms / 1000):
                await self._connected.wait()
        except TimeoutError:
            error = self._not_there(self.connect, self._client)
            await self.close()
            raise error from None
        except asyncio.CancelledError:
            client, self._client = self._client, None
            client.remove_listener(self._kazoo_state)
            _stop_in_background(client)
            raise

    async def _create_chroot(self, hosts: str, chroot: str) -> None:
        client = self._new_client(hosts)
        connected = client.start_async()
        try:
            if not await asyncio.to_thread(connected.wait, self._connection_timeout_ms / 1000):
                raise self._not_there(hosts, client)
            await asyncio.to_thread(client.ensure, chroot)
        except LoginRequiredError:
            raise ConnectionError(f"ZooKeeper at {hosts} asks for a login") from None
        finally:
            connected.set()  # ends the thread that waits for it, if this was cancelled
            _stop_in_background(client)

    def _new_client(self, hosts: str, on_handshake: Handshake | None = None) -> Client:
        retry = KazooRetry(
            max_tries=-1,
            delay=FIRST_RECONNECT_SECONDS,
            backoff=2,
            max_delay=LONGEST_RECONNECT_SECONDS,
        )
        timeout_s = self.timeout_ms / 1000
        return Client(hosts, timeout_s, self._access, retry, on_handshake, self._clock)

    def _not_there(self, hosts: str, client: Client) -> ConnectionError:
        why = f": {client.failure}" if client.failure else ""
        return ConnectionError(
            f"no ZooKeeper at {hosts} within {self._connection_timeout_ms} ms{why}"
        )

    async def close(self) -> None:
        """End the session, which deletes its ephemeral znodes at once. Idempotent."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            self._heartbeat = None
        client, self._client = self._client, None
        if client is not None:
            await asyncio.to_thread(_stop, client)
        self.state = SessionState.CLOSED
        self.deadline = float("-inf")

    @property
    def session_id(self) -> int:
        """Return the id of the session, 0 while there is none; it owns ephemeral znodes."""
        if self._client is None or self._client.client_id is None:
            return 0
        return int(self._client.client_id[0])

    def on_state(self, listener: StateListener) -> Callable[[], None]:
        """Call `listener` on the loop at each change of state; return what removes it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # --- reads ---

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        """Return data and stat. Raises NoNodeError."""
        data, stat = await self._read(lambda c: c.get_async(path, self._watch(watch)))
        return data or b"", _stat(stat)

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """Return the stat, or None; the watch also sees the znode's creation."""
        stat = await self._read(lambda c: c.exists_async(path, self._watch(watch)))
        return None if stat is None else _stat(stat)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Return the names of the children, sorted. Raises NoNodeError."""
        return sorted(await self._read(lambda c: c.get_children_async(path, self._watch(watch))))

    async def get_all(
        self, paths: Iterable[str], watch: Watch | None = None
    ) -> dict[str, tuple[bytes, Stat]]:
        """Read many znodes in one pipeline; those that do not exist are left out."""
        found: dict[str, tuple[bytes, Stat]] = {}
        watcher = self._watch(watch)
        under_way: deque[tuple[Sequence[str], Awaitable[list[ReadAnswer]]]] = deque()
        parts = slices.cut(paths, READS_AT_ONCE)
        while True:
            while len(under_way) < BATCHES_UNDER_WAY and (part := next(parts, None)):
                under_way.append((part, self._read_batch(part, watcher)))
            if not under_way:
                return found
            wanted, answers = under_way.popleft()
            lost = []
            for path, answer in zip(wanted, await answers, strict=True):
                if isinstance(answer, tuple):
                    data, stat = answer
                    found[path] = data or b"", _stat(stat)
                elif isinstance(answer, ConnectionLoss):
                    lost.append(path)
                elif not isinstance(answer, NoNodeError):
                    raise answer
            if lost:
                # kazoo holds the next try back until it is connected again.
                under_way.append((lost, self._read_batch(lost, watcher)))

    def _read_batch(
        self, paths: Sequence[str], watcher: _KazooWatch | None
    ) -> Awaitable[list[ReadAnswer]]:
        client, loop = self._open()
        future: asyncio.Future[list[ReadAnswer]] = loop.create_future()
        BatchRead(client, paths, watcher, lambda answers: self._post(_resolve, future, answers))
        return future

    async def sync(self) -> None:
        """Wait until the server has what the leader has: later reads see every earlier write."""
        await self._read(lambda c: c.sync_async("/"))

    # --- writes ---

    async def create(
        self,
        path: str,
        data: bytes | None = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        make_parents: bool = False,
    ) -> str:
        """Create a znode and return its path. Raises NodeExistsError, NoNodeError (no parent)."""
        acl = acls.of_new(path, secured=self._access.set_acl)
        parent = path.rpartition("/")[0] if make_parents else ""
        while True:
            try:
                return str(
                    await self._call(
                        lambda c: c.create_async(
                            path, data, acl, ephemeral=ephemeral, sequence=sequence
                        )
                    )
                )
            except NoNodeError:
                if not parent:
                    raise
                await self.ensure(parent)

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        """Replace the data and return the new stat. Raises BadVersionError, NoNodeError."""
        return _stat(await self._call(lambda c: c.set_async(path, data, version)))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a znode. Raises BadVersionError, NoNodeError, NotEmptyError."""
        await self._call(lambda c: c.delete_async(path, version))

    async def ensure(self, path: str) -> None:
        """Create a persistent znode and its parents where they are missing."""
        if await self.exists(path) is not None:
            return
        for one in acls.with_parents(path):
            while await self.exists(one) is None:
                # The outcome is unknown after ConnectionLoss: look again.
                with contextlib.suppress(NodeExistsError, ConnectionLoss):
                    await self.create(one)

    async def multi(self, wanted: Sequence[Operation]) -> list[Any]:
        """Apply all operations or none.

        Returns one result per operation: the path of Create, the Stat of SetData, True otherwise.
        Raises operations.TransactionFailedError naming the operation that failed.
        """

        def commit(client: Any) -> Any:
            transaction = client.transaction()
            operations.fill(transaction, wanted, set_acl=self._access.set_acl)
            return transaction.commit_async()

        results = operations.check_results(wanted, await self._call(commit))
        return [
            _stat(result) if isinstance(operation, operations.SetData) else result
            for operation, result in zip(wanted, results, strict=True)
        ]

    # --- calls to kazoo ---

    def _watch(self, watch: Watch | None) -> _KazooWatch | None:
        return None if watch is None else _KazooWatch(self, watch)

    async def _read(self, request: Callable[[Any], Any]) -> Any:
        """Repeat a read until the connection holds or the session is over."""
        while True:
            try:
                return await self._call(request)
            except ConnectionLoss:
                # kazoo holds the next try back until it is connected again.
                await asyncio.sleep(0)

    def _call(self, request: Callable[[Any], Any]) -> Awaitable[Any]:
        client, loop = self._open()
        future: asyncio.Future[Any] = loop.create_future()
        result = request(client)
        result.rawlink(lambda done: self._post(_settle, future, done))
        return future

    def _open(self) -> tuple[Any, asyncio.AbstractEventLoop]:
        if self._client is None or self._loop is None:
            raise ConnectionClosedError("the session is closed")
        return self._client, self._loop

    # --- heartbeats ---

    def _beat(self) -> None:
        """Send a heartbeat, if connected; the next follows some time after its answer."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            self._heartbeat = None
        if self._client is None or self.state is not SessionState.CONNECTED:
            return  # CONNECTED begins again
        self._heartbeats += 1
        number, started = self._heartbeats, self._clock()
        transaction = self._client.transaction()
        operations.fill(transaction, HEARTBEAT, set_acl=False)
        answer = transaction.commit_async()
        answer.rawlink(lambda done: self._post(self._heard, done, number, started))

    def _heard(self, done: Any, number: int, started: float) -> None:
        if self._loop is None or self._client is None or number != self._heartbeats:
            return
        timeout = self.negotiated_timeout_ms / 1000
        if done.exception is None or is_answer(done.exception):
            self.deadline = max(self.deadline, self._vouched_at + timeout)
            self._vouched_at = started
        self._heartbeat = self._loop.call_later(timeout / HEARTBEATS_PER_TIMEOUT, self._beat)

    # --- from kazoo's threads to the loop ---

    def _post(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Run a callback on the loop; called from any thread."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        with self._inbox_lock:
            is_first = not self._inbox
            self._inbox.append((callback, arguments))
        if is_first:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        with self._inbox_lock:
            came, self._inbox = self._inbox, []
        for callback, arguments in came:
            try:
                callback(*arguments)
            except Exception:
                logger.exception("a ZooKeeper callback failed")

    def _kazoo_state(self, state: str) -> None:
        """Pass a change of state to the loop; called by kazoo's connection thread."""
        if state == KazooState.CONNECTED:
            new = SessionState.CONNECTED
        elif state == KazooState.SUSPENDED:
            new = SessionState.SUSPENDED
        elif self._client is not None and self._client.client_state == KeeperState.CLOSED:
            new = SessionState.CLOSED
        else:
            new = SessionState.EXPIRED
        self._post(self._enter, new)

    def _enter(self, state: SessionState) -> None:
        if self._client is None:
            return
        self.state = state
        if state is SessionState.EXPIRED:
            self.generation += 1
            self._heartbeats += 1
            self.deadline = float("-inf")
        if state is SessionState.CONNECTED:
            self._connected.set()
            self._vouched_at = self._handshake_at
            self._beat()
        logger.info("ZooKeeper session %#x is %s", self.session_id, state.value)
        for listener in list(self._listeners):
            try:
                listener(state)
            except Exception:
                logger.exception("a listener failed to take that the session is %s", state.value)

    def _note_handshake(self, timeout_ms: int, started: float) -> None:
        """Note the session timeout that the server grants; called by kazoo's connection thread."""
        self.negotiated_timeout_ms = timeout_ms
        self._handshake_at = started


def _stop(client: Any) -> None:
    client.stop()
    client.close()


def _stop_in_background(client: Any) -> None:
    """Stop a client without waiting for its thread, nor keep the process for that."""
    threading.Thread(target=_stop, args=(client,), name="stops ZooKeeper", daemon=True).start()


def _resolve(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _settle(future: asyncio.Future[Any], done: Any) -> None:
    if future.done():
        return
    if done.exception is None:
        future.set_result(done.value)
    else:
        future.set_exception(done.exception)


def _stat(stat: Any) -> Stat:
    czxid, mzxid, ctime, _, version, cversion, _, owner, _, children, _ = stat
    return Stat(version, cversion, czxid, mzxid, ctime, owner, children)
