"""The faults that follow from a seed, in order, and how each is done to a running cluster.

`plan` and `rounds` are pure: one seed gives one plan, so a run can be asked for again. `QUOTA` is
what the long run does; shorter runs take from the kinds in the same shares. The double kill takes a
follower and its leader within one fetch. What a broker may run out of (descriptors, memory, disk)
it runs out of while leaders move.
"""

from __future__ import annotations

import contextlib
import enum
import random
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import ElectionType, KafkaException
from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from odradek.zk import znodes
from tests.chaos import shortages
from tests.chaos.history import Place
from tests.support.broker import Broker, Cluster, start_together, wait_until
from tests.support.clients import QUIET
from tests.support.small_disk import SmallDisk

SESSION_MS = 4000
NOBODY = -1
# A broker that has something to write ends long before.
FULL_SECONDS = 20


class Kind(enum.Enum):
    """The kinds of faults; the value is the name on the command line."""

    KILL_LEADER = "kill-leader"
    KILL_CONTROLLER = "kill-controller"
    KILL_TWO = "kill-two"
    PAUSE_LEADER = "pause-leader"
    PAUSE_CONTROLLER = "pause-controller"
    RESTART_ZOOKEEPER = "restart-zookeeper"
    KILL_ALL = "kill-all"
    NO_FILES = "no-files"
    NO_MEMORY = "no-memory"
    FULL_DISK = "full-disk"
    RESTART_LEADER = "restart-leader"
    CUT_CONNECTIONS = "cut-connections"
    ELECT_PREFERRED = "elect-preferred"


