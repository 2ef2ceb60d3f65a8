"""Notices of changed configuration on a real ZooKeeper."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any

import pytest

from odradek import quarantine
from odradek.quarantine import Quarantines
from odradek.zk import admin
from odradek.zk.changes import NOTICE_LIFETIME_MS, ConfigChanges
from odradek.zk.registration import create_persistent_paths
from odradek.zk.session import Session
from tests.support import zookeeper
from tests.zk.conftest import OpenSession

Run = Callable[[Coroutine[Any, Any, None]], None]


class Heard:
    def __init__(self, session: Session, **options: Any) -> None:
        self.queue = asyncio.Queue[tuple[str, str]]()
        self.changes = ConfigChanges(session, self.note, **options)

    async def note(self, entity_type: str, name: str) -> None:
        await self.queue.put((entity_type, name))


@pytest.fixture
async def session(sessions: OpenSession) -> Session:
    opened = await sessions()
    await create_persistent_paths(opened)
    return opened


@pytest.fixture
async def running() -> AsyncIterator[Run]:
    tasks: list[asyncio.Future[None]] = []
    yield lambda work: tasks.append(asyncio.ensure_future(work))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_only_new_changes_are_told_in_order(session: Session, running: Run) -> None:
    await session.multi(admin.change_config("topics", "old", {}, None))
    heard = Heard(session)
    await heard.changes.start()
    running(heard.changes.run())
    for name in ("a", "b", "c"):
        await session.multi(admin.change_config("topics", name, {"k": "v"}, None))
    await session.multi(admin.change_config("brokers", "<default>", {}, None))
    assert [await heard.queue.get() for _ in range(4)] == [
        ("topics", "a"),
        ("topics", "b"),
        ("topics", "c"),
        ("brokers", "<default>"),
    ]


async def test_notices_of_old_tools_are_understood_and_garbage_is_passed_over(
    session: Session, running: Run
) -> None:
    heard = Heard(session)
    await heard.changes.start()
    running(heard.changes.run())
    await session.create("/config/changes/config_change_", b"junk", sequence=True)
    await session.create("/config/changes/other")
    v1 = b'{"version":1,"entity_type":"topics","entity_name":"t"}'
    await session.create("/config/changes/config_change_", v1, sequence=True)
    assert await heard.queue.get() == ("topics", "t")


async def test_changes_are_heard_after_the_session_was_lost(
    server: zookeeper.Server, session: Session, sessions: OpenSession, running: Run
) -> None:
    heard = Heard(session)
    await heard.changes.start()
    running(heard.changes.run())
    await asyncio.to_thread(server.expire_session, session._client.client_id)
    other = await sessions()
    await other.multi(admin.change_config("topics", "t", {}, None))
    assert await heard.queue.get() == ("topics", "t")


async def test_changes_are_heard_after_somebody_removed_their_folder(
    session: Session, running: Run
) -> None:
    heard = Heard(session)
    await heard.changes.start()
    running(heard.changes.run())
    for name in ("a", "b"):
        await session.multi(admin.change_config("topics", name, {}, None))
        assert await heard.queue.get() == ("topics", name)
    for name in await session.children("/config/changes"):
        await session.delete(f"/config/changes/{name}")
    await session.delete("/config/changes")
    while await session.exists("/config/changes") is None:
        await asyncio.sleep(0.01)
    await session.multi(admin.change_config("topics", "c", {}, None))
    assert await heard.queue.get() == ("topics", "c"), "its number is lower than the last one"


async def test_old_notices_are_purged_once_handled(session: Session, running: Run) -> None:
    later = time.time_ns() // 1_000_000 + 2 * NOTICE_LIFETIME_MS
    heard = Heard(session, now_ms=lambda: later)
    await heard.changes.start()
    running(heard.changes.run())
    for name in ("a", "b"):
        await session.multi(admin.change_config("topics", name, {}, None))
        assert await heard.queue.get() == ("topics", name)
    while len(await session.children("/config/changes")) > 1:
        await asyncio.sleep(0.01)


async def test_each_notice_is_read_once_however_many_there_are(
    session: Session, running: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    get_all = session.get_all

    async def noted(paths: Iterable[str]) -> Any:
        wanted = list(paths)
        read.extend(wanted)
        return await get_all(wanted)

    await session.multi(admin.change_config("topics", "old", {}, None))
    monkeypatch.setattr(session, "get_all", noted)
    heard = Heard(session)
    await heard.changes.start()
    running(heard.changes.run())
    for number in range(10):
        await session.multi(admin.change_config("topics", f"t{number}", {}, None))
        assert await heard.queue.get() == ("topics", f"t{number}")
    assert len(read) == len(set(read)) == 11


async def test_a_change_that_cannot_be_applied_is_tried_again_and_holds_up_no_other(
    session: Session, running: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "FIRST_PAUSE_S", 0.01)
    quarantines = Quarantines()
    heard = Heard(session, quarantines=quarantines)
    note, failures = heard.note, [KeyError("unforeseen")] * 2

    async def note_or_fail(entity_type: str, name: str) -> None:
        if name == "sick" and failures:
            raise failures.pop()
        await note(entity_type, name)

    heard.changes = ConfigChanges(session, note_or_fail, quarantines=quarantines)
    await heard.changes.start()
    running(heard.changes.run())
    for name in ("sick", "sound"):
        await session.multi(admin.change_config("topics", name, {"k": "v"}, None))
    async with asyncio.timeout(60):
        told = [await heard.queue.get() for _ in range(2)]
        assert told == [("topics", "sound"), ("topics", "sick")]
        while quarantines.held()["config"]:
            await asyncio.sleep(0.005)
    assert quarantines.totals()["config"] == 2
    await session.multi(admin.change_config("topics", "next", {"k": "v"}, None))
    assert await heard.queue.get() == ("topics", "next"), "none is told twice"


async def test_changes_that_cannot_be_listed_are_told_later(
    session: Session, running: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "FIRST_PAUSE_S", 0.01)
    heard = Heard(session)
    await heard.changes.start()
    list_changes, failures = heard.changes._list, [KeyError("unforeseen")]

    async def list_or_fail() -> list[tuple[int, str]]:
        if failures:
            raise failures.pop()
        return await list_changes()

    monkeypatch.setattr(heard.changes, "_list", list_or_fail)
    running(heard.changes.run())
    await session.multi(admin.change_config("topics", "t", {"k": "v"}, None))
    async with asyncio.timeout(60):
        assert await heard.queue.get() == ("topics", "t")
