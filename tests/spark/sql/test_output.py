"""How rows are printed (row S2)."""

import io
from datetime import UTC, datetime

import pytest

from odradek_spark.sql import output


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_fit_the_terminal_and_wide_characters_count_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    terminal = FakeTerminal()
    output.print_table(terminal, ("n", "text"), [(1, "x" * 100), (22, "日本語" * 20), (3, None)])
    lines = terminal.getvalue().splitlines()
    assert lines[0] == " n | text"
    assert all(output.columns_of(line) <= 30 for line in lines)
    assert lines[2] == " 1 | " + "x" * 24 + "…"
    assert lines[4] == " 3 | null"


def test_more_columns_than_the_terminal_is_wide_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    terminal = FakeTerminal()
    output.print_table(terminal, [f"column{n}" for n in range(50)], [["value"] * 50])
    assert all(len(line) <= 20 for line in terminal.getvalue().splitlines())


def test_files_get_whole_values() -> None:
    file = io.StringIO()
    output.print_table(file, ("a",), [("x" * 5000,)])
    assert "x" * 5000 in file.getvalue()


def test_table_that_grows_keeps_the_widths_of_its_first_rows() -> None:
    file = io.StringIO()
    table = output.GrowingTable(file, ("name", "n"))
    table.add(("abcdef", 1))
    table.flush()
    table.add(("g", 22))
    table.flush()
    assert file.getvalue().splitlines()[2:] == ["abcdef | 1", "g      | 22"]
    assert table.rows == 2


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (1.5, "1.5"),
        ("a\n\x1b[2Jb", "a\\n\\x1b[2Jb"),
        ("\ud800", "\\ud800"),
        (bytearray(b"\x00\xff"), "0x00ff"),
        (datetime(2026, 1, 2, 3, 4, 5, 6000, UTC), "2026-01-02 03:04:05.006"),
        ({"a": [1, None]}, '{"a": [1, null]}'),
    ],
)
def test_values_are_one_line(value: object, text: str) -> None:
    assert output.text_of(value) == text


@pytest.mark.parametrize(
    ("widths", "room", "fitted"),
    [
        ([5, 5], 10, [5, 5]),
        ([5, 50], 20, [5, 15]),
        ([50, 50], 20, [10, 10]),
        ([50, 50], 1, [4, 4]),
        ([], 5, []),
    ],
)
def test_widest_columns_give_way(widths: list[int], room: int, fitted: list[int]) -> None:
    assert output.fit(widths, room) == fitted
