"""The Parquet store without Spark: batches are folders with one file, a line per row."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from odradek_spark.errors import FencedError
from odradek_spark.sinks import parquet_store
from odradek_spark.sinks.parquet_store import (
    SCHEMA_FILE,
    Batch,
    BatchRange,
    Merge,
    ParquetStore,
    StoreError,
    StorePathError,
    holds,
    newest_run,
)


def write(batch: Batch, text: str) -> None:
    batch.staging.mkdir()
    (batch.staging / "part-0.parquet").write_text(f"{text}\n")
    (batch.staging / SCHEMA_FILE).write_text("schema")


def rows(path: Path) -> list[str]:
    """Return the rows that a reader sees: it resolves `current` once."""
    link = path / "current"
    if not link.is_symlink():
        return []
    return sorted(
        line
        for place, _, names in os.walk(link.resolve(), followlinks=True)
        for name in names
        if not name.startswith("_")
        for line in (Path(place) / name).read_text().splitlines()
    )


def put(store: ParquetStore, batch_id: int, text: str) -> None:
    batch = store.begin(batch_id)
    write(batch, text)
    store.finish(batch)


def compact(store: ParquetStore) -> None:
    """Merge what is to be merged, as Spark does it."""
    merge = store.next_merge()
    if merge is not None:
        merge_rows(merge)
        store.finish_merge(merge)


def merge_rows(merge: Merge) -> None:
    merge.staging.mkdir()
    texts = [(part / "part-0.parquet").read_text() for part in merge.parts]
    (merge.staging / "part-0.parquet").write_text("".join(texts))


def store_at(path: Path, mode: str = "append", query: str = "q1", epoch: int = 1) -> ParquetStore:
    return ParquetStore(path, mode, query, epoch, fan_in=4)


def test_batch_is_visible_only_when_it_is_whole(tmp_path: Path) -> None:
    store = store_at(tmp_path / "out")
    batch = store.begin(0)
    write(batch, "rows")
    assert rows(tmp_path / "out") == []
    store.finish(batch)
    assert rows(tmp_path / "out") == ["rows"]


def test_batch_that_runs_again_shows_its_rows_once(tmp_path: Path) -> None:
    put(store_at(tmp_path / "out"), 3, "first")
    put(store_at(tmp_path / "out", epoch=2), 3, "again")
    assert rows(tmp_path / "out") == ["first"]


def test_new_checkpoint_goes_on_after_the_batches_that_are_there(tmp_path: Path) -> None:
    first = store_at(tmp_path / "out")
    put(first, 0, "a")
    put(first, 1, "b")
    put(store_at(tmp_path / "out", query="q2"), 0, "c")
    put(store_at(tmp_path / "out", query="q2"), 0, "c again")
    assert rows(tmp_path / "out") == ["a", "b", "c"]


def test_snapshot_replaces_the_one_before_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "out"
    store = store_at(path, "complete")
    put(store, 0, "one")
    batch = store.begin(1)
    write(batch, "two")
    assert rows(path) == ["one"]
    store.finish(batch)
    assert rows(path) == ["two"]
    assert (path / "current").is_symlink()


def test_reader_of_the_snapshot_before_keeps_its_files(tmp_path: Path) -> None:
    path = tmp_path / "out"
    store = store_at(path, "complete")
    put(store, 0, "one")
    opened = (path / "current").resolve()
    put(store, 1, "two")
    put(store, 2, "three")
    assert (opened / "part-0.parquet").read_text() == "one\n"
    put(store, 3, "four")
    assert sorted(entry.name for entry in (path / "_snapshots").iterdir()) == [
        "batch_id=1",
        "batch_id=2",
        "batch_id=3",
    ]


def test_reader_that_resolved_the_link_keeps_its_rows_through_two_merges(tmp_path: Path) -> None:
    path = tmp_path / "out"
    store = store_at(path)
    for number in range(3):
        put(store, number, str(number))
    opened = (path / "current").resolve()
    for number in range(3, 12):
        put(store, number, str(number))
        compact(store)
        seen = {(folder / "part-0.parquet").read_text() for folder in opened.iterdir()}
        assert seen >= {"0\n", "1\n", "2\n"}
        if number == 10:
            break


def test_folder_of_another_output_mode_or_writer_is_refused(tmp_path: Path) -> None:
    store_at(tmp_path / "out")
    with pytest.raises(StorePathError, match="mode append"):
        store_at(tmp_path / "out", "complete")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "x").touch()
    with pytest.raises(StorePathError, match="no job of this kind"):
        store_at(tmp_path / "foreign")
    for impossible in (tmp_path / "foreign" / "x" / "out", tmp_path / ("a" * 300)):
        with pytest.raises(StorePathError, match=impossible.name[:9]):
            store_at(impossible)


@pytest.mark.parametrize("mode", ["append", "complete"])
def test_batch_is_known_by_its_query_and_number(tmp_path: Path, mode: str) -> None:
    out = tmp_path / "out"
    assert not holds(out, "q1", 0)
    put(store_at(out, mode), 0, "a")
    put(store_at(out, mode, "q2"), 0, "b")
    assert [holds(out, "q1", 0), holds(out, "q2", 0), holds(out, "q2", 1)] == [True, True, False]
    assert not holds(out, "q3", 0)
    assert not holds(out, "q2", 1, or_later=True)
    # Numbers of the later query, which the store would drop as copies.
    assert holds(out, "q1", 1, or_later=True)
    (out / "_odradek.json").write_text("torn")
    with pytest.raises(StoreError, match="unreadable"):
        holds(out, "q1", 0)


def test_folder_of_an_earlier_release_is_taken_over(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for number in range(12):
        (out / f"batch_id={number}").mkdir(parents=True)
        (out / f"batch_id={number}" / "part-0.parquet").write_text(f"{number}\n")
    (out / "_staging" / "batch_id=12").mkdir(parents=True)
    (out / "_odradek.json").write_text('{"outputMode": "append", "firstBatches": {"q1": 0}}')
    assert holds(out, "q1", 11)
    store = store_at(out)
    put(store, 11, "again")
    put(store, 12, "12")
    compact(store)
    assert rows(out) == sorted(str(number) for number in range(13))
    assert not [*out.glob("batch_id=*")]


# --- the fence ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["append", "complete"])
def test_driver_whose_epoch_is_over_changes_nothing_wherever_it_was_paused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """The first driver is paused before each of its calls in turn, while its successor works."""
    pauses = refused = 0
    while True:
        out = tmp_path / f"out-{pauses}"
        stale = store_at(out, mode, epoch=1)
        for number in range(4):
            put(stale, number, str(number))
        later: list[ParquetStore] = []

        def take_over(out: Path = out, later: list[ParquetStore] = later) -> None:
            later.append(store_at(out, mode, epoch=2))
            for number in range(4, 9):
                put(later[0], number, str(number))
                compact(later[0])

        with monkeypatch.context() as patched:
            steps = Steps(patched, pauses, take_over)
            try:
                compact(stale)
                put(stale, 4, "4")
            except (FencedError, FileNotFoundError):
                refused += 1
            # An executor of the first driver goes on to write where it was told to.
            (out / "_staging" / "1" / "rows").mkdir(parents=True, exist_ok=True)
        if not steps.reached:
            break
        put(later[0], 9, "9")
        compact(later[0])
        assert rows(out) == (["9"] if mode == "complete" else [str(n) for n in range(10)])
        with pytest.raises(FencedError, match="its epoch is 2, this one's 1"):
            store_at(out, mode, epoch=1)
        pauses += 1
    # After its last change it finds out with the next batch.
    assert 5 < refused < pauses


def test_driver_that_opens_the_folder_while_a_later_one_does_leaves_it_to_that_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    put(store_at(out, epoch=1), 0, "0")
    later: list[ParquetStore] = []
    pauses = 0
    while True:
        opened = tmp_path / f"out-{pauses}"
        shutil.copytree(out, opened, symlinks=True)
        later.clear()
        with monkeypatch.context() as patched:

            def open_later(path: Path = opened) -> None:
                later.append(store_at(path, epoch=3))

            steps = Steps(patched, pauses, open_later)
            with contextlib.suppress(FencedError, StoreError, FileNotFoundError):
                put(store_at(opened, epoch=2), 1, "of the driver between")
        if not steps.reached:
            break
        put(later[0], 1, "1")
        put(later[0], 2, "2")
        seen = rows(opened)
        assert len(seen) == 3, pauses
        assert {"0", "2"} <= set(seen)
        pauses += 1
    assert pauses > 5


class Steps:
    """Calls `action` before the n-th change of the file system, of those that the store makes."""

    def __init__(
        self, patched: pytest.MonkeyPatch, number: int, action: Callable[[], None]
    ) -> None:
        self.reached = False
        self._left = number
        self._action = action
        for module, name in ((os, "rename"), (os, "symlink"), (os, "mkdir"), (os, "fsync")):
            self._wrap(patched, module, name)
        self._wrap(patched, shutil, "rmtree")

    def _wrap(self, patched: pytest.MonkeyPatch, module: Any, name: str) -> None:
        real = getattr(module, name)

        def step(*arguments: Any, **options: Any) -> Any:
            if self._left == 0 and not self.reached:
                self.reached = True
                self._action()
            self._left -= 1
            return real(*arguments, **options)

        patched.setattr(module, name, step)


# --- compaction -----------------------------------------------------------------------------------


def test_ten_thousand_batches_leave_less_than_a_hundred_folders() -> None:
    parts: list[BatchRange] = []
    written = 0
    for number in range(10_000):
        parts.append(BatchRange(number, number))
        count = newest_run(parts, [True] * len(parts), parquet_store.FAN_IN)
        if count:
            merged = BatchRange(parts[-count].first, number)
            written += merged.last - merged.first + 1
            parts[-count:] = [merged]
        assert len(parts) < 100
    assert parts[0].first == 0
    assert all(one.last + 1 == two.first for one, two in itertools.pairwise(parts))
    # Each row is written anew at most once per level.
    assert written <= 2 * 10_000


def test_what_was_merged_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    path = tmp_path / "out"
    store = store_at(path)
    most = 0
    for number in range(300):
        put(store, number, str(number))
        compact(store)
        most = max(most, sum(len(names) for _, _, names in os.walk(path)))
    assert rows(path) == sorted(str(number) for number in range(300))
    assert most < 80
    assert len([*(path / "current").iterdir()]) < 4 * 4


def test_merge_that_failed_leaves_nothing_and_is_tried_later(tmp_path: Path) -> None:
    """As on a full disk: each further try would take more of it."""
    store = store_at(tmp_path / "out")
    for number in range(8):
        put(store, number, str(number))
        merge = store.next_merge()
        assert (merge is not None) == (number in (3, 7))
        if merge is not None:
            merge_rows(merge)
            store.put_off_merge(merge)
            assert not [*(tmp_path / "out/_staging/1").iterdir()]
    assert rows(tmp_path / "out") == [str(number) for number in range(8)]


class CrashError(BaseException):
    """The driver dies."""


def die() -> None:
    raise CrashError


def test_crash_at_any_step_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashes = 0
    while True:
        out = tmp_path / f"out-{crashes}"
        store = store_at(out)
        for number in range(16):
            if number % 4 == 0 and number != 12:
                compact(store)
            put(store, number, str(number))
        expected = sorted(str(number) for number in range(16))
        with monkeypatch.context() as patched:
            steps = Steps(patched, crashes, die)
            try:
                compact(store)
                put(store, 16, "16")
            except CrashError:
                pass
        seen = rows(out)
        assert seen in (expected, sorted([*expected, "16"])), crashes
        if not steps.reached:
            break
        # Its successor dies at the same step, too.
        with monkeypatch.context() as patched:
            Steps(patched, crashes, die)
            try:
                again = store_at(out, epoch=2)
                compact(again)
                put(again, 16, "16")
            except CrashError:
                pass
        assert rows(out) in (expected, sorted([*expected, "16"])), crashes
        last = store_at(out, epoch=3)
        put(last, 15, "a batch that was compacted comes again")
        compact(last)
        put(last, 16, "16")
        put(last, 7, "a batch that was compacted comes again")
        assert rows(out) == sorted([*expected, "16"]), crashes
        assert [entry.name for entry in (out / "_staging").iterdir()] == ["3"]
        assert not [*(out / "_staging" / "3").iterdir()]
        crashes += 1
    assert crashes > 20


def test_reader_sees_each_row_once_while_batches_come_and_are_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    path = tmp_path / "out"
    store = ParquetStore(path, "append", "q1", 1)
    ended = threading.Event()
    seen: list[list[str]] = []

    def read() -> None:
        while not ended.is_set():
            seen.append(rows(path))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(200):
            put(store, number, f"{number:03}")
            compact(store)
    finally:
        ended.set()
        reader.join(60)
    assert not reader.is_alive()
    everything = [f"{number:03}" for number in range(200)]
    assert all(each == everything[: len(each)] for each in seen)
    assert len({len(each) for each in seen}) > 3


def test_batches_of_another_schema_are_not_merged(tmp_path: Path) -> None:
    store = store_at(tmp_path / "out")
    for number in range(10):
        batch = store.begin(number)
        write(batch, str(number))
        (batch.staging / SCHEMA_FILE).write_text("old" if number < 2 else "new")
        store.finish(batch)
        compact(store)
    assert rows(tmp_path / "out") == [str(number) for number in range(10)]
    kept = {os.readlink(link).rpartition("/")[2] for link in (tmp_path / "out/current").iterdir()}
    assert {"0-0", "1-1"} <= kept
    assert len(kept) < 10


def segments(*spans: int) -> Iterator[BatchRange]:
    first = 0
    for span in spans:
        yield BatchRange(first, first + span - 1)
        first += span


@pytest.mark.parametrize(
    ("spans", "taken"),
    [
        ([1, 1, 1], 0),
        ([1, 1, 1, 1], 4),
        ([4, 4, 1, 1, 1, 1], 4),
        ([4, 4, 4, 1, 1, 1, 1], 7),
        ([16, 4, 4, 4, 1, 1, 1, 1], 7),
        ([16, 16, 16, 4, 4, 4, 1, 1, 1, 1], 10),
        ([1, 1, 1, 1, 4], 0),
        ([], 0),
    ],
)
def test_as_many_of_a_level_as_one_merge_takes_become_one_of_the_next(
    spans: list[int], taken: int
) -> None:
    parts = [*segments(*spans)]
    assert newest_run(parts, [True] * len(parts), 4) == taken


def test_large_folders_stay_as_they_are() -> None:
    parts = [*segments(1, 1, 1, 1, 1)]
    assert newest_run(parts, [True, False, True, True, True], 4) == 0
    assert newest_run(parts, [False, True, True, True, True], 4) == 4
