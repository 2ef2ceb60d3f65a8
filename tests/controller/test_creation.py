"""Topics that this broker or others create: what the controller reads and writes for them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import pytest

from odradek.controller.context import LEADER_DURING_DELETE
from odradek.controller.events import Leadership, WriteStates
from odradek.controller.state_writes import StateWrite
from odradek.protocol.messages import control
from odradek.values import TopicPartition
from odradek.zk import admin, znodes
from odradek.zk.operations import Create, Delete, Operation
from odradek.zk.session import Session
from odradek.zk.znodes import TopicAssignment
from tests.controller.conftest import BrokerController, Cluster, until
from tests.controller.values import broker_ids, partition_state

MANY = 120  # partitions, whose states take several transactions


def assignment(partitions: int) -> TopicAssignment:
    return TopicAssignment({number: broker_ids(1) for number in range(partitions)})


async def start(cluster: Cluster) -> BrokerController:
    controller = await cluster.broker(1)
    await until(lambda: controller.elections)  # it has read everything
    return controller


async def is_led(controller: BrokerController, topic: str) -> bool:
    """Return whether ZooKeeper has the state of the topic's first partition."""
    return await controller.session.exists(znodes.state_path(topic, 0)) is not None


def put_off_listing(controller: BrokerController, until_s: float) -> None:
    assert controller._controller is not None
    controller._controller._next_listing = until_s


async def test_own_topic_is_read_without_the_names_of_all(cluster: Cluster) -> None:
    controller = await start(cluster)
    put_off_listing(controller, math.inf)
    await admin.apply_create_topic(controller.session, "foreign", assignment(1), {})
    await admin.apply_create_topic(controller.session, "own", assignment(2), {})
    controller.topic_created("own")
    await until(lambda: len(cluster.roles(1)) == 2)
    assert controller.knows("own")
    assert not controller.knows("foreign")
    controller.topic_created("own")
    controller.topic_created("gone meanwhile")
    put_off_listing(controller, 0)
    await admin.apply_create_topic(controller.session, "later", assignment(1), {})
    controller.topic_created("later")
    await until(lambda: controller.knows("later"))
    assert not controller.knows("gone meanwhile")


