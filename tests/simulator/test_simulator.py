"""Schedules keep every promise, and a planted bug is found among the first thousands.

Some schedules here, ten thousand of a kind in `make chaos`; there, too, the bugs that take many
schedules to be found. The command is run as a process of its own, because a schedule depends on the
order of sets of strings; in parts, which the runners of the tests share.
"""

import os
import subprocess
import sys

import pytest

from tests.simulator import schedule
from tests.simulator.bugs import BUGS
from tests.simulator.transaction_bugs import TRANSACTION_BUGS
from tests.support.sampling import how_many, some_of

SCHEDULES = how_many(50, full=10_000)
PART = how_many(50, full=125)
OUTAGES = how_many(15, full=2_000)
TRANSACTIONS = how_many(20, full=10_000)
TRANSACTIONS_PART = how_many(20, full=100)
SEEDS_TO_FIND_A_BUG = 3000
# These take seconds to find, or are of a kind with others.
RARE = (
    "ignores leader epochs",
    "hears what a controller said before",
    "reports what it failed to flush",
    "leaves what moved away on the disk",
    "counts an unconfirmed in-sync set",
    "truncates to the high watermark",
    "obeys deposed controllers",
    "leads by half without descriptors",
    "takes a topic with another id for another topic",
    "writes markers before the outcome is durable",
)
# Where the search begins, to save time: a schedule near that shows the bug. Any seed is right.
BEGIN_AT = {
    "forgets to fsync": 18,
    "never doubts its leadership": 38,
    "takes a topic with another id for another topic": 54,
    "lets followers in too early": 100,
    "leads by half without descriptors": 104,
    "leaves what moved away on the disk": 121,
    "goes on in the epoch of before an outage": 1300,
}
# Other schedules take tens of thousands to find it.
OF_OUTAGES = "goes on in the epoch of before an outage"


# Without a fixed order of sets the command starts itself again, and imports everything twice.
FIXED_ORDER = {**os.environ, "PYTHONHASHSEED": "0"}


def simulate(
    *arguments: str, environment: dict[str, str] | None = FIXED_ORDER
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.simulator", "--jobs", "1", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(0, SCHEDULES, PART))
def test_no_schedule_breaks_a_promise(first: int) -> None:
    done = simulate("--first", str(first), "--seeds", str(PART))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{PART} schedules" in done.stdout


@pytest.mark.timeout(1800)
def test_no_outage_that_no_controller_sees_breaks_a_promise() -> None:
    done = simulate("--outages", "--seeds", str(OUTAGES), environment=None)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(0, TRANSACTIONS, TRANSACTIONS_PART))
def test_no_schedule_breaks_a_promise_of_transactions(first: int) -> None:
    done = simulate("--transactions", "--first", str(first), "--seeds", str(TRANSACTIONS_PART))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("bug", some_of([*BUGS], [one for one in BUGS if one not in RARE]))
def test_planted_bug_is_found_and_replayed_with_a_trace(bug: str) -> None:
    planted = ["--bug", bug]
    if bug == OF_OUTAGES:
        planted += ["--outages", "--whole"]
    elif bug in TRANSACTION_BUGS:
        planted += ["--transactions"]
    first = how_many(BEGIN_AT.get(bug, 0), full=0)
    found = simulate("--first", str(first), "--seeds", str(SEEDS_TO_FIND_A_BUG), *planted)
    assert found.returncode == 1, found.stdout + found.stderr
    *trace, verdict, _ = found.stdout.splitlines()
    seed = verdict.split()[1].rstrip(":")
    assert any("VIOLATION" in line or "healing" in line for line in trace), found.stdout
    again = simulate("--first", seed, "--seeds", "1", *planted)
    assert again.stdout.splitlines()[:-1] == [*trace, verdict]


def test_schedule_follows_from_its_seed_alone() -> None:
    for plan in (schedule.plan, schedule.transactions):
        assert plan(7) == plan(7)
        assert plan(7) != plan(8)
        assert {fault.kind for seed in range(100) for fault in plan(seed).faults} == set(
            schedule.Kind
        )
