"""Commands that are interrupted."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.cluster.settings import REPO
from tests.support.broker import wait_until

INTERRUPTED = """\
import signal, sys
from pathlib import Path
from tests.cluster.shell import run_logged
signal.signal(signal.SIGTERM, signal.default_int_handler)
run_logged(["bash", "-c", sys.argv[1]], Path(sys.argv[2]))
"""
# It starts a program, which has to end with it, and cleans up.
BUILD = "trap 'wait; echo cleaned up; exit 1' TERM; sleep 600 & echo started $!; wait"


def test_an_interrupted_command_ends_with_all_that_it_started(tmp_path: Path) -> None:
    log = tmp_path / "log"
    argv = [sys.executable, "-c", INTERRUPTED, BUILD, str(log)]
    process = subprocess.Popen(argv, cwd=REPO, stderr=subprocess.DEVNULL)
    wait_until(lambda: log.exists() and "started" in log.read_text(), "the command")
    process.terminate()
    assert process.wait(timeout=60) != 0
    assert log.read_text().endswith("cleaned up\n")
    sleeper = int(log.read_text().split()[1])
    try:
        os.kill(sleeper, 0)
    except ProcessLookupError:
        return
    os.kill(sleeper, signal.SIGKILL)
    raise AssertionError("the program that it started runs on")
