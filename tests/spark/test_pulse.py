"""When a batch loop counts as hung, in virtual time."""

from __future__ import annotations

import pytest

from odradek_spark.pulse import LOOP_PATIENCE_S, START_PATIENCE_S, Activity, Pulse, QueryState

TIMEOUT_S = 3600.0
LOOK_S = 5.0


class Loop:
    """A batch loop that a pulse looks at every few seconds."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self.now = 0.0
        self.pulse = Pulse(timeout_s, lambda: self.now)
        self.batches = 0

    def run(
        self,
        seconds: float,
        query: QueryState,
        *,
        jobs: bool = False,
        turns: bool = True,
        batches: bool = False,
    ) -> bool:
        """Go on for so long in the same way, and return whether the loop lives at the end."""
        until = self.now + seconds
        while self.now < until:
            if turns:
                self.pulse.beat()
            self.batches += batches
            self.pulse.observe(Activity(query, jobs, self.batches))
            self.now += LOOK_S
        return self.pulse.is_alive()


@pytest.mark.parametrize(
    ("query", "how", "alive"),
    [
        (QueryState.IDLE, {}, True),
        (QueryState.NONE, {}, True),
        (QueryState.BUSY, {"batches": True}, True),
        # A batch that computes, or waits for its executors.
        (QueryState.BUSY, {"jobs": True}, True),
        (QueryState.NONE, {"jobs": True, "turns": False}, True),
        (QueryState.BUSY, {}, False),
        (QueryState.ENDED, {}, False),
        (QueryState.IDLE, {"turns": False}, False),
    ],
)
def test_loop_without_a_sign_of_life_for_its_time_out_hangs(
    query: QueryState, how: dict[str, bool], alive: bool
) -> None:
    loop = Loop()
    assert loop.run(60, QueryState.IDLE)
    assert loop.run(2 * TIMEOUT_S, query, **how) is alive


def test_ended_query_and_silent_main_thread_are_noticed_before_a_stuck_batch() -> None:
    for query, how in ((QueryState.ENDED, True), (QueryState.BUSY, False)):
        loop = Loop()
        loop.run(60, QueryState.IDLE)
        assert loop.run(LOOP_PATIENCE_S - 2 * LOOK_S, query, turns=how)
        assert not loop.run(2 * LOOK_S, query, turns=how)
    stuck = Loop()
    stuck.run(60, QueryState.IDLE)
    assert stuck.run(TIMEOUT_S - 2 * LOOK_S, QueryState.BUSY)
    assert not stuck.run(2 * LOOK_S, QueryState.BUSY)


@pytest.mark.parametrize("timeout_s", [60, 10 * START_PATIENCE_S])
def test_driver_may_take_longer_to_start_than_a_batch_may(timeout_s: float) -> None:
    loop = Loop(timeout_s)
    loop.now = START_PATIENCE_S - 1
    assert loop.pulse.is_alive()
    assert loop.run(30, QueryState.BUSY)
    hanging = Loop(timeout_s)
    hanging.now = START_PATIENCE_S
    assert not hanging.pulse.is_alive()


def test_present_batch_is_timed_from_its_beginning() -> None:
    loop = Loop()
    loop.run(60, QueryState.IDLE)
    assert loop.pulse.batch_running_s is None
    loop.run(60, QueryState.BUSY, jobs=True)
    assert loop.pulse.batch_running_s == 60
    loop.run(60, QueryState.BUSY, jobs=True, batches=True)
    assert loop.pulse.batch_running_s == LOOK_S
    loop.run(LOOK_S, QueryState.IDLE)
    assert loop.pulse.batch_running_s is None
