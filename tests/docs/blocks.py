"""Blocks of commands in the documents, each with the mark that says what runs it.

A comment stands directly above a block of commands (```sh, ```console). Readers do not see it:

    <!-- run: NAME -->              a test runs the block, which it finds by this name
    <!-- run by: tests/x/y.py -->   a test runs what the block shows, not its very text
    <!-- not run: REASON -->        nobody runs it

`take` gives a test the text of a block by its name; `test_commands.py` looks that there is such a
test for every name, and a mark for every block.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.layout.sources import ROOT

# Blocks of other languages, and output, have no commands.
COMMANDS = frozenset({"sh", "console"})
_FENCE = re.compile(r"^( *)```(\S*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- (run|run by|not run): (.+?) -->\s*$")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its document, language and text, and its mark as (kind, text)."""

    document: str
    line: int
    language: str
    text: str
    mark: tuple[str, str] | None

    @property
    def where(self) -> str:
        """The place of the block, for messages."""
        return f"{self.document}:{self.line}"


def blocks(path: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a document."""
    text = path.read_text()
    for found in _FENCE.finditer(text):
        indent, language, inside = found.groups()
        mark = _MARK.search(text[: found.start()])
        yield Block(
            str(path.relative_to(ROOT)),
            text.count("\n", 0, found.start()) + 1,
            language,
            re.sub(rf"^{indent}", "", inside, flags=re.MULTILINE),
            (mark[1], mark[2]) if mark else None,
        )


def take(document: str, name: str) -> str:
    """Return the text of the block with the mark `run: NAME`. Raises LookupError."""
    for block in blocks(ROOT / document):
        if block.mark == ("run", name):
            return block.text
    raise LookupError(f"{document} has no block `run: {name}`")


def run(text: str, environment: Mapping[str, str], folder: Path, seconds: float = 120) -> str:
    """Run a block as a person would paste it, line by line; fail at the first that fails."""
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        env={**os.environ, **environment},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=seconds,
    )
    assert ended.returncode == 0, f"{text}\n{ended.stdout}"
    return ended.stdout
