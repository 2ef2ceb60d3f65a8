"""Partition reassignments from request to end, on a real ZooKeeper and recording brokers."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest

from odradek.controller import reassignment
from odradek.controller.active_controller import ActiveController
from odradek.controller.context import ControllerContext
from odradek.controller.events import (
    AssignmentsWritten,
    ContextLoaded,
    Leadership,
    ReassignmentRequested,
)
from odradek.controller.replica_assignment import MOST_REPLICAS, ReplicaAssignment
from odradek.controller.step import step
from odradek.controller.store import ControllerStore
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages import control
from odradek.values import BrokerId, ControllerEpoch, TopicPartition
from odradek.zk import admin, znodes
from odradek.zk.session import NoNodeError, Session
from odradek.zk.znodes import TopicAssignment
from tests.controller.conftest import BrokerController, Cluster, until
from tests.controller.transcript import brokers
from tests.controller.values import broker_ids, partition_state, topic_assignment

PARTITION = TopicPartition("t", 0)


async def topic(session: Session) -> TopicAssignment:
    path = znodes.topic_path("t")
    found = znodes.decode_topic(path, (await session.get(path))[0])
    return replace(found, topic_id=None)


async def join(
    session: Session, leader: int, *isr: int, partition: TopicPartition = PARTITION
) -> None:
    """Write the state as a leader does when followers caught up, without a notification."""
    path = znodes.state_path(*partition)
    data, stat = await session.get(path)
    now = znodes.decode_state(path, data)
    assert now.leader == leader
    wanted = partition_state(leader, now.leader_epoch, isr, now.controller_epoch)
    await session.set(path, znodes.encode_state(wanted), stat.version)


async def request(session: Session, targets: dict[int, tuple[int, ...]]) -> None:
    wanted = {TopicPartition("t", number): broker_ids(*ids) for number, ids in targets.items()}
    await session.create(znodes.REASSIGN_PARTITIONS_PATH, znodes.encode_reassignment(wanted))


async def requested(session: Session) -> Mapping[TopicPartition, tuple[int, ...]] | None:
    path = znodes.REASSIGN_PARTITIONS_PATH
    try:
        return znodes.decode_reassignment(path, (await session.get(path))[0])
    except NoNodeError:
        return None


async def start(
    cluster: Cluster, *ids: int, replicas: tuple[int, ...] = (1, 2)
) -> list[BrokerController]:
    """Create a topic with one partition; return the brokers' controllers, the first one active."""
    controllers = [await cluster.broker(ids[0])]
    await until(lambda: controllers[0].active)
    controllers += [await cluster.broker(number) for number in ids[1:]]
    await until(lambda: all(9000 + number in cluster.received for number in ids))
    assignment = TopicAssignment({0: tuple(map(BrokerId, replicas))})
    await admin.apply_create_topic(controllers[0].session, "t", assignment, {})
    await until(lambda: all(("t", 0) in cluster.roles(one) for one in replicas))
    return controllers


def stopped(cluster: Cluster, broker_id: int) -> bool:
    return any(
        request.delete_partitions
        for request in cluster.requests(broker_id, control.StopReplicaRequest)
    )


def lists(cluster: Cluster, broker_id: int) -> tuple[int, list[int], list[int]] | None:
    """Return leader epoch, added and removed replicas that a broker received last, if any."""
    received = [
        (one.leader_epoch, one.adding_replicas, one.removing_replicas)
        for request in cluster.requests(broker_id, control.LeaderAndIsrRequest)
        for topic in request.topic_states
        for one in topic.partition_states
    ]
    return received[-1] if received else None


async def test_replicas_are_told_what_is_added_until_it_is_in_sync(cluster: Cluster) -> None:
    one, *_ = await start(cluster, 1, 2, 3)
    every = (1, 2, 3)
    await one.reassign({PARTITION: broker_ids(*every)})
    await until(lambda: all(lists(cluster, each) == (1, [3], []) for each in every))
    await join(one.session, 1, *every)
    await until(lambda: all(lists(cluster, each) == (2, [], []) for each in every))
    while (await topic(one.session)).adding:
        await asyncio.sleep(0.01)
    assert await topic(one.session) == topic_assignment({0: every})
    assert all(lists(cluster, each) == (2, [], []) for each in every)