async def test_topic_with_a_name_that_no_request_can_hold_is_passed_over(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    controller = await start(cluster)
    # Of two bytes per character; one character less can be told.
    longest, longer = "é" * 16383, "é" * 16384
    for name in (longer, longest, "t"):
        data = znodes.encode_topic(assignment(1))
        await controller.session.create(znodes.topic_path(name), data)
    await until(lambda: cluster.metadata(1).keys() >= {("t", 0), (longest, 0)})
    assert not controller.knows(longer)
    assert "... has more than 32767 bytes" in caplog.text


async def test_names_of_all_topics_are_read_again_after_a_pause(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odradek.controller.active_controller.LISTING_PAUSE_SECONDS", 0.1)
    controller = await start(cluster)
    for number in range(3):
        await admin.apply_create_topic(controller.session, f"t{number}", assignment(1), {})
    await until(lambda: len(cluster.roles(1)) == 3)
    await admin.apply_request_deletion(controller.session, "t1")
    await until(lambda: not controller.knows("t1"))


async def test_first_states_need_no_look_at_what_exists(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = await start(cluster)
    looked_at: list[str] = []
    exists = Session.exists

    async def noting(session: Session, path: str, *more: object) -> object:
        looked_at.append(path)
        return await exists(session, path, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(Session, "exists", noting)
    await admin.apply_create_topic(controller.session, "t", assignment(MANY), {})
    await until(lambda: len(cluster.roles(1)) == MANY)
    await admin.apply_grow_topic(
        controller.session, "t", {number: broker_ids(1) for number in range(MANY, 2 * MANY)}
    )
    await until(lambda: len(cluster.roles(1)) == 2 * MANY)
    assert not [path for path in looked_at if path.startswith(znodes.TOPICS_PATH)]


@pytest.mark.parametrize("left", [0, 1, 2])
async def test_first_states_are_written_beside_what_another_attempt_left(
    cluster: Cluster, left: int
) -> None:
    controller = await start(cluster)
    paths = [znodes.partitions_path("t"), *(znodes.partition_path("t", one) for one in (0, 70))]
    await controller.session.multi(
        [
            *admin.create_topic("t", admin.with_new_id(assignment(MANY)), {}),
            *map(Create, paths[: left + 1]),
        ]
    )
    await until(lambda: len(cluster.roles(1)) == MANY)


@pytest.mark.parametrize("by_name", [True, False], ids=["znode", "payload"])
async def test_deletion_of_a_topic_that_is_not_listed_yet_is_done(
    cluster: Cluster, by_name: bool
) -> None:
    controller = await start(cluster)
    put_off_listing(controller, math.inf)
    await admin.apply_create_topic(controller.session, "foreign", assignment(1), {})
    path, payload = znodes.DELETE_TOPICS_PATH, znodes.encode_delete_topics(["foreign"])
    if by_name:
        await admin.apply_request_deletion(controller.session, "foreign")
    else:
        await controller.session.set(path, payload)
    while await controller.session.children(path) or (await controller.session.get(path))[0]:
        await asyncio.sleep(0.01)
    assert await controller.session.exists(znodes.topic_path("foreign")) is None


async def test_requests_for_a_topic_that_is_not_listed_yet_are_held(
    cluster: Cluster,
) -> None:
    controller = await start(cluster)
    for topic, path, data in (
        (
            "preferred",
            znodes.PREFERRED_ELECTION_PATH,
            znodes.encode_preferred_election([TopicPartition("preferred", 0)]),
        ),
        (
            "moved",
            znodes.REASSIGN_PARTITIONS_PATH,
            znodes.encode_reassignment({TopicPartition("moved", 0): broker_ids(1)}),
        ),
    ):
        put_off_listing(controller, math.inf)
        await admin.apply_create_topic(controller.session, topic, assignment(1), {})
        assert not controller.knows(topic)
        await controller.session.create(path, data)
        while await controller.session.exists(path) is not None:
            await asyncio.sleep(0.01)
        assert controller.knows(topic)


async def create_and_await(controller: BrokerController, topic: str) -> None:
    await admin.apply_create_topic(controller.session, topic, assignment(1), {})
    await until(lambda: controller.knows(topic))
    while not await is_led(controller, topic):
        await asyncio.sleep(0.01)


def by_hand(topic: str) -> list[Operation]:
    """Return the removal of a topic with one partition, as nobody but a controller should do it."""
    return [
        Delete(znodes.state_path(topic, 0)),
        Delete(znodes.partition_path(topic, 0)),
        Delete(znodes.partitions_path(topic)),
        Delete(znodes.topic_path(topic)),
        Delete(znodes.topic_config_path(topic)),
    ]


async def test_topic_that_is_removed_by_hand_is_missed_before_the_next_listing(
    cluster: Cluster,
) -> None:
    controller = await start(cluster)
    await create_and_await(controller, "t")
    put_off_listing(controller, math.inf)
    await controller.session.multi(by_hand("t"))
    await until(lambda: not controller.knows("t"))


async def test_topic_that_is_made_anew_at_once_gets_new_states(cluster: Cluster) -> None:
    controller = await start(cluster)
    await create_and_await(controller, "t")
    anew = admin.create_topic("t", admin.with_new_id(assignment(1)), {})
    await controller.session.multi([*by_hand("t"), *anew])
    while not await is_led(controller, "t"):
        await asyncio.sleep(0.01)


async def test_topic_to_which_a_tool_gives_another_id_is_the_same(cluster: Cluster) -> None:
    controller = await start(cluster)
    await create_and_await(controller, "t")
    grown = admin.with_new_id(assignment(2))
    await controller.session.set(znodes.topic_path("t"), znodes.encode_topic(grown))
    await until(lambda: cluster.metadata(1).get(("t", 1)) == 1)
    told = [
        one.leader
        for request in cluster.requests(1, control.UpdateMetadataRequest)
        for topic in request.topic_states
        for one in topic.partition_states
    ]
    # Brokers forget the offsets of a topic that is being deleted.
    assert LEADER_DURING_DELETE not in told


async def test_first_state_is_written_below_a_topic_that_was_made_anew(cluster: Cluster) -> None:
    controller = await start(cluster)
    put_off_listing(controller, math.inf)
    assert controller._controller is not None
    store = controller._controller._store
    create_parents = store._create_parents
    made_anew = admin.create_topic("t", admin.with_new_id(assignment(1)), {})

    async def too_early(jobs: Sequence[StateWrite]) -> None:
        await create_parents(jobs)
        store._create_parents = create_parents  # type: ignore[method-assign]
        await controller.session.multi(made_anew)

    store._create_parents = too_early  # type: ignore[method-assign]
    partition, state = TopicPartition("t", 0), partition_state(1, 0, (1,), 1)
    written = await store.write_states(WriteStates({partition: state}, {}))
    assert written.written == {partition: Leadership(state, 0)}
