"""The Parquet store without Spark: batches are folders with one file."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek_spark.parquet_store import Batch, ParquetStore, StoreError


def write(batch: Batch, text: str) -> None:
    batch.staging.mkdir()
    (batch.staging / "part-0.parquet").write_text(text)


def visible(path: Path) -> dict[str, str]:
    """Return the files that Parquet readers see; they skip names that begin with `_`."""
    return {
        str(file.relative_to(path)): file.read_text()
        for file in sorted(path.rglob("*.parquet"))
        if not any(part.startswith("_") for part in file.relative_to(path).parts)
    }


def put(store: ParquetStore, batch_id: int, text: str) -> None:
    batch = store.begin(batch_id)
    write(batch, text)
    store.finish(batch)


def test_batch_is_visible_only_when_it_is_whole(tmp_path: Path) -> None:
    store = ParquetStore(tmp_path / "out", "append", "q1")
    batch = store.begin(0)
    write(batch, "rows")
    assert visible(tmp_path / "out") == {}
    store.finish(batch)
    assert visible(tmp_path / "out") == {"batch_id=0/part-0.parquet": "rows"}


def test_batch_that_runs_again_shows_its_rows_once(tmp_path: Path) -> None:
    put(ParquetStore(tmp_path / "out", "append", "q1"), 3, "first")
    put(ParquetStore(tmp_path / "out", "append", "q1"), 3, "again")
    assert visible(tmp_path / "out") == {"batch_id=3/part-0.parquet": "first"}


def test_what_a_crash_left_in_staging_is_no_part_of_the_next_try(tmp_path: Path) -> None:
    write(ParquetStore(tmp_path / "out", "append", "q1").begin(0), "torn")
    store = ParquetStore(tmp_path / "out", "append", "q1")
    batch = store.begin(0)
    assert not batch.staging.exists()
    write(batch, "rows")
    store.finish(batch)
    assert list(visible(tmp_path / "out").values()) == ["rows"]


def test_new_checkpoint_goes_on_after_the_batches_that_are_there(tmp_path: Path) -> None:
    first = ParquetStore(tmp_path / "out", "append", "q1")
    put(first, 0, "a")
    put(first, 1, "b")
    put(ParquetStore(tmp_path / "out", "append", "q2"), 0, "c")
    put(ParquetStore(tmp_path / "out", "append", "q2"), 0, "c again")
    assert list(visible(tmp_path / "out").values()) == ["a", "b", "c"]


def test_snapshot_replaces_the_one_before_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "out"
    store = ParquetStore(path, "complete", "q1")
    put(store, 0, "one")
    batch = store.begin(1)
    write(batch, "two")
    assert (path / "current" / "part-0.parquet").read_text() == "one"
    store.finish(batch)
    assert (path / "current" / "part-0.parquet").read_text() == "two"
    assert (path / "current").is_symlink()


def test_crash_before_the_link_moved_is_repaired_by_the_repeated_batch(tmp_path: Path) -> None:
    path = tmp_path / "out"
    store = ParquetStore(path, "complete", "q1")
    put(store, 0, "one")
    put(store, 1, "two")
    (path / "current").unlink()
    (path / "current").symlink_to("_snapshots/batch_id=0")
    put(ParquetStore(path, "complete", "q1"), 1, "two")
    assert (path / "current" / "part-0.parquet").read_text() == "two"


def test_reader_of_the_snapshot_before_keeps_its_files(tmp_path: Path) -> None:
    path = tmp_path / "out"
    store = ParquetStore(path, "complete", "q1")
    put(store, 0, "one")
    opened = (path / "current").resolve()
    put(store, 1, "two")
    put(store, 2, "three")
    assert (opened / "part-0.parquet").read_text() == "one"
    put(store, 3, "four")
    assert sorted(entry.name for entry in (path / "_snapshots").iterdir()) == [
        "batch_id=1",
        "batch_id=2",
        "batch_id=3",
    ]


def test_folder_of_another_output_mode_or_writer_is_refused(tmp_path: Path) -> None:
    ParquetStore(tmp_path / "out", "append", "q1")
    with pytest.raises(StoreError, match="mode append"):
        ParquetStore(tmp_path / "out", "complete", "q1")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "x").touch()
    with pytest.raises(StoreError, match="no job of this kind"):
        ParquetStore(tmp_path / "foreign", "append", "q1")
