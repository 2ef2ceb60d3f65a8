"""ARCHITECTURE.md's layout equals what the modules say of themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.layout import print_layout


def test_the_document_shows_the_layout_as_it_is() -> None:
    shown = print_layout.section(print_layout.DOCUMENT.read_text())
    wanted = print_layout.fenced(print_layout.layout())
    assert shown == wanted, "run `python -m tests.layout.print_layout --write`"


def test_every_folder_has_a_line() -> None:
    assert print_layout.unlisted() == []


@pytest.mark.parametrize(
    ("docstring", "sentence"),
    [
        (None, ""),
        ("One line.", "One line"),
        (
            "A sentence that runs\nover two lines. And another.",
            "A sentence that runs over two lines",
        ),
        ("Heading\n\nParagraph.", "Heading"),
        (
            "Uses server.properties, e.g. those of v2.8. `x` does.",
            "Uses server.properties, e.g. those of v2.8",
        ),
    ],
)
def test_first_sentences_are_joined(docstring: str | None, sentence: str) -> None:
    assert print_layout.first_sentence(docstring) == sentence


def test_a_tree_lists_modules_before_folders(tmp_path: Path) -> None:
    package = tmp_path / "part/src/odradek"
    inner = package / "inner"
    inner.mkdir(parents=True)
    (package / "__init__.py").write_text('"""The package."""\n')
    (package / "top.py").write_text(f'"""{"Long words " * 12}end. Second."""\n')
    (inner / "__init__.py").write_text('"""The folder."""\n')
    (inner / "one.py").write_text('"""The module."""\n')
    folders = (("part", "of the checkout"), ("part/src/odradek", ""), ("gone", ""))
    assert print_layout.layout(tmp_path, folders).splitlines() == [
        "part/                       of the checkout",
        "  src/odradek/              The package",
        f"    top.py                  {'Long words ' * 8}Long",
        f"{' ' * 28}words {'Long words ' * 3}end",
        "    inner/                  The folder",
        "      one.py                The module",
    ]
