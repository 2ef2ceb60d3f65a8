"""A real ZooKeeper, and brokers that record the controller's requests."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

import pytest

from odradek import config_loading
from odradek.controller.loop import Controller
from odradek.protocol.messages import control
from odradek.values import BrokerId
from odradek.zk.registration import Registration, create_persistent_paths
from odradek.zk.session import Session
from odradek.zk.znodes import BrokerEndpoint, BrokerRegistration
from tests.support import zookeeper

_numbers = itertools.count()

RequestT = TypeVar("RequestT")


class BrokerController(Controller):
    """The controller of one broker, with what it works on."""

    session: Session
    registration: Registration


class Cluster:
    """Controllers on one chroot; `received[port]` are the requests to the broker on that port.

    A broker on a port in `down` refuses connections. By port, `errors` are the answers to
    StopReplica, and `broken` partitions of LeaderAndIsr are answered with storage errors.
    """

    def __init__(self, server: zookeeper.Server, chroot: str) -> None:
        self.server, self.chroot = server, chroot
        self.received: dict[int, list[Any]] = {}
        self.down: set[int] = set()
        self.errors: dict[int, int] = {}
        self.broken: dict[int, set[tuple[str, int]]] = {}
        self.stack = contextlib.AsyncExitStack()

    async def session(self) -> Session:
        connect = self.server.connect + self.chroot
        timeout_ms, start_ms = zookeeper.SESSION_SECONDS * 1000, zookeeper.START_SECONDS * 1000
        session = Session(connect, timeout_ms, start_ms)
        await session.start()
        self.stack.push_async_callback(session.close)
        await create_persistent_paths(session)
        return session

    async def broker(
        self,
        broker_id: int,
        session: Session | None = None,
        *,
        listener: str = "PLAINTEXT",
        **settings: str,
    ) -> BrokerController:
        """Register a broker, and start its controller."""
        session = session or await self.session()
        port = 9000 + broker_id
        values = {
            "broker.id": str(broker_id),
            "zookeeper.connect": "unused",
            # Five seconds after its election it would move leaders that a slow test looks at.
            "auto.leader.rebalance.enable": "false",
        }
        values |= {key.replace("_", "."): value for key, value in settings.items()}
        registration = Registration(
            session,
            lambda: BrokerRegistration(
                BrokerId(broker_id), (BrokerEndpoint(listener, "localhost", port),)
            ),
        )
        await registration.start()
        running = asyncio.ensure_future(registration.run())
        controller = BrokerController(
            config_loading.from_values(values)[0], session, self._connect, registration
        )
        controller.session = session
        controller.registration = registration
        self.stack.callback(running.cancel)
        self.stack.push_async_callback(controller.stop)
        await controller.start()
        return controller

    def _connect(self, host: str, port: int) -> "RecordingConnection":
        return RecordingConnection(self, port)

    def requests(self, broker_id: int, kind: type[RequestT]) -> list[RequestT]:
        return [one for one in self.received.get(9000 + broker_id, ()) if isinstance(one, kind)]

    def roles(self, broker_id: int) -> dict[tuple[str, int], tuple[int, int, list[int]]]:
        """Return leader, leader epoch and ISR by partition that a broker received last."""
        return {
            (topic.topic_name, one.partition_index): (one.leader, one.leader_epoch, one.isr)
            for request in self.requests(broker_id, control.LeaderAndIsrRequest)
            for topic in request.topic_states
            for one in topic.partition_states
        }

    def metadata(self, broker_id: int) -> dict[tuple[str, int], int]:
        """Return the leader by partition that a broker received last."""
        return {
            (topic.topic_name, one.partition_index): one.leader
            for request in self.requests(broker_id, control.UpdateMetadataRequest)
            for topic in request.topic_states
            for one in topic.partition_states
        }


class RecordingConnection:
    def __init__(self, cluster: Cluster, port: int) -> None:
        self.cluster, self.port = cluster, port

    async def call(self, request: Any, version: int, timeout_ms: int) -> Any:
        await asyncio.sleep(0)
        if self.port in self.cluster.down:
            raise ConnectionError("down")
        self.cluster.received.setdefault(self.port, []).append(request)
        match request:
            case control.LeaderAndIsrRequest():
                broken = self.cluster.broken.get(self.port, ())
                return control.LeaderAndIsrResponse(
                    partition_errors=[
                        control.LeaderAndIsrPartitionError(
                            topic_name=topic.topic_name,
                            partition_index=one.partition_index,
                            error_code=56
                            if (topic.topic_name, one.partition_index) in broken
                            else 0,
                        )
                        for topic in request.topic_states
                        for one in topic.partition_states
                    ]
                )
            case control.UpdateMetadataRequest():
                return control.UpdateMetadataResponse()
            case control.StopReplicaRequest():
                code = self.cluster.errors.get(self.port, 0)
                return control.StopReplicaResponse(
                    partition_errors=[
                        control.StopReplicaPartitionError(
                            topic_name=topic.name, partition_index=number, error_code=code
                        )
                        for topic in request.topics
                        for number in topic.partition_indexes
                    ]
                )

    async def close(self) -> None:
        pass


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition that only other tasks can make true."""
    while not condition():
        await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zookeeper.Server]:
    with zookeeper.Server(tmp_path_factory.mktemp("zk")) as running:
        yield running


@pytest.fixture
async def cluster(server: zookeeper.Server) -> AsyncIterator[Cluster]:
    cluster = Cluster(server, f"/controller{next(_numbers)}")
    async with cluster.stack:
        yield cluster
