"""One real ZooKeeper a test module, and sessions on a chroot of their own."""

import itertools

import pytest

from odradek.zk.session import Session
from tests.support import zookeeper

_numbers = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with zookeeper.Server(tmp_path_factory.mktemp("zk")) as running:
        yield running


@pytest.fixture
def chroot():
    return f"/test{next(_numbers)}"


@pytest.fixture
async def sessions(server, chroot):
    """Return a function that opens sessions, closed at the end."""
    opened = []

    async def open_session(timeout_ms=zookeeper.SESSION_SECONDS * 1000):
        session = Session(server.connect + chroot, timeout_ms, zookeeper.START_SECONDS * 1000)
        await session.start()
        opened.append(session)
        return session

    yield open_session
    for session in opened:
        await session.close()