QUOTA = {
    Kind.KILL_LEADER: 100,
    Kind.KILL_CONTROLLER: 20,
    Kind.KILL_TWO: 10,
    Kind.PAUSE_LEADER: 10,
    Kind.PAUSE_CONTROLLER: 10,
    Kind.RESTART_ZOOKEEPER: 10,
    Kind.KILL_ALL: 10,
    Kind.NO_FILES: 10,
    Kind.NO_MEMORY: 10,
    Kind.FULL_DISK: 10,
}
# For transactions: what moves leaders, and so coordinators, and what loses answers.
TRANSACTIONS_QUOTA = {
    Kind.KILL_LEADER: 60,
    Kind.KILL_CONTROLLER: 10,
    Kind.KILL_TWO: 10,
    Kind.PAUSE_LEADER: 40,
    Kind.PAUSE_CONTROLLER: 10,
    Kind.RESTART_ZOOKEEPER: 10,
    Kind.KILL_ALL: 10,
    Kind.RESTART_LEADER: 20,
    Kind.CUT_CONNECTIONS: 20,
    Kind.ELECT_PREFERRED: 10,
}
# Clusters that share the quota: each verdict comes early, and no history outgrows memory.
ROUNDS = 10


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: on the leader of partition `aim` (modulo how many there are), after a calm of
    `calm_seconds`, kept for `hold_seconds`.
    """

    kind: Kind
    aim: int
    calm_seconds: float
    hold_seconds: float


def rounds(seed: int, quota: Mapping[Kind, int] = QUOTA) -> list[list[Fault]]:
    """Return a quota, divided into `ROUNDS` runs of equal length."""
    chance = random.Random(seed)
    kinds = [kind for kind, count in quota.items() for _ in range(count)]
    dealt = [kinds[number::ROUNDS] for number in range(ROUNDS)]
    for some in dealt:
        chance.shuffle(some)
    return [[_fault(kind, chance) for kind in some] for some in dealt]


def plan(
    seed: int,
    count: int,
    kinds: Sequence[Kind] = tuple(QUOTA),
    quota: Mapping[Kind, int] = QUOTA,
) -> list[Fault]:
    """Return `count` faults of these kinds; the first ones are one of each kind, if they fit."""
    chance = random.Random(seed)
    chosen = chance.sample(kinds, len(kinds)) if count >= len(kinds) else []
    weights = [quota.get(kind, 1) for kind in kinds]
    chosen += chance.choices(kinds, weights, k=count - len(chosen))
    return [_fault(kind, chance) for kind in chosen]


def _fault(kind: Kind, chance: random.Random) -> Fault:
    session = SESSION_MS / 1000
    hold = {
        Kind.PAUSE_LEADER: chance.uniform(1.5 * session, 3 * session),
        Kind.PAUSE_CONTROLLER: chance.uniform(1.5 * session, 3 * session),
        Kind.RESTART_ZOOKEEPER: chance.uniform(0, 3 * session),
        Kind.KILL_ALL: chance.uniform(0, 1.5 * session),
        Kind.NO_FILES: chance.uniform(0, 2 * session),
        Kind.NO_MEMORY: chance.uniform(0, 2 * session),
        Kind.FULL_DISK: chance.uniform(0, 2 * session),
    }.get(kind, chance.choice([0.0, chance.uniform(0, 2 * session)]))
    return Fault(kind, chance.randrange(1 << 16), chance.uniform(0.2, 3), hold)


class Saboteur:
    """Does faults to a cluster and heals them; reads from ZooKeeper which broker leads."""

    def __init__(
        self,
        cluster: Cluster,
        places: Sequence[Place],
        client: KazooClient,
        disks: Mapping[int, SmallDisk],
    ) -> None:
        self._cluster = cluster
        self._disks = disks
        self._places = places
        self._client = client

    def hurt(self, fault: Fault) -> str:
        """Do a fault, wait, and heal it; return a description of it."""
        match fault.kind:
            case Kind.KILL_LEADER:
                return self._kill([self._leader(fault.aim)], fault.hold_seconds)
            case Kind.KILL_CONTROLLER:
                return self._kill([self._controller()], fault.hold_seconds)
            case Kind.KILL_TWO:
                leader = self._leader(fault.aim)
                others = [one for one in self._cluster.brokers if one != leader]
                return self._kill([others[fault.aim % len(others)], leader], fault.hold_seconds)
            case Kind.PAUSE_LEADER:
                return self._pause(self._leader(fault.aim), fault.hold_seconds)
            case Kind.PAUSE_CONTROLLER:
                return self._pause(self._controller(), fault.hold_seconds)
            case Kind.RESTART_ZOOKEEPER:
                self._cluster.zookeeper.kill()
                time.sleep(fault.hold_seconds)
                self._cluster.zookeeper.start()
                return f"ZooKeeper gone for {fault.hold_seconds:.1f} s"
            case Kind.KILL_ALL:
                return self._kill(list(self._cluster.brokers), fault.hold_seconds)
            case Kind.NO_FILES | Kind.NO_MEMORY:
                return self._starve(fault)
            case Kind.FULL_DISK:
                return self._fill(fault)
            case Kind.RESTART_LEADER:
                leader = self._leader(fault.aim)
                self._cluster.brokers[leader].terminate()
                time.sleep(fault.hold_seconds)
                self._cluster.brokers[leader].start()
                return f"ended {leader} in order, back after {fault.hold_seconds:.1f} s"
            case Kind.CUT_CONNECTIONS:
                leader = self._leader(fault.aim)
                port = self._cluster.brokers[leader].port
                subprocess.run(["ss", "-K", "sport", f"= :{port}"], check=True, capture_output=True)
                return f"cut all connections of {leader}"
            case Kind.ELECT_PREFERRED:
                return self._elect_preferred()

    def _kill(self, broker_ids: Sequence[int], hold_seconds: float) -> str:
        brokers = [self._cluster.brokers[one] for one in broker_ids]
        for broker in brokers:
            broker.signal(signal.SIGKILL)
        for broker in brokers:
            broker.wait()
        time.sleep(hold_seconds)
        start_together(brokers)
        return f"killed {broker_ids}, back after {hold_seconds:.1f} s"

    def _starve(self, fault: Fault) -> str:
        """Let a broker open no more files or take no more memory, while a leader dies: what that
        one led is what it has to take. It is started again afterwards, as its operator would.
        """
        leader = self._leader(fault.aim)
        others = [one for one in self._cluster.brokers if one != leader]
        victim = self._cluster.brokers[others[fault.aim % len(others)]]
        starve = shortages.of_files if fault.kind is Kind.NO_FILES else shortages.of_memory
        with starve(victim, fault.aim % 3):
            story = self._kill([leader], fault.hold_seconds)
            # Clients that return, and the killed one, want connections.
            time.sleep(fault.hold_seconds / 2)
        ended = "" if victim.running else " and ended"
        self._restart(victim)
        return f"{victim.broker_id} had no {fault.kind.value[3:]} left{ended}; {story}"

    def _fill(self, fault: Fault) -> str:
        """Fill a broker's disk; it ends, and is started again once there is space."""
        if not self._disks:
            return "no broker has a small disk"
        broker_id, disk = next(iter(self._disks.items()))
        broker = self._cluster.brokers[broker_id]
        disk.fill()
        try:
            time.sleep(fault.hold_seconds)
            with contextlib.suppress(subprocess.TimeoutExpired):
                broker.wait(FULL_SECONDS)
        finally:
            disk.free()
        ended = "went on" if broker.running else "ended"
        self._restart(broker)
        return f"the disk of {broker_id} was full; it {ended}"

    def _restart(self, broker: Broker) -> None:
        broker.kill()
        broker.start()

    def _elect_preferred(self) -> str:
        admin = AdminClient({"bootstrap.servers": self._cluster.bootstrap, **QUIET})
        try:
            found = admin.elect_leaders(ElectionType.PREFERRED).result(FULL_SECONDS)
        except KafkaException as error:
            return f"failed to elect preferred leaders: {error}"
        moved = sum(error is None for error in found.values())
        return f"elected preferred leaders of {moved} partitions"

    def _pause(self, broker_id: int, hold_seconds: float) -> str:
        broker = self._cluster.brokers[broker_id]
        broker.signal(signal.SIGSTOP)
        try:
            time.sleep(hold_seconds)
        finally:
            broker.signal(signal.SIGCONT)
        return f"stopped {broker_id} for {hold_seconds:.1f} s"

    def _leader(self, aim: int) -> int:
        place = self._places[aim % len(self._places)]
        path = znodes.state_path(*place)
        found: list[int] = []

        def known() -> bool:
            found[:] = [
                znodes.decode_state(path, self._client.retry(self._client.get, path)[0]).leader
            ]
            return found[0] != NOBODY

        wait_until(known, f"{place} has a leader")
        return found[0]

    def _controller(self) -> int:
        found: list[int] = []

        def known() -> bool:
            try:
                data = self._client.retry(self._client.get, znodes.CONTROLLER_PATH)[0]
            except NoNodeError:
                return False
            found[:] = [znodes.decode_controller(znodes.CONTROLLER_PATH, data).broker_id]
            return True

        wait_until(known, "there is a controller")
        return found[0]
