"""A replica manager on real logs, with a settable clock and a ZooKeeper in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kazoo.exceptions import BadVersionError, NoNodeError

from odradek import config_loading
from odradek.log.manager import LogManager
from odradek.net.client import PeerClient
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.control import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    StopReplicaPartitionV0,
    StopReplicaRequest,
)
from odradek.replica.fetcher import SourceFetcher
from odradek.replica.manager import ReplicaManager
from odradek.replica.metadata import MetadataCache
from odradek.replica.quota import ReplicationQuota
from odradek.replica.topic_configs import TopicConfigs
from odradek.values import TopicPartition
from odradek.zk import znodes
from odradek.zk.session import Stat

TOPIC = "orders"
KEY = TopicPartition(TOPIC, 0)
FIRST_EPOCH = 50


@dataclass
class FakeSession:
    """Znodes with versions; each write first raises one of `failures`, if there are any."""

    deadline: float = float("inf")
    generation: int = 0
    znodes: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    czxids: dict[str, int] = field(default_factory=dict)
    created_ms: dict[str, int] = field(default_factory=dict)
    # What `sync` brings: this server is behind the others.
    unseen: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    # How often each znode was read by `get_all`.
    reads: Counter[str] = field(default_factory=Counter)
    failures: list[Exception] = field(default_factory=list)
    # Raised after the write took place: the answer is lost.
    lost_answers: list[Exception] = field(default_factory=list)
    # The broker epoch of each broker, None for one that is away; FIRST_EPOCH by default.
    registered: dict[int, int | None] = field(default_factory=dict)

    async def set(self, path: str, data: bytes, version: int = -1) -> Stat:
        if self.failures:
            raise self.failures.pop(0)
        if path not in self.znodes:
            raise NoNodeError
        present = self.znodes[path][1]
        if version not in (-1, present):
            raise BadVersionError
        self.znodes[path] = data, present + 1
        if self.lost_answers:
            raise self.lost_answers.pop(0)
        return self._stat(path)

    async def get(self, path: str) -> tuple[bytes, Stat]:
        if path not in self.znodes:
            raise NoNodeError
        return self.znodes[path][0], self._stat(path)

    async def sync(self) -> None:
        self.znodes |= self.unseen

    async def exists(self, path: str) -> Stat | None:
        if path.startswith(znodes.BROKER_IDS_PATH):
            epoch = self.registered.get(int(path.rpartition("/")[2]), FIRST_EPOCH)
            return None if epoch is None else self._stat(path, epoch)
        return self._stat(path) if path in self.znodes else None

    async def get_all(self, paths: Iterable[str]) -> dict[str, tuple[bytes, Stat]]:
        wanted = list(paths)
        self.reads.update(wanted)
        return {path: await self.get(path) for path in wanted if path in self.znodes}

    def _stat(self, path: str, czxid: int | None = None) -> Stat:
        return Stat(
            version=self.znodes.get(path, (b"", 0))[1],
            cversion=0,
            czxid=self.czxids.get(path, 0) if czxid is None else czxid,
            mzxid=0,
            owner=0,
            children=0,
            created_ms=self.created_ms.get(path, 0),
        )


@dataclass
class Clock:
    """Milliseconds that only the test moves."""

    now: int = 1_000_000

    def __call__(self) -> int:
        return self.now


class Replicas:
    """Broker 1 with a replica manager; `async with` closes its logs."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.config, _ = config_loading.from_values(
            {
                "broker.id": "1",
                "zookeeper.connect": "unused",
                "log.dirs": str(directory / "data"),
                **{key.replace("_", "."): value for key, value in settings.items()},
            }
        )
        self.session = FakeSession()
        self.clock = Clock()
        self.metadata = MetadataCache()
        self.failed_replicas = 0
        # Clients of other brokers; by default, none is alive.
        self.connect: Callable[[int], PeerClient | None] = lambda broker_id: None
        self.topic_configs = TopicConfigs(self.config, self.session)  # type: ignore[arg-type]
        self.logs = LogManager(self.config, "cluster", self.topic_configs)
        self.logs.load()
        self.manager = ReplicaManager(
            self.config,
            self.logs,
            self.session,  # type: ignore[arg-type]
            self.metadata,
            lambda broker_id: self.connect(broker_id),
            self.topic_configs,
            self.clock,
            on_replica_failed=self._note_failed_replica,
        )

    def _note_failed_replica(self) -> None:
        self.failed_replicas += 1

    def fetcher_from(
        self, source: int, client: object = None, clock_ms: Callable[[], int] | None = None
    ) -> SourceFetcher:
        """Return a fetcher of the test partition from another broker; `client` answers for it."""
        clock_ms = clock_ms or self.clock
        fetcher = SourceFetcher(
            source,
            self.config,
            lambda _: client,  # type: ignore[arg-type,return-value]
            self.manager._hosted,
            ReplicationQuota(1, lambda: 1, lambda topic: (), clock_ms),
            self.logs.disk.run,
            self.logs.checkpoint_start_offsets,
            clock_ms,
            self.manager.quarantines,
            self.manager.truncation_failed,
        )
        fetcher.add(self.manager.partitions[KEY])
        return fetcher

    async def __aenter__(self) -> Replicas:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.manager.close()
        self.logs.close()

    async def lead(
        self,
        *,
        isr: Sequence[int] = (1,),
        replicas: Sequence[int] = (1,),
        epoch: int = 0,
        topic: str = TOPIC,
    ) -> None:
        """Make broker 1 leader of the test partition, or of the first of another topic."""
        await self.take(leader=1, isr=isr, replicas=replicas, epoch=epoch, topic=topic)

    async def take(
        self,
        *,
        leader: int,
        isr: Sequence[int] = (1,),
        replicas: Sequence[int] = (1,),
        epoch: int = 0,
        controller_epoch: int = 1,
        topic: str = TOPIC,
        is_new: bool = True,
        adding: Sequence[int] = (),
    ) -> object:
        """Send one LeaderAndIsr for the partition, and return its result."""
        return await self.manager.become_leader_or_follower(
            LeaderAndIsrRequest(
                controller_id=1,
                controller_epoch=controller_epoch,
                ungrouped_partition_states=[
                    LeaderAndIsrPartitionState(
                        topic_name=topic,
                        partition_index=0,
                        controller_epoch=controller_epoch,
                        leader=leader,
                        leader_epoch=epoch,
                        isr=list(isr),
                        zk_version=epoch,
                        replicas=list(replicas),
                        adding_replicas=list(adding),
                        is_new=is_new,
                    )
                ],
                live_leaders=[],
            )
        )

    async def delete(self) -> None:
        """Delete the replica of the test partition."""
        request = StopReplicaRequest(
            controller_id=1,
            controller_epoch=1,
            delete_partitions=True,
            ungrouped_partitions=[StopReplicaPartitionV0(topic_name=TOPIC, partition_index=0)],
        )
        assert (await self.manager.stop_replicas(request))[1] == {KEY: ErrorCode.NONE}
