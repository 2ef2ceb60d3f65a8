"""ACLs kept from a real ZooKeeper, and changes of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.security import acl_changes, acl_znodes
from odradek.security.acl_changes import MOST_ENTRIES
from odradek.security.acl_watcher import AclWatcher
from odradek.security.acls import (
    AclEntry,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from odradek.security.authorizer import Authorizer
from odradek.values import Principal
from odradek.zk.admin import LARGEST_CONFIG
from odradek.zk.changes import NOTICE_LIFETIME_MS
from odradek.zk.operations import Create
from odradek.zk.session import Session
from tests.support import zookeeper
from tests.zk.conftest import OpenSession

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
READ = AclEntry(ALICE, PermissionType.ALLOW, AclOperation.READ)
WRITE = READ._replace(operation=AclOperation.WRITE)
ORDERS = ResourcePattern(ResourceType.TOPIC, "orders")
APP = ResourcePattern(ResourceType.GROUP, "app-", PatternType.PREFIXED)
Start = Callable[..., Any]


@pytest.fixture
async def session(sessions: OpenSession) -> Session:
    return await sessions()


@pytest.fixture
async def start(session: Session) -> AsyncIterator[Start]:
    """Return a function that starts a watcher, on this session or on another one."""
    tasks: list[asyncio.Task[None]] = []

    async def started(on: Session = session, **options: Any) -> AclWatcher:
        watcher = AclWatcher(on, **options)
        await watcher.start()
        tasks.append(asyncio.create_task(watcher.run()))
        return watcher

    yield started
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def entries(watcher: AclWatcher, pattern: ResourcePattern = ORDERS) -> tuple[AclEntry, ...]:
    return watcher.acls.entries(pattern)


async def test_present_acls_and_changes_of_both_kinds_are_known(
    session: Session, sessions: OpenSession, start: Start
) -> None:
    await start()  # creates the parents
    await acl_changes.add(session, ORDERS, [READ])
    watcher = await start(await sessions())
    assert entries(watcher) == (READ,)
    await acl_changes.add(session, APP, [READ])
    await until(lambda: entries(watcher, APP) == (READ,))
    await acl_changes.add(session, ORDERS, [WRITE, READ])
    await until(lambda: entries(watcher) == (READ, WRITE))
    assert await acl_changes.remove(session, ORDERS, lambda one: True) == (READ, WRITE)
    await until(lambda: not entries(watcher))
    assert await session.exists(acl_znodes.acl_path(ORDERS)) is None
    assert watcher.age_s == 0


async def test_change_that_changes_nothing_writes_nothing(session: Session, start: Start) -> None:
    await start()
    await acl_changes.add(session, ORDERS, [READ])
    [notice] = await session.children(acl_znodes.LITERAL_CHANGES_PATH)
    await acl_changes.add(session, ORDERS, [READ])
    assert await acl_changes.remove(session, ORDERS, lambda one: one == WRITE) == ()
    assert await acl_changes.remove(session, APP, lambda one: True) == ()
    assert await session.children(acl_znodes.LITERAL_CHANGES_PATH) == [notice]
    assert (await session.get(acl_znodes.acl_path(ORDERS)))[1].version == 0


async def test_writers_at_once_lose_nothing(sessions: OpenSession, start: Start) -> None:
    await start()
    writers = [await sessions() for _ in range(3)]
    added = [
        [READ._replace(principal=Principal("User", f"{number}-{turn}")) for turn in range(4)]
        for number in range(len(writers))
    ]

    async def write(number: int) -> None:
        for entry in added[number]:
            await acl_changes.add(writers[number], ORDERS, [entry])

    await asyncio.gather(*map(write, range(len(writers))))
    data, _ = await writers[0].get(acl_znodes.acl_path(ORDERS))
    assert set(acl_znodes.decode_acls("/p", data)) == {one for few in added for one in few}


async def test_changes_are_known_after_the_session_was_lost(
    server: zookeeper.Server, session: Session, sessions: OpenSession, start: Start
) -> None:
    watcher = await start()
    other = await sessions()
    await asyncio.to_thread(server.expire_session, session._client.client_id)
    await acl_changes.add(other, ORDERS, [READ])
    # Nobody sees the notice any more.
    [notice] = await other.children(acl_znodes.LITERAL_CHANGES_PATH)
    await other.delete(f"{acl_znodes.LITERAL_CHANGES_PATH}/{notice}")
    await until(lambda: entries(watcher) == (READ,))


async def test_changes_are_known_after_somebody_removed_the_parent_of_notices(
    session: Session, start: Start
) -> None:
    watcher = await start()
    for entry in (READ, WRITE):
        await acl_changes.add(session, ORDERS, [entry])
    await until(lambda: entries(watcher) == (READ, WRITE))
    parent = acl_znodes.LITERAL_CHANGES_PATH
    for name in await session.children(parent):
        await session.delete(f"{parent}/{name}")
    await session.delete(parent)
    while await session.exists(parent) is None:
        await asyncio.sleep(0.01)
    await acl_changes.remove(session, ORDERS, lambda one: one == READ)
    # Its number is lower than that of the last notice.
    await until(lambda: entries(watcher) == (WRITE,))
    await until(lambda: watcher.age_s == 0)


async def test_age_grows_while_zookeeper_is_away_and_the_last_acls_count(
    sessions: OpenSession, server: zookeeper.Server, start: Start
) -> None:
    now_s = 1000.0
    # A client takes a server for gone that is silent for two thirds of its session.
    watcher = await start(await sessions(timeout_ms=4000), monotonic_s=lambda: now_s)
    authorizer = Authorizer(watcher, [])
    await acl_changes.add(await sessions(), ORDERS, [READ])
    await until(lambda: entries(watcher) == (READ,))
    server.pause()
    try:
        asked = (AclOperation.READ, ResourceType.TOPIC, "orders")
        await until(lambda: watcher._stale_since_s is not None)
        now_s += 7
        assert watcher.age_s == 7
        assert authorizer.allow(ALICE, "h", *asked)
        assert not authorizer.allow(BOB, "h", *asked)
    finally:
        server.resume()
    await until(lambda: watcher.age_s == 0)


async def test_without_acls_only_super_users_may_do_anything(session: Session) -> None:
    watcher = AclWatcher(session, allow_if_none=True)
    authorizer = Authorizer(watcher, [BOB])
    asked = (AclOperation.READ, ResourceType.TOPIC, "orders")
    assert watcher.age_s == float("inf")
    assert authorizer.allow(BOB, "h", *asked)
    assert authorizer.allow_anywhere(BOB, "h", AclOperation.WRITE, ResourceType.TOPIC)
    assert not authorizer.allow(ALICE, "h", *asked)
    assert not authorizer.allow_anywhere(ALICE, "h", AclOperation.WRITE, ResourceType.TOPIC)
    assert authorizer.denials == 2


async def test_pattern_with_an_unreadable_znode_is_denied(
    session: Session, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    watcher = await start(allow_if_none=True)
    authorizer = Authorizer(watcher, [BOB])
    await session.create(acl_znodes.acl_path(ORDERS), b'{"version":1,"acls":[{}]}')
    await session.multi([acl_znodes.change_notice(ORDERS)])
    await until(lambda: bool(entries(watcher)))
    for name, allowed in (("orders", False), ("others", True)):
        asked = (AclOperation.READ, ResourceType.TOPIC, name)
        assert authorizer.allow(ALICE, "h", *asked) is allowed
        assert authorizer.allow(BOB, "h", *asked)
    assert "denying everything that they are about" in caplog.text
    with pytest.raises(KafkaError, match="principal") as refused:
        await acl_changes.add(session, ORDERS, [READ])
    assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


async def test_name_that_no_answer_can_hold_is_left_out(session: Session, start: Start) -> None:
    watcher = await start()
    for name in ("orders", "o" * 32768):
        pattern = ORDERS._replace(name=name)
        data = acl_znodes.encode_acls([READ])
        await session.multi(
            [Create(acl_znodes.acl_path(pattern), data), acl_znodes.change_notice(pattern)]
        )
    await until(lambda: bool(entries(watcher)))
    await until(lambda: watcher.age_s == 0)
    for one in (watcher, await start()):
        assert [len(pattern.name) for pattern in one.acls.patterns()] == [len("orders")]


async def test_notice_that_cannot_be_read_makes_all_be_read(session: Session, start: Start) -> None:
    watcher = await start()
    await session.create(acl_znodes.acl_path(ORDERS), acl_znodes.encode_acls([READ]))
    path = f"{acl_znodes.LITERAL_CHANGES_PATH}/{acl_znodes.CHANGE_PREFIX}"
    await session.create(path, b"junk", sequence=True)
    await until(lambda: entries(watcher) == (READ,))


async def test_acls_are_read_though_the_notice_is_deleted_first(
    session: Session, sessions: OpenSession, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a broker whose clock is fast."""
    watcher, other = await start(), await sessions()
    read = session.get_all

    async def late(paths: Iterable[str]) -> Any:
        wanted = list(paths)
        for path in wanted:
            if path.startswith(acl_znodes.LITERAL_CHANGES_PATH):
                await other.delete(path)
        return await read(wanted)

    monkeypatch.setattr(session, "get_all", late)
    await acl_changes.add(other, ORDERS, [READ])
    await until(lambda: entries(watcher) == (READ,))
    assert await other.children(acl_znodes.LITERAL_CHANGES_PATH) == []


