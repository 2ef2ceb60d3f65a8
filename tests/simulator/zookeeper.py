"""ZooKeeper in memory, and the sessions of brokers.

The tree is linearizable. A session is an ordered connection with delays, which can be cut. Calls in
flight then fail with ConnectionLoss, applied or not, and the session expires on the server after
its timeout. `SimulatedSession` has the interface of `odradek.zk.session.Session`, with its
`deadline` and its lost watches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from odradek.zk.operations import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    Operation,
    SetData,
    TransactionFailedError,
)
from odradek.zk.session import (
    BadVersionError,
    ConnectionLoss,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
    SessionState,
    Stat,
    Watch,
    WatchEvent,
    WatchKind,
)
from tests.simulator.world import Process, World

SESSION_S = 3.0
# The oldest answered heartbeat of a healthy session.
BEAT_S = SESSION_S / 6
RECONNECT_S = (0.02, 0.3)
DELAY_S = (0.0005, 0.004)


@dataclass(slots=True)
class _Znode:
    data: bytes
    czxid: int
    owner: int = 0
    version: int = 0
    mzxid: int = 0
    created: int = 0
    children: dict[str, None] = field(default_factory=dict)


class Ensemble:
    """The tree, its sessions and its watches. `wrote` is called on every change of a znode."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.up = True
        self.tree: dict[str, _Znode] = {"/": _Znode(b"", 0)}
        self.sessions: dict[int, SimulatedSession] = {}
        self.wrote: Callable[[str, bytes], None] = lambda path, data: None
        self._zxid = 0
        self._next_session = 1
        self._watches: dict[tuple[str, bool], dict[tuple[SimulatedSession, Watch], int]] = {}

    # --- sessions ---

    def begin(self, session: SimulatedSession) -> int:
        """Return the id of a new session."""
        number = self._next_session
        self._next_session += 1
        self.sessions[number] = session
        return number

    def expire(self, number: int) -> None:
        """End a session, and remove its ephemeral znodes."""
        session = self.sessions.pop(number, None)
        if session is None:
            return
        self.world.say(f"ZooKeeper: session {number} of {session.process.name} is over")
        for path in [path for path, node in self.tree.items() if node.owner == number]:
            self.apply(Delete(path), 0)

    # --- operations ---

    def apply(self, operation: Operation, session: int) -> Any:
        """Apply one operation; raise the same errors as kazoo."""
        match operation:
            case Create():
                return self._create(operation, session)
            case SetData(path, data, version):
                node = self._node(path, version)
                self._zxid += 1
                node.data, node.version, node.mzxid = data, node.version + 1, self._zxid
                self.wrote(path, data)
                self._fire(path, WatchKind.CHANGED)
                return self.stat(path)
            case Delete(path, version):
                if self._node(path, version).children:
                    raise NotEmptyError
                self._zxid += 1
                del self.tree[path]
                parent = _parent(path)
                del self.tree[parent].children[path]
                self._fire(path, WatchKind.DELETED)
                self._fire(parent, WatchKind.CHILDREN)
            case Check(path, version):
                self._node(path, version)
        return True

    def _create(self, operation: Create, session: int) -> str:
        path, parent = operation.path, _parent(operation.path)
        if parent not in self.tree:
            raise NoNodeError
        node = self.tree[parent]
        if operation.sequence:
            path += f"{node.created:010d}"
        if path in self.tree:
            raise NodeExistsError
        node.created += 1
        self._zxid += 1
        owner = session if operation.ephemeral else 0
        self.tree[path] = _Znode(operation.data, self._zxid, owner, mzxid=self._zxid)
        node.children[path] = None
        self.wrote(path, operation.data)
        self._fire(path, WatchKind.CREATED)
        self._fire(parent, WatchKind.CHILDREN)
        return path

    def multi(self, operations: Sequence[Operation], session: int) -> list[Any]:
        """Apply all operations or none: check them first, since nothing can be undone."""
        created: set[str] = set()
        for index, operation in enumerate(operations):
            try:
                if isinstance(operation, Create):
                    if operation.path in self.tree:
                        raise NodeExistsError
                    parent = _parent(operation.path)
                    if parent not in self.tree and parent not in created:
                        raise NoNodeError
                    created.add(operation.path)
                else:
                    self._node(operation.path, getattr(operation, "version", ANY_VERSION))
            except (NodeExistsError, NoNodeError, BadVersionError) as error:
                raise TransactionFailedError(operation, index, error) from error
        return [self.apply(operation, session) for operation in operations]

    def _node(self, path: str, version: int = ANY_VERSION) -> _Znode:
        node = self.tree.get(path)
        if node is None:
            raise NoNodeError
        if version not in (ANY_VERSION, node.version):
            raise BadVersionError
        return node

    def stat(self, path: str) -> Stat:
        """Return the stat of an existing znode."""
        node = self._node(path)
        return Stat(
            version=node.version,
            cversion=0,
            czxid=node.czxid,
            mzxid=node.mzxid,
            created_ms=0,
            owner=node.owner,
            children=len(node.children),
        )

    def ensure(self, path: str) -> None:
        """Create a znode and its missing parents."""
        if path not in self.tree:
            self.ensure(_parent(path))
            self.apply(Create(path), 0)

    # --- watches ---

    def watch(self, path: str, children: bool, session: SimulatedSession, watch: Watch) -> None:
        """Set a watch on a session's present connection."""
        self._watches.setdefault((path, children), {})[session, watch] = session.connection

    def _fire(self, path: str, kind: WatchKind) -> None:
        lists = [kind is WatchKind.CHILDREN]
        if kind is WatchKind.DELETED:
            lists = [False, True]
        for children in lists:
            for (session, watch), link in self._watches.pop((path, children), {}).items():
                session.deliver(link, watch, WatchEvent(kind, path))


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


