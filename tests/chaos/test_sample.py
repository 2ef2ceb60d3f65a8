"""Some minutes against real brokers: faults of every kind, and no broken promise."""

from pathlib import Path

import pytest

from tests.chaos import load
from tests.chaos.faults import Fault, Kind
from tests.chaos.run import run
from tests.support.sampling import how_many, some_of

PLAN = [
    Fault(Kind.KILL_LEADER, 0, calm_seconds=1, hold_seconds=0),
    Fault(Kind.PAUSE_CONTROLLER, 0, calm_seconds=1, hold_seconds=7),
    Fault(Kind.KILL_LEADER, 1, calm_seconds=1, hold_seconds=6),
    Fault(Kind.RESTART_ZOOKEEPER, 0, calm_seconds=1, hold_seconds=2),
    Fault(Kind.KILL_CONTROLLER, 0, calm_seconds=1, hold_seconds=0),
    Fault(Kind.PAUSE_LEADER, 2, calm_seconds=1, hold_seconds=7),
    Fault(Kind.KILL_TWO, 3, calm_seconds=1, hold_seconds=0),
    Fault(Kind.RESTART_ZOOKEEPER, 0, calm_seconds=1, hold_seconds=8),
    Fault(Kind.KILL_LEADER, 4, calm_seconds=0.2, hold_seconds=0),
    Fault(Kind.KILL_ALL, 0, calm_seconds=1, hold_seconds=0),
    Fault(Kind.NO_FILES, 1, calm_seconds=1, hold_seconds=1),
    Fault(Kind.FULL_DISK, 0, calm_seconds=1, hold_seconds=0),
    Fault(Kind.NO_MEMORY, 2, calm_seconds=1, hold_seconds=1),
]


# A controller that sleeps, ZooKeeper, all at once, and no memory. A killed leader, full disks and
# missing descriptors have tests of their own: test_replication, test_disk_faults and
# test_many_partitions in tests/broker.
SAMPLE = [PLAN[1], PLAN[3], PLAN[9], PLAN[12]]


@pytest.mark.timeout(1800)
def test_faults_break_no_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "RECORDS_PER_SECOND", how_many(12, full=load.RECORDS_PER_SECOND))
    plan = some_of(PLAN, SAMPLE)
    verdict = run(tmp_path, plan, print)
    assert verdict.violations == {}, str(verdict)
    assert verdict.acknowledged > how_many(100, full=1000)
    assert len(verdict.seconds_to_progress) == len(plan)
