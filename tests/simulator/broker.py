"""A broker of the real code on a simulated session, network and disk.

Controller, replica manager, fetchers, ISR writer, registration, transaction coordinator and request
handlers are real. Sockets, the codec, log files and groups are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable
from functools import cache, partial
from random import Random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from odradek import config_loading, topic_config
from odradek.config import BrokerConfig
from odradek.controller.loop import Controller
from odradek.coordination.partitioning import PartitionCount
from odradek.dynamic_config import LayeredConfig
from odradek.handlers import (
    control,
    fetch,
    offsets,
    produce,
    producers,
    transaction_markers,
    transactions,
)
from odradek.handlers.context import Broker as Parts
from odradek.handlers.context import RequestContext
from odradek.protocol.api import APIS, ApiKey
from odradek.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from odradek.protocol.messages.control import (
    LeaderAndIsrRequest,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from odradek.protocol.messages.fetch import FetchRequest
from odradek.protocol.messages.offsets import ListOffsetsRequest, OffsetForLeaderEpochRequest
from odradek.protocol.messages.produce import ProduceRequest
from odradek.protocol.messages.producers import InitProducerIdRequest
from odradek.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    WriteTxnMarkersRequest,
)
from odradek.quarantine import Quarantines, Work
from odradek.replica.manager import ReplicaManager
from odradek.replica.metadata import MetadataCache
from odradek.topic_config import TopicConfig
from odradek.transaction.coordinator import TransactionCoordinator
from odradek.transaction.markers import ClusterLeaders
from odradek.transaction.verifier import TransactionVerifier
from odradek.values import TRANSACTIONS_TOPIC, BrokerId
from odradek.zk import znodes
from odradek.zk.producer_ids import ProducerIdManager
from odradek.zk.registration import DuplicateBrokerError, Registration
from odradek.zk.znodes import BrokerEndpoint, BrokerRegistration
from tests.simulator.batches import Region
from tests.simulator.disk import Disk
from tests.simulator.network import Client, Network
from tests.simulator.simulated_log import DIRECTORY
from tests.simulator.world import Process, World
from tests.simulator.zookeeper import Ensemble, SimulatedSession

LAG_MS = 2000
RESTART_S = 0.5
STOPPING_S = (0.0, 1.0)


async def _versions(parts: Parts, request: ApiVersionsRequest, context: RequestContext) -> Any:
    verified = APIS[ApiKey.ADD_PARTITIONS_TO_TXN]
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(
                api_key=verified.key,
                min_version=verified.min_version,
                max_version=verified.max_version,
            )
        ]
    )


HANDLERS = {
    ApiVersionsRequest: _versions,
    ProduceRequest: produce.produce,
    FetchRequest: fetch.fetch,
    ListOffsetsRequest: offsets.list_offsets,
    OffsetForLeaderEpochRequest: offsets.offset_for_leader_epoch,
    LeaderAndIsrRequest: control.leader_and_isr,
    StopReplicaRequest: control.stop_replica,
    UpdateMetadataRequest: control.update_metadata,
    InitProducerIdRequest: producers.init_producer_id,
    AddPartitionsToTxnRequest: transactions.add_partitions_to_txn,
    EndTxnRequest: transactions.end_txn,
    WriteTxnMarkersRequest: transaction_markers.write_txn_markers,
}
CONTROL = (LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest)


def name_of(broker_id: int) -> str:
    """Return a broker's name on the network."""
    return f"broker-{broker_id}"


@cache
def settings(broker_id: int, durable: bool) -> tuple[BrokerConfig, TopicConfig]:
    """Return a broker's configuration, and that of its topics."""
    config, _ = config_loading.from_values(
        {
            "broker.id": str(broker_id),
            "zookeeper.connect": "unused",
            "log.dirs": DIRECTORY,
            "min.insync.replicas": "2",
            **({"log.flush.interval.messages": "1"} if durable else {}),
            "replica.lag.time.max.ms": str(LAG_MS),
            "replica.fetch.wait.max.ms": "500",
            "replica.fetch.backoff.ms": "200",
            "replica.high.watermark.checkpoint.interval.ms": "3000",
            "leader.imbalance.check.interval.seconds": "6",
            "leader.imbalance.per.broker.percentage": "0",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        }
    )
    return config, topic_config.resolve_topic(config, {})


