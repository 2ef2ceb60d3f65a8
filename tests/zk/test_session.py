"""The asyncio session against a real ZooKeeper."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from kazoo.protocol.serialization import GetData
from kazoo.protocol.states import ZnodeStat

from odradek.zk.operations import Check, Create, Delete, SetData, TransactionFailedError, commit
from odradek.zk.session import (
    BadVersionError,
    ConnectionLoss,
    NodeExistsError,
    NoNodeError,
    Session,
    SessionExpiredError,
    SessionState,
    Stat,
    WatchEvent,
    WatchKind,
)
from tests.support import zookeeper
from tests.support.ports import free_port
from tests.zk.conftest import OpenSession

START_MS = zookeeper.START_SECONDS * 1000


class LostReads:
    """A client that answers once nobody asks any more; the connection breaks on the first reads.

    `rounds` says how many reads each answer was for.
    """

    chroot = ""

    def __init__(self, lost: int) -> None:
        self.rounds: list[int] = []
        self._lost = lost
        self._waiting: list[Any] = []

    def _call(self, _request: GetData, result: Any) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._answer)
        self._waiting.append(result)

    def _answer(self) -> None:
        waiting, self._waiting = self._waiting, []
        self.rounds.append(len(waiting))
        lost, self._lost = self._lost, 0
        for one in waiting[:lost]:
            one.set_exception(ConnectionLoss())
        for one in waiting[lost:]:
            one.set((b"", ZnodeStat(1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0)))


def watcher() -> tuple[Callable[[WatchEvent], None], Callable[[], Awaitable[WatchEvent]]]:
    """Return (callback, awaitable next event)."""
    events = asyncio.Queue[WatchEvent]()
    return events.put_nowait, events.get


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def test_znode_that_is_there_costs_one_question(
    sessions: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A consumer's first commit asks it for each partition, one after another.
    session = await sessions()
    asked: list[str] = []
    exists = session.exists

    async def noted(path: str) -> Stat | None:
        asked.append(path)
        return await exists(path)

    await session.ensure("/one/two/three")
    monkeypatch.setattr(session, "exists", noted)
    await session.ensure("/one/two/three")
    assert asked == ["/one/two/three"]


async def test_chroot_is_created_and_hidden(
    server: zookeeper.Server, chroot: str, sessions: OpenSession
) -> None:
    session = await sessions()
    assert await session.create("/a/b", b"x", make_parents=True) == "/a/b"
    assert await session.children("/") == ["a"]
    with server.client() as client:
        assert client.get(f"{chroot}/a/b")[0] == b"x"


async def test_reads_writes_and_their_errors(sessions: OpenSession) -> None:
    session = await sessions()
    await session.create("/n", b"1")
    data, stat = await session.get("/n")
    assert (data, stat.version) == (b"1", 0)
    assert (await session.set("/n", b"2", 0)).version == 1
    with pytest.raises(BadVersionError):
        await session.set("/n", b"3", 0)
    with pytest.raises(NodeExistsError):
        await session.create("/n")
    with pytest.raises(NoNodeError):
        await session.get("/missing")
    assert await session.exists("/missing") is None
    await session.delete("/n", 1)
    assert await session.exists("/n") is None


async def test_of_two_conditional_writers_one_wins(sessions: OpenSession) -> None:
    one, two = await sessions(), await sessions()
    await one.create("/n", b"")
    results = await asyncio.gather(
        *(session.set("/n", b"x", 0) for session in (one, two)), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in results) == ["BadVersionError", "Stat"]


async def test_sync_shows_what_another_session_wrote(sessions: OpenSession) -> None:
    one, two = await sessions(), await sessions()
    await one.create("/n", b"")
    await two.sync()
    assert await two.exists("/n") is not None


async def test_many_reads_are_pipelined_and_missing_ones_left_out(sessions: OpenSession) -> None:
    session = await sessions()
    await session.multi([Create(f"/n{i}", str(i).encode()) for i in range(300)])
    found = await session.get_all(f"/n{i}" for i in range(400))
    assert {path: data for path, (data, _) in found.items()} == {
        f"/n{i}": str(i).encode() for i in range(300)
    }


async def test_reads_that_are_lost_with_a_connection_are_asked_again_together() -> None:
    session = Session("127.0.0.1:1", START_MS)
    client = LostReads(lost=4)
    session._client, session._loop = client, asyncio.get_running_loop()
    paths = [f"/{number}" for number in range(5)]
    assert sorted(await session.get_all(paths)) == paths
    assert client.rounds == [5, 4]


async def test_multi_is_all_or_nothing_and_names_what_failed(
    server: zookeeper.Server, chroot: str, sessions: OpenSession
) -> None:
    session = await sessions()
    await session.create("/fence", b"")
    path, stat, checked = await session.multi(
        [Create("/s-", b"", sequence=True), SetData("/fence", b"1", 0), Check("/fence", 1)]
    )
    assert path == "/s-0000000001"
    assert (stat.version, checked) == (1, True)
    with pytest.raises(TransactionFailedError) as caught:
        await session.multi([Create("/new"), Check("/fence", 0), Delete("/fence")])
    assert caught.value.index == 1
    assert isinstance(caught.value.error, BadVersionError)
    assert await session.exists("/new") is None
    with server.client(chroot) as client:
        with pytest.raises(TransactionFailedError):
            commit(client, [Create("/new"), Check("/fence", 0)])
        commit(client, [Create("/new"), Check("/fence", 1)])
    assert await session.exists("/new") is not None


async def test_watches_fire_once_on_the_loop(sessions: OpenSession) -> None:
    session = await sessions()
    notice, next_event = watcher()
    assert await session.exists("/n", notice) is None
    await session.create("/n")
    event = await next_event()
    assert (event.kind, event.path) == (WatchKind.CREATED, "/n")
    await session.get("/n", notice)
    await session.get("/n", notice)
    await session.set("/n", b"1")
    await session.set("/n", b"2")
    assert (await next_event()).kind is WatchKind.CHANGED
    await session.children("/", notice)
    await session.create("/m")
    assert (await next_event()).kind is WatchKind.CHILDREN
    await session.exists("/n", notice)
    await session.delete("/n")
    assert (await next_event()).kind is WatchKind.DELETED


async def test_negotiated_timeout_is_the_servers(sessions: OpenSession) -> None:
    # The server of these tests allows no more. The least is too little for a busy machine.
    assert (await sessions(timeout_ms=60_000)).negotiated_timeout_ms == 30_000
    assert (await sessions(timeout_ms=3000)).negotiated_timeout_ms == 3000


async def test_no_server_is_a_connection_error() -> None:
    session = Session(f"127.0.0.1:{free_port()}", 2000, connection_timeout_ms=300)
    with pytest.raises(ConnectionError, match="within 300 ms"):
        await session.start()
    with pytest.raises(ConnectionError, match="no ZooKeeper"):
        await Session(f"127.0.0.1:{free_port()}/c", 2000, 300).start()


async def test_expired_session_is_replaced_in_place(
    server: zookeeper.Server, sessions: OpenSession
) -> None:
    session = await sessions()
    states: list[SessionState] = []
    session.on_state(states.append)
    await session.create("/mine", ephemeral=True)
    old = session.session_id
    await asyncio.to_thread(server.expire_session, session._client.client_id)
    await until(lambda: SessionState.EXPIRED in states and states[-1] is SessionState.CONNECTED)
    assert session.session_id not in (0, old)
    assert session.generation == 1
    assert await session.exists("/mine") is None
    await until(lambda: session.deadline > time.monotonic())


async def test_deadline_stands_still_while_the_server_is_silent(tmp_path: Path) -> None:
    with zookeeper.Server(tmp_path, tick_time_ms=200) as server:
        session = Session(server.connect, 4000, START_MS)
        await session.start()
        await until(lambda: session.deadline > time.monotonic() + 1)
        server.pause()
        try:
            await until(lambda: time.monotonic() > session.deadline)
            frozen = session.deadline
        finally:
            server.resume()
        await until(lambda: session.deadline > frozen)
        await session.close()
        assert session.deadline < time.monotonic()


async def test_session_outlives_a_restart_of_the_server(tmp_path: Path) -> None:
    with zookeeper.Server(tmp_path) as server:
        session = Session(server.connect, 30_000, START_MS)
        await session.start()
        states: list[SessionState] = []
        session.on_state(states.append)
        await session.create("/mine", ephemeral=True)
        old = session.session_id
        await asyncio.to_thread(server.kill)
        await until(lambda: SessionState.SUSPENDED in states)
        read = asyncio.ensure_future(session.get("/mine"))
        await asyncio.sleep(0)
        await asyncio.to_thread(server.start)
        _, stat = await read
        assert stat.owner == old == session.session_id
        assert states == [SessionState.SUSPENDED, SessionState.CONNECTED]
        await session.close()


class Way:
    """A way to a server. When it is silent nothing passes, not even the end of a connection."""

    def __init__(self, target: int) -> None:
        self.silent = False
        self._target = target
        self._writers: list[asyncio.StreamWriter] = []

    async def open(self) -> None:
        self._listening = await asyncio.start_server(self._join, "127.0.0.1", 0)
        self.port = self._listening.sockets[0].getsockname()[1]

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers += [writer, far_writer]
        await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                if not self.silent:
                    writer.write(data)
        if not self.silent:
            writer.close()

    def close(self) -> None:
        self._listening.close()
        for writer in self._writers:
            writer.close()


async def test_another_way_is_taken_where_one_falls_silent(server: zookeeper.Server) -> None:
    ways = [Way(server.port), Way(server.port)]
    for way in ways:
        await way.open()
    session = Session(",".join(f"127.0.0.1:{way.port}" for way in ways), 4000, START_MS)
    await session.start()
    await session.exists("/")
    used = session._client._connection._socket.getpeername()[1]
    next(way for way in ways if way.port == used).silent = True
    async with asyncio.timeout(120):
        while True:
            with contextlib.suppress(SessionExpiredError):  # on a busy machine
                await session.exists("/")
                break
    await session.close()
    for way in ways:
        way.close()


async def test_calls_on_an_expired_session_fail_by_name(
    server: zookeeper.Server, sessions: OpenSession
) -> None:
    session = await sessions()
    await session.create("/n")
    client_id = session._client.client_id
    await asyncio.to_thread(server.expire_session, client_id)
    # Whether a call meets the end of the session or the new one, it never hangs and never lies.
    outcome = await asyncio.gather(session.get("/n"), return_exceptions=True)
    assert isinstance(outcome[0], tuple | SessionExpiredError)


async def test_a_listener_that_fails_keeps_the_news_from_no_other(
    server: zookeeper.Server, sessions: OpenSession
) -> None:
    session = await sessions()
    states: list[SessionState] = []

    def fail(state: SessionState) -> None:
        raise KeyError("unforeseen")

    session.on_state(fail)
    session.on_state(states.append)
    await asyncio.to_thread(server.expire_session, session._client.client_id)
    async with asyncio.timeout(120):
        await until(lambda: SessionState.EXPIRED in states)
