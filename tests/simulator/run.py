"""Runs one schedule: brokers, clients, faults, healing and the final check.

`run(plan)` is deterministic for a given PYTHONHASHSEED; see `__main__`. The brokers run the real
controller, replication and handlers; see `broker`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from uuid import UUID

from odradek.values import BrokerId, TopicPartition
from odradek.zk import znodes
from odradek.zk.operations import Create, Delete, SetData
from odradek.zk.znodes import TopicAssignment
from tests.simulator.broker import Broker
from tests.simulator.checks import BrokenPromiseError, Checks
from tests.simulator.clients import Clients
from tests.simulator.network import Network, Weather
from tests.simulator.schedule import REPLICAS, Fault, Kind, Schedule
from tests.simulator.transactions import Transactions
from tests.simulator.world import World
from tests.simulator.zookeeper import Ensemble

TOPIC = "t"
HEAL_S = 60.0


class Simulation:
    """The cluster of one schedule."""

    def __init__(self, plan: Schedule, trace: Callable[[str], None] | None = None) -> None:
        self.plan = plan
        self.world = world = World(plan.seed)
        world.trace = trace
        self._data_keys = [TopicPartition(TOPIC, number) for number in range(plan.partitions)]
        self.ensemble = Ensemble(world)
        self.network = Network(world)
        self.brokers: dict[int, Broker] = {}
        self.checks = Checks(world, self.brokers)
        self.clients = Clients(world, self.network, self.checks)
        self.transactions = Transactions(
            world, self.clients, self.checks, self._data_keys, plan.transactional_ids
        )
        self.keys = self._data_keys + self.transactions.state_keys
        self.checks.watch(self.keys)
        self.ensemble.wrote = self.checks.wrote
        for one in plan.brokers:
            self.brokers[one] = Broker(
                one,
                plan.durable,
                world,
                self.network,
                self.ensemble,
                self.checks,
                coordinates=self.transactions.are_there,
            )
        # Brokers that were short of descriptors.
        self._short: set[Broker] = set()

    def run(self) -> None:
        """Run the schedule. Raise BrokenPromiseError."""
        self.begin()
        over_at = self.world.now + self.plan.over_at
        for fault in self.plan.faults:
            self.world.later(fault.at, None, self._hurt, fault)
        self.until(lambda: self.world.now >= over_at, self.plan.over_at + 1, "")
        self.end()

    def begin(self) -> None:
        """Start brokers and clients, with one topic, and that of coordinators if there are
        transactions. Raise BrokenPromiseError.
        """
        for path in (*znodes.PERSISTENT_PATHS, znodes.BROKER_IDS_PATH, znodes.TOPICS_PATH):
            self.ensemble.ensure(path)
        for broker in self.brokers.values():
            broker.start()
        self.until(lambda: len(self._registered()) == len(self.brokers), 10, "registered")
        for topic in self._topics():
            self._create_topic(topic)
        self.clients.start(self._data_keys, self.plan.producers)
        for key in self.transactions.state_keys:
            self.clients.consume(key)
        self.transactions.start()

    def _create_topic(self, topic: str) -> None:
        replicas = {
            number: tuple(BrokerId((number + at) % REPLICAS + 1) for at in range(REPLICAS))
            for number in (key.partition for key in self.keys if key.topic == topic)
        }
        self.ensemble.apply(
            Create(znodes.topic_path(topic), znodes.encode_topic(TopicAssignment(replicas))), 0
        )

    def end(self) -> None:
        """Heal the cluster, wait until it is whole, and check it. Raise BrokenPromiseError."""
        self._heal()
        self.clients.sending = False
        self.until(self._whole, HEAL_S, "whole again")
        self.checks.check_end(self.clients.positions)
        self.transactions.check_end()
        if self.checks.failure is not None:
            raise self.checks.failure

    def _registered(self) -> list[str]:
        return list(self.ensemble.tree[znodes.BROKER_IDS_PATH].children)

    def until(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        """Run until `done()`. Raise BrokenPromiseError if `what` is named and does not come."""
        checks, world = self.checks, self.world
        finished = world.run(lambda: checks.failure is not None or done(), seconds)
        for process in world.processes:
            if process.failure is not None:
                raise BrokenPromiseError(
                    f"{process.name} failed: {process.failure!r}"
                ) from process.failure
        if checks.failure is not None:
            raise checks.failure
        if not finished and what:
            raise BrokenPromiseError(f"not {what} within {seconds} s: {self._situation()}")

    def _situation(self) -> str:
        ends = {
            str(key): {
                one: log.log_end_offset
                for one, broker in self.brokers.items()
                if (log := broker.disk.get(*key)) is not None
            }
            for key in self.keys
        }
        return (
            f"{[self._assignment(topic) for topic in self._topics()]}, {self.checks.states}, "
            f"log ends {ends}, read to {self.clients.positions}, "
            f"{self.clients.unanswered} batches unanswered, "
            f"{self.transactions.situation()}"
        )

    def _whole(self) -> bool:
        if self.clients.unanswered or not self.transactions.all_ended:
            return False
        for key in self.keys:
            state = self.checks.states.get(key)
            assigned = self._assignment(key.topic)
            replicas = assigned.partitions[key.partition]
            if (
                state is None
                or state.leader < 0
                or set(state.isr) != set(replicas)
                or assigned.adding
                or assigned.removing
                or len(replicas) != REPLICAS
            ):
                return False
            logs = {one: broker.disk.get(*key) for one, broker in self.brokers.items()}
            ends = {None if logs[one] is None else logs[one].log_end_offset for one in replicas}
            if ends != {self.clients.positions[key]} or self._is_left_over(key, replicas):
                return False
            for one, broker in self.brokers.items():
                info = broker.metadata.partition(*key)
                if not broker.registered or info is None:
                    return False
                partition = broker.replicas.partitions.get(key) if one in replicas else info
                if (
                    not info.leader_epoch
                    == state.leader_epoch
                    == getattr(partition, "leader_epoch", None)
                ):
                    return False
                # What was added once is not to be left out of the under-replicated for good.
                if getattr(partition, "adding", ()):
                    return False
        return True

    def _is_left_over(self, key: TopicPartition, replicas: tuple[int, ...]) -> bool:
        """Return whether a broker still has a stray replica."""
        return any(
            one not in replicas
            and (broker.disk.get(*key) is not None or key in broker.replicas.partitions)
            for one, broker in self.brokers.items()
        )

    def _topics(self) -> list[str]:
        return list(dict.fromkeys(key.topic for key in self.keys))

    def _assignment(self, topic: str) -> TopicAssignment:
        path = znodes.topic_path(topic)
        return znodes.decode_topic(path, self.ensemble.tree[path].data)

    # --- faults -------------------------------------------------------------------------------

    def _hurt(self, fault: Fault) -> None:
        world, lasts = self.world, fault.lasts
        if self.checks.robbed:
            # Replication does not survive lost records and another fault at the same time.
            world.say(f"fault left out: {fault.kind.value}")
            return
        victim = self._victim(fault.aim)
        others = [one for one in self.brokers.values() if one is not victim]
        safe = self.plan.durable and fault.aim % 2 == 0
        world.say(f"fault: {fault.kind.value} for {lasts:.2f} s, aimed at {victim.name}")
        match fault.kind:
            case Kind.KILL:
                self._kill([victim], lasts, power_failed=safe)
            case Kind.KILL_TWO:
                self._kill([others[fault.aim % 2], victim], lasts, power_failed=safe)
            case Kind.KILL_ALL:
                self._kill(list(self.brokers.values()), lasts, power_failed=safe)
            case Kind.POWER:
                # Replication does not survive the loss of several copies at the same time.
                if self.plan.durable or self._whole_enough():
                    self._kill([victim], lasts, power_failed=True)
            case Kind.PAUSE:
                victim.pause()
                world.later(lasts, None, victim.resume)
            case Kind.CUT_ZOOKEEPER:
                if victim.alive:
                    session = victim.session
                    session.cut()
                    world.later(lasts, None, session.mend)
            case Kind.CUT_PEER:
                other = others[fault.aim % 2]
                ways = {(victim.name, other.name), (other.name, victim.name)}
                if fault.aim % 3 == 0:
                    ways = {(victim.name, other.name)}
                self.network.cuts |= ways
                world.later(lasts, None, self.network.cuts.difference_update, ways)
            case Kind.ZOOKEEPER_DOWN:
                self._stop_zookeeper()
                world.later(lasts, None, self._start_zookeeper)
            case Kind.WEATHER:
                level = (fault.aim % 5 + 1) / 20
                self.network.weather = Weather(lost=level / 2, late=level, slow=level)
                world.later(lasts, None, self._clear_up)
            case Kind.DEPOSE:
                if znodes.CONTROLLER_PATH in self.ensemble.tree:
                    self.ensemble.apply(Delete(znodes.CONTROLLER_PATH), 0)
            case Kind.REASSIGN:
                self._reassign(fault.aim)
            case Kind.NO_FILES:
                self._take_files(victim, fault)
            case Kind.NO_SPACE:
                victim.disk.trouble.no_space = True
                world.later(lasts, None, setattr, victim.disk.trouble, "no_space", False)
            case Kind.TOPIC_ID:
                self._change_topic_id(fault.aim)

    def _reassign(self, aim: int) -> None:
        """Request a reassignment of a partition, as Kafka's tool does."""
        path = znodes.REASSIGN_PARTITIONS_PATH
        wanted = list(permutations(self.plan.brokers, REPLICAS))
        key = self.keys[aim % len(self.keys)]
        where = {TopicPartition(*key): wanted[aim // 2 % len(wanted)]}
        if path not in self.ensemble.tree and self.ensemble.up:
            self.world.say(f"wanted: {key} on {wanted[aim // 2 % len(wanted)]}")
            self.ensemble.apply(Create(path, znodes.encode_reassignment(where)), 0)

    def _take_files(self, leader: Broker, fault: Fault) -> None:
        """Let a broker run out of descriptors; half the time, its leader dies: it has to lead."""
        others = [one for one in self.brokers.values() if one is not leader]
        victim = others[fault.aim % len(others)]
        victim.disk.trouble.no_files = True
        self._short.add(victim)
        self.world.say(f"{victim.name} has no file descriptors left")
        self.world.later(fault.lasts, None, setattr, victim.disk.trouble, "no_files", False)
        if fault.aim % 8 < 4:
            self.world.later(fault.lasts / 4, None, self._kill, [leader], fault.lasts / 2)

    def _change_topic_id(self, aim: int) -> None:
        """Write the topic's znode without its id, as tools and controllers before Kafka 2.8 do, or
        with another one, as Kafka 2.8's controller does after them.
        """
        if self.ensemble.up:
            topics = self._topics()
            topic = topics[aim // 2 % len(topics)]
            given = znodes.new_topic_id(UUID(int=aim)) if aim % 2 else None
            data = znodes.encode_topic(replace(self._assignment(topic), topic_id=given))
            self.ensemble.apply(SetData(znodes.topic_path(topic), data), 0)

    def _victim(self, aim: int) -> Broker:
        """Return a partition's leader in half the cases, else the controller, else any broker."""
        kind = aim % 4
        state = self.checks.states.get(self.keys[aim // 4 % len(self.keys)])
        if kind < 2 and state is not None and state.leader > 0:
            return self.brokers[state.leader]
        claim = self.ensemble.tree.get(znodes.CONTROLLER_PATH)
        if kind == 2 and claim is not None:
            found = znodes.decode_controller(znodes.CONTROLLER_PATH, claim.data)
            return self.brokers[found.broker_id]
        return self.brokers[self.plan.brokers[aim // 4 % len(self.brokers)]]

    def _whole_enough(self) -> bool:
        return all(
            one.registered and one.session.is_healthy for one in self.brokers.values()
        ) and all(
            key in self.checks.states and len(self.checks.states[key].isr) == REPLICAS
            for key in self.keys
        )

    def _kill(self, victims: list[Broker], lasts: float, *, power_failed: bool = False) -> None:
        for broker in victims:
            broker.kill(power_failed=power_failed)
            self.world.later(lasts, None, self._start, broker)

    def _start(self, broker: Broker) -> None:
        if not broker.alive:
            broker.start()

    def _stop_zookeeper(self) -> None:
        self.world.say("ZooKeeper is down")
        self.ensemble.up = False
        for broker in self.brokers.values():
            if broker.alive:
                broker.session.cut()

    def _start_zookeeper(self) -> None:
        if not self.ensemble.up:
            self.world.say("ZooKeeper is back")
            self.ensemble.up = True
            for broker in self.brokers.values():
                if broker.alive:
                    broker.session.mend()

    def _clear_up(self) -> None:
        self.network.weather = Weather()

    def _heal(self) -> None:
        self.world.say("healing")
        self._clear_up()
        self.network.cuts.clear()
        self._start_zookeeper()
        for broker in self.brokers.values():
            trouble = broker.disk.trouble
            trouble.no_files = trouble.no_space = False
            if broker in self._short:
                # A role that was refused is asked for again when the broker is back.
                broker.kill(power_failed=False)
            if not broker.alive:
                broker.start()
            broker.resume()
            broker.session.mend()


class _TraceHandler(logging.Handler):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        running = self._world.running
        who = "-" if running is None else running.name
        self._world.say(f"{who}: {record.getMessage()}")


def run(plan: Schedule, trace: Callable[[str], None] | None = None) -> BrokenPromiseError | None:
    """Run a schedule; return the broken invariant, or None."""
    simulation = Simulation(plan, trace)
    handler = _TraceHandler(simulation.world)
    root = logging.getLogger("odradek")
    before = root.level, root.propagate
    root.propagate = False
    if trace is None:
        root.setLevel(logging.CRITICAL + 1)
    else:
        root.setLevel(logging.INFO)
        root.addHandler(handler)
        for fault in simulation.plan.faults:
            trace(f"planned: {fault}")
    try:
        simulation.run()
    except BrokenPromiseError as promise:
        return promise
    finally:
        simulation.world.end()
        root.removeHandler(handler)
        root.setLevel(before[0])
        root.propagate = before[1]
    return None
