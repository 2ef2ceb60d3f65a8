"""`odradek local` and `odradek console` on a machine that lets them start no process or thread."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from odradek.thread_errors import NO_THREAD
from tests.support import process_limit

LINE = f"odradek: {NO_THREAD}\n"
# It leaves its starter no further process.
JAVA = f"""#!{sys.executable}
import os, resource, sys
resource.prlimit(os.getppid(), resource.RLIMIT_NPROC, (0, 0))
print('openjdk version "21" 2023-09-19', file=sys.stderr)
"""


@pytest.mark.parametrize("module", [["odradek", "console"], ["odradek_console"]], ids=len)
def test_a_console_without_threads_says_what_to_do(module: list[str]) -> None:
    # A name is looked up in a thread.
    words = [sys.executable, "-m", *module, "--host", "localhost", "--port", "0"]
    assert process_limit.run(words) == (1, "", LINE)


@pytest.mark.parametrize("module", [["odradek", "local"], ["odradek_local"]], ids=len)
def test_java_that_cannot_be_started_is_not_called_missing(module: list[str]) -> None:
    with process_limit.folder() as folder:
        home = java_home(folder, "#!/bin/sh\n")
        words = [sys.executable, "-m", *module, "--data", str(folder / "data")]
        ended = process_limit.run(words, environment={"JAVA_HOME": str(home)})
    assert ended == (1, "", LINE)


def test_processes_that_cannot_be_started_are_no_fault_of_the_data() -> None:
    with process_limit.folder() as folder:
        home = java_home(folder, JAVA)
        words = [sys.executable, "-m", "odradek_local", "--data", str(folder / "data")]
        status, _, said = process_limit.run(
            words, is_limited=False, environment={"JAVA_HOME": str(home)}
        )
    assert (status, said) == (1, LINE)


@pytest.mark.parametrize("module", ["odradek_console", "odradek_local"])
def test_a_module_that_is_run_ends_on_a_full_disk_as_other_commands(module: str) -> None:
    words = [sys.executable, "-m", module, "--help"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    said = "odradek: cannot write to stdout: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)


def java_home(folder: Path, program: str) -> Path:
    java = folder / "bin/java"
    java.parent.mkdir()
    java.write_text(program)
    java.chmod(0o755)
    return folder
