"""Controllers that are elected and send requests to recording brokers, on a real ZooKeeper."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from odradek.controller import active_controller
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages import control
from odradek.values import BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from odradek.zk import admin, znodes
from odradek.zk.operations import Delete, Operation
from odradek.zk.session import ConnectionLoss, Session
from odradek.zk.znodes import PartitionState, TopicAssignment
from tests.controller.conftest import Cluster, until
from tests.controller.values import partition_state
from tests.support import zookeeper

TIMEOUT_MS = 120_000


def replicas(**partitions: tuple[int, ...]) -> TopicAssignment:
    """Return an assignment: p0=(1, 2)."""
    return TopicAssignment(
        {int(name[1:]): tuple(map(BrokerId, brokers)) for name, brokers in partitions.items()}
    )


async def state(session: Session, topic: str, partition: int) -> tuple[PartitionState, int]:
    path = znodes.state_path(topic, partition)
    data, stat = await session.get(path)
    return znodes.decode_state(path, data), stat.version


async def has(session: Session, path: str) -> bool:
    return await session.exists(path) is not None


def has_role(cluster: Cluster, topic: str) -> bool:
    """Return whether broker 1 has a role for partition 0."""
    return (topic, 0) in cluster.roles(1)


async def until_async(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():
        await asyncio.sleep(0.01)


async def test_one_of_three_brokers_becomes_controller_with_epoch_1(cluster: Cluster) -> None:
    controllers = await asyncio.gather(*(cluster.broker(n) for n in (1, 2, 3)))
    await until(lambda: any(one.active for one in controllers))
    (winner,) = [one for one in controllers if one.active]
    session = await cluster.session()
    assert winner.epoch == 1
    assert (await session.get("/controller_epoch"))[0] == b"1"
    data, stat = await session.get("/controller")
    assert znodes.decode_controller("/controller", data).broker_id == winner.broker_id
    assert stat.owner == winner.session.session_id


async def test_another_broker_is_elected_when_the_controller_stops_or_its_znode_is_deleted(
    cluster: Cluster,
) -> None:
    one = await cluster.broker(1)
    await until(lambda: one.active)
    two = await cluster.broker(2)
    await one.session.close()
    await until(lambda: two.active)
    assert two.epoch == 2
    await two.session.delete("/controller")
    await until(lambda: two.active and two.epoch == 3)


async def test_new_topic_gets_states_and_leaders_that_all_brokers_receive(cluster: Cluster) -> None:
    controller = await cluster.broker(1)
    await cluster.broker(2)
    await until(
        lambda: controller.active and len(cluster.metadata(2)) == 0 and 9002 in cluster.received
    )
    await admin.apply_create_topic(controller.session, "t", replicas(p0=(1, 2), p1=(2, 1)), {})
    await until(lambda: len(cluster.roles(1)) == len(cluster.roles(2)) == 2)
    assert (
        cluster.roles(1)
        == cluster.roles(2)
        == {
            ("t", 0): (1, 0, [1, 2]),
            ("t", 1): (2, 0, [2, 1]),
        }
    )
    await until(lambda: cluster.metadata(1) == {("t", 0): 1, ("t", 1): 2})
    found, version = await state(controller.session, "t", 0)
    assert (found, version) == (partition_state(1, 0, (1, 2), 1), 0)
    (topic,) = cluster.requests(1, control.LeaderAndIsrRequest)[0].topic_states
    assert topic.partition_states[0].is_new
    # Metadata without topics comes first: the other brokers. A leader knows that it leads before
    # clients do.
    kinds = [type(one) for one in cluster.received[9001]]
    assert kinds[0] is control.UpdateMetadataRequest
    about_topics = [type(one) for one in cluster.received[9001] if one.topic_states]
    assert about_topics == [control.LeaderAndIsrRequest, control.UpdateMetadataRequest]


async def test_partitions_added_to_a_topic_get_leaders(cluster: Cluster) -> None:
    controller = await cluster.broker(1)
    await until(lambda: controller.active)
    await admin.apply_create_topic(controller.session, "t", replicas(p0=(1,)), {})
    await until(lambda: ("t", 0) in cluster.roles(1))
    await admin.apply_grow_topic(controller.session, "t", {1: (BrokerId(1),)})
    await until(lambda: cluster.roles(1).get(("t", 1)) == (1, 0, [1]))


async def test_two_hundred_partitions_are_created_in_batches(cluster: Cluster) -> None:
    controller = await cluster.broker(1)
    await until(lambda: controller.active)
    many = TopicAssignment({number: (BrokerId(1),) for number in range(200)})
    await admin.apply_create_topic(controller.session, "big", many, {})
    await until(lambda: len(cluster.roles(1)) == 200)
    assert len(cluster.requests(1, control.LeaderAndIsrRequest)) == 1
    assert await state(controller.session, "big", 199) == (partition_state(1, 0, (1,), 1), 0)


async def test_failed_broker_loses_its_leaderships_and_returns_as_follower(
    cluster: Cluster,
) -> None:
    controller = await cluster.broker(1)
    await until(lambda: controller.active)
    leader = await cluster.broker(2)
    await until(lambda: 9002 in cluster.received)
    await admin.apply_create_topic(controller.session, "t", replicas(p0=(2, 1)), {})
    await until(lambda: ("t", 0) in cluster.roles(1))
    await leader.stop()
    await leader.session.close()
    await until(lambda: cluster.roles(1)["t", 0] == (1, 1, [1]))
    await cluster.broker(2)
    await until(lambda: cluster.roles(2)["t", 0] == (1, 1, [1]))


async def test_broker_without_the_listener_between_brokers_leads_nothing_until_it_has_it(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """No role could be told to it."""
    controller = await cluster.broker(1)
    await until(lambda: controller.active)
    leader = await cluster.broker(2)
    await until(lambda: 9002 in cluster.received)
    await admin.apply_create_topic(controller.session, "t", replicas(p0=(2, 1)), {})
    await until(lambda: has_role(cluster, "t"))
    await leader.stop()
    await leader.session.close()
    await until(lambda: cluster.roles(1)["t", 0] == (1, 1, [1]))
    del cluster.received[9002]
    elsewhere = await cluster.broker(2, listener="SECURE")
    await until(lambda: "broker 2: it has no listener PLAINTEXT" in caplog.text)
    await admin.apply_create_topic(controller.session, "u", replicas(p0=(2, 1)), {})
    await until(lambda: has_role(cluster, "u"))
    assert cluster.roles(1)["u", 0] == (1, 0, [1])
    assert 9002 not in cluster.received
    await elsewhere.stop()
    await elsewhere.session.close()
    await cluster.broker(2)
    await until(lambda: cluster.roles(2).keys() == {("t", 0), ("u", 0)})


async def test_leader_that_registered_after_its_state_was_written_leads_in_a_new_epoch(
    cluster: Cluster,
) -> None:
    """No controller saw it restart; a controller that changes later gives no other epoch."""
    alone = await cluster.broker(1)
    await until(lambda: alone.active)
    await admin.apply_create_topic(alone.session, "t", replicas(p0=(1,)), {})
    await until(lambda: has_role(cluster, "t"))
    await alone.stop()
    await alone.session.close()
    cluster.received.clear()
    again = await cluster.broker(1)
    await until(lambda: has_role(cluster, "t"))
    assert cluster.roles(1)["t", 0] == (1, 1, [1])
    assert (await state(again.session, "t", 0))[0] == partition_state(1, 1, (1,), 2)
    cluster.received.clear()
    await again.session.delete("/controller")
    await until(lambda: has_role(cluster, "t"))
    assert again.epoch == 3
    assert cluster.roles(1)["t", 0] == (1, 1, [1])


async def test_isr_written_by_the_leader_is_not_overwritten(cluster: Cluster) -> None:
    """The controller decides on an old version, the write conflicts, and it decides again."""
    controller = await cluster.broker(1)
    await until(lambda: controller.active)
    others = [await cluster.broker(number) for number in (2, 3)]
    await until(lambda: 9003 in cluster.received)
    await admin.apply_create_topic(controller.session, "t", replicas(p0=(2, 3, 1)), {})
    await until(lambda: ("t", 0) in cluster.roles(1))
    await controller.session.set(
        znodes.state_path("t", 0),
        znodes.encode_state(
            PartitionState(
                BrokerId(2), LeaderEpoch(0), (BrokerId(2), BrokerId(1)), ControllerEpoch(1)
            )
        ),
        0,
    )
    await others[0].stop()
    await others[0].session.close()
    await until(lambda: cluster.roles(1)["t", 0][0] != 2)
    assert cluster.roles(1)["t", 0] == (1, 1, [1])
    assert await state(controller.session, "t", 0) == (partition_state(1, 1, (1,), 1), 2)


async def test_isr_change_notification_reaches_every_broker_and_is_removed(
    cluster: Cluster,
) -> None:
    controller = await cluster.broker(1)
    await until(lambda: controller.active)
    await cluster.broker(2)
    await until(lambda: 9002 in cluster.received)
    await admin.apply_create_topic(controller.session, "t", replicas(p0=(1, 2)), {})
    await until(lambda: ("t", 0) in cluster.roles(2))
    session = controller.session
    shrunk = PartitionState(BrokerId(1), LeaderEpoch(0), (BrokerId(1),), ControllerEpoch(1))
    await session.set(znodes.state_path("t", 0), znodes.encode_state(shrunk), 0)
    notice = znodes.encode_isr_change([TopicPartition("t", 0)])
    await session.create("/isr_change_notification/isr_change_", notice, sequence=True)

    def last_isr() -> list[list[int]]:
        request = cluster.requests(2, control.UpdateMetadataRequest)[-1]
        return [one.isr for topic in request.topic_states for one in topic.partition_states]

    await until(lambda: last_isr() == [[1]])

    async def removed() -> bool:
        return await session.children("/isr_change_notification") == []

    await until_async(removed)


@pytest.mark.parametrize("form", ["child", "payload"])
async def test_a_request_to_delete_what_is_no_topic_holds_up_no_other(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, form: str
) -> None:
    """Its removal would be refused, or be that of the parent, without which none could be read."""
    controller = await cluster.broker(1)
    await until(lambda: controller.active)
    session = controller.session
    await admin.apply_create_topic(session, "t", replicas(p0=(1,)), {"a": "b"})
    await until(lambda: len(cluster.roles(1)) == 1)
    names = ["", "..", "a/b", "a\0b"]
    payload = names if form == "child" else [*names, "t"]
    await session.set("/admin/delete_topics", znodes.encode_delete_topics(payload))
    if form == "child":
        await admin.apply_request_deletion(session, "t")

    async def gone() -> bool:
        left = await has(session, "/brokers/topics/t")
        data, _ = await session.get("/admin/delete_topics")
        return not left and data == b"" and not await session.children("/admin/delete_topics")

    await until_async(gone)
    assert controller.elections == 1
    assert "dropping requests to delete '', '..', 'a\\x00b', 'a/b'" in caplog.text


@pytest.mark.parametrize("form", ["child", "payload"])
async def test_topic_is_deleted_from_brokers_and_znodes(cluster: Cluster, form: str) -> None:
    controller = await cluster.broker(1)
    await until(lambda: controller.active)
    session = controller.session
    await admin.apply_create_topic(session, "t", replicas(p0=(1,), p1=(1,)), {"a": "b"})
    await until(lambda: len(cluster.roles(1)) == 2)
    if form == "child":
        await admin.apply_request_deletion(session, "t")
    else:
        await session.set("/admin/delete_topics", znodes.encode_delete_topics(["t", "unknown"]))

    async def gone() -> bool:
        left = [await has(session, p) for p in ("/brokers/topics/t", "/config/topics/t")]
        data, _ = await session.get("/admin/delete_topics")
        return not any(left) and data == b"" and not await session.children("/admin/delete_topics")

    await until_async(gone)
    (stop,) = cluster.requests(1, control.StopReplicaRequest)
    assert stop.delete_partitions
    assert [(topic.name, set(topic.partition_indexes)) for topic in stop.topics] == [("t", {0, 1})]
    assert cluster.metadata(1) == {("t", 0): -2, ("t", 1): -2}
    await admin.apply_create_topic(session, "t", replicas(p0=(1,)), {})
    await until(lambda: cluster.metadata(1)["t", 0] == 1)


@pytest.mark.parametrize(
    ("partitions", "changed"),
    [
        (60, None),
        (1, "/brokers/topics/t/partitions/0/noted-by-somebody"),
        (1, "/brokers/topics/t/partitions/1"),
    ],
    ids=["many partitions", "something below a partition", "a partition more"],
)
async def test_topic_is_deleted_with_all_znodes_below_it(
    cluster: Cluster, partitions: int, changed: str | None
) -> None:
    controller = await cluster.broker(1)
    await until(lambda: controller.active)
    session = controller.session
    placed = replicas(**{f"p{number}": (1,) for number in range(partitions)})
    await admin.apply_create_topic(session, "t", placed, {})
    await until(lambda: len(cluster.roles(1)) == partitions)
    if changed is not None:
        await session.create(changed, b"")
    await admin.apply_request_deletion(session, "t")

    async def gone() -> bool:
        left = [await has(session, p) for p in ("/brokers/topics/t", "/config/topics/t")]
        return not any(left) and not await session.children("/admin/delete_topics")

    await until_async(gone)


@pytest.mark.parametrize("partitions", [1, 60])
async def test_recreated_topic_stays_when_the_answer_to_the_removal_is_lost(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    controller = await cluster.broker(1)
    await until(lambda: controller.active)
    session, multi = controller.session, controller.session.multi
    placed = replicas(**{f"p{number}": (1,) for number in range(partitions)})
    await admin.apply_create_topic(session, "t", placed, {"a": "former"})
    await until(lambda: len(cluster.roles(1)) == partitions)

    async def removed_and_made_anew(operations: Sequence[Operation]) -> list[Any]:
        results = await multi(operations)
        if Delete("/brokers/topics/t") in operations:
            monkeypatch.undo()
            await admin.apply_create_topic(session, "t", replicas(p0=(1,)), {"a": "new"})
            raise ConnectionLoss
        return results

    monkeypatch.setattr(session, "multi", removed_and_made_anew)
    await admin.apply_request_deletion(session, "t")

    def leaders_sent() -> list[int]:
        return [
            one.leader
            for request in cluster.requests(1, control.UpdateMetadataRequest)
            for topic in request.topic_states
            for one in topic.partition_states
            if one.partition_index == 0
        ]

    await until(lambda: -2 in leaders_sent() and leaders_sent()[-1] == 1)
    data, _ = await session.get("/config/topics/t")
    assert znodes.decode_config("/config/topics/t", data) == {"a": "new"}
    assert await has(session, "/brokers/topics/t")


async def test_deletion_waits_for_a_dead_broker_and_continues_when_it_returns(
    cluster: Cluster,
) -> None:
    controller = await cluster.broker(1)
    await until(lambda: controller.active)
    other = await cluster.broker(2)
    await until(lambda: 9002 in cluster.received)
    session = controller.session
    await admin.apply_create_topic(session, "t", replicas(p0=(1, 2)), {})
    await until(lambda: ("t", 0) in cluster.roles(2))
    await other.stop()
    await other.session.close()
    await until(lambda: cluster.roles(1)["t", 0] == (1, 1, [1]))
    await admin.apply_request_deletion(session, "t")
    # As it may never return, nobody waits for the end.
    await until(lambda: cluster.requests(1, control.StopReplicaRequest))
    assert await controller.wait_until_deleted("t", TIMEOUT_MS)
    assert await has(session, "/brokers/topics/t")
    await cluster.broker(2)

    async def gone() -> bool:
        return not await has(session, "/brokers/topics/t")

    await until_async(gone)
    assert cluster.requests(2, control.StopReplicaRequest)


async def test_who_waits_for_a_deletion_is_told_when_the_name_is_free(cluster: Cluster) -> None:
    controller = await cluster.broker(1)
    await until(lambda: controller.active)
    await cluster.broker(2)
    await until(lambda: 9002 in cluster.received)
    session = controller.session
    await admin.apply_create_topic(session, "t", replicas(p0=(1, 2)), {})
    await until(lambda: ("t", 0) in cluster.roles(2))
    cluster.down.add(9002)
    await admin.apply_request_deletion(session, "t")
    waiting = asyncio.ensure_future(controller.wait_until_deleted("t", TIMEOUT_MS))
    await until(lambda: cluster.requests(1, control.StopReplicaRequest))
    assert not await controller.wait_until_deleted("t", 1)
    assert not waiting.done()
    cluster.down.clear()
    assert await waiting
    assert not await has(session, "/brokers/topics/t")
    assert not await session.children("/admin/delete_topics")


async def test_who_waits_for_a_deletion_is_told_when_a_broker_fails_it(cluster: Cluster) -> None:
    controller = await cluster.broker(1)
    await until(lambda: controller.active)
    session = controller.session
    await admin.apply_create_topic(session, "t", replicas(p0=(1,)), {})
    await until(lambda: ("t", 0) in cluster.roles(1))
    cluster.errors[9001] = ErrorCode.KAFKA_STORAGE_ERROR
    await admin.apply_request_deletion(session, "t")
    assert await controller.wait_until_deleted("t", TIMEOUT_MS)
    assert await has(session, "/brokers/topics/t")


async def test_nobody_waits_for_the_next_controller_to_delete_a_topic(cluster: Cluster) -> None:
    one = await cluster.broker(1)
    await until(lambda: one.active)
    await cluster.broker(2)
    await until(lambda: 9002 in cluster.received)
    await admin.apply_create_topic(one.session, "t", replicas(p0=(2,)), {})
    await until(lambda: ("t", 0) in cluster.roles(2))
    cluster.down.add(9002)
    waiting = asyncio.ensure_future(one.wait_until_deleted("t", TIMEOUT_MS))
    await admin.apply_request_deletion(one.session, "t")
    await asyncio.sleep(0)
    assert not waiting.done()
    await one.stop()
    assert await waiting


async def test_deletion_request_is_removed_if_deletion_is_disabled(cluster: Cluster) -> None:
    controller = await cluster.broker(1, delete_topic_enable="false")
    await until(lambda: controller.active)
    session = controller.session
    await admin.apply_create_topic(session, "t", replicas(p0=(1,)), {})
    await until(lambda: ("t", 0) in cluster.roles(1))
    await admin.apply_request_deletion(session, "t")

    async def dropped() -> bool:
        return not await session.children("/admin/delete_topics")

    await until_async(dropped)
    assert await has(session, "/brokers/topics/t")
    assert not cluster.requests(1, control.StopReplicaRequest)


async def test_next_controller_finishes_a_deletion_and_offline_elections(cluster: Cluster) -> None:
    one = await cluster.broker(1)
    await until(lambda: one.active)
    two = await cluster.broker(2)
    await until(lambda: 9002 in cluster.received)
    await admin.apply_create_topic(one.session, "t", replicas(p0=(1, 2)), {})
    await admin.apply_create_topic(one.session, "d", replicas(p0=(2,)), {})
    await until(lambda: {("t", 0), ("d", 0)} <= cluster.roles(2).keys())
    cluster.down.add(9002)
    await admin.apply_request_deletion(one.session, "d")
    await until(lambda: one.requests_queued == 0)
    await one.session.close()
    cluster.down.clear()
    await until(lambda: two.active)
    await until(lambda: cluster.roles(2)["t", 0] == (2, 1, [2]))
    found, _ = await state(two.session, "t", 0)
    assert found.controller_epoch == 2

    async def gone() -> bool:
        return not await has(two.session, "/brokers/topics/d")

    await until_async(gone)


async def test_fenced_controller_cannot_write_and_resigns(cluster: Cluster) -> None:
    one = await cluster.broker(1)
    await until(lambda: one.active)
    # Another controller was elected unseen: the epoch changed while /controller still names us.
    await one.session.set("/controller_epoch", b"7")
    await admin.apply_create_topic(one.session, "t", replicas(p0=(1,)), {})
    await until(lambda: one.active and one.epoch == 8)
    await until(lambda: ("t", 0) in cluster.roles(1))
    found, _ = await state(one.session, "t", 0)
    assert found.controller_epoch == 8


async def test_controller_is_elected_again_after_its_session_expired(
    cluster: Cluster, server: zookeeper.Server
) -> None:
    one = await cluster.broker(1)
    await until(lambda: one.active)
    await admin.apply_create_topic(one.session, "t", replicas(p0=(1,)), {})
    await until(lambda: ("t", 0) in cluster.roles(1))
    await asyncio.to_thread(server.expire_session, one.session._client.client_id)
    await until(lambda: one.active and one.epoch == 2)
    await admin.apply_create_topic(one.session, "u", replicas(p0=(1,)), {})
    await until(lambda: cluster.roles(1).get(("u", 0)) == (1, 0, [1]))


async def test_controlled_shutdown_moves_leaders_and_returns_those_that_stay(
    cluster: Cluster,
) -> None:
    controller = await cluster.broker(1)
    await until(lambda: controller.active)
    await cluster.broker(2)
    await until(lambda: 9002 in cluster.received)
    session = controller.session
    await admin.apply_create_topic(session, "t", replicas(p0=(2, 1), p1=(1, 2), p2=(2,)), {})
    await until(lambda: len(cluster.roles(2)) == 3)
    assert await controller.controlled_shutdown(2) == []
    assert (await state(session, "t", 0))[0] == partition_state(1, 1, (1,), 1)
    assert (await state(session, "t", 1))[0] == partition_state(1, 1, (1,), 1)
    assert (await state(session, "t", 2))[0] == partition_state(2, 0, (2,), 1)
    with pytest.raises(KafkaError) as caught:
        await controller.controlled_shutdown(9)
    assert caught.value.code == ErrorCode.BROKER_NOT_AVAILABLE


async def test_controlled_shutdown_of_a_former_life_does_not_stop_the_present_one(
    cluster: Cluster,
) -> None:
    """The broker gave up and restarted while the controller had its request in a queue."""
    controller = await cluster.broker(1)
    await until(lambda: controller.active)
    two = await cluster.broker(2)
    await until(lambda: 9002 in cluster.received)
    await admin.apply_create_topic(controller.session, "t", replicas(p0=(2, 1)), {})
    await until(lambda: ("t", 0) in cluster.roles(2))
    present = two.registration.epoch
    with pytest.raises(KafkaError) as caught:
        await controller.controlled_shutdown(2, present - 1)
    assert caught.value.code == ErrorCode.STALE_BROKER_EPOCH
    assert (await state(controller.session, "t", 0))[0] == partition_state(2, 0, (2, 1), 1)
    assert await controller.controlled_shutdown(2, present) == []
    assert (await state(controller.session, "t", 0))[0] == partition_state(1, 1, (1,), 1)


async def test_controlled_shutdown_is_refused_by_a_broker_that_is_not_controller(
    cluster: Cluster,
) -> None:
    one = await cluster.broker(1)
    await until(lambda: one.active)
    two = await cluster.broker(2)
    with pytest.raises(KafkaError) as caught:
        await two.controlled_shutdown(1)
    assert caught.value.code == ErrorCode.NOT_CONTROLLER


async def test_preferred_election_moves_leaders_back_and_removes_its_znode(
    cluster: Cluster,
) -> None:
    controller = await cluster.broker(1)
    await until(lambda: controller.active)
    await cluster.broker(2)
    await until(lambda: 9002 in cluster.received)
    session = controller.session
    await admin.apply_create_topic(session, "t", replicas(p0=(2, 1)), {})
    await until(lambda: ("t", 0) in cluster.roles(2))
    path = znodes.state_path("t", 0)
    moved = PartitionState(
        BrokerId(1), LeaderEpoch(1), (BrokerId(1), BrokerId(2)), ControllerEpoch(1)
    )
    await session.set(path, znodes.encode_state(moved), 0)
    notice = znodes.encode_isr_change([TopicPartition("t", 0)])
    await session.create("/isr_change_notification/isr_change_", notice, sequence=True)
    await until(lambda: cluster.metadata(2)["t", 0] == 1)
    asked = [TopicPartition("..", 0), TopicPartition("t", 0), TopicPartition("a/b", 0)]
    wanted = znodes.encode_preferred_election(asked)
    await session.create("/admin/preferred_replica_election", wanted)
    await until(lambda: cluster.roles(2)["t", 0] == (2, 2, [1, 2]))

    async def removed() -> bool:
        return not await has(session, "/admin/preferred_replica_election")

    await until_async(removed)


async def test_undecodable_znodes_do_not_stop_the_controller(cluster: Cluster) -> None:
    session = await cluster.session()
    await session.create("/brokers/topics/garbage", b"{")
    await session.create("/brokers/ids/77", b"no json", ephemeral=True)
    await session.create("/admin/preferred_replica_election", b"\xff")
    controller = await cluster.broker(1)
    await until(lambda: controller.active)
    await admin.apply_create_topic(session, "t", replicas(p0=(1,)), {})
    await until(lambda: ("t", 0) in cluster.roles(1))


@pytest.mark.parametrize(
    "path",
    ["/admin/delete_topics", "/isr_change_notification", "/log_dir_event_notification"],
)
async def test_folder_of_requests_that_somebody_removes_is_made_again(
    cluster: Cluster, path: str
) -> None:
    """Without it no controller could start: brokers make it when they start only."""
    controller = await cluster.broker(1)
    await until(lambda: controller.active)
    session = controller.session
    await session.delete(path)
    await until_async(partial(has, session, path))
    await admin.apply_create_topic(session, "t", replicas(p0=(1,)), {})
    await until(partial(has_role, cluster, "t"))
    assert (controller.elections, controller.epoch) == (1, 1)
    await session.delete(path)
    await session.delete("/controller")
    await until(lambda: controller.elections == 2)
    assert controller.epoch == 2
    assert await has(session, path)


@pytest.mark.parametrize(
    "edited",
    [
        b'{"version":1,"partitions":{"0":[]}}',
        b'{"version":1,"partitions":{"0":[1,1]}}',
        b'{"version":2,"partitions":{"0":[1]},"adding_replicas":{"5":[1]},"removing_replicas":{}}',
        b'{"version":2,"partitions":{"0":[1]},"adding_replicas":{},"removing_replicas":{"0":[9]}}',
    ],
    ids=["no replicas", "a replica twice", "adding to no partition", "removing no replica"],
)
async def test_topic_that_was_edited_by_hand_does_not_stop_the_controller(
    cluster: Cluster, edited: bytes
) -> None:
    controller = await cluster.broker(1)
    await until(lambda: controller.active)
    session = controller.session
    await admin.apply_create_topic(session, "t", replicas(p0=(1,), p1=(1,)), {})
    await until(lambda: len(cluster.roles(1)) == 2)
    await session.set("/brokers/topics/t", edited)
    await session.delete("/controller")
    await until(lambda: controller.active and controller.epoch == 2)
    wanted = znodes.encode_preferred_election([TopicPartition("t", 0)])
    await session.create("/admin/preferred_replica_election", wanted)

    async def removed() -> bool:
        return not await has(session, "/admin/preferred_replica_election")

    await until_async(removed)
    await admin.apply_create_topic(session, "u", replicas(p0=(1,)), {})
    await until(partial(has_role, cluster, "u"))
    assert (controller.elections, controller.epoch) == (2, 2)
    assert controller.preferred_imbalance == 0


async def test_unreachable_broker_gets_all_requests_in_order_when_it_returns(
    cluster: Cluster,
) -> None:
    controller = await cluster.broker(1)
    await until(lambda: controller.active)
    cluster.down.add(9002)
    await cluster.broker(2)
    for name in ("a", "b"):
        await admin.apply_create_topic(controller.session, name, replicas(p0=(1, 2)), {})
        await until(partial(has_role, cluster, name))
    cluster.down.clear()
    await until(lambda: len(cluster.roles(2)) == 2)
    assert list(cluster.roles(2)) == [("a", 0), ("b", 0)]


async def test_restart_of_zookeeper_changes_no_leader_and_loses_no_watch(tmp_path: Path) -> None:
    with zookeeper.Server(tmp_path) as server:
        cluster = Cluster(server, "/restarted")
        async with cluster.stack:
            one = await cluster.broker(1)
            await until(lambda: one.active)
            two = await cluster.broker(2)
            await until(lambda: 9002 in cluster.received)
            await admin.apply_create_topic(one.session, "t", replicas(p0=(1, 2)), {})
            await until(lambda: ("t", 0) in cluster.roles(2))
            await asyncio.to_thread(server.restart)
            await admin.apply_create_topic(two.session, "u", replicas(p0=(2, 1)), {})
            await until(lambda: cluster.roles(1).get(("u", 0)) == (2, 0, [2, 1]))
            assert (one.active, one.epoch, two.active) == (True, 1, False)
            assert await state(two.session, "t", 0) == (partition_state(1, 0, (1, 2), 1), 0)
            # The other candidate's watch on /controller is set again too.
            await one.stop()
            await until(lambda: two.active and two.epoch == 2)


async def test_log_dir_failure_moves_the_leaders_of_the_failed_disk(cluster: Cluster) -> None:
    controller = await cluster.broker(1)
    await until(lambda: controller.active)
    await cluster.broker(2)
    await until(lambda: 9002 in cluster.received)
    session = controller.session
    await admin.apply_create_topic(session, "t", replicas(p0=(2, 1), p1=(2, 1)), {})
    await until(lambda: len(cluster.roles(2)) == 2)
    cluster.broken[9002] = {("t", 1)}
    event = znodes.encode_log_dir_event(2)
    await session.create("/log_dir_event_notification/log_dir_event_", event, sequence=True)
    await until(lambda: cluster.roles(1)["t", 1] == (1, 1, [1]))
    assert cluster.roles(1)["t", 0] == (2, 0, [2, 1])


async def test_replica_that_failed_for_a_passing_reason_leads_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers every request with an error at first, and works when the controller asks again."""
    monkeypatch.setattr(active_controller, "FAILED_REPLICAS_SECONDS", 0.05)
    controller = await cluster.broker(1)
    await until(lambda: controller.active)
    cluster.broken[9001] = {("t", 0)}
    await admin.apply_create_topic(controller.session, "t", replicas(p0=(1,)), {})
    await until(lambda: cluster.metadata(1).get(("t", 0)) == -1)
    assert controller.offline_partitions == 1
    asked = len(cluster.requests(1, control.LeaderAndIsrRequest))
    await until(lambda: len(cluster.requests(1, control.LeaderAndIsrRequest)) > asked + 3)
    assert cluster.roles(1)["t", 0] == (-1, 1, [1]), "nothing is elected while it is broken"
    cluster.broken.clear()
    await until(lambda: cluster.metadata(1)["t", 0] == 1)
    assert cluster.roles(1)["t", 0] == (1, 2, [1])
    assert controller.offline_partitions == 0


