"""One real ZooKeeper a test module, and sessions on a chroot of their own."""

import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Protocol

import pytest

from odradek.zk.session import Session
from tests.support import zookeeper

_numbers = itertools.count()


class OpenSession(Protocol):
    """Opens a session on the chroot of the test."""

    async def __call__(self, timeout_ms: int = ...) -> Session: ...


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zookeeper.Server]:
    with zookeeper.Server(tmp_path_factory.mktemp("zk")) as running:
        yield running


@pytest.fixture
def chroot() -> str:
    return f"/test{next(_numbers)}"


@pytest.fixture
async def sessions(server: zookeeper.Server, chroot: str) -> AsyncIterator[OpenSession]:
    """Return a function that opens sessions, closed at the end."""
    opened: list[Session] = []

    async def open_session(timeout_ms: int = zookeeper.SESSION_SECONDS * 1000) -> Session:
        session = Session(server.connect + chroot, timeout_ms, zookeeper.START_SECONDS * 1000)
        await session.start()
        opened.append(session)
        return session

    yield open_session
    for session in opened:
        await session.close()
