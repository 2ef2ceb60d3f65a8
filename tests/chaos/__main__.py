"""`python -m tests.chaos --seed N --faults N`: progress, then a verdict of one line.

Exit status 1 says that a promise was broken; the run's folder with every log and the recorded
history is then kept, and its path is told with the first violations of each check.
"""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
from pathlib import Path

import click

from tests.chaos import faults
from tests.chaos.run import run

SHOWN = 5


@click.command()
@click.option("--seed", default=1, show_default=True, help="Chooses the faults.")
@click.option("--faults", "count", default=40, show_default=True, help="How many.")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice([kind.value for kind in faults.Kind]),
    help="Only these kinds; may be given several times.",
)
@click.option("--keep", is_flag=True, help="Keep the run's folder also when nothing is wrong.")
def main(seed: int, count: int, only: tuple[str, ...], keep: bool) -> None:
    """Run three brokers under load, hurt them, and check what the clients were promised."""
    # The onlooker's connection breaks with every restart of ZooKeeper; that is no news here.
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    kinds = tuple(faults.Kind(name) for name in only) or tuple(faults.SHARES)
    plan = faults.plan(seed, count, kinds)
    directory = Path(tempfile.mkdtemp(prefix=f"chaos-{seed}-"))
    with click.progressbar(length=count + 1, label=f"seed {seed}", file=sys.stderr) as bar:

        def tell(line: str) -> None:
            click.echo(f"  {line}")
            bar.update(1)

        verdict = run(directory, plan, tell)
    for name, found in verdict.violations.items():
        for violation in found[:SHOWN]:
            click.echo(f"{name}: {violation}")
    click.echo(f"seed {seed}: {verdict}")
    if verdict.violations or keep:
        click.echo(f"the run is in {directory}")
    else:
        shutil.rmtree(directory)
    sys.exit(1 if verdict.violations else 0)


if __name__ == "__main__":
    main()
