"""Requested decisions on states that leaders changed without a notification yet, on ZooKeeper."""

from collections.abc import Iterable
from typing import Any

import pytest

from odradek.controller.election import Cause
from odradek.controller.event_queue import Item, ZnodeChange
from odradek.controller.events import RebalanceDue, WriteStates
from odradek.controller.store import ControllerStore
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.values import BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from odradek.zk import admin, znodes
from odradek.zk.session import Session, Stat
from odradek.zk.znodes import PartitionState, TopicAssignment
from tests.controller.conftest import BrokerController, Cluster, until
from tests.controller.values import partition_state

ONE, TWO = BrokerId(1), BrokerId(2)
PARTITION = TopicPartition("t", 0)
OTHERS = [TopicPartition("t", number) for number in range(1, 20)]


async def write_isr(session: Session, leader: BrokerId, *isr: BrokerId, epoch: int = 1) -> Stat:
    """Change a state as its leader does, which notifies the controller only later."""
    state = PartitionState(leader, LeaderEpoch(epoch), isr, ControllerEpoch(1))
    return await session.set(znodes.state_path("t", 0), znodes.encode_state(state))


async def present(session: Session) -> PartitionState:
    path = znodes.state_path("t", 0)
    return znodes.decode_state(path, (await session.get(path))[0])


async def start(
    cluster: Cluster, preferred: tuple[BrokerId, ...], *isr: BrokerId
) -> BrokerController:
    """Return a controller that knows broker 1 as leader of partition 0, and these in sync."""
    return (await start_both(cluster, preferred, *isr))[0]


async def start_both(
    cluster: Cluster, preferred: tuple[BrokerId, ...], *isr: BrokerId
) -> tuple[BrokerController, BrokerController]:
    """Return the controllers of broker 1, which is active, and of broker 2."""
    controller = await cluster.broker(1)
    await until(lambda: controller.active)
    other = await cluster.broker(2)
    await until(lambda: 9002 in cluster.received)
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


async def leave(candidate: BrokerController) -> None:
    await candidate.stop()
    await candidate.session.close()


def code_of(result: BrokerId | KafkaError) -> ErrorCode:
    """Return the code of an election that failed."""
    assert isinstance(result, KafkaError)
    return ErrorCode(result.code)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[TopicPartition]:
    """Return the list of the partitions whose states are read."""
    found: list[TopicPartition] = []
    read_states = ControllerStore.read_states

    async def record(
        store: ControllerStore, partitions: Iterable[TopicPartition], watch: Any = None
    ) -> Any:
        wanted = list(partitions)
        found.extend(wanted)
        return await read_states(store, wanted, watch)

    monkeypatch.setattr(ControllerStore, "read_states", record)
    return found


async def test_preferred_replica_that_is_in_sync_again_is_elected(
    cluster: Cluster, read: list[TopicPartition]
) -> None:
    controller = await start(cluster, (TWO, ONE), ONE)
    await write_isr(controller.session, ONE, ONE, TWO)
    read.clear()
    results = dict(await controller.elect_leaders([PARTITION, *OTHERS], Cause.PREFERRED))
    assert results.pop(PARTITION) == TWO
    refused = [one for one in results.values() if isinstance(one, KafkaError)]
    assert {one.code for one in refused} == {ErrorCode.ELECTION_NOT_NEEDED}
    assert len(refused) == len(results)
    assert read == [PARTITION], "others do not depend on their in-sync replicas"
    assert await present(controller.session) == partition_state(2, 2, (1, 2), 1)
    await until(lambda: cluster.roles(1)["t", 0] == (2, 2, [1, 2]))


async def test_preferred_election_by_znode_is_not_dropped(cluster: Cluster) -> None:
    controller = await start(cluster, (TWO, ONE), ONE)
    await write_isr(controller.session, ONE, ONE, TWO)
    wanted = znodes.encode_preferred_election([PARTITION])
    await controller.session.create(znodes.PREFERRED_ELECTION_PATH, wanted)
    while await controller.session.exists(znodes.PREFERRED_ELECTION_PATH):
        pass
    assert await present(controller.session) == partition_state(2, 2, (1, 2), 1)


