"""Measure this broker beside Apache Kafka 2.8.2 and 4.1.0, and write tests/bench/RESULTS.md.

    python -m tests.bench.report [rounds]
    python -m tests.bench.report --quick
    python -m tests.bench.report --only failover 1    # cases by their titles; nothing is written
    python -m tests.bench.report --python python3.13  # what runs this project's brokers

Each case measures all systems one after the other, and the next round in another order, so that the
machine drifts for all. Cases that take minutes have fewer rounds. Nothing is written before every
round has run. What the bar says is left comes from what the cases take as a rule.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import math
import os
import platform
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from tests.bench import steadiness, stolen
from tests.bench.bench_produce_fetch import positive
from tests.bench.report import catalogue, interpreter, warmth
from tests.bench.report.bench import Bench, Case, Volume
from tests.bench.report.results import PER_GIGABYTE, Results
from tests.bench.report.systems import PEERS, Launcher
from tests.bench.warm_tools import WarmTools

ROOT: Final = Path(__file__).parents[3]
REPORT: Final = ROOT / "tests" / "bench" / "RESULTS.md"
# Short runs count latency for as long: of 10 MB/s, three records are beyond the last percentile.
WHOLE: Final = Volume(megabytes=500, seconds=2, latency_seconds=4)
QUICK: Final = Volume(megabytes=300, seconds=1, latency_seconds=4)
WARM_UP: Final = Volume(megabytes=300, seconds=1, latency_seconds=2)
MOST_WARM_UPS: Final = 6
DAY_SECONDS: Final = 86_400
METHOD: Final = (
    "Clients, brokers and ZooKeeper share the machine. Kafka runs with its default threads, 1 GiB",
    "of heap and G1; 4.1.0 in KRaft mode, each broker a controller too. Clients are the",
    "ProducerPerformance and ConsumerPerformance of Kafka 2.8.2 in a warm JVM (`linger.ms=5`,",
    "`batch.size=65536`), librdkafka, and bare sockets.",
    "",
    "Figures are medians of the rounds. A ratio is that of this broker's median to the other's.",
    "In brackets is the interval in which the ratio may be as well: the 95 % confidence interval",
    "of the rounds' ratios, and twice what this broker differs from a second one of the same",
    "code as a rule. Two runs agree if their intervals overlap; rows of one round state none.",
    "*Ratio to again* is that to the second broker. The limit is what a client reaches against a",
    "server that does the least: it acknowledges and drops, or sends one batch over and over;",
    "end to end, it sends each batch that comes to the fetch that waits; for bare sockets, it",
    "receives, computes CRC-32C and writes, or calls sendfile. A goal that is missed *by the",
    "limit too* is out of reach of any server with this client. The *limit that writes* is such",
    "a server for the same client which also checks the CRC-32C of each batch and writes it to a",
    "file per partition, as whatever stores must: Python, with one thread for the client, as a",
    "broker of this project has one. It decides no goal; one that is missed *by the limit that",
    "writes too* is out of its reach as well. Processor time is that of the brokers, or of this",
    "server.",
    "",
    "All systems have the same time-out of failovers: sessions, and in KRaft the silence of a",
    "controller, too. What is beyond it begins when ZooKeeper drops the session. In KRaft that",
    "is known to 50 ms. These cases, and cases without a goal, have three rounds at most, and",
    "thousands of partitions have one; none of them has the second broker of this project.",
    "",
)
WHY: Final = (
    "[What the time goes to](../../docs/performance.md#goals-that-are-missed), and what was tried."
)


def run(options: argparse.Namespace, launcher: Launcher, bar: Progress) -> Results:
    """Measure everything that the options choose."""
    results = Results()
    volume = QUICK if options.quick else WHOLE
    plans = [catalogue.steps(group.cases, options.rounds) for group in options.groups]
    seconds = sum(case.seconds for plan in plans for _, case in plan)
    for group in options.groups:
        seconds += MOST_WARM_UPS * sum(one.seconds for one in group.warming)
        seconds += sum(one.seconds for one in group.compiling)
    task = bar.add_task("starting", total=seconds)
    for group, plan in zip(options.groups, plans, strict=True):
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            bar.update(task, description=f"starting brokers, {group.brokers} each")
            found = (
                stack.enter_context(launcher.start_all(folder, group.brokers, group.settings))
                if group.brokers
                else {}
            )
            tools = [
                stack.enter_context(WarmTools(_made(folder / f"tools-{number}"), "512m"))
                for number in range(group.tools)
            ]
            bench = Bench(folder, launcher, found, tools, volume, results)
            # JVMs compile, and connections open, before anything counts.
            warm_up = _made(folder / "warm-up")
            warm = Bench(warm_up, launcher, found, tools, WARM_UP, Results())
            for case in group.compiling:
                _round(warm, case, -1, bar)
            _warm_up(warm, group.warming, bar)
            for number, case in plan:
                _round(bench if number >= 0 else warm, case, number, bar)
    return results


def _round(bench: Bench, case: Case, number: int, bar: Progress) -> None:
    [task] = bar.task_ids
    said = "warm-up" if number < 0 else f"round {number + 1}"
    if case.limit is not None and number >= 0:
        bar.update(task, description=f"{said}, {case.title}: the limit")
        case.limit(bench)
    for name in catalogue.order(case.systems, max(0, number)):
        what = f"{said}, {case.title}: {name}"
        bar.update(task, description=what)
        bench.results.loops.append(steadiness.loop_s())
        before = stolen.now()
        case.measure(bench, name)
        # Cases of one title are measured with one broker and with three.
        running = bench.systems.get(name)
        measured = what if running is None else f"{what}, brokers: {len(running.brokers)}"
        bench.results.stolen[measured] = stolen.now().since(before)
        bar.advance(task, case.seconds / len(case.systems))


def _warm_up(bench: Bench, cases: Sequence[Case], bar: Progress) -> None:
    """Repeat cases until Kafka's brokers take about as much processor time as the time before.

    This project's brokers compile nothing, so that the first pass does for them.
    """
    [task] = bar.task_ids

    def do_pass(number: int) -> dict[str, float]:
        for case in cases:
            repeated = case if number == 0 else dataclasses.replace(case, systems=PEERS)
            _round(bench, repeated, number - MOST_WARM_UPS, bar)
        spent = {name: bench.results.newest(name, PER_GIGABYTE) for name in PEERS}
        said = ", ".join(f"{name} {value:.2f} {PER_GIGABYTE}" for name, value in spent.items())
        bar.console.print(f"warm-up {number + 1}: {said}")
        return spent

    if cases:
        left = MOST_WARM_UPS - warmth.warm_up(do_pass, MOST_WARM_UPS)
        bar.advance(task, left * sum(one.seconds for one in cases))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _said(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    return (done.stdout or done.stderr).strip()


def machine(python: str) -> list[str]:
    """Return lines on where this was measured, with the version of Python of the brokers."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    java = _said("java", "-version").splitlines()
    commit = _said("git", "rev-parse", "--short", "HEAD")
    dirty = " with changes" if _said("git", "status", "--porcelain") else ""
    return [
        f"- {os.cpu_count()} processors ({cpu.group(1) if cpu else 'unknown'}), "
        f"{int(memory.group(1)) // 1024 // 1024 if memory else '?'} GiB, "
        f"Linux {platform.release()}",
        f"- Python {python} for this project's brokers, {java[0] if java else 'no Java'}",
        f"- commit {commit or 'unknown'}{dirty}",
    ]