async def test_old_notices_are_deleted_and_others_stay(session: Session, start: Start) -> None:
    now_ms = int(time.time() * 1000)
    watcher = await start(now_ms=lambda: now_ms)
    await acl_changes.add(session, ORDERS, [READ])
    await until(lambda: entries(watcher) == (READ,))
    assert len(await session.children(acl_znodes.LITERAL_CHANGES_PATH)) == 1
    now_ms += NOTICE_LIFETIME_MS + 60_000
    await acl_changes.add(session, APP, [READ])
    while await session.children(acl_znodes.LITERAL_CHANGES_PATH):
        await asyncio.sleep(0.01)


async def test_acls_count_while_old_notices_are_still_being_deleted(
    session: Session, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start()
    await acl_changes.add(session, ORDERS, [READ])

    async def stuck(path: str) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(session, "delete", stuck)
    async with asyncio.timeout(60):
        watcher = await start(now_ms=lambda: int(time.time() * 1000) + 2 * NOTICE_LIFETIME_MS)
    assert entries(watcher) == (READ,)


async def test_more_acls_than_a_znode_holds_are_refused(session: Session, start: Start) -> None:
    await start()
    many = [
        READ._replace(principal=Principal("User", f"{number:05}-{'x' * 200}"))
        for number in range(3000)
    ]
    with pytest.raises(KafkaError) as refused:
        await acl_changes.add(session, ORDERS, many)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert await session.exists(acl_znodes.acl_path(ORDERS)) is None


async def test_acls_are_removed_from_a_pattern_that_has_too_many(
    session: Session, start: Start
) -> None:
    await start()
    many = [
        READ._replace(principal=Principal("User", f"{number:05}-{'x' * 200}"))
        for number in range(2500)
    ]
    # Kafka fills a znode up to what ZooKeeper takes.
    await session.create(acl_znodes.acl_path(ORDERS), acl_znodes.encode_acls(many))
    removed = await acl_changes.remove(session, ORDERS, lambda one: one in many[:2])
    assert removed == tuple(many[:2])
    with pytest.raises(KafkaError) as refused:
        await acl_changes.add(session, ORDERS, many[:1])
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    data, _ = await session.get(acl_znodes.acl_path(ORDERS))
    assert acl_znodes.decode_acls("/p", data) == tuple(many[2:])


async def test_acls_that_fit_no_znode_however_short_are_not_encoded(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    shortest = AclEntry(Principal("U", "a"), PermissionType.DENY, AclOperation.ALL, "h")
    assert len(acl_znodes.encode_acls([shortest] * MOST_ENTRIES)) > LARGEST_CONFIG
    monkeypatch.setattr(acl_znodes, "encode_acls", lambda _: pytest.fail("encoded"))
    many = [shortest._replace(host=str(number)) for number in range(MOST_ENTRIES + 1)]
    with pytest.raises(KafkaError, match="do not fit into ZooKeeper") as refused:
        await acl_changes.add(session, ORDERS, many)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


async def test_lost_connection_is_told_as_a_timeout(
    session: Session, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start()

    async def lose(wanted: object) -> None:
        raise ConnectionLoss

    monkeypatch.setattr(session, "multi", lose)
    with pytest.raises(KafkaError) as refused:
        await acl_changes.add(session, ORDERS, [READ])
    assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT


async def test_denials_are_logged_a_few_times_and_counted_always(
    session: Session, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "odradek.authorizer")
    authorizer = Authorizer(await start(), [])
    for number in range(500):
        authorizer.allow(ALICE, "10.0.0.1", AclOperation.READ, ResourceType.TOPIC, f"t{number}")
    said = [one.getMessage() for one in caplog.records if one.name == "odradek.authorizer"]
    assert said[0] == (
        "Principal = User:alice is Denied Operation = Read from host = 10.0.0.1 "
        "on resource = Topic:LITERAL:t0"
    )
    assert len(said) < 20
    assert authorizer.denials == 500


async def test_brokers_without_a_right_are_locked_out(session: Session, start: Start) -> None:
    watcher = await start()
    assert Authorizer(watcher, []).locks_out(ALICE)
    assert not Authorizer(watcher, [ALICE]).locks_out(ALICE)
    cluster = ResourcePattern(ResourceType.CLUSTER, "kafka-cluster")
    act = READ._replace(operation=AclOperation.CLUSTER_ACTION, host="10.0.0.1")
    await acl_changes.add(session, cluster, [act])
    await until(lambda: bool(entries(watcher, cluster)))
    assert not Authorizer(watcher, []).locks_out(ALICE)
