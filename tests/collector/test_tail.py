from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from odradek_collector import tail


class Files:
    """Opens followers and closes them all at the end."""

    def __init__(self) -> None:
        self._open: list[tail.Follower] = []

    def at(self, path: Path, position: tail.Position | None) -> tail.Follower | None:
        return self._keep(tail.open_at(path, position))

    def after(self, finished: tail.Follower) -> tail.Follower | None:
        return self._keep(tail.open_successor(finished))

    def _keep(self, follower: tail.Follower | None) -> tail.Follower | None:
        if follower is not None:
            self._open.append(follower)
        return follower

    def close(self) -> None:
        for follower in self._open:
            follower.close()


@pytest.fixture
def files() -> Iterator[Files]:
    opened = Files()
    yield opened
    opened.close()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "a.log"


def texts(follower: tail.Follower | None) -> list[str]:
    assert follower is not None
    return [line.text for line in follower.read()]


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_only_whole_lines_are_given(files: Files, log: Path) -> None:
    append(log, "one\ntw")
    follower = files.at(log, None)
    assert texts(follower) == ["one"]
    append(log, "o\nthree\n")
    assert texts(follower) == ["two", "three"]
    assert texts(follower) == []


def test_offset_of_a_line_is_where_the_next_one_begins(files: Files, log: Path) -> None:
    log.write_bytes("ä\r\nbc\n".encode())
    follower = files.at(log, None)
    assert follower is not None
    assert [(line.text, line.end) for line in follower.read()] == [("ä", 4), ("bc", 7)]


@pytest.mark.parametrize("cut", [0, 4, 8])
def test_reading_goes_on_at_the_remembered_position(files: Files, log: Path, cut: int) -> None:
    append(log, "one\ntwo\n")
    first = files.at(log, None)
    assert first is not None
    position = first.position(cut)
    append(log, "three\n")
    assert texts(files.at(log, position)) == ["one", "two", "three"][cut // 4 :]


def test_position_is_found_in_the_rotated_sibling_and_then_the_new_file_follows(
    files: Files, log: Path
) -> None:
    append(log, "one\n")
    follower = files.at(log, None)
    assert follower is not None
    position = follower.position(4)
    append(log, "two\n")
    log.rename(log.with_name("a.log.1"))
    append(log, "three\n")
    resumed = files.at(log, position)
    assert resumed is not None
    assert texts(resumed) == ["two"]
    assert resumed.was_replaced()
    assert texts(files.after(resumed)) == ["three"]


def test_files_between_two_rotations_are_read_in_the_order_of_writing(
    files: Files, log: Path
) -> None:
    append(log, "one\n")
    follower = files.at(log, None)
    assert follower is not None
    assert texts(follower) == ["one"]
    names = [log.with_name("a.log.2"), log.with_name("a.log.1"), log]
    log.rename(names[0])
    names[1].write_text("two\n")
    names[2].write_text("three\n")
    for age, name in enumerate(reversed(names)):
        os.utime(name, ns=(0, 10**18 - age * 10**9))
    second = files.after(follower)
    assert texts(second) == ["two"]
    assert second is not None
    third = files.after(second)
    assert texts(third) == ["three"]


def test_renamed_file_is_read_to_its_end(files: Files, log: Path) -> None:
    append(log, "one\n")
    follower = files.at(log, None)
    assert texts(follower) == ["one"]
    renamed = log.rename(log.with_name("a.log.1"))
    append(renamed, "late\n")
    assert texts(follower) == ["late"]


def test_shorter_file_is_told(files: Files, log: Path) -> None:
    append(log, "one\ntwo\n")
    follower = files.at(log, None)
    assert follower is not None
    assert len(texts(follower)) == 2
    assert not follower.was_truncated()
    log.write_text("x\n")
    assert follower.was_truncated()
    assert not follower.was_replaced()


def test_other_file_with_the_same_inode_is_read_from_its_start(files: Files, log: Path) -> None:
    append(log, "one\n")
    follower = files.at(log, None)
    assert follower is not None
    position = follower.position(4)
    log.write_text("another\n")
    assert texts(files.at(log, position)) == ["another"]


def test_too_long_line_is_cut_once_and_its_rest_is_no_line(files: Files, log: Path) -> None:
    long = "x" * (3 * tail.LONGEST_LINE_BYTES)
    append(log, f"{long}\nnext\n")
    follower = files.at(log, None)
    assert follower is not None
    found: list[tail.Line] = []
    for _ in range(10):
        found += follower.read()
    assert [len(line.text) for line in found] == [tail.LONGEST_LINE_BYTES, 4]
    assert found[-1].end == len(long) + 6


def test_missing_file_is_none(files: Files, log: Path) -> None:
    assert files.at(log, None) is None


def test_vanished_file_is_replaced_by_nothing(files: Files, log: Path) -> None:
    append(log, "one\n")
    follower = files.at(log, None)
    assert follower is not None
    log.unlink()
    assert follower.was_replaced()
    assert files.after(follower) is None
