"""Half a minute of transactions against real brokers, with faults, and no broken promise."""

from pathlib import Path

import pytest

from tests.chaos.faults import Fault, Kind
from tests.chaos.transactions import load
from tests.chaos.transactions.run import PLACES, run
from tests.support.sampling import FULL, some_of

# The first partitions behind those of records are of the coordinators of transactional ids.
COORDINATOR = len(PLACES)
PLAN = [
    Fault(Kind.KILL_LEADER, COORDINATOR, calm_seconds=1, hold_seconds=0),
    Fault(Kind.PAUSE_LEADER, COORDINATOR + 1, calm_seconds=1, hold_seconds=7),
    Fault(Kind.ELECT_PREFERRED, 0, calm_seconds=1, hold_seconds=0),
    Fault(Kind.RESTART_LEADER, COORDINATOR + 2, calm_seconds=1, hold_seconds=0),
    Fault(Kind.CUT_CONNECTIONS, 0, calm_seconds=1, hold_seconds=0),
    Fault(Kind.KILL_TWO, 1, calm_seconds=1, hold_seconds=0),
    Fault(Kind.PAUSE_LEADER, 2, calm_seconds=1, hold_seconds=7),
    Fault(Kind.KILL_ALL, 0, calm_seconds=1, hold_seconds=0),
]
SAMPLE = [PLAN[0]]


@pytest.mark.timeout(1800)
def test_faults_tear_no_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "PAUSE_SECONDS", load.PAUSE_SECONDS if FULL else 1)
    plan = some_of(PLAN, SAMPLE)
    verdict = run(tmp_path, plan, print)
    assert verdict.violations == {}, str(verdict)
    assert verdict.acknowledged > 50
    assert len(verdict.seconds_to_progress) == len(plan)
