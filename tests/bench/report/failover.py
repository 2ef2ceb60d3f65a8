"""Cases that kill a broker: the next acknowledged record of what it led, and the next controller.

All systems have the same time-out, and what counts begins when it ends: until then nobody may take
over. ZooKeeper says when it drops a session. KRaft does not: its time-out began when the broker was
last heard. That is known to 50 ms, by frequent heartbeats and by news of the controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Final

from odradek.net.client import PeerClient
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from tests.bench.bench_replication import led_by_another, write
from tests.bench.report.bench import Bench, Case, brokers_of, delete_topic, topic
from tests.bench.report.results import What
from tests.bench.report.systems import KRaftCluster, Running
from tests.bench.side_by_side import (
    LIMIT_SECONDS,
    Death,
    all_in_sync,
    controller_of,
    wait_for,
)
from tests.support import clients
from tests.support.broker import Broker, Cluster

TIMEOUT_MS: Final = 6000
# Of a broker, to a controller. The default, 2000, says too little of when one was last heard.
HEARTBEAT_MS: Final = 100
SETTINGS: Final = MappingProxyType(
    {
        "zookeeper.session.timeout.ms": str(TIMEOUT_MS),
        "broker.session.timeout.ms": str(TIMEOUT_MS),
        "controller.quorum.fetch.timeout.ms": str(TIMEOUT_MS),
        "broker.heartbeat.interval.ms": str(HEARTBEAT_MS),
    }
)
SECTION: Final = f"Failover, three brokers, time-out of {TIMEOUT_MS // 1000} s"
GOAL: Final = 0.5
PARTITIONS: Final = 300
# Each kill takes half a minute, with the restart.
ROUNDS: Final = 3
CREATE_VERSION: Final = 4
METADATA_VERSION: Final = 5
# Between two looks at what is awaited. A look takes less than a millisecond of a broker.
POLL_SECONDS: Final = 0.005
LIMIT_MS: Final = int(LIMIT_SECONDS * 1000)
# KRaft may notice a death before the time-out that counts, and there is no ratio to nothing.
LEAST_MS: Final = 1.0


class KRaftDeath:
    """The SIGKILL of a broker at rest, and when KRaft may notice it, as `Death` has them.

    A topic is deleted just before: controllers without news answer their followers only every half
    second.
    """

    def __init__(self, bootstrap: str, broker: Broker, news: str) -> None:
        clients.create_topic(bootstrap, news)
        time.sleep(random.uniform(4, 6))
        delete_topic(bootstrap, news)
        broker.kill()
        self.killed = time.perf_counter()
        self.session_ended = self.killed + (TIMEOUT_MS - HEARTBEAT_MS / 2) / 1000


def controller_in(running: Running) -> Broker:
    """Return the broker that is the controller."""
    if isinstance(running, KRaftCluster):
        return running.controller()
    assert isinstance(running, Cluster)
    return controller_of(running)


@contextlib.contextmanager
def killed(bench: Bench, name: str, broker: Broker) -> Iterator[Death | KRaftDeath]:
    """SIGKILL a broker of a system. At the end start it again, and wait until all is in sync.

    `session_ended` of what is yielded counts only after the end.
    """
    running = bench.systems[name]
    with contextlib.ExitStack() as stack:
        death: Death | KRaftDeath
        if isinstance(running, KRaftCluster):
            death = KRaftDeath(running.bootstrap, broker, bench.new_name())
        else:
            assert isinstance(running, Cluster)
            death = Death(stack.enter_context(running.zookeeper.client()), broker)
        yield death
        wait_for(lambda: 0 < death.session_ended < time.perf_counter(), "the time-out ends")
    broker.start()
    wait_for(lambda: all_in_sync(controller_in(running)), "every replica is in sync")


def _note(bench: Bench, name: str, what: str, death: Death | KRaftDeath, done: float) -> None:
    whole = What(SECTION, what, "ms", less=True)
    beyond = What(SECTION, f"{what}, beyond the time-out", "ms", GOAL, less=True)
    bench.results.note(whole, name, (done - death.killed) * 1000)
    bench.results.note(beyond, name, max(LEAST_MS, (done - death.session_ended) * 1000))


def leader() -> Case:
    """From SIGKILL of a leader that is no controller to the next acknowledged record."""

    def measure(bench: Bench, name: str) -> None:
        running = bench.systems[name]
        with topic(bench, name, len(running.brokers)) as made:
            partition, dying = led_by_another(running.brokers, controller_in(running), made)
            asyncio.run(write([dying], made, partition))
            left = [one for one in brokers_of(running) if one is not dying]
            with killed(bench, name, dying) as death:
                acknowledged = asyncio.run(write(left, made, partition, POLL_SECONDS))
        _note(bench, name, "leader killed, to the next record with acks=all", death, acknowledged)

    return Case("leader failover", measure, quick=False, rounds=ROUNDS)


def controller() -> Case:
    """From SIGKILL of the controller to a topic that its successor made."""

    def measure(bench: Bench, name: str) -> None:
        running = bench.systems[name]
        with topic(bench, name, PARTITIONS):
            dying = controller_in(running)
            left = [one for one in brokers_of(running) if one is not dying]
            made = bench.new_name()
            with killed(bench, name, dying) as death:
                led = asyncio.run(create(left, made))
            delete_topic(running.bootstrap, made)
        _note(bench, name, "controller killed, to the next new topic", death, led)

    return Case("controller failover", measure, quick=False, rounds=ROUNDS)


async def create(brokers: Sequence[Broker], name: str) -> float:
    """Create a topic of one partition on these brokers, through whichever of them can.

    Return the time on the performance counter at which all of them know its leader.
    """
    placed = CreatableReplicaAssignment(
        partition_index=0, broker_ids=[one.broker_id for one in brokers]
    )
    wanted = CreatableTopic(
        name=name, num_partitions=-1, replication_factor=-1, assignments=[placed], configs=[]
    )
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=LIMIT_MS)
    asked = [PeerClient("127.0.0.1", one.port, "bench") for one in brokers]
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            while not await _created(asked, request):
                await asyncio.sleep(POLL_SECONDS)
            for client in asked:
                while await _leader(client, name) != brokers[0].broker_id:
                    await asyncio.sleep(POLL_SECONDS)
            return time.perf_counter()
    finally:
        for client in asked:
            await client.close()


async def _created(asked: Sequence[PeerClient], request: CreateTopicsRequest) -> bool:
    """Ask each broker to create a topic until one has; return whether one has."""
    for client in asked:
        answer = await client.call(request, CREATE_VERSION, LIMIT_MS)
        # An earlier try may have been without an answer, but not in vain.
        if answer.topics[0].error_code in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}:
            return True
    return False


async def _leader(client: PeerClient, name: str) -> int | None:
    """Return the leader of a topic's only partition, None as long as the broker knows no topic."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
    answer = await client.call(request, METADATA_VERSION, LIMIT_MS)
    partitions = answer.topics[0].partitions
    return partitions[0].leader_id if partitions else None