@pytest.mark.parametrize("by_default", [False, True], ids=["of the topic", "of all topics"])
async def test_unclean_election_by_configuration_takes_effect_at_once(
    cluster: Cluster, by_default: bool
) -> None:
    controller = await cluster.broker(1)
    await until(lambda: controller.active)
    other = await cluster.broker(2)
    await until(lambda: 9002 in cluster.received)
    session = controller.session
    await admin.apply_create_topic(session, "t", replicas(p0=(2, 1)), {})
    await until(lambda: ("t", 0) in cluster.roles(2))
    alone = PartitionState(BrokerId(2), LeaderEpoch(0), (BrokerId(2),), ControllerEpoch(1))
    await session.set(znodes.state_path("t", 0), znodes.encode_state(alone), 0)
    await other.stop()
    await other.session.close()
    await until(lambda: cluster.roles(1)["t", 0] == (-1, 1, [2]))
    assert controller.offline_partitions == 1
    if by_default:
        controller.default_unclean_changed(True)
    else:
        change = {"unclean.leader.election.enable": "true"}
        await session.multi(admin.change_config("topics", "t", change, 0))
        controller.topic_config_changed("t")
    await until(lambda: cluster.roles(1)["t", 0] == (1, 2, [1]))
    assert controller.offline_partitions == 0
