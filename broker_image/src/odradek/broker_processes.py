"""Several brokers on one machine, a process each, from one file of settings and one command.

A broker runs Python on one core; more of them use more. The first has the settings of the file.
Each further one has the next id, the next port after each of its neighbour's, and log directories
beside the first one's: `/data` becomes `/data-ID`. The processes are forks of this one, so they
share the memory of modules. Whichever ends first, the others are stopped like it: a service manager
sees one service, which lives or not.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from odradek import stop_signals, terminal_text, thread_errors
from odradek.config import BrokerConfig
from odradek.properties import ConfigError

MOST: Final = 100
_PORTS: Final = re.compile(r":([0-9]+)(?=\s*(?:,|$))")
_PR_SET_PDEATHSIG: Final = 1


def overrides(first: BrokerConfig, number: int, count: int) -> dict[str, str]:
    """Return in which settings broker `number` of `count`, from 0 on, differs from the first.

    Raises ConfigError if two of the brokers would listen on one port.
    """
    used = [one.port for one in first.listeners if one.port]
    used += [first.metrics_port] if first.metrics_port else []
    for one, other in combinations(used, 2):
        if abs(one - other) < count:
            raise ConfigError(
                f"ports {one} and {other} are nearer to each other than {count} brokers, each of "
                "which has the next port after its neighbour's"
            )
    if not number:
        return {}
    broker_id = first.broker_id + number
    found = {
        "broker.id": str(broker_id),
        "listeners": _shifted(first.listeners_text, number),
        "log.dirs": ",".join(f"{Path(one)}-{broker_id}" for one in first.log_dirs),
    }
    if first.advertised_listeners_text:
        found["advertised.listeners"] = _shifted(first.advertised_listeners_text, number)
    if first.metrics_port:
        found["odradek.metrics.port"] = str(first.metrics_port + number)
    return found


def _shifted(text: str, number: int) -> str:
    """Return listeners with other ports; 0, any that is free, stays."""
    return _PORTS.sub(lambda found: f":{(port := int(found[1])) and port + number}", text)


def run_all(brokers: Sequence[Callable[[], int]]) -> int:
    """Run each in a process of its own until one ends, or this one is told to; stop the others.

    Return the exit status: that of the first which ended with a failure. 128 and the number of a
    signal stand for one that was killed. 1 if not all can be started, which is told on stderr.
    """
    running: set[int] = set()
    is_stopping = False

    def stop(_number: int = signal.SIGTERM, _frame: FrameType | None = None) -> None:
        nonlocal is_stopping
        if is_stopping:
            # A second signal would kill a broker that has stopped and only has to exit.
            return
        is_stopping = True
        for one in running:
            # It may have been waited for just now.
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGTERM)

    parent = os.getpid()
    held = stop_signals.numbers()
    # A signal between two forks would reach only those that there are.
    signal.pthread_sigmask(signal.SIG_BLOCK, held)
    failed = 0
    for run in brokers:
        try:
            child = os.fork()
        except OSError:
            # EAGAIN or ENOMEM: the machine has no room for one more.
            terminal_text.tell(thread_errors.NO_THREAD)
            failed = 1
            stop()
            break
        if not child:
            _be_broker(run, parent, held)
        running.add(child)
    for number in held:
        signal.signal(number, stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, held)
    while running:
        child, status = os.wait()
        if child not in running:
            # Started by a shell that became this process, or an orphan where this is process 1.
            continue
        running.remove(child)
        failed = failed or _exit_status(status)
        stop()
    return failed


def _be_broker(run: Callable[[], int], parent: int, held: set[signal.Signals]) -> NoReturn:
    status = 1
    try:
        import ctypes  # what others start without

        # Nobody could stop it once its parent was killed.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() == parent:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, held)
            status = run()
    finally:
        for output in (sys.stdout, sys.stderr):
            # One that is closed is None; one that takes nothing must not keep this from its end.
            with contextlib.suppress(AttributeError, OSError):
                output.flush()
        os._exit(status)


def _exit_status(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def check_directories(settings: Mapping[int, BrokerConfig]) -> None:
    """Raise ConfigError if two brokers would have one log directory."""
    owners: dict[Path, int] = {}
    for broker_id, config in settings.items():
        for one in config.log_dirs:
            other = owners.setdefault(Path(one).absolute(), broker_id)
            if other != broker_id:
                raise ConfigError(f"brokers {other} and {broker_id} would both have log.dirs {one}")