def _ignore(*_: object) -> None:
    pass


class _TopicConfigs:
    """One configuration for every topic."""

    def __init__(self, broker: BrokerConfig, config: TopicConfig) -> None:
        self.broker = LayeredConfig(broker, broker)
        self._config = config

    def __call__(self, topic: str) -> TopicConfig:
        return self._config

    async def read(self, topics: Iterable[str]) -> None:
        """Do nothing: there is nothing to read."""

    def forget(self, topics: Iterable[str]) -> None:
        """Do nothing: nothing is kept."""


class _NoQuarantines(Quarantines):
    """Unexpected exceptions are faults, however well a broker lives with them."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process

    def put(
        self, work: Work, subject: Hashable, error: BaseException, then: str = "retrying"
    ) -> float:
        self._process.failure = error
        return super().put(work, subject, error, then)

    def note(self, work: Work, subject: Hashable, error: BaseException, then: str) -> None:
        self._process.failure = error
        super().note(work, subject, error, then)


class Broker:
    """One broker, also over restarts; `checks` receives what the invariants need."""

    def __init__(
        self,
        broker_id: int,
        durable: bool,
        world: World,
        network: Network,
        ensemble: Ensemble,
        checks: Any,
        *,
        coordinates: bool = False,
    ) -> None:
        self.broker_id = broker_id
        self.name = name_of(broker_id)
        self.config, self.topic_config = settings(broker_id, durable)
        self.disk = Disk(self.topic_config, world.chance)
        self.disk.watch = lambda log: setattr(
            log, "on_cut", lambda end: checks.cut(broker_id, log, end)
        )
        self.process: Process | None = None
        self._durable = durable
        self._ids = Random(broker_id)
        self._world = world
        self._network = network
        self._ensemble = ensemble
        self._checks = checks
        self._coordinates = coordinates

    @property
    def alive(self) -> bool:
        """Return whether its process runs."""
        return self.process is not None

    @property
    def registered(self) -> bool:
        """Return whether its process has registered."""
        return (
            self.process is not None
            and self.registration is not None
            and (self.registration.epoch != -1)
        )

    def start(self) -> None:
        """Start a process."""
        self.registration: Registration | None = None
        self._world.say(f"{self.name} starts")
        process = self.process = Process(self._world, self.name)
        self.disk.on_failure = lambda: process.loop.call_soon(self._disk_failed, process)  # type: ignore[assignment]
        self.disk.open()
        self.session = SimulatedSession(self._ensemble, process)
        process.spawn(self._live(process))

    def kill(self, *, power_failed: bool) -> None:
        """Kill the process."""
        process = self.process
        if process is None:
            return
        self._world.say(f"{self.name} {'loses power' if power_failed else 'is killed'}")
        self.disk.leave(power_failed=power_failed)
        if power_failed and not self._durable:
            self._checks.lost_power(self.broker_id)
        self.process = None
        self.session.fall_silent()
        process.kill()

    def pause(self) -> None:
        """SIGSTOP."""
        if self.process is not None and not self.process.paused:
            self._world.say(f"{self.name} is stopped")
            self.process.paused = True
            self.session.fall_silent()

    def resume(self) -> None:
        """SIGCONT."""
        if self.process is not None and self.process.paused:
            self._world.say(f"{self.name} goes on")
            self.process.paused = False
            self.session.resume()

    async def _live(self, process: Process) -> None:
        await self.session.start()
        session: Any = self.session
        self.metadata = MetadataCache()
        quarantines = _NoQuarantines(process)
        self.replicas = ReplicaManager(
            self.config,
            self.disk,  # type: ignore[arg-type]
            session,
            self.metadata,
            lambda other: self._connect(process, other),  # type: ignore[arg-type,return-value]
            _TopicConfigs(self.config, self.topic_config),  # type: ignore[arg-type]
            self._world.clock_ms,
            quarantines,
            new_topic_id=self._new_topic_id,
        )
        registration = self.registration = Registration(session, self._registration)
        self.controller = Controller(
            self.config,
            session,
            lambda host, port: Client(self._network, process, host),
            registration,
            self._world.clock_ms,
            quarantines,
        )
        producer_ids = ProducerIdManager(session, self.broker_id)
        leaders = ClusterLeaders(self.metadata, session)
        connect = partial(self._connect, process)
        self.transactions = TransactionCoordinator(
            self.config,
            self.replicas,
            PartitionCount(session, TRANSACTIONS_TOPIC),
            producer_ids,
            leaders,
            connect,  # type: ignore[arg-type]
            self.replicas.end_offset_confirmed,
            self.replicas.confirm_end_offset,
            quarantines,
            self._world.clock_ms,
            self._world.clock_ms,
        )
        self._parts = Parts(
            config=self.config,
            cluster_id="simulated",
            replicas=self.replicas,
            metadata=self.metadata,
            session=session,
            controller=self.controller,
            groups=None,  # type: ignore[arg-type]
            transactions=self.transactions,
            verifier=TransactionVerifier(
                self.broker_id,
                self.transactions,
                leaders,
                connect,  # type: ignore[arg-type]
                self.transactions.spawn,
            ),
            registration=registration,
            producer_ids=producer_ids,
            metrics=SimpleNamespace(  # type: ignore[arg-type]
                bytes_in=_ignore, bytes_out=_ignore, bytes_replicated=_ignore
            ),
            random=Random(0),
        )
        self._network.listen(process, self._serve)
        try:
            await registration.start()
        except DuplicateBrokerError:
            # The process ends, and its supervisor starts another.
            self._world.later(RESTART_S, None, self._start_again, process)
            return
        await self.controller.start()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.replicas.run())
            tasks.create_task(registration.run())
            if self._coordinates:
                tasks.create_task(self.transactions.run())

    def _disk_failed(self, process: Process) -> None:
        """End the process, as the server does without any directory; its supervisor starts it."""
        if self.process is process:
            self._world.say(f"{self.name} has no log directory left: {self.disk.failure}")
            self.replicas.directory_failed(DIRECTORY)
            self._world.later(
                self._world.chance.uniform(*STOPPING_S), None, self._start_again, process
            )

    def _new_topic_id(self) -> str:
        return znodes.new_topic_id(UUID(int=self._ids.getrandbits(128)))

    def _start_again(self, process: Process) -> None:
        if self.process is process:
            self.kill(power_failed=False)
            self.start()

    def _connect(self, process: Process, other: int) -> Client | None:
        address = self.metadata.endpoint(other, "PLAINTEXT")
        return None if address is None else Client(self._network, process, address[0])

    def _registration(self) -> BrokerRegistration:
        endpoint = BrokerEndpoint("PLAINTEXT", self.name, 9092)
        return BrokerRegistration(BrokerId(self.broker_id), (endpoint,))

    async def _serve(self, request: Any, version: int, connection_id: int) -> Any:
        kind = type(request)
        obeyed_before = -1
        if kind in CONTROL:
            obeyed_before = self._checks.asked(self, request)
        elif not self.metadata.initialized:
            await self.metadata.wait_until_initialized()
        context = RequestContext(version, None, "PLAINTEXT", "simulated", connection_id)
        response = await HANDLERS[kind](self._parts, request, context)  # type: ignore[operator]
        if kind is FetchRequest:
            for topic in response.responses:
                for answer in topic.partition_responses:
                    if isinstance(answer.record_set, Region):
                        answer.record_set = answer.record_set.data
        elif kind in CONTROL:
            self._checks.obeyed(self, request, response, obeyed_before)
        self._checks.served(self)
        return response
