"""`python -m tests.simulator --seeds N`: run many schedules; print the trace of a failing one.

A schedule depends on its seed and on the order of sets of strings, so the command starts itself
again with a fixed PYTHONHASHSEED if there is none. Exit status 1: an invariant was broken;
`--first SEED --seeds 1` replays the schedule.
"""

from __future__ import annotations

import os
import sys
import time

import click

from tests.simulator import bugs
from tests.simulator.sweep import Sweep

HASH_SEED = "0"
TRACE_LINES = 60


@click.command()
@click.option("--first", default=0, show_default=True, help="The first seed.")
@click.option("--seeds", "count", default=10_000, show_default=True, help="How many.")
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True, help="Processes.")
@click.option("--bug", type=click.Choice(list(bugs.BUGS)), help="Plant a bug; it has to be found.")
@click.option(
    "--outages", "kind", flag_value="outages", help="Only power failures that no controller sees."
)
@click.option(
    "--transactions", "kind", flag_value="transactions", help="Producers with transactions."
)
@click.option("--whole", is_flag=True, help="Print the whole trace of a failing schedule.")
def main(first: int, count: int, jobs: int, bug: str | None, kind: str | None, whole: bool) -> None:
    """Run schedules of faults against controller, replication and transactions, in virtual time."""
    sweep = Sweep(bug, kind or "any")
    began = time.monotonic()
    done, failing = 0, None
    with click.progressbar(length=count, label="schedules", file=sys.stderr) as bar:
        for seed, broken in sweep.attempts(first, count, min(jobs, count)):
            bar.update(1)
            done += 1
            if broken is not None:
                failing = seed, broken
                break
    seconds = time.monotonic() - began
    if failing is not None:
        lines = sweep.replay(failing[0])
        click.echo("\n".join(lines if whole else lines[-TRACE_LINES:]))
        click.echo(f"seed {failing[0]}: {failing[1]}")
    click.echo(
        f"{done} schedules in {seconds:.0f} s, {'one broke a promise' if failing else 'PASS'}"
    )
    sys.exit(1 if failing else 0)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulator", *sys.argv[1:]])
    main()
