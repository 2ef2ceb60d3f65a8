"""What a new controller reads, and how many times it waits before it tells brokers anything."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, cast

import pytest

from odradek import config_loading
from odradek.controller.active_controller import ActiveController
from odradek.controller.controller_znode import ControllerLease
from odradek.controller.event_queue import EventQueue, TopicChange, ZnodeChange
from odradek.controller.events import Leadership, UpdateMetadata, WriteStates
from odradek.controller.outbox import Outbox
from odradek.controller.store import (
    STATES_PER_TRANSACTION,
    TRANSACTIONS_AT_ONCE,
    ControllerStore,
)
from odradek.replica.purgatory import Purgatory
from odradek.values import BrokerId, ControllerEpoch, TopicPartition
from odradek.zk import znodes
from odradek.zk.operations import Operation
from odradek.zk.session import NoNodeError, Session, Stat
from odradek.zk.znodes import BrokerEndpoint, BrokerRegistration
from tests.controller.values import partition_state, topic_assignment
from tests.support import steps

STAT = Stat(0, 0, 1, 1, 0, 0, 0)
# More turns of the event loop than a task takes until it waits for the session.
TURNS = 50


class RoundTrips:
    """A session that answers reads of these znodes only once nobody asks anything more."""

    def __init__(self, found: dict[str, bytes]) -> None:
        self.znodes = found
        self.written: list[str] = []
        self._waiting: list[asyncio.Future[None]] = []

    async def count(self, work: Coroutine[Any, Any, None]) -> int:
        """Do the work; return how many times it waited."""
        task = asyncio.ensure_future(work)
        waits = 0
        while True:
            for _ in range(TURNS):
                await asyncio.sleep(0)
            if task.done():
                await task
                return waits
            waiting, self._waiting = self._waiting, []
            assert waiting, "it waits for something else"
            waits += 1
            for one in waiting:
                one.set_result(None)

    async def _answer(self) -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        await answer

    async def children(self, path: str, _: object = None) -> list[str]:
        await self._answer()
        below = [one.removeprefix(f"{path}/") for one in self.znodes if one.startswith(f"{path}/")]
        return sorted({one.partition("/")[0] for one in below})

    async def get(self, path: str, _: object = None) -> tuple[bytes, Stat]:
        await self._answer()
        if path not in self.znodes:
            raise NoNodeError
        return self.znodes[path], STAT

    async def get_all(
        self, paths: Iterable[str], _: object = None
    ) -> dict[str, tuple[bytes, Stat]]:
        wanted = list(paths)
        if wanted:
            await self._answer()
        return {one: (self.znodes[one], STAT) for one in wanted if one in self.znodes}

    async def multi(self, wanted: Sequence[Operation]) -> list[object]:
        self.written += [one.path for one in wanted]
        await self._answer()
        return [True for _ in wanted]


class Messages:
    """An outbox that keeps what it is given."""

    def __init__(self) -> None:
        self.sent: list[object] = []

    def update_brokers(self, _: object) -> None:
        """Do nothing: there are no channels."""

    def send(self, message: object) -> None:
        self.sent.append(message)

    async def close(self) -> None:
        """Do nothing."""


def cluster() -> dict[str, bytes]:
    """Return the znodes of two brokers, and of three topics with two partitions each."""
    found = {
        znodes.DELETE_TOPICS_PATH: b"",
        f"{znodes.ISR_CHANGES_PATH}/isr_change_0": b"",
        f"{znodes.LOG_DIR_EVENTS_PATH}/log_dir_event_0": b"",
    }
    for number in (1, 2):
        endpoint = BrokerEndpoint("PLAINTEXT", "localhost", 9000 + number)
        registration = BrokerRegistration(BrokerId(number), (endpoint,))
        found[znodes.broker_path(number)] = znodes.encode_broker(registration)
    state = znodes.encode_state(partition_state(1, 0, (1, 2), 1))
    for topic in "abc":
        assignment = topic_assignment({0: (1, 2), 1: (1, 2)})
        found[znodes.topic_path(topic)] = znodes.encode_topic(assignment)
        found |= {znodes.state_path(topic, number): state for number in (0, 1)}
    return found


def controller_of(session: RoundTrips, outbox: Messages) -> ActiveController:
    lease = ControllerLease(ControllerEpoch(1), 0)
    values = {
        "broker.id": "1",
        "zookeeper.connect": "unused",
        "auto.leader.rebalance.enable": "false",
    }
    return ActiveController(
        config_loading.from_values(values)[0],
        lease,
        ControllerStore(cast(Session, session), lease),
        cast(Outbox, outbox),
        EventQueue(),
        Purgatory(),
    )


async def test_new_controller_waits_three_times_whatever_the_cluster_has() -> None:
    session, outbox = RoundTrips(cluster()), Messages()
    controller = controller_of(session, outbox)
    try:
        # The names; what they stand for; the states of all partitions.
        assert await session.count(controller.start()) == 3
    finally:
        await controller.stop()
    [told] = [one for one in outbox.sent if isinstance(one, UpdateMetadata)]
    assert len(told.partitions) == 6
    assert told.to == (1, 2)


async def test_deletion_of_a_topic_that_was_created_meanwhile_is_not_refused() -> None:
    requested = {znodes.DELETE_TOPICS_PATH: znodes.encode_delete_topics(["late"])}
    session = RoundTrips(cluster() | requested)
    controller = controller_of(session, Messages())
    try:
        await session.count(controller.start())
        late = znodes.encode_topic(topic_assignment({0: (1, 2)}))
        session.znodes[znodes.topic_path("late")] = late
        await session.count(controller.read(ZnodeChange.DELETIONS))
    finally:
        await controller.stop()
    assert znodes.DELETE_TOPICS_PATH not in session.written
    assert controller.context.deletions == {"late"}


async def test_writes_of_many_states_leave_room_for_other_requests() -> None:
    session = RoundTrips({})
    store = ControllerStore(cast(Session, session), ControllerLease(ControllerEpoch(1), 0))
    most = STATES_PER_TRANSACTION * TRANSACTIONS_AT_ONCE
    state = Leadership(partition_state(1, 0, (1,), 1), 0)
    wanted = {TopicPartition("t", number): state for number in range(most + 1)}

    async def write() -> None:
        found = await store.write_states(WriteStates({}, wanted))
        assert found.written == wanted

    assert await session.count(write()) == 2


async def test_state_of_one_partition_is_read_without_a_look_at_all_topics() -> None:
    counts = []
    for topics in (10, 200):
        topic = znodes.encode_topic(topic_assignment({0: (1, 2)}))
        more = {znodes.topic_path(f"more-{number}"): topic for number in range(topics)}
        controller = controller_of(session := RoundTrips(cluster() | more), Messages())

        def read(controller: ActiveController = controller) -> None:
            # Its reassignment has ended: there is nothing to wait for.
            controller._queue.put_states([TopicPartition("a", 0)])
            with pytest.raises(StopIteration):
                controller.read(ZnodeChange.REASSIGNED_STATES).send(None)

        try:
            await session.count(controller.start())
            counts.append(steps.count(read))
        finally:
            await controller.stop()
    assert counts[0] == counts[1]


async def test_topics_are_watched_though_the_connection_broke_while_they_were_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """kazoo drops all watches then. Those of thousands of topics are set again in one go."""
    session = RoundTrips(cluster())
    controller = controller_of(session, Messages())
    queue = controller._queue
    watched: set[str] = set()
    read = session.get_all

    async def get_all(paths: Iterable[str], watch: object = None) -> dict[str, tuple[bytes, Stat]]:
        wanted = list(paths)
        if watch is not None:
            watched.update(wanted)
        elif not controller.context.topics and znodes.state_path("a", 0) in wanted:
            watched.clear()
            controller.reconnected()
        return await read(wanted)

    monkeypatch.setattr(session, "get_all", get_all)
    try:
        await session.count(controller.start())
        queued = [await queue.get() for _ in range(len(queue))]
        assert not watched
        assert queued.count(ZnodeChange.KNOWN_TOPICS) == 1
        grown = topic_assignment({0: (1, 2), 1: (1, 2), 2: (1, 2)})
        session.znodes[znodes.topic_path("b")] = znodes.encode_topic(grown)
        assert await session.count(controller.read(ZnodeChange.KNOWN_TOPICS)) == 1
        assert watched == {znodes.topic_path(topic) for topic in "abc"}
        assert [await queue.get() for _ in range(len(queue))] == [TopicChange("b")]
    finally:
        await controller.stop()


class Unsearched(list[str]):
    """Names of topics, among which nobody looks for each of as many."""

    def __contains__(self, _: object) -> bool:
        raise AssertionError("each name is compared with all others")


async def test_requests_of_many_deletions_are_removed_in_one_look_at_each() -> None:
    listed = znodes.encode_delete_topics(["a", "b", "c"])
    session = RoundTrips({znodes.DELETE_TOPICS_PATH: listed})
    store = ControllerStore(cast(Session, session), ControllerLease(ControllerEpoch(1), 0))
    await session.count(store.remove_deletion_payload(Unsearched("ab")))
    assert session.written == [znodes.CONTROLLER_EPOCH_PATH, znodes.DELETE_TOPICS_PATH]
