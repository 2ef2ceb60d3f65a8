"""Requested decisions on states that leaders changed without a notification yet, on ZooKeeper."""

import pytest

from odradek.controller.election import Cause
from odradek.controller.event_queue import ZnodeChange
from odradek.controller.events import RebalanceDue
from odradek.controller.store import ControllerStore
from odradek.protocol.errors import ErrorCode
from odradek.values import BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from odradek.zk import admin, znodes
from odradek.zk.znodes import PartitionState, TopicAssignment
from tests.controller.conftest import until

ONE, TWO = BrokerId(1), BrokerId(2)
PARTITION = TopicPartition("t", 0)
OTHERS = [TopicPartition("t", number) for number in range(1, 20)]


async def write_isr(session, leader, *isr, epoch=1):
    """Change a state as its leader does, which notifies the controller only later."""
    state = PartitionState(leader, LeaderEpoch(epoch), isr, ControllerEpoch(1))
    return await session.set(znodes.state_path("t", 0), znodes.encode_state(state))


async def present(session):
    path = znodes.state_path("t", 0)
    return znodes.decode_state(path, (await session.get(path))[0])


async def start(cluster, preferred, *isr):
    """Return a controller that knows broker 1 as leader of partition 0, and these in sync."""
    return (await start_both(cluster, preferred, *isr))[0]


async def start_both(cluster, preferred, *isr):
    """Return broker 2's candidate too."""
    controller = await cluster.broker(1)
    await until(lambda: controller.active)
    other = await cluster.broker(2)
    await until(lambda: 9002 in cluster.told)
    session = controller.session
    others = {one.partition: (ONE, TWO) for one in OTHERS}
    assignment = TopicAssignment({0: preferred, **others})
    await admin.apply_create_topic(session, "t", assignment, {})
    await until(lambda: ("t", 0) in cluster.metadata(2))
    await write_isr(session, ONE, *isr)
    notice = znodes.encode_isr_change([PARTITION])
    await session.create("/isr_change_notification/isr_change_", notice, sequence=True)
    while await session.children("/isr_change_notification"):
        pass
    return controller, other


async def leave(candidate):
    await candidate.stop()
    await candidate.session.close()


@pytest.fixture
def read(monkeypatch):
    """Return the list of the partitions whose states are read."""
    found = []
    read_states = ControllerStore.read_states

    async def record(store, partitions, watch=None):
        wanted = list(partitions)
        found.extend(wanted)
        return await read_states(store, wanted, watch)

    monkeypatch.setattr(ControllerStore, "read_states", record)
    return found


async def test_preferred_replica_that_is_in_sync_again_is_elected(cluster, read):
    controller = await start(cluster, (TWO, ONE), ONE)
    await write_isr(controller.session, ONE, ONE, TWO)
    read.clear()
    results = await controller.elect_leaders([PARTITION, *OTHERS], Cause.PREFERRED)
    assert results.pop(PARTITION) == TWO
    assert {one.code for one in results.values()} == {ErrorCode.ELECTION_NOT_NEEDED}
    assert read == [PARTITION], "others do not depend on their in-sync replicas"
    assert await present(controller.session) == PartitionState(2, 2, (1, 2), 1)
    await until(lambda: cluster.roles(1)["t", 0] == (2, 2, [1, 2]))


async def test_preferred_election_by_znode_is_not_dropped(cluster):
    controller = await start(cluster, (TWO, ONE), ONE)
    await write_isr(controller.session, ONE, ONE, TWO)
    wanted = znodes.encode_preferred_election([PARTITION])
    await controller.session.create(znodes.PREFERRED_ELECTION_PATH, wanted)
    while await controller.session.exists(znodes.PREFERRED_ELECTION_PATH):
        pass
    assert await present(controller.session) == PartitionState(2, 2, (1, 2), 1)


async def test_preferred_replica_that_is_out_of_sync_again_is_refused(cluster):
    controller = await start(cluster, (TWO, ONE), ONE, TWO)
    await write_isr(controller.session, ONE, ONE)
    results = await controller.elect_leaders([PARTITION], Cause.PREFERRED)
    assert results[PARTITION].code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert await present(controller.session) == PartitionState(1, 1, (1,), 1)