def report(results: Results, options: argparse.Namespace, python: str, seconds: float) -> str:
    """Return the report in Markdown; `python` is the version that runs this project's brokers."""
    missed = results.missed()
    now = datetime.datetime.now(datetime.UTC)
    kind = (
        "a short run, with less data per case: `make bench QUICK=1`"
        if options.quick
        else "`make bench`"
    )
    part = [f"Only cases whose title has *{options.only}*.", ""] if options.only else []
    lines = [
        "# Results",
        "",
        f"Made by {kind} on {now:%Y-%m-%d}, {options.rounds} rounds in {seconds / 60:.0f} minutes.",
        "",
        *part,
        *machine(python),
        f"- this broker differs from itself by {math.expm1(results.noise()):.0%} as a rule",
        f"- {stolen.said(results.stolen)}",
        f"- {steadiness.said(results.loops)}",
        "",
        *METHOD,
        *results.sections(),
        "### Goals that are missed",
        "",
        *([f"- {one}" for one in missed] or ["None."]),
        "",
        *([WHY, ""] if missed else []),
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the report; return 130 if it was interrupted."""
    parser = argparse.ArgumentParser(description="This broker beside Apache Kafka 2.8.2 and 4.1.0.")
    parser.add_argument(
        "rounds", type=positive, nargs="?", help="default: 5, and 3 with --quick", default=None
    )
    parser.add_argument("--quick", action="store_true", help="fewer cases with less data")
    parser.add_argument(
        "--only",
        default="",
        metavar="TEXT",
        help="the cases whose title has it: printed, not written",
    )
    parser.add_argument(
        "--python",
        type=interpreter.find,
        metavar="PROGRAM",
        help="runs this project's brokers, in a new environment with the locked dependencies; "
        "a folder: the Python of the image whose files are there",
    )
    parser.add_argument(
        "--output", type=Path, help=f"default: {REPORT.relative_to(ROOT)}, with --only none"
    )
    options = parser.parse_args(arguments)
    if options.output is None and not options.only:
        options.output = REPORT
    if options.output is not None and not options.output.parent.is_dir():
        parser.error(f"there is no folder {options.output.parent}")
    every = catalogue.groups()
    options.groups = catalogue.chosen(every, quick=options.quick, only=options.only)
    if not options.groups:
        titles = ", ".join(one.title for group in every for one in group.cases)
        parser.error(f"no case has {options.only!r} in its title: {titles}")
    options.rounds = options.rounds or (3 if options.quick else 5)
    # For a thousand connections of this process; brokers do the same for themselves.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # Whatever ends the process, brokers and folders go first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with tempfile.TemporaryDirectory() as folder:
            launcher = Launcher()
            if options.python is not None:
                made = interpreter.environment(options.python, Path(folder) / "environment")
                launcher = Launcher(made, options.python.version)
            return _measure(options, launcher)
    except interpreter.UnusableError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("bench: interrupted; nothing was written", file=sys.stderr)
        return 130


def _measure(options: argparse.Namespace, launcher: Launcher) -> int:
    began = time.monotonic()
    columns = (
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("gone,"),
        TimeRemainingColumn(),
        TextColumn("left: {task.description}"),
    )
    # The pace is that of the whole run so far: cases differ.
    with Progress(*columns, speed_estimate_period=DAY_SECONDS) as bar:
        results = run(options, launcher, bar)
    text = report(results, options, launcher.version, time.monotonic() - began)
    if options.output is None:
        print(text)
        return 0
    options.output.write_text(text)
    print(f"{options.output} is written")
    for line in results.missed():
        print(f"goal missed: {line}")
    if stolen.total(results.stolen).share >= stolen.MUCH:
        print(f"{stolen.said(results.stolen)}; measure again when it is quiet", file=sys.stderr)
    if steadiness.slowest_tenth(results.loops) >= steadiness.MUCH:
        print(f"{steadiness.said(results.loops)}; measure on another machine", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
