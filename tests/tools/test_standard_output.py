"""What commands print, where a disk is full, a reader goes, or nobody listens."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from odradek import standard_output
from odradek.topic_config import TopicConfig
from tests.support.logs import Partition, batch

FULL = "odradek: cannot write to stdout: No space left on device\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a partition, of which a dump is longer than a pipe is wide."""
    folder = tmp_path_factory.mktemp("logs") / "topic-0"
    partition = Partition(folder, TopicConfig())
    log = partition.open(clean=True)
    for _ in range(300):
        log.append_as_leader(batch(bytes(300), bytes(300)), 0)
    partition.close(log)
    return folder


def shell(command: str) -> tuple[int, str, str]:
    """Run a command line, in which `odradek` is this one; return its status and what it said."""
    done = subprocess.run(
        [
            "bash",
            "-c",
            f'set -o pipefail; odradek() {{ {sys.executable} -m odradek "$@"; }}; {command}',
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "--help",
        "--version",
        "broker --help",
        "groups --help",
        "zookeeper secure --help",
        "sql --help",
        "local --help",
        "console --help",
        "datagen --help",
    ],
)
def test_help_on_a_full_disk_is_one_line(command: str) -> None:
    assert shell(f"odradek {command} >/dev/full") == (1, "", FULL)


def test_a_full_disk_is_no_fault_of_the_file_that_is_dumped(folder: Path) -> None:
    assert shell(f"odradek log dump {folder} >/dev/full") == (1, "", FULL)
    assert shell(f"odradek log dump {folder} >&-") == (2, "", "odradek: stdout is closed\n")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("sql -e HELP >&-", "stdout is closed"),
        ("sql <&-", "stdin is closed"),
        ("local --data /nowhere/data >&-", "stdout is closed"),
        ("groups list >&-", "stdout is closed"),
        ("console user ann --password x >&-", "stdout is closed"),
    ],
)
def test_a_stream_that_is_closed_is_one_line(command: str, said: str) -> None:
    assert shell(f"odradek {command}") == (2, "", f"odradek: {said}\n")


def test_no_file_gets_the_number_of_a_stream_that_is_closed(tmp_path: Path) -> None:
    place = tmp_path / "file"
    program = """
import os, subprocess, sys
from odradek import standard_output
standard_output.guard()
assert sys.stdin is sys.stdout is sys.stderr is None
with open(sys.argv[1], "w") as file:
    subprocess.run(["sh", "-c", "echo x; echo y >&2; cat"], check=True)
    file.write(" ".join(os.readlink(f"/proc/self/fd/{one}") for one in range(3)))
"""
    shell(f"{sys.executable} -c {shlex.quote(program)} {place} <&- >&- 2>&-")
    assert place.read_text() == "/dev/null /dev/null /dev/null"


def test_what_a_terminal_has_no_character_for_is_escaped(tmp_path: Path) -> None:
    place = tmp_path / "stdout"
    with place.open("w", encoding="latin-1") as file:
        stdout = standard_output._guarded(file, is_stdout=True)
        stdout.write("\xfc \u6f22\n")
        stdout.flush()
    assert place.read_bytes() == b"\xfc \\u6f22\n"


def test_a_reader_that_goes_ends_a_command_without_a_word(folder: Path) -> None:
    status, first, said = shell(f"odradek log dump --records {folder} | head -n 1")
    assert (status, first.count("\n"), said) == (1, 1, "")


def test_a_mistake_that_nobody_can_be_told_of_has_its_status() -> None:
    for mistake in ("topics list --nope", "log dump /nowhere", "broker /nowhere"):
        assert shell(f"odradek {mistake} 2>/dev/full") == (2, "", "")
