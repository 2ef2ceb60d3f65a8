"""Every block of commands in the documents says who runs it, and what it says is so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import blocks
from tests.docs.blocks import COMMANDS, Block
from tests.docs.staging import DOCS
from tests.layout.sources import ROOT

LANGUAGES = COMMANDS | {"json", "mermaid", "promql", "properties", "sql", "text", "yaml"}
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted(DOCS.rglob("*.md")),
]
TEST = re.compile(r"^(tests/[\w/]+\.py)::(test_\w+)$")


def every_block() -> Iterator[Block]:
    for document in DOCUMENTS:
        yield from blocks.blocks(document)


def test_each_block_names_its_language() -> None:
    assert [one.where for one in every_block() if one.language not in LANGUAGES] == []


def test_each_block_of_commands_says_who_runs_it() -> None:
    commands = [one for one in every_block() if one.language in COMMANDS]
    assert len(commands) > 50
    assert [one.where for one in commands if one.mark is None] == []


def test_no_mark_is_left_over() -> None:
    marks = sum(path.read_text().count("<!-- run") for path in DOCUMENTS)
    marks += sum(path.read_text().count("<!-- not run") for path in DOCUMENTS)
    assert marks == sum(one.mark is not None for one in every_block())


def test_names_of_blocks_are_taken_by_a_test() -> None:
    files = (ROOT / "tests").rglob("test_*.py")
    takers = [text for text in (path.read_text() for path in files) if "blocks.take(" in text]
    missing = []
    for block in every_block():
        if block.mark is not None and block.mark[0] == "run":
            document, name = block.document, block.mark[1]
            pair = re.compile(rf'"{re.escape(document)}",\s*"{re.escape(name)}"')
            if not any(
                pair.search(text) or (f'DOCUMENT = "{document}"' in text and f'"{name}"' in text)
                for text in takers
            ):
                missing.append(block.where)
    assert missing == []


def test_tests_that_are_said_to_run_a_block_exist() -> None:
    missing = []
    for block in every_block():
        if block.mark is not None and block.mark[0] == "run by":
            named = TEST.match(block.mark[1])
            file = ROOT / named[1] if named else None
            text = file.read_text() if file is not None and file.exists() else ""
            if named is None or not re.search(rf"^(async )?def {named[2]}\(", text, re.MULTILINE):
                missing.append(block.where)
    assert missing == []


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        ("<!-- run: a -->\n```sh\nls\n```\n", ("run", "a")),
        ("Text.\n<!-- not run: b c -->\n```sh\nls\n```\n", ("not run", "b c")),
        ("<!-- run: a -->\n\nText.\n\n```sh\nls\n```\n", None),
    ],
)
def test_a_mark_stands_directly_above(
    text: str, mark: tuple[str, str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = tmp_path / "mark.md"
    document.write_text(text)
    monkeypatch.setattr(blocks, "ROOT", tmp_path)
    (found,) = blocks.blocks(document)
    assert found.mark == mark
