"""A session with a follower of an ensemble, which is cut off from the other servers."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from odradek import zookeeper as servers
from odradek.zk.session import Session
from tests.support import zookeeper
from tests.support.ports import free_port

TICK_MS = 500
SESSION_MS = 4000
# Longer than the test: a follower that hears nothing from its leader goes on to answer reads.
SYNC_TICKS = 1000
QUORUM_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


class Member(zookeeper.Server):
    """One server of an ensemble; `peers` are the lines of all members in zoo.cfg."""

    def __init__(self, directory: Path, number: int, peers: list[str]) -> None:
        directory.mkdir()
        super().__init__(directory, TICK_MS)
        (directory / "zookeeper" / "myid").write_text(str(number))
        with self._config.open("a") as config:
            config.write(f"initLimit={SYNC_TICKS}\nsyncLimit={SYNC_TICKS}\n" + "".join(peers))
        at = self._arguments.index(servers.SERVER_CLASS)
        self._arguments[at] = QUORUM_CLASS

    @property
    def leads(self) -> bool:
        """Return whether this server is the leader."""
        with self._connected() as connection:
            connection.sendall(b"srvr")
            return b"Mode: leader" in connection.makefile("rb").read()


@pytest.fixture
async def members(tmp_path: Path) -> AsyncIterator[list[Member]]:
    """Return three running servers, the leader first."""
    ports = [(free_port(), free_port()) for _ in range(3)]
    peers = [f"server.{n}=127.0.0.1:{a}:{b}\n" for n, (a, b) in enumerate(ports, 1)]
    members = [Member(tmp_path / str(number), number, peers) for number in (1, 2, 3)]
    try:
        await asyncio.gather(*(asyncio.to_thread(one.start) for one in members))
        yield sorted(members, key=lambda one: not one.leads)
    finally:
        for one in members:
            with contextlib.suppress(ProcessLookupError):
                one.kill()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def test_deadline_stands_still_while_the_server_has_no_quorum(members: list[Member]) -> None:
    """Its reads and pings are answered; the leader does not know that the session lives."""
    *others, follower = members
    session = Session(follower.connect, SESSION_MS, zookeeper.START_SECONDS * 1000)
    await session.start()
    await until(lambda: session.deadline > time.monotonic() + 1)
    with follower.client() as reader:
        for one in others:
            one.pause()
        paused_at = time.monotonic()
        try:
            latest = paused_at + SESSION_MS / 1000
            await until(lambda: time.monotonic() > latest)
            assert await asyncio.to_thread(reader.exists, "/"), "it answers reads"
            assert session.deadline <= latest
        finally:
            for one in others:
                one.resume()
        await until(lambda: session.deadline > time.monotonic())
        await session.close()
