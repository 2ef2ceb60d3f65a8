"""Measure this broker beside Apache Kafka 2.8.2 and 4.1.0, and write tests/bench/RESULTS.md.

    python -m tests.bench.report [rounds]
    python -m tests.bench.report --quick

Each case measures all systems one after the other, and the next round in another order, so that the
machine drifts for all. Nothing is written before every round has run.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.bench.bench_produce_fetch import positive
from tests.bench.report import cases, systems
from tests.bench.report.cases import Bench, Case, Volume
from tests.bench.report.results import Results
from tests.bench.warm_tools import WarmTools

ROOT: Final = Path(__file__).parents[3]
REPORT: Final = ROOT / "tests" / "bench" / "RESULTS.md"
WHOLE: Final = Volume(megabytes=400, seconds=3)
QUICK: Final = Volume(megabytes=150, seconds=1)
# A JVM compiles for long: after 60 MB a case, Kafka's brokers still took nearly twice as much.
WARM_UPS: Final = 2
PRODUCERS: Final = 8
METHOD: Final = (
    "Clients, brokers and ZooKeeper share the machine. Kafka runs with its default threads, 1 GiB",
    "of heap and G1; 4.1.0 in KRaft mode, each broker a controller too. Clients are the",
    "ProducerPerformance and ConsumerPerformance of Kafka 2.8.2 in a warm JVM (`linger.ms=5`,",
    "`batch.size=65536`), librdkafka, and bare sockets.",
    "",
    "Figures are medians of the rounds. A ratio is that of this broker's median to the other's; in",
    "brackets are the lowest and the highest of single rounds. *Ratio to again* is that to a",
    "second broker of the same code: what differs no more says nothing. The limit is what a client",
    "reaches against a server that does the least: it acknowledges and drops, or sends one batch",
    "over and over; for bare sockets, it receives, computes CRC-32C and writes, or calls sendfile.",
    "Processor time is that of the brokers.",
    "",
)


def run(options: argparse.Namespace, bar: Progress) -> Results:
    """Measure everything."""
    results = Results()
    groups = [(1, cases.of_one_broker()), (3, cases.of_three_brokers())]
    chosen = [
        (brokers, [one for one in each if one.quick or not options.quick])
        for brokers, each in groups
    ]
    runs = (options.rounds + WARM_UPS) * sum(len(each) for _, each in chosen) * len(systems.SYSTEMS)
    task = bar.add_task("starting", total=runs)
    for brokers, each in chosen:
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            bar.update(task, description=f"starting {brokers} broker{'s' * (brokers > 1)} each")
            found = stack.enter_context(systems.running(folder, brokers))
            tools = [
                stack.enter_context(WarmTools(_made(folder / f"tools-{number}"), "512m"))
                for number in range(1 if options.quick else PRODUCERS)
            ]
            volume = QUICK if options.quick else WHOLE
            bench = Bench(folder, found, tools, volume, results)
            # JVMs compile, and connections open, before anything counts.
            warm = Bench(folder / "warm-up", found, tools, QUICK, Results())
            _made(warm.folder)
            for number in range(-WARM_UPS, options.rounds):
                for case in each:
                    _round(bench if number >= 0 else warm, case, number, bar)
    return results


def _round(bench: Bench, case: Case, number: int, bar: Progress) -> None:
    [task] = bar.task_ids
    said = "warm-up" if number < 0 else f"round {number + 1}"
    if case.limit is not None and number >= 0:
        bar.update(task, description=f"{said}, {case.title}: the limit")
        case.limit(bench)
    for name in cases.order(systems.SYSTEMS, max(0, number)):
        bar.update(task, description=f"{said}, {case.title}: {name}")
        case.measure(bench, name)
        bar.advance(task)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _said(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    return (done.stdout or done.stderr).strip()


def machine() -> list[str]:
    """Return lines on where this was measured."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    java = _said("java", "-version").splitlines()
    commit = _said("git", "rev-parse", "--short", "HEAD")
    dirty = " with changes" if _said("git", "status", "--porcelain") else ""
    return [
        f"- {os.cpu_count()} processors ({cpu.group(1) if cpu else 'unknown'}), "
        f"{int(memory.group(1)) // 1024 // 1024 if memory else '?'} GiB, "
        f"Linux {platform.release()}",
        f"- Python {platform.python_version()}, {java[0] if java else 'no Java'}",
        f"- commit {commit or 'unknown'}{dirty}",
    ]


def report(results: Results, options: argparse.Namespace, seconds: float) -> str:
    """Return the report in Markdown."""
    missed = results.missed()
    now = datetime.datetime.now(datetime.UTC)
    kind = (
        "a short run, with less data per case: `make bench QUICK=1`"
        if options.quick
        else "`make bench`"
    )
    lines = [
        "# Results",
        "",
        f"Made by {kind} on {now:%Y-%m-%d}, {options.rounds} rounds in {seconds / 60:.0f} minutes.",
        "",
        *machine(),
        "",
        *METHOD,
        *results.sections(),
        "### Goals that are missed",
        "",
        *([f"- {one}" for one in missed] or ["None."]),
        "",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the report; return 130 if it was interrupted."""
    parser = argparse.ArgumentParser(description="This broker beside Apache Kafka 2.8.2 and 4.1.0.")
    parser.add_argument(
        "rounds", type=positive, nargs="?", help="default: 5, and 3 with --quick", default=None
    )
    parser.add_argument("--quick", action="store_true", help="fewer cases with less data")
    parser.add_argument("--output", type=Path, default=REPORT, help="default: %(default)s")
    options = parser.parse_args(arguments)
    if not options.output.parent.is_dir():
        parser.error(f"there is no folder {options.output.parent}")
    options.rounds = options.rounds or (3 if options.quick else 5)
    # Whatever ends the process, brokers and folders go first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    try:
        with Progress(*columns) as bar:
            results = run(options, bar)
    except KeyboardInterrupt:
        print("bench: interrupted; nothing was written", file=sys.stderr)
        return 130
    options.output.write_text(report(results, options, time.monotonic() - began))
    print(f"{options.output} is written")
    for line in results.missed():
        print(f"goal missed: {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
