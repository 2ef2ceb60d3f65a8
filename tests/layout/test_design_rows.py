"""Rows such as "C3" that docstrings cite stand in docs/design.md."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "broker_image/src/odradek",
    "operator/src/odradek_operator",
    "operator/spark_job/src/odradek_spark",
    "tests",
)
CITED = re.compile(r"\b[ZCRLPGSK][1-9][0-9]?\b")
ROW = re.compile(r"^\| ([A-Z][0-9]*) \| (.+) \| (.+) \|$", re.MULTILINE)


def docstrings(file: Path) -> Iterator[str]:
    text = file.read_text()
    # To parse all files takes seconds.
    for node in ast.walk(ast.parse(text)) if CITED.search(text) else ():
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def citations() -> dict[str, set[str]]:
    """Return the files that cite a row, by row."""
    found: dict[str, set[str]] = {}
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            for text in docstrings(file):
                for row in CITED.findall(text):
                    found.setdefault(row, set()).add(str(file.relative_to(ROOT)))
    return found


def test_every_row_that_a_docstring_cites_is_in_the_design() -> None:
    cited = citations()
    assert cited
    rows = {row for row, _, _ in ROW.findall((ROOT / "docs/design.md").read_text())}
    assert {row: files for row, files in cited.items() if row not in rows} == {}


def test_rows_of_the_design_are_unique_and_say_something() -> None:
    rows = ROW.findall((ROOT / "docs/design.md").read_text())
    names = [row for row, _, _ in rows]
    assert len(names) == len(set(names))
    assert [row for row, meaning, state in rows if len(meaning) < 20 or not state] == []