async def test_preferred_replica_that_is_out_of_sync_again_is_refused(cluster: Cluster) -> None:
    controller = await start(cluster, (TWO, ONE), ONE, TWO)
    await write_isr(controller.session, ONE, ONE)
    results = await controller.elect_leaders([PARTITION], Cause.PREFERRED)
    assert code_of(results[PARTITION]) is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert await present(controller.session) == partition_state(1, 1, (1,), 1)


@pytest.mark.parametrize("isr", [(ONE, TWO), (ONE,)], ids=["in sync", "out of sync"])
async def test_election_is_decided_anew_if_the_leader_writes_first(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, isr: tuple[BrokerId, ...]
) -> None:
    controller = await start(cluster, (TWO, ONE), ONE, TWO)
    write_states = ControllerStore.write_states

    async def write_second(store: ControllerStore, wanted: WriteStates) -> Any:
        monkeypatch.setattr(ControllerStore, "write_states", write_states)
        await write_isr(controller.session, ONE, *isr)
        return await write_states(store, wanted)

    monkeypatch.setattr(ControllerStore, "write_states", write_second)
    result = (await controller.elect_leaders([PARTITION], Cause.PREFERRED))[PARTITION]
    if TWO in isr:
        assert result == TWO
        assert await present(controller.session) == partition_state(2, 2, (1, 2), 1)
    else:
        assert code_of(result) is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        assert await present(controller.session) == partition_state(1, 1, (1,), 1)


async def test_request_by_znode_stays_until_its_election_is_held(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = await start(cluster, (TWO, ONE), ONE, TWO)
    write_states = ControllerStore.write_states
    requested: list[Stat | None] = []

    async def write_second(store: ControllerStore, wanted: WriteStates) -> Any:
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
    assert await present(controller.session) == partition_state(2, 2, (2, 1), 1)


async def test_rebalance_elects_who_is_in_sync_again(
    cluster: Cluster, read: list[TopicPartition]
) -> None:
    controller = await start(cluster, (TWO, ONE), ONE)
    await write_isr(controller.session, ONE, ONE, TWO)
    read.clear()
    controller._queue.put(RebalanceDue())
    await until(lambda: cluster.roles(1).get(("t", 0)) == (2, 2, [1, 2]))
    assert read == [PARTITION]


async def test_controlled_shutdown_moves_leaders_to_who_is_in_sync_again(cluster: Cluster) -> None:
    controller = await start(cluster, (ONE, TWO), ONE)
    await write_isr(controller.session, ONE, ONE, TWO)
    assert await controller.controlled_shutdown(1) == []
    assert await present(controller.session) == partition_state(2, 2, (2,), 1)


async def test_request_finds_a_broker_whose_registration_no_watch_reported_yet(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = await cluster.broker(1)
    await until(lambda: controller.active)
    await admin.apply_create_topic(controller.session, "t", TopicAssignment({0: (ONE,)}), {})
    await until(lambda: ("t", 0) in cluster.roles(1))
    queue = controller._queue
    put = queue.put

    def put_all_but_brokers(item: Item) -> None:
        if item is not ZnodeChange.BROKERS:
            put(item)

    monkeypatch.setattr(queue, "put", put_all_but_brokers)
    await cluster.broker(2)
    assert await controller.reassign({PARTITION: (TWO,)}) == {PARTITION: None}


@pytest.mark.parametrize("told", [False, True], ids=["not announced", "announced"])
async def test_broker_that_dies_right_after_it_joined_leaves_the_in_sync_replicas(
    cluster: Cluster, told: bool
) -> None:
    controller, other = await start_both(cluster, (ONE, TWO), ONE)
    session = controller.session
    if told:  # after the controller noticed that the broker is gone
        await leave(other)
        active = controller._controller
        assert active is not None
        await until(lambda: TWO not in active.context.brokers)
    await write_isr(session, ONE, ONE, TWO)
    if told:
        notice = znodes.encode_isr_change([PARTITION])
        await session.create("/isr_change_notification/isr_change_", notice, sequence=True)
    else:
        await leave(other)
    await until(lambda: cluster.roles(1)["t", 0] == (1, 2, [1]))
    assert await present(session) == PartitionState(ONE, LeaderEpoch(2), (ONE,), ControllerEpoch(1))
