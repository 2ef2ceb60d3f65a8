"""Three brokers under frames that `grammar` wrote, beside a producer that must not notice them."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from types import TracebackType

from odradek.protocol.api import ApiKey
from tests.fuzz import attack, corpus, edges, grammar
from tests.fuzz.steady import SteadyProducer
from tests.support import clients
from tests.support.broker import STEADY, Broker, Cluster, FreshBroker, wait_until
from tests.support.memory_use import resident_bytes

FRAMES_A_ROUND = 2000
LONGEST_GAP_S = 1.0
GROWTH_LIMIT_BYTES = 64 * 1024 * 1024
# The first frames bring in code and buffers that stay.
FIRST_ROUNDS = 1
SETTINGS = {
    **STEADY,
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "3",
    # Members that nobody comes back for are to go, or they would rightly be remembered.
    "group.max.session.timeout.ms": "7000",
    "group.max.size": "20",
    "log.segment.bytes": "1048576",
    "log.retention.bytes": "4194304",
    "log.retention.check.interval.ms": "5000",
    "log.segment.delete.delay.ms": "1000",
    "log.cleaner.backoff.ms": "1000",
    "log.cleaner.dedupe.buffer.size": "4194304",
}
CONNECTIONS_TO_EACH = 16
# The first broker is the controller, as long as nothing happens to it.
FOR_CONTROLLER = frozenset(
    key.to_bytes(2)
    for key in (
        ApiKey.CREATE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.DELETE_TOPICS,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
    )
)
# A forged batch that was taken is rightly called damaged by whoever has to look inside.
COMPLAINT = re.compile(
    r"Traceback|^\S+ \S+ (ERROR|CRITICAL) "
    r"(?!odradek.log.partition.failure: |odradek.log.compactor: failed to compact )",
    re.MULTILINE,
)


class ClusterSiege:
    """Three brokers with topics to attack and one that must stay whole; a context manager."""

    def __init__(self, directory: Path) -> None:
        self._cluster = Cluster(directory, 3, SETTINGS, kind=FreshBroker)
        self._resident: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._log_read: dict[int, int] = {}

    def __enter__(self) -> ClusterSiege:
        self._cluster.__enter__()
        try:
            bootstrap = self._cluster.bootstrap
            retention = {"retention.bytes": "-1"}
            clients.create_topic(bootstrap, edges.STEADY_TOPIC, 3, 3, retention)
            clients.create_topic(bootstrap, corpus.TOPIC, edges.FUZZED_PARTITIONS, 3)
            self.producer = SteadyProducer(bootstrap, edges.STEADY_TOPIC, 3).__enter__()
            wait_until(lambda: self.producer.in_motion, "the producer is answered")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self._pids = {one.broker_id: one.pid for one in self.brokers}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if hasattr(self, "producer"):
            self.producer.__exit__(kind, error, trace)
        self._cluster.__exit__(kind, error, trace)

    @property
    def brokers(self) -> list[Broker]:
        """Return the brokers."""
        return [*self._cluster.brokers.values()]

    def endure(
        self, frames: int, seed: int, tell: Callable[[str], None] = lambda line: None
    ) -> attack.Tally:
        """Send at least this many frames, and check the brokers after each round."""
        total = attack.Tally()
        number = 0
        # Of few frames, not many more.
        count = min(FRAMES_A_ROUND, 2 * frames)
        while total.dispatched < frames:
            # A round follows from the seed, its number and its size alone.
            random = Random(f"{seed} {number}")
            salvo = [grammar.frame(random) for _ in range(count)]
            began = time.monotonic()
            tally = asyncio.run(self._attack(salvo, random))
            total.add(tally)
            number += 1
            where = f"seed {seed}, round {number - 1}"
            tell(
                f"{where}: {total} in {time.monotonic() - began:.1f} s, longest gap "
                f"{self.producer.longest_gap_s(began):.2f} s, resident MiB "
                f"{[resident_bytes(one.pid) >> 20 for one in self.brokers]}"
            )
            assert not tally.surprises, f"{where}: {tally.surprises[:5]}"
            self.check(where)
            if number == FIRST_ROUNDS:
                self._resident = {one.pid: resident_bytes(one.pid) for one in self.brokers}
        return total

    async def _attack(self, frames: Sequence[bytes], random: Random) -> attack.Tally:
        """Send the controller what only it obeys, most of the time, and the others to anybody."""
        first, *others = self.brokers
        shares: dict[int, list[bytes]] = {one.port: [] for one in self.brokers}
        for frame in frames:
            for_controller = frame[:2] in FOR_CONTROLLER and random.random() < 0.8
            to = first if for_controller else random.choice((first, *others))
            shares[to.port].append(frame)
        total = attack.Tally()
        for tally in await asyncio.gather(
            *(
                attack.attack(("127.0.0.1", port), share, random, CONNECTIONS_TO_EACH)
                for port, share in shares.items()
            )
        ):
            total.add(tally)
        return total

    def check(self, where: str) -> None:
        """Check that every broker lives, complains about nothing and has given its memory back."""
        for broker in self.brokers:
            assert broker.running, f"{where}: broker {broker.broker_id} ended"
            assert broker.pid == self._pids[broker.broker_id]
            text = self._new_log(broker)
            complaint = COMPLAINT.search(text)
            if complaint is not None:
                start = max(0, complaint.start() - 300)
                raise AssertionError(f"{where}: {text[start : start + 4000]}")

    def _new_log(self, broker: Broker) -> str:
        """Return what a broker logged since the last call; reading all of it would take longer from
        round to round, and hold up the producer's thread.
        """
        start = self._log_read.get(broker.pid, 0)
        with broker.log_path.open("rb") as log:
            log.seek(start)
            text = log.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._log_read[broker.pid] = start + len(whole)
        return whole.decode()

    def check_end(self) -> None:
        """End the producer, and check what it left, and the brokers' memory."""
        self.producer.__exit__(None, None, None)
        assert not self.producer.failures, self.producer.failures[:5]
        assert not self.producer.differences()
        for broker in self.brokers:
            limit = self._resident[broker.pid] + GROWTH_LIMIT_BYTES
            wait_until(
                lambda broker=broker, limit=limit: resident_bytes(broker.pid) < limit,  # type: ignore[misc]
                f"broker {broker.broker_id} holds less than {limit >> 20} MiB again",
            )