class SimulatedSession:
    """`odradek.zk.session.Session` for a simulated process."""

    def __init__(self, ensemble: Ensemble, process: Process) -> None:
        self.process = process
        self.state = SessionState.CLOSED
        self.generation = 0
        self.negotiated_timeout_ms = int(SESSION_S * 1000)
        self.session_id = 0
        # Grows with every connection made or broken; messages of older ones are dropped.
        self.connection = 0
        self._ensemble = ensemble
        self._world = ensemble.world
        self._cut = False
        self._linked = False
        self._heard = False
        self._last_heard = 0.0
        self._sent_until = 0.0
        self._told_until = 0.0
        self._listeners: list[Callable[[SessionState], None]] = []
        self._under_way: dict[asyncio.Future[Any], None] = {}
        self._connected = asyncio.Event()

    @property
    def deadline(self) -> float:
        """Return the time before which the session cannot have expired."""
        if self.session_id == 0:
            return float("-inf")
        return (self._world.now if self._heard else self._last_heard) + SESSION_S - BEAT_S

    @property
    def is_healthy(self) -> bool:
        """Return whether this client reaches the servers."""
        return self._heard

    # --- life ---

    async def start(self) -> None:
        """Connect."""
        self._connect()
        await self._connected.wait()

    async def close(self) -> None:
        """End the session."""
        self._ensemble.expire(self.session_id)
        self.state = SessionState.CLOSED

    def on_state(self, listener: Callable[[SessionState], None]) -> Callable[[], None]:
        """Call the listener on each change of the state."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def fall_silent(self) -> None:
        """Stop all messages of this client to the servers."""
        if self._heard:
            self._heard, self._last_heard = False, self._world.now
            number, since = self.session_id, self._last_heard
            self._world.later(SESSION_S, None, self._end_unless_heard, number, since)

    def _end_unless_heard(self, number: int, since: float) -> None:
        if not self._heard and self.session_id == number and self._last_heard == since:
            if self._ensemble.up:
                self._ensemble.expire(number)
            else:
                # Restarted servers give every session its whole timeout again.
                self._world.later(SESSION_S, None, self._end_unless_heard, number, since)

    def cut(self) -> None:
        """Break the connection, and allow no new one until `mend`."""
        self._cut = True
        self.fall_silent()
        self._break()

    def mend(self) -> None:
        """Allow connections again."""
        self._cut = False
        if not self.process.dead:
            self._world.later(self._pause(), self.process, self._connect)

    def resume(self) -> None:
        """Continue after the process was stopped."""
        if not self._linked:
            self._world.later(self._pause(), self.process, self._connect)
        elif self.session_id in self._ensemble.sessions:
            self._heard = True
        else:
            self._world.later(self._pause(), self.process, self._notice_the_end)

    def _notice_the_end(self) -> None:
        if self._linked and self.session_id not in self._ensemble.sessions:
            self._break()
            self._world.later(self._pause(), self.process, self._connect)

    def _pause(self) -> float:
        return self._world.chance.uniform(*RECONNECT_S)

    def _break(self) -> None:
        self._linked = False
        self._lose_connection()
        if not self.process.dead:
            self._world.later(0.001, self.process, self._suspend, self.connection)

    def _lose_connection(self) -> None:
        """Drop the messages on their way, and fail the calls that wait for one."""
        self.connection += 1
        lost, self._under_way = self._under_way, {}
        for future in lost:
            if not self.process.dead:
                self._world.later(0.001, self.process, _fail, future, ConnectionLoss())

    def _suspend(self, connection: int) -> None:
        if connection == self.connection and self.state is SessionState.CONNECTED:
            self._enter(SessionState.SUSPENDED)

    def _connect(self) -> None:
        if self._cut or self._linked or not self._ensemble.up or self.process.dead:
            return
        if self.session_id not in self._ensemble.sessions:
            if self.session_id:
                self.session_id = 0
                self.generation += 1
                self._enter(SessionState.EXPIRED)
            self.session_id = self._ensemble.begin(self)
        self._heard = self._linked = True
        # A stopped process may notice only now that its former connection ended. Calls that were
        # made before the end was noticed are lost, too.
        self._lose_connection()
        self._enter(SessionState.CONNECTED)

    def _enter(self, state: SessionState) -> None:
        self.state = state
        if state is SessionState.CONNECTED:
            self._connected.set()
        else:
            self._connected.clear()
        for listener in list(self._listeners):
            listener(state)

    # --- calls ---

    def deliver(self, connection: int, call: Callable[..., None], *arguments: Any) -> None:
        """Deliver a message to the process, after earlier ones of this connection."""
        if connection != self.connection or self.process.dead:
            return
        self._told_until = max(self._told_until, self._world.now + self._delay())
        wait = self._told_until - self._world.now
        self._world.later(wait, self.process, self._arrived, connection, call, arguments)

    def _arrived(
        self, connection: int, call: Callable[..., None], arguments: tuple[Any, ...]
    ) -> None:
        if connection == self.connection:
            call(*arguments)

    def _delay(self) -> float:
        return self._world.chance.uniform(*DELAY_S)

    async def _call(self, work: Callable[[int], Any]) -> Any:
        while not self._connected.is_set():
            generation = self.generation
            await self._connected.wait()
            if generation != self.generation:
                raise SessionExpiredError
        future: asyncio.Future[Any] = self.process.loop.create_future()
        self._under_way[future] = None
        self._sent_until = max(self._sent_until, self._world.now + self._delay())
        wait = self._sent_until - self._world.now
        self._world.later(wait, None, self._serve, self.connection, future, work)
        return await future

    def _serve(
        self, connection: int, future: asyncio.Future[Any], work: Callable[[int], Any]
    ) -> None:
        if connection != self.connection or not self._ensemble.up:
            return
        if self.session_id not in self._ensemble.sessions:
            self.deliver(connection, self._settle, future, None, ConnectionLoss())
            return
        try:
            result = work(self.session_id)
        except Exception as error:
            self.deliver(connection, self._settle, future, None, error)
        else:
            self.deliver(connection, self._settle, future, result, None)

    def _settle(self, future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
        self._under_way.pop(future, None)
        if error is not None:
            _fail(future, error)
        elif not future.done():
            future.set_result(result)

    async def _read(self, work: Callable[[int], Any]) -> Any:
        while True:
            try:
                return await self._call(work)
            except ConnectionLoss:
                await asyncio.sleep(0)

    def _get(self, path: str, watch: Watch | None) -> tuple[bytes, Stat]:
        stat = self._ensemble.stat(path)
        if watch is not None:
            self._ensemble.watch(path, False, self, watch)
        return self._ensemble.tree[path].data, stat

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        """Return data and stat."""
        found: tuple[bytes, Stat] = await self._read(lambda _: self._get(path, watch))
        return found

    async def sync(self) -> None:
        """Do nothing but wait: there is one server."""
        await self._read(lambda _: None)

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """Return the stat, None if the znode does not exist."""

        def look(_: int) -> Stat | None:
            if watch is not None:
                self._ensemble.watch(path, False, self, watch)
            return self._ensemble.stat(path) if path in self._ensemble.tree else None

        found: Stat | None = await self._read(look)
        return found

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Return the names of the children, sorted."""

        def look(_: int) -> list[str]:
            self._ensemble.stat(path)
            if watch is not None:
                self._ensemble.watch(path, True, self, watch)
            return sorted(one.rpartition("/")[2] for one in self._ensemble.tree[path].children)

        found: list[str] = await self._read(look)
        return found

    async def get_all(
        self, paths: Iterable[str], watch: Watch | None = None
    ) -> dict[str, tuple[bytes, Stat]]:
        """Return those of the znodes that exist."""
        wanted = list(paths)

        def look(_: int) -> dict[str, tuple[bytes, Stat]]:
            return {path: self._get(path, watch) for path in wanted if path in self._ensemble.tree}

        found: dict[str, tuple[bytes, Stat]] = await self._read(look) if wanted else {}
        return found

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        make_parents: bool = False,
    ) -> str:
        """Create a znode; return its path."""
        operation = Create(path, data, ephemeral, sequence)
        return str(await self._call(lambda owner: self._ensemble.apply(operation, owner)))

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        """Replace data."""
        operation = SetData(path, data, version)
        stat: Stat = await self._call(lambda owner: self._ensemble.apply(operation, owner))
        return stat

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a znode."""
        await self._call(lambda owner: self._ensemble.apply(Delete(path, version), owner))

    async def ensure(self, path: str) -> None:
        """Create a znode and its parents."""
        await self._read(lambda _: self._ensemble.ensure(path))

    async def multi(self, wanted: Sequence[Operation]) -> list[Any]:
        """Apply all operations or none."""
        results: list[Any] = await self._call(lambda owner: self._ensemble.multi(wanted, owner))
        return results


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