async def test_request_in_zookeeper_reassigns_a_partition_and_is_removed(cluster: Cluster) -> None:
    one, *_ = await start(cluster, 1, 2, 3)
    session = await cluster.session()
    await request(session, {0: (3,), 5: (1,)})
    await until(lambda: cluster.roles(3).get(("t", 0)) == (1, 1, [1, 2]))
    assert await topic(session) == topic_assignment({0: (3, 1, 2)}, {0: (3,)}, {0: (1, 2)})
    assert await requested(session) == {PARTITION: (3,)}, "rejected entries are removed"
    await join(session, 1, 1, 2, 3)
    await until(lambda: cluster.roles(3)["t", 0] == (3, 2, [3]))
    await until(lambda: stopped(cluster, 1) and stopped(cluster, 2))
    while await requested(session) is not None:
        await asyncio.sleep(0.01)
    assert await topic(session) == topic_assignment({0: (3,)})
    assert one.active
    assert cluster.metadata(2) == {("t", 0): 3}


async def test_request_names_what_is_no_topic_beside_a_partition(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """It is refused and removed alone, as by Kafka."""
    await start(cluster, 1, 2, 3)
    session = await cluster.session()
    names = ("", "..", "a/b", "a\0b", "unknown")
    wanted = {TopicPartition(name, 0): broker_ids(1, 3) for name in (*names, "t")}
    await session.create(znodes.REASSIGN_PARTITIONS_PATH, znodes.encode_reassignment(wanted))
    while [*(await requested(session) or ())] != [TopicPartition("t", 0)]:
        await asyncio.sleep(0.01)
    await until(lambda: ("t", 0) in cluster.roles(3))
    for name in names:
        assert f"failed to reassign {name}-0: " in caplog.text


async def test_request_is_looked_at_once_and_again_when_a_tool_has_changed_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[int] = []
    look = ActiveController._read_reassignment

    async def counted(controller: ActiveController, event: ReassignmentRequested) -> None:
        looked_at.append(len(event.wanted))
        await look(controller, event)

    monkeypatch.setattr(ActiveController, "_read_reassignment", counted)
    one, *_ = await start(cluster, 1, 2, 3)
    session, replicas = one.session, broker_ids(1, 2)
    many = TopicAssignment(dict.fromkeys(range(6), replicas))
    await admin.apply_create_topic(session, "many", many, {})
    await until(lambda: ("many", 5) in cluster.roles(2))

    def wanted(*numbers: int) -> bytes:
        moves = {TopicPartition("many", number): broker_ids(1, 2, 3) for number in numbers}
        return znodes.encode_reassignment(moves)

    async def move(number: int) -> None:
        await until(lambda: ("many", number) in cluster.roles(3))
        await join(session, 1, 1, 2, 3, partition=TopicPartition("many", number))
        while TopicPartition("many", number) in (await requested(session) or {}):
            await asyncio.sleep(0.01)

    await session.create(znodes.REASSIGN_PARTITIONS_PATH, wanted(0, 1, 2, 3))
    for number in range(3):
        await move(number)
    await one.list_reassignments(None)  # it comes after what is queued
    assert looked_at == [4]
    await session.set(znodes.REASSIGN_PARTITIONS_PATH, wanted(3, 4))
    for number in (4, 3):
        await move(number)
    assert looked_at == [4, 2]
    # Another one with the same content is another request.
    for _ in range(2):
        await session.create(znodes.REASSIGN_PARTITIONS_PATH, wanted(5))
        if len(looked_at) == 2:
            await move(5)
        while await requested(session) is not None:
            await asyncio.sleep(0.01)
    assert looked_at == [4, 2, 1, 1]


async def test_request_for_a_topic_that_goes_before_it_is_written_does_not_stay(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody removes its znodes; tools make no other request while there is one."""
    one, *_ = await start(cluster, 1, 2, 3)
    session = await cluster.session()
    write = ControllerStore.write_assignments

    async def write_after_all_went(
        store: ControllerStore, wanted: Mapping[TopicPartition, ReplicaAssignment]
    ) -> AssignmentsWritten:
        for path in (
            znodes.state_path("t", 0),
            znodes.partition_path("t", 0),
            znodes.partitions_path("t"),
            znodes.topic_path("t"),
        ):
            await session.delete(path)
        return await write(store, wanted)

    monkeypatch.setattr(ControllerStore, "write_assignments", write_after_all_went)
    await request(session, {0: (1, 2, 3)})
    while await requested(session) is not None:
        await asyncio.sleep(0.01)
    assert one.active


async def test_reassignment_continues_under_the_next_controller(cluster: Cluster) -> None:
    one, two, three = await start(cluster, 1, 2, 3)
    session = await cluster.session()
    await one.reassign({PARTITION: (BrokerId(2), BrokerId(3))})
    await until(lambda: ("t", 0) in cluster.roles(3))
    await one.session.close()
    await until(lambda: two.active or three.active)
    await until(lambda: cluster.roles(3)["t", 0][::2] == (2, [2]))
    told = lists(cluster, 3)
    assert told is not None
    assert told[1:] == ([3], [1]), "the topic's znode has them"
    await join(session, 2, 2, 3)
    await until(lambda: lists(cluster, 3) == (told[0] + 1, [], []))
    while (await topic(session)).adding:
        await asyncio.sleep(0.01)
    # The reassignment does not wait for the deletion on a broker that is gone.
    assert await topic(session) == topic_assignment({0: (2, 3)})


async def test_reassignment_is_answered_listed_and_cancelled(cluster: Cluster) -> None:
    one, two, _ = await start(cluster, 1, 2, 3)
    unknown = TopicPartition("u", 0)
    answers = await one.reassign({PARTITION: (BrokerId(3),), unknown: (BrokerId(1),)})
    assert answers[PARTITION] is None
    refused = answers[unknown]
    assert refused is not None
    assert refused.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await one.list_reassignments(None) == {
        PARTITION: ReplicaAssignment(broker_ids(3, 1, 2), broker_ids(3), broker_ids(1, 2))
    }
    assert await one.list_reassignments([unknown]) == {}
    assert await one.reassign({PARTITION: None}) == {PARTITION: None}
    assert await one.list_reassignments(None) == {}, "a cancelled reassignment is not listed"
    await until(lambda: stopped(cluster, 3))
    while (await topic(one.session)).adding:
        await asyncio.sleep(0.01)
    assert await topic(one.session) == topic_assignment({0: (1, 2)})
    late = (await one.reassign({PARTITION: None}))[PARTITION]
    assert late is not None
    assert late.code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    with pytest.raises(KafkaError) as refusal:
        await two.reassign({PARTITION: None})
    assert refusal.value.code is ErrorCode.NOT_CONTROLLER


async def test_request_to_a_broker_overrides_the_one_in_zookeeper(cluster: Cluster) -> None:
    one, *_ = await start(cluster, 1, 2, 3)
    session = await cluster.session()
    await request(session, {0: (3,)})
    await until(lambda: ("t", 0) in cluster.roles(3))
    await one.reassign({PARTITION: (BrokerId(2),)})
    assert await requested(session) is None
    await until(lambda: cluster.roles(2)["t", 0][0] == 2)
    while (await topic(session)).removing:
        await asyncio.sleep(0.01)
    assert await topic(session) == topic_assignment({0: (2,)})


async def test_partitions_are_not_added_to_a_topic_that_is_reassigned(cluster: Cluster) -> None:
    one, *_ = await start(cluster, 1, 2, 3)
    await one.reassign({PARTITION: (BrokerId(3),)})
    with pytest.raises(KafkaError) as refusal:
        await admin.apply_grow_topic(one.session, "t", {1: (BrokerId(1),)})
    assert refusal.value.code is ErrorCode.REASSIGNMENT_IN_PROGRESS


async def test_undecodable_request_does_not_stop_the_controller(cluster: Cluster) -> None:
    one, *_ = await start(cluster, 1, 2)
    session = await cluster.session()
    await session.create(znodes.REASSIGN_PARTITIONS_PATH, b"{")
    await session.delete(znodes.REASSIGN_PARTITIONS_PATH)
    await request(session, {})
    while await requested(session) is not None:
        await asyncio.sleep(0.01)
    assert one.active
    assert one.epoch == 1


class CountedId(int):
    """A broker id that counts what it is compared with."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedId.compared += 1
        return int.__eq__(self, other)

    def __hash__(self) -> int:
        return int.__hash__(self)


def test_replicas_of_a_long_list_are_not_looked_for_one_by_one() -> None:
    target = tuple(BrokerId(CountedId(number)) for number in range(MOST_REPLICAS))
    CountedId.compared = 0
    after = ReplicaAssignment(broker_ids(5000, 5001)).reassign_to(target)
    assert after == ReplicaAssignment((*target, *broker_ids(5000, 5001)), target, after.removing)
    assert after.removing == broker_ids(5000, 5001)
    assert CountedId.compared <= 10 * MOST_REPLICAS


def test_brokers_that_are_away_are_refused_without_a_look_at_states() -> None:
    one, moving, cancelled = (TopicPartition("t", number) for number in (0, 1, 2))
    loaded = ContextLoaded(
        brokers=brokers(["1", "2"]),
        topics={"t": topic_assignment({0: (1, 9), 1: (3, 1), 2: (1,)}, {1: (3,)}, {1: (1,)})},
        leaderships={
            each: Leadership(partition_state(1, 1, (1,), 1), 1) for each in (one, moving, cancelled)
        },
    )
    context, _ = step(ControllerContext(BrokerId(1), ControllerEpoch(1)), loaded)
    asked: list[tuple[TopicPartition, tuple[BrokerId, ...] | None]] = [
        (one, broker_ids(2, 9)),
        (moving, broker_ids(3)),
        (cancelled, None),
    ]
    refused = reassignment.impossible(context, asked)
    assert {each: refusal.code for each, refusal in refused.items()} == {
        moving: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        cancelled: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
    }
    assert "Brokers 3 " in refused[moving].message
    assert not reassignment.impossible(context, [(moving, None), (moving, broker_ids(2))])


@pytest.mark.parametrize("isr", [(3,), (3, 1)], ids=["old", "present"])
def test_states_are_read_for_what_a_request_changes(isr: tuple[int, ...]) -> None:
    """On an old state, a cancelled reassignment looks as if it would lose records."""
    one, other, unknown = (TopicPartition("t", number) for number in (0, 1, 2))
    loaded = ContextLoaded(
        brokers=brokers(["1", "2", "3"]),
        topics={
            "t": topic_assignment({0: (3, 1), 1: (3, 1)}, {0: (3,), 1: (3,)}, {0: (1,), 1: (1,)})
        },
        leaderships={
            one: Leadership(partition_state(3, 1, isr, 1), 1),
            other: Leadership(partition_state(1, 1, (1,), 1), 1),
        },
    )
    context, _ = step(ControllerContext(BrokerId(1), ControllerEpoch(1)), loaded)
    asked = ReassignmentRequested(
        {one: broker_ids(2), other: broker_ids(3), unknown: broker_ids(3)}, by_znode=True
    )
    assert reassignment.depend_on_isr(context, asked) == [one], "the other goes on as it is"
    refused = reassignment.refusals(context, asked).keys()
    assert refused == ({unknown} if 1 in isr else {one, unknown})
    malformed = ReassignmentRequested({one: (), other: broker_ids(2, 2)}, by_znode=True)
    assert reassignment.depend_on_isr(context, malformed) == []
