"""Runs commands, and prints the progress of steps.

A step prints its name, a line with the elapsed time at least every 15 seconds while it runs, and
its duration at the end. The output of long commands goes to a log file; on failure the error
carries its last lines.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

HEARTBEAT_S = 15.0


class ClusterError(RuntimeError):
    """An error for the user; the message is complete."""


def say(text: str) -> None:
    """Print one line of progress on stderr; stdout has results only."""
    print(text, file=sys.stderr, flush=True)


def run(
    argv: Sequence[str | Path],
    *,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    check: bool = True,
) -> str:
    """Run a command and return its stdout. Raises ClusterError with the last line of stderr."""
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words, input=stdin, env=env, cwd=cwd, capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise ClusterError(f"{words[0]} is not installed") from error
    if check and done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise ClusterError(f"{' '.join(words[:4])}: exit {done.returncode}: {lines[-1]}")
    return done.stdout


def run_logged(
    argv: Sequence[str | Path],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> None:
    """Run a command with its output appended to `log`. Raises ClusterError with its tail.

    Whoever interrupts this ends the command and all that it has started, and waits until it has
    cleaned up.
    """
    # Other threads hear of no interrupt; what they run has to hear of it from the terminal.
    own_group = 0 if threading.current_thread() is threading.main_thread() else None
    words = [str(word) for word in argv]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as sink:
        start = sink.tell()
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=env,
                cwd=cwd,
                process_group=own_group,
            )
        except FileNotFoundError as error:
            raise ClusterError(f"{words[0]} is not installed") from error
        try:
            code = process.wait()
        except KeyboardInterrupt:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            raise
    if code:
        with log.open("rb") as source:
            source.seek(start)
            tail = source.read().decode(errors="replace").splitlines()[-15:]
        text = "\n".join(f"    {line}" for line in tail)
        raise ClusterError(f"{words[0]} failed with exit {code}; the end of {log}:\n{text}")


def last_line(log: Path) -> str:
    """Return the last line of a log, shortened to fit a terminal; empty if there is none."""
    try:
        with log.open("rb") as source:
            source.seek(max(0, log.stat().st_size - 2000))
            lines = source.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    text = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return text if len(text) <= 80 else text[:77] + "..."


@contextmanager
def step(title: str, log: Path | None = None) -> Iterator[None]:
    """Print a step's progress while it runs, with the last line of `log`."""
    started = time.monotonic()
    done = threading.Event()

    def beat() -> None:
        while not done.wait(HEARTBEAT_S):
            doing = f": {last_line(log)}" if log else ""
            say(f"    ... {title}, {time.monotonic() - started:.0f} s{doing}")

    say(f"--> {title}")
    reporter = threading.Thread(target=beat, daemon=True)
    reporter.start()
    try:
        yield
    finally:
        done.set()
        reporter.join()
    say(f"    {title}: {time.monotonic() - started:.1f} s")


def side_by_side(*actions: Callable[[], None]) -> None:
    """Run actions at once. If one fails, say so, and raise its error when all have ended."""
    with ThreadPoolExecutor(max_workers=len(actions)) as workers:
        running = [workers.submit(action) for action in actions]
        failed = wait(running, return_when=FIRST_EXCEPTION)
        if failed.not_done:
            say("    failed; stopping when what runs beside it has ended")
    for one in running:
        one.result()


def wait_until(
    condition: Callable[[], bool], what: str, *, timeout_s: float, interval_s: float = 0.25
) -> None:
    """Poll until true. Raises ClusterError after `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise ClusterError(f"timed out after {timeout_s:.0f} s waiting for {what}")
        time.sleep(interval_s)
