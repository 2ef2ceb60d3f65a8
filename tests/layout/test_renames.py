"""Old words stay away, and a class name stands for one class."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.layout import renames, sources
from tests.layout.renames import Row
from tests.layout.sources import Source


@pytest.fixture(scope="module")
def table() -> list[Row]:
    return renames.read_table(renames.TABLE.read_text())


def show(lines: list[str]) -> str:
    return "\n".join([f"{len(lines)} left:", *lines])


def test_no_identifier_has_an_old_name(table: list[Row]) -> None:
    found = renames.left_over(table, [*sources.packages(), *sources.tests()])
    assert not found, show(found)


def test_every_new_name_exists(table: list[Row]) -> None:
    found = renames.missing(table, sources.packages())
    assert not found, show(found)


def test_a_class_name_stands_for_one_class() -> None:
    found = renames.ambiguous([*sources.packages(), *sources.chart_files()])
    assert not found, show(found)


TEXT = '''"""Prose: leads, Office, odradek.old.place and again."""
from __future__ import annotations
import odradek.old.place as place
from odradek.old import place
from odradek.old.place import Office
class Office:
    leads: bool = True
    __slots__ = ("leads",)
    def again(self, office: Office) -> "Office":
        leads = self.leads  # leads
        return getattr(self, "again")(leads=leads)
'''


def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: str) -> list[int]:
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    path = tmp_path / "one.py"
    path.write_text(TEXT)
    lines = renames.left_over(renames.read_table(row), [Source(path, "odradek.one")])
    return [int(one.split(":")[1]) for one in lines]


@pytest.mark.parametrize(
    ("row", "lines"),
    [
        ("module odradek.old.place -> odradek.new", [3, 4, 5]),
        ("name Office -> Other", [5, 6, 9]),
        ("name leads -> is_leader", [7, 8, 10, 11]),
        ("member leads -> is_leader", [7, 8, 10, 11]),
        ("member again -> later", [9, 11]),
        ("name office -> other in odradek.one", [9]),
        ("name office -> other in odradek.other, tests", []),
    ],
)
def test_identifiers_are_found_and_prose_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: str, lines: list[int]
) -> None:
    assert left(tmp_path, monkeypatch, row) == lines
