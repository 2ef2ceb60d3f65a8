"""The number of `__consumer_offsets` partitions, read from a real ZooKeeper."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from odradek.coordination.partitioning import PartitionCount
from odradek.values import OFFSETS_TOPIC, BrokerId
from odradek.zk import znodes
from odradek.zk.session import Session, SessionState, Stat, Watch
from odradek.zk.znodes import TopicAssignment
from tests.support import zookeeper

PATH = znodes.topic_path(OFFSETS_TOPIC)


def topic(partitions: int) -> bytes:
    replicas = {number: (BrokerId(1),) for number in range(partitions)}
    return znodes.encode_topic(TopicAssignment(replicas))


async def until(count: PartitionCount, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.02)
            await count.learn()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[zookeeper.Server]:
    with zookeeper.Server(tmp_path) as server:
        yield server


@pytest.fixture
async def session(server: zookeeper.Server) -> AsyncIterator[Session]:
    session = Session(server.connect, 20_000)
    await session.start()
    yield session
    await session.close()


async def test_count_follows_the_znode_over_changes_deletion_and_sessions(
    server: zookeeper.Server, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    count = PartitionCount(session, OFFSETS_TOPIC)
    await count.learn()
    assert count() is None
    await session.create(PATH, topic(3), make_parents=True)
    await until(count, lambda: count() == 3)
    before = session.session_id
    await asyncio.to_thread(server.expire_session, session._client.client_id)
    await until(
        count,
        lambda: session.session_id not in (0, before) and session.state is SessionState.CONNECTED,
    )
    await session.set(PATH, topic(5))
    await until(count, lambda: count() == 5)
    await session.set(PATH, b"garbage")
    await until(count, lambda: "failed to read the number" in caplog.text)
    assert count() == 5
    await session.delete(PATH)
    await until(count, lambda: count() is None)


async def test_count_is_read_again_only_after_its_watch_is_lost(
    server: zookeeper.Server, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    real = Session.exists

    async def exists(session: Session, path: str, watch: Watch | None = None) -> Stat | None:
        asked.append(path)
        return await real(session, path, watch)

    count = PartitionCount(session, OFFSETS_TOPIC)
    await count.learn()
    monkeypatch.setattr(Session, "exists", exists)
    for _ in range(3):
        await count.learn()
    assert count() is None
    assert not asked, "a broker at rest leaves ZooKeeper alone"
    await asyncio.to_thread(server.restart)
    with server.client() as other:
        other.create(PATH, topic(3), makepath=True)
    await until(count, lambda: count() == 3)


async def test_count_is_read_again_after_a_client_went_that_waited_for_it(session: Session) -> None:
    await session.create(PATH, topic(3), make_parents=True)
    count = PartitionCount(session, OFFSETS_TOPIC)
    reading = asyncio.create_task(count.learn())
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await count.learn()
    assert count() == 3


def test_hash_of_a_group_needs_no_descriptor() -> None:
    program = """
import resource
from odradek.coordination.partitioning import partition_of
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
print(partition_of("group", 50))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip().isdecimal(), done.stderr