@pytest.mark.parametrize("isr", [(ONE, TWO), (ONE,)], ids=["in sync", "out of sync"])
async def test_election_is_decided_anew_if_the_leader_writes_first(cluster, monkeypatch, isr):
    controller = await start(cluster, (TWO, ONE), ONE, TWO)
    write_states = ControllerStore.write_states

    async def write_second(store, wanted):
        monkeypatch.setattr(ControllerStore, "write_states", write_states)
        await write_isr(controller.session, ONE, *isr)
        return await write_states(store, wanted)

    monkeypatch.setattr(ControllerStore, "write_states", write_second)
    result = (await controller.elect_leaders([PARTITION], Cause.PREFERRED))[PARTITION]
    if TWO in isr:
        assert result == TWO
        assert await present(controller.session) == PartitionState(2, 2, (1, 2), 1)
    else:
        assert result.code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        assert await present(controller.session) == PartitionState(1, 1, (1,), 1)


async def test_request_by_znode_stays_until_its_election_is_held(cluster, monkeypatch):
    controller = await start(cluster, (TWO, ONE), ONE, TWO)
    write_states = ControllerStore.write_states
    requested = []

    async def write_second(store, wanted):
        requested.append(await controller.session.exists(znodes.PREFERRED_ELECTION_PATH))
        if len(requested) == 1:
            await write_isr(controller.session, ONE, TWO, ONE)
        return await write_states(store, wanted)

    monkeypatch.setattr(ControllerStore, "write_states", write_second)
    wanted = znodes.encode_preferred_election([PARTITION])
    await controller.session.create(znodes.PREFERRED_ELECTION_PATH, wanted)
    while await controller.session.exists(znodes.PREFERRED_ELECTION_PATH):
        pass
    assert len(requested) == 2
    assert None not in requested
    assert await present(controller.session) == PartitionState(2, 2, (2, 1), 1)


async def test_rebalance_elects_who_is_in_sync_again(cluster, read):
    controller = await start(cluster, (TWO, ONE), ONE)
    await write_isr(controller.session, ONE, ONE, TWO)
    read.clear()
    controller._queue.put(RebalanceDue())
    await until(lambda: cluster.roles(1).get(("t", 0)) == (2, 2, [1, 2]))
    assert read == [PARTITION]


async def test_controlled_shutdown_moves_leaders_to_who_is_in_sync_again(cluster):
    controller = await start(cluster, (ONE, TWO), ONE)
    await write_isr(controller.session, ONE, ONE, TWO)
    assert await controller.controlled_shutdown(1) == []
    assert await present(controller.session) == PartitionState(2, 2, (2,), 1)


async def test_request_finds_a_broker_whose_registration_no_watch_reported_yet(
    cluster, monkeypatch
):
    controller = await cluster.broker(1)
    await until(lambda: controller.active)
    await admin.apply_create_topic(controller.session, "t", TopicAssignment({0: (ONE,)}), {})
    await until(lambda: ("t", 0) in cluster.roles(1))
    queue = controller._queue
    put = queue.put
    monkeypatch.setattr(queue, "put", lambda item: item is ZnodeChange.BROKERS or put(item))
    await cluster.broker(2)
    assert await controller.reassign({PARTITION: (TWO,)}) == {PARTITION: None}


@pytest.mark.parametrize("told", [False, True], ids=["not announced", "announced"])
async def test_broker_that_dies_right_after_it_joined_leaves_the_in_sync_replicas(cluster, told):
    controller, other = await start_both(cluster, (ONE, TWO), ONE)
    session = controller.session
    if told:  # after the controller noticed that the broker is gone
        await leave(other)
        await until(lambda: TWO not in controller._controller.context.brokers)
    await write_isr(session, ONE, ONE, TWO)
    if told:
        notice = znodes.encode_isr_change([PARTITION])
        await session.create("/isr_change_notification/isr_change_", notice, sequence=True)
    else:
        await leave(other)
    await until(lambda: cluster.roles(1)["t", 0] == (1, 2, [1]))
    assert await present(session) == PartitionState(1, 2, (1,), 1)
