"""The fuzzer at length, with the seed printed: `python -m tests.fuzz --frames 2000000`.

With `--grammar` the frames are written from the declarations, against three brokers.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import click

from tests.fuzz.cluster_siege import LONGEST_GAP_S, ClusterSiege
from tests.fuzz.siege import Siege


@click.command()
@click.option("--frames", default=1_000_000, show_default=True, help="Frames to send.")
@click.option("--seed", default=None, type=int, help="Seed; by default the time.")
@click.option("--grammar", is_flag=True, help="Bend fields of requests, against three brokers.")
def main(frames: int, seed: int | None, grammar: bool) -> None:
    """Start brokers and send damaged frames to them."""
    seed = int(time.time()) if seed is None else seed
    click.echo(f"seed {seed}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        if grammar:
            _besiege_cluster(Path(directory), frames, seed)
        else:
            with Siege(Path(directory)) as siege:
                click.echo(siege.endure(frames, seed))
    click.echo(f"{time.monotonic() - began:.0f} s")


def _besiege_cluster(directory: Path, frames: int, seed: int) -> None:
    with ClusterSiege(directory) as siege:
        tally = siege.endure(frames, seed, click.echo)
        siege.check_end()
        gap, count = siege.producer.longest_gap_s(), siege.producer.acknowledged
    click.echo(f"{tally}; {count} records acknowledged, longest gap {gap:.2f} s")
    if gap > LONGEST_GAP_S:
        raise click.ClickException(f"no acknowledgement for {gap:.2f} s")


if __name__ == "__main__":
    main()
