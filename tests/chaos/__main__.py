"""`python -m tests.chaos`: the whole quota of faults, in rounds, each with a one-line verdict.

At the end it tells how many faults of each kind were done. Exit status 1 says that a promise was
broken; the folder of such a round with every log and the recorded history is kept, and its path is
told with the first violations of each check. A cluster that does not come up ends the rounds with
the same status, and with a line that says why and where its logs are. `--transactions` takes
another load, with a quota and checks of its own.
"""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from tests.chaos import faults
from tests.chaos.run import NotUpError, Verdict, run
from tests.chaos.transactions.run import run as run_transactions
from tests.support.kafka_broker import OldKafkaBroker

SHOWN = 5


@click.command()
@click.option("--seed", default=1, show_default=True, help="Chooses the faults.")
@click.option("--faults", "count", type=int, help="Do so many in one run, not the quota.")
@click.option("--rounds", type=int, help="Do only so many rounds of the quota.")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice([kind.value for kind in faults.Kind]),
    help="Only these kinds, with --faults; may be given several times.",
)
@click.option(
    "--kafka", multiple=True, type=click.IntRange(1, 3), help="This broker is Apache Kafka's."
)
@click.option("--transactions", is_flag=True, help="Let the load be transactions.")
@click.option("--keep", is_flag=True, help="Keep the runs' folders also when nothing is wrong.")
def main(
    seed: int,
    count: int | None,
    rounds: int | None,
    only: tuple[str, ...],
    kafka: tuple[int, ...],
    transactions: bool,
    keep: bool,
) -> None:
    """Run three brokers under load, hurt them, and check the promises to clients."""
    # The onlooker's connection breaks with every restart of ZooKeeper; that is no news here.
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    quota = faults.TRANSACTIONS_QUOTA if transactions else faults.QUOTA
    one_run = partial(run_transactions, seed=seed) if transactions else run
    if count is None:
        plans = faults.rounds(seed, quota)[:rounds]
    else:
        kinds = tuple(faults.Kind(name) for name in only) or tuple(quota)
        plans = [faults.plan(seed, count, kinds, quota)]
    done: Counter[faults.Kind] = Counter()
    acknowledged, broken = 0, 0
    with click.progressbar(
        length=sum(len(plan) + 1 for plan in plans), label=f"seed {seed}", file=sys.stderr
    ) as bar:
        for number, plan in enumerate(plans, 1):
            what = f"seed {seed}, round {number} of {len(plans)}"
            verdict = _round(what, one_run, plan, kafka, keep, bar)
            done += verdict.done
            acknowledged += verdict.acknowledged
            broken += bool(verdict.violations)
    counts = ", ".join(f"{kind.value} {number}" for kind, number in done.most_common())
    click.echo(f"did: {counts}")
    click.echo(
        f"{acknowledged} records acknowledged; {broken} of {len(plans)} rounds broke a promise"
    )
    sys.exit(1 if broken else 0)


def _round(
    what: str,
    one_run: Callable[..., Verdict],
    plan: Sequence[faults.Fault],
    kafka: Sequence[int],
    keep: bool,
    bar: Any,
) -> Verdict:
    """Run one cluster, and print its progress."""
    directory = Path(tempfile.mkdtemp(prefix="chaos-"))

    def tell(line: str) -> None:
        click.echo(f"  {line}")
        bar.update(1)

    try:
        verdict = one_run(directory, plan, tell, dict.fromkeys(kafka, OldKafkaBroker))
    except NotUpError as error:
        text = f"{what}: the cluster did not come up: {error}; its logs are in {directory}"
        raise click.ClickException(text) from error
    for name, found in verdict.violations.items():
        for violation in found[:SHOWN]:
            click.echo(f"{name}: {violation}")
    click.echo(f"{what}: {verdict}")
    if verdict.violations or keep:
        click.echo(f"the run is in {directory}")
    else:
        shutil.rmtree(directory)
    return verdict


if __name__ == "__main__":
    main()
