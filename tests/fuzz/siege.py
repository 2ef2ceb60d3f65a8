"""A broker under attack, and a sound client that checks it."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from random import Random
from types import MappingProxyType, TracebackType
from typing import TypeVar

from tests.fuzz import attack, corpus
from tests.support import clients
from tests.support.broker import STEADY, Cluster, FreshBroker, wait_until
from tests.support.memory_use import resident_bytes

FRAMES_A_ROUND = 10_000
GOOD_TOPIC = "untouched"
# Half of it is what the C library may keep of freed memory: twice the largest block that it counts
# as small by then, which is 32 MiB.
GROWTH_LIMIT_BYTES = 128 * 1024 * 1024
# A forged batch that was taken is rightly called damaged by whoever has to look inside.
COMPLAINT = re.compile(
    rf"Traceback|^\S+ \S+ (ERROR|CRITICAL) (?!odradek.log.partition.failure: {corpus.TOPIC}-0: )",
    re.MULTILINE,
)

Kind = TypeVar("Kind", bound=FreshBroker)


class Siege:
    """One broker process with a topic to attack and one to check; a context manager."""

    def __init__(
        self,
        directory: Path,
        more: Mapping[str, str] = MappingProxyType({}),
        kind: type[FreshBroker] = FreshBroker,
    ) -> None:
        # Names that a mutation makes up are not to become topics.
        settings = {
            **STEADY,
            "auto.create.topics.enable": "false",
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            **more,
        }
        self._cluster = Cluster(directory, settings=settings, kind=kind)
        self._broker = self._cluster.brokers[1]
        self.bootstrap = self._cluster.bootstrap
        self._produced = 0
        self.address = ("127.0.0.1", self._broker.port)

    def __enter__(self) -> Siege:
        self._cluster.__enter__()
        clients.create_topic(self._cluster.bootstrap, corpus.TOPIC)
        clients.create_topic(self._cluster.bootstrap, GOOD_TOPIC)
        self.check()
        self._resident_before = resident_bytes(self._broker.pid)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._cluster.__exit__(kind, error, trace)

    def broker(self, kind: type[Kind]) -> Kind:
        """Return the broker, which is of this class."""
        assert isinstance(self._broker, kind)
        return self._broker

    def endure(self, frames: int, seed: int) -> attack.Tally:
        """Send this many damaged frames, and every sound one cut at every byte."""
        random = Random(seed)
        sound = [*corpus.generated(), *corpus.captured()]
        cuts = attack.truncations(sound)
        random.shuffle(cuts)
        total = attack.Tally()
        # Of few frames, not many more.
        count = min(FRAMES_A_ROUND, 2 * frames)
        while total.dispatched < frames:
            taken, cuts = cuts[: count // 5], cuts[count // 5 :]
            salvo = taken + attack.salvo(sound, count - len(taken), random)
            tally = asyncio.run(attack.attack(self.address, salvo, random))
            assert not tally.surprises, f"seed {seed}: {tally.surprises[:5]}"
            self.check()
            total.add(tally)
        return total

    def check(self) -> None:
        """Check that a sound client is served, memory has not grown, and no bug was logged."""
        bootstrap = self._cluster.bootstrap
        value = str(self._produced).encode()
        assert clients.produce_all(bootstrap, GOOD_TOPIC, [value]) == [self._produced]
        self._produced += 1
        complaint = COMPLAINT.search(self._broker.log_text())
        if complaint is not None:
            start = max(0, complaint.start() - 300)
            raise AssertionError(self._broker.log_text()[start : start + 4000])
        if self._produced > 1:
            wait_until(
                lambda: (
                    resident_bytes(self._broker.pid) < self._resident_before + GROWTH_LIMIT_BYTES
                ),
                f"the broker holds less than {GROWTH_LIMIT_BYTES >> 20} MiB more than before",
            )

    def fire(self, shot: attack.Shot) -> bytes:
        """Send one frame alone; return what comes back until the broker closes."""
        with socket.create_connection(self.address, 60) as sock:
            sock.settimeout(60)
            try:
                sock.sendall(len(shot.frame).to_bytes(4) + shot.frame)
                return sock.recv(100)
            except ConnectionResetError:
                return b""

    def peak_bytes(self) -> int:
        """Return the most memory that the broker ever held."""
        text = Path(f"/proc/{self._broker.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", text)
        assert found is not None
        return int(found[1]) * 1024
