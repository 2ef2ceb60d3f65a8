"""The fuzzer at length, with the seed printed: `python -m tests.fuzz --frames 2000000`."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import click

from tests.fuzz.siege import Siege


@click.command()
@click.option("--frames", default=1_000_000, show_default=True, help="Frames to send.")
@click.option("--seed", default=None, type=int, help="Seed; by default the time.")
def main(frames: int, seed: int | None) -> None:
    """Start a broker and send damaged frames to it."""
    seed = int(time.time()) if seed is None else seed
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory() as directory, Siege(Path(directory)) as siege:
        began = time.monotonic()
        tally = siege.endure(frames, seed)
        print(f"{tally} in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
