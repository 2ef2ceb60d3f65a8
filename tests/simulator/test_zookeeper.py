"""The simulated sessions end every call, as ZooKeeper's clients do."""

import random

import pytest

from odradek.zk.session import SessionState
from tests.simulator.world import Process, World
from tests.simulator.zookeeper import Ensemble, SimulatedSession


@pytest.mark.parametrize("seed", range(5))
def test_reads_end_whenever_the_server_stops(seed: int) -> None:
    """Also those that are sent after it broke, before the client notices."""
    world = World(seed)
    ensemble = Ensemble(world)
    process = Process(world, "client")
    session = SimulatedSession(ensemble, process)
    chance = random.Random(seed)
    answers: list[bool] = []

    async def read() -> None:
        answers.append(await session.exists("/") is not None)

    process.spawn(session.start())
    assert world.run(lambda: session.state is SessionState.CONNECTED, 1.0)

    def begin_read() -> None:
        process.spawn(read())

    def stop_server() -> None:
        ensemble.up = False
        session.cut()

    def start_server() -> None:
        ensemble.up = True
        session.mend()

    for _ in range(20):
        stops_at = chance.uniform(0, 0.01)
        world.later(stops_at, None, stop_server)
        world.later(stops_at + 0.1, None, start_server)
        for number in range(200):
            world.later(number * 0.00005, process, begin_read)
        world.run(lambda: False, 2.0)
    assert len(answers) == 20 * 200
    assert all(answers)
    world.end()
