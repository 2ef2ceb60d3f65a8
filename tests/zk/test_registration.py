"""Registration of brokers and the identity of the cluster, on a real ZooKeeper."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.exceptions import NoAuthError
from kazoo.security import ACL, ANYONE_ID_UNSAFE, Permissions

from odradek import quarantine
from odradek.values import BrokerId
from odradek.zk import registration, znodes
from odradek.zk.registration import DuplicateBrokerError, ForeignClusterError, Registration
from odradek.zk.session import ConnectionLoss
from odradek.zk.znodes import BrokerEndpoint, BrokerRegistration
from tests.support import zookeeper
from tests.zk.conftest import OpenSession


def broker(port: int = 9092) -> Callable[[], BrokerRegistration]:
    return lambda: BrokerRegistration(BrokerId(1), (BrokerEndpoint("PLAINTEXT", "h", port),))


async def until_it_waits_for_the_former(caplog: pytest.LogCaptureFixture) -> None:
    while not any("waiting for the end of session" in one for one in caplog.messages):
        await asyncio.sleep(0.01)


async def test_persistent_paths_exist_and_may_be_made_twice(sessions: OpenSession) -> None:
    session = await sessions()
    await registration.create_persistent_paths(session)
    await registration.create_persistent_paths(session)
    found = await session.get_all(znodes.PERSISTENT_PATHS)
    assert sorted(found) == sorted(znodes.PERSISTENT_PATHS)


async def test_a_znode_that_may_not_be_made_ends_the_making_of_all(
    server: zookeeper.Server, chroot: str, sessions: OpenSession
) -> None:
    session = await sessions()

    def refuse() -> None:
        with server.client(chroot) as client:
            client.create("/denied", acl=[ACL(Permissions.READ, ANYONE_ID_UNSAFE)])

    await asyncio.to_thread(refuse)
    before = asyncio.all_tasks()
    # What takes longer would try for ever once the session is closed.
    with pytest.raises(NoAuthError):
        await registration.create_persistent_paths(session, ["/denied/a", "/deep" + "/er" * 30])
    left = asyncio.all_tasks() - before
    for one in left:
        one.cancel()
    assert not left


async def test_the_block_of_producer_ids_has_no_data_before_the_first(
    server: zookeeper.Server, chroot: str, sessions: OpenSession
) -> None:
    await registration.create_persistent_paths(await sessions())

    def stored() -> bytes | None:
        with server.client(chroot) as client:
            data: bytes | None = client.get(znodes.PRODUCER_ID_BLOCK_PATH)[0]
            return data

    assert await asyncio.to_thread(stored) is None, "Kafka does not start where it is empty data"


async def test_all_brokers_agree_on_one_cluster_id(sessions: OpenSession) -> None:
    one, two = await sessions(), await sessions()
    ids = await asyncio.gather(*map(registration.ensure_cluster_id, (one, two)))
    assert len(set(ids)) == 1
    assert await registration.ensure_cluster_id(one, ids[0]) == ids[0]
    with pytest.raises(ForeignClusterError, match=ids[0]):
        await registration.ensure_cluster_id(two, "another-cluster")


async def test_broker_epoch_is_the_czxid_of_the_znode(sessions: OpenSession) -> None:
    session = await sessions()
    mine = Registration(session, broker())
    await mine.start()
    data, stat = await session.get("/brokers/ids/1")
    assert mine.epoch == stat.czxid
    assert stat.owner == session.session_id
    assert znodes.decode_broker("/brokers/ids/1", data) == broker()()


async def test_request_of_a_controller_that_does_not_know_of_the_restart_is_not_admitted(
    server: zookeeper.Server, chroot: str, sessions: OpenSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    session = await sessions()
    with server.client(chroot) as old:
        old.create("/brokers/ids/1", b"{}", ephemeral=True, makepath=True)
        mine = Registration(session, broker())
        starting = asyncio.ensure_future(mine.start())
        await until_it_waits_for_the_former(caplog)
        for_the_former = asyncio.ensure_future(mine.admits_request())
        await asyncio.sleep(0.1)
        assert not for_the_former.done()
    await starting
    assert not await for_the_former
    assert await mine.admits_request()


async def test_request_that_overtakes_the_answer_to_the_registration_waits_and_is_admitted(
    sessions: OpenSession,
) -> None:
    session = await sessions()
    mine = Registration(session, broker())
    starting = asyncio.ensure_future(mine.start())
    await asyncio.sleep(0)  # the znode is asked for
    assert await mine.admits_request()
    await starting


async def test_request_that_comes_before_a_lost_answer_is_missed_is_admitted(
    sessions: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await sessions()
    mine = Registration(session, broker())
    create, came = session.create, list[asyncio.Future[bool]]()

    async def created_but_not_answered(*arguments: Any, **options: Any) -> None:
        monkeypatch.undo()
        await create(*arguments, **options)
        came.append(asyncio.ensure_future(mine.admits_request()))
        await asyncio.sleep(0.01)
        raise ConnectionLoss

    monkeypatch.setattr(session, "create", created_but_not_answered)
    await mine.start()
    assert await came[0]


async def test_live_duplicate_id_refuses_to_start(sessions: OpenSession) -> None:
    first = Registration(await sessions(), broker(9092))
    await first.start()
    second = Registration(await sessions(timeout_ms=2000), broker(9093))
    with pytest.raises(DuplicateBrokerError, match=r"broker\.id 1 .* PLAINTEXT://h:9092"):
        await second.start()


async def test_lingering_znode_of_the_previous_incarnation_is_waited_for(
    server: zookeeper.Server, chroot: str, sessions: OpenSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    session = await sessions()
    with server.client(chroot) as old:
        old.create("/brokers/ids/1", b"{}", ephemeral=True, makepath=True)
        mine = Registration(session, broker())
        starting = asyncio.ensure_future(mine.start())
        await until_it_waits_for_the_former(caplog)
        assert not starting.done()
    await starting
    assert mine.epoch > 0


async def test_former_that_lingers_as_the_server_stands_still_is_no_living_duplicate(
    server: zookeeper.Server, chroot: str, sessions: OpenSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    session = await sessions(timeout_ms=2000)
    mine = Registration(session, broker())
    with server.client(chroot) as old:
        former = znodes.encode_broker(broker()())
        old.create("/brokers/ids/1", former, ephemeral=True, makepath=True)
        starting = asyncio.ensure_future(mine.start())
        await until_it_waits_for_the_former(caplog)
        server.pause()
        try:
            with pytest.raises(DuplicateBrokerError):
                await starting
            goes = asyncio.ensure_future(registration.registration_disappears(session, 1))
            at_once_s = 2 * (registration.LINGER_FACTOR - 1) / 4
            await asyncio.sleep(2 * at_once_s)  # the server stands still for longer than that
            assert not goes.done()
        finally:
            server.resume()
    assert await goes
    await mine.start()
    assert mine.epoch > 0


async def test_own_znode_is_taken_over_with_the_new_payload(sessions: OpenSession) -> None:
    """A create whose answer was lost leaves the znode to this session."""
    session = await sessions()
    await session.create("/brokers/ids/1", b"old", ephemeral=True, make_parents=True)
    await Registration(session, broker()).start()
    assert (await session.get("/brokers/ids/1"))[0] == znodes.encode_broker(broker()())


async def test_broker_registers_again_after_expiry_and_tells(
    server: zookeeper.Server, sessions: OpenSession
) -> None:
    session = await sessions()
    mine = Registration(session, broker())
    await mine.start()
    told = asyncio.Event()

    async def tell() -> None:
        told.set()

    mine.on_registered(tell)
    first = mine.epoch
    running = asyncio.ensure_future(mine.run())
    await asyncio.to_thread(server.expire_session, session._client.client_id)
    await told.wait()
    assert mine.epoch > first
    stat = await session.exists("/brokers/ids/1")
    assert stat is not None
    assert stat.owner == session.session_id
    running.cancel()


async def test_a_registration_that_fails_unforeseen_is_tried_again(
    server: zookeeper.Server, sessions: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the znode, and of the listeners that are told."""
    monkeypatch.setattr(quarantine, "FIRST_PAUSE_S", 0.01)
    session = await sessions()
    failures = [KeyError("in the payload"), KeyError("in a listener")]
    told = asyncio.Event()

    def payload() -> BrokerRegistration:
        if started and len(failures) == 2:
            raise failures.pop()
        return broker()()

    async def tell() -> None:
        if failures:
            raise failures.pop()
        told.set()

    started = False
    mine = Registration(session, payload)
    await mine.start()
    started = True
    mine.on_registered(tell)
    running = asyncio.ensure_future(mine.run())
    await asyncio.to_thread(server.expire_session, session._client.client_id)
    async with asyncio.timeout(120):
        await told.wait()
    assert not failures
    assert not running.done()
    stat = await session.exists("/brokers/ids/1")
    assert stat is not None
    assert mine.epoch == stat.czxid
    running.cancel()
