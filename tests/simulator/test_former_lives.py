"""A Fetch of a broker's former life arrives after the broker came back with an empty disk.

The broker is not in sync, so its death changes neither the leader epoch nor the partition's znode.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from odradek.protocol.messages.fetch import FetchRequest
from odradek.replica.registrations import FollowerRegistrations
from tests.simulator.broker import Broker
from tests.simulator.run import Simulation
from tests.simulator.schedule import Schedule

ENOUGH_S = 30.0
RECORDS = 5


class FormerLife:
    """Holds the `nth` Fetch by which a follower could join, and kills and empties the follower."""

    def __init__(self, nth: int) -> None:
        self.simulation = simulation = Simulation(Schedule(1, (1, 2, 3), False, 1, 1, ()))
        [self.key] = simulation.keys
        simulation.begin()
        self._until(lambda: len(self._isr()) == 3, "in sync")
        self._until(lambda: len(simulation.checks.acknowledged) >= RECORDS, "acknowledged")
        simulation.clients.sending = False
        self._until(lambda: not simulation.clients.unanswered, "answered")
        leader = simulation.checks.states[self.key].leader
        self.leader, self.follower = (
            simulation.brokers[leader],
            simulation.brokers[leader % 3 + 1],
        )
        self._left = nth
        self._fetched = -1

    def _isr(self) -> tuple[int, ...]:
        state = self.simulation.checks.states.get(self.key)
        return () if state is None else tuple(state.isr)

    def _until(self, done: Any, what: str) -> None:
        self.simulation.until(done, ENOUGH_S, what)

    def _holds(self, source: str, target: str, request: Any) -> bool:
        if not isinstance(request, FetchRequest) or source != self.follower.name:
            return False
        if target == self.leader.name:
            # A fetch of a session does not name what it fetches where the last one did.
            for topic in request.topics:
                self._fetched = topic.partitions[0].fetch_offset
            if self._fetched >= self._committed():
                self._left -= 1
        return self._left <= 0

    def _committed(self) -> int:
        return int(self.leader.replicas.partitions[self.key].high_watermark)

    def lets_in_the_empty_replica(self) -> bool:
        network, follower = self.simulation.network, self.follower
        self._restart(follower)
        network.holds = self._holds
        self._until(lambda: network.held == 1 or self._in_sync(), "held")
        assert network.held == 1, "the follower joined before"
        self._restart(follower, empty=True)
        self._until(lambda: self.key in follower.replicas.partitions, "told its role")
        assert not self._in_sync()
        assert follower.disk.get(*self.key).log_end_offset == 0 < self._committed()
        network.release_first()
        return self.simulation.world.run(self._in_sync, 5.0)

    def _in_sync(self) -> bool:
        return self.follower.broker_id in self._isr()

    def _restart(self, broker: Broker, *, empty: bool = False) -> None:
        broker.kill(power_failed=False)
        self._until(lambda: not self._in_sync(), "out of the ISR")
        if empty:
            broker.disk.wipe()
        broker.start()
        self._until(lambda: broker.registered, "registered")


@pytest.fixture
def story(nth: int) -> Iterator[FormerLife]:
    told = FormerLife(nth)
    yield told
    told.simulation.world.end()


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_fetch_of_a_former_life_lets_no_empty_replica_in(story: FormerLife) -> None:
    assert not story.lets_in_the_empty_replica()
    story.simulation.network.holds = lambda source, target, request: False
    story.simulation.end()


@pytest.mark.parametrize("nth", [3])
def test_schedule_finds_a_leader_that_does_not_ask_who_is_registered(
    story: FormerLife, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def always(self: FollowerRegistrations, registered: object) -> bool:
        return True

    monkeypatch.setattr(FollowerRegistrations, "is_current", always)
    assert story.lets_in_the_empty_replica()
