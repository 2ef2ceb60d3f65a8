"""Runs the commands of docs/walkthrough.md.

    python -m tests.support.walkthrough BOOTSTRAP

writes what they say into the document. A block ```console begins with a command; in the block of a
shell each line after a prompt is typed, `^D` as the key.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.terminal import CTRL_D, Terminal

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "walkthrough.md"
PROMPT, CONTINUED = "odradek> ", "      -> "
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)
_SAID_ADDRESS = "localhost:9092"


def blocks() -> list[str]:
    """Return the blocks of the document that have commands."""
    return _BLOCK.findall(DOCUMENT.read_text())


def shape(text: str) -> str:
    """Return the text without what differs from run to run: durations, and times of records."""
    text = re.sub(r"\d+\.\d s$", "N s", text, flags=re.M)
    return re.sub(r"rowtime: [\d-]+ [\d:.]+", "rowtime: T", text).rstrip()


def replay(block: str, bootstrap: str, environment: Mapping[str, str]) -> str:
    """Return the block as it is seen if its commands are given now."""
    first, _, rest = block.partition("\n")
    command = first.removeprefix("$ ").replace(_SAID_ADDRESS, bootstrap)
    if PROMPT in rest:
        seen = _typed(command, rest, environment)
    else:
        ended = subprocess.run(
            shlex.split(command),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=300,
        )
        seen = ended.stdout
    return f"{first}\n{seen.replace(bootstrap, _SAID_ADDRESS)}"


def _typed(command: str, rest: str, environment: Mapping[str, str]) -> str:
    with Terminal(shlex.split(command), environment) as terminal:
        seen = terminal.read_until(PROMPT)
        for line in rest.splitlines():
            typed = re.match(rf"(?:{PROMPT}|{CONTINUED})(.*)", line)
            if typed is None:
                continue
            if typed[1] == "^D":
                break
            terminal.send(f"{typed[1]}\n")
            seen += terminal.read_until(PROMPT, CONTINUED)
        terminal.send(CTRL_D)
        assert terminal.wait() == 0
        return seen + "^D\n"


def _write(bootstrap: str) -> None:
    text = DOCUMENT.read_text()
    for block in blocks():
        text = text.replace(block, replay(block, bootstrap, os.environ).rstrip() + "\n")
    DOCUMENT.write_text(text)


if __name__ == "__main__":
    _write(sys.argv[1])
