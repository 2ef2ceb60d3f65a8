"""Stores micro-batches in a folder of Parquet in which readers see whole batches only.

    PATH/batch_id=N/...             append: the rows of batch N, forever
    PATH/_snapshots/batch_id=N/...  complete: the whole result as of batch N; the newest 3 are kept
    PATH/current                    complete: symbolic link to the newest snapshot
    PATH/_staging/batch_id=N/...    being written; Parquet readers skip names that begin with `_`
    PATH/_odradek.json              output mode, and the number of the first batch per checkpoint

Spark writes a batch into `_staging`. The store flushes it to disk and renames it to its place,
which is atomic for every reader. A rerun batch finds the same rows in its place and is dropped: the
place holds complete batches only. A new link is renamed over `current`. Whoever reads a snapshot
while it is replaced still has its files for two more batches.

Spark counts batches from 0 in every new checkpoint. The store therefore remembers each checkpoint's
id and its first number, so a job with a new checkpoint continues after the existing batches. Python
and Spark must see PATH as the same folder, on the shared volume.
"""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

_SNAPSHOTS_KEPT = 3
_PREFIX = "batch_id="


class StoreError(RuntimeError):
    """The store cannot write this job's output to the folder."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch: the folder that Spark writes to, and its final folder."""

    number: int
    staging: Path
    final: Path


class ParquetStore:
    """One output folder, written by one query in output mode append or complete."""

    def __init__(self, path: Path, mode: str, query_id: str) -> None:
        assert mode in ("append", "complete")
        self._path = path
        self._mode = mode
        self._batches = path / "_snapshots" if mode == "complete" else path
        self._first = self._register(query_id)

    def begin(self, batch_id: int) -> Batch:
        """Return the folders of Spark's batch `batch_id`, with an empty staging folder."""
        number = self._first + batch_id
        name = f"{_PREFIX}{number}"
        staging = self._path / "_staging" / name
        shutil.rmtree(staging, ignore_errors=True)
        staging.parent.mkdir(parents=True, exist_ok=True)
        return Batch(number, staging, self._batches / name)

    def finish(self, batch: Batch) -> None:
        """Make a batch that is complete in staging visible: durable and atomic."""
        if batch.final.exists():
            shutil.rmtree(batch.staging)
        else:
            batch.staging.mkdir(exist_ok=True)
            _sync_tree(batch.staging)
            batch.final.parent.mkdir(parents=True, exist_ok=True)
            batch.staging.rename(batch.final)
            _sync(batch.final.parent)
        if self._mode == "complete":
            self._point_to(batch.number)

    def _point_to(self, number: int) -> None:
        link = self._path / "_current"
        link.unlink(missing_ok=True)
        link.symlink_to(Path("_snapshots") / f"{_PREFIX}{number}")
        link.rename(self._path / "current")
        _sync(self._path)
        for old in _numbers(self._batches)[:-_SNAPSHOTS_KEPT]:
            shutil.rmtree(self._batches / f"{_PREFIX}{old}")

    def _register(self, query_id: str) -> int:
        """Return the number of the query's first batch, and store it if the query is new."""
        self._path.mkdir(parents=True, exist_ok=True)
        register = self._path / "_odradek.json"
        state = {"outputMode": self._mode, "firstBatches": {}}
        if register.exists():
            try:
                state = json.loads(register.read_text(encoding="utf-8"))
                before, firsts = state["outputMode"], dict(state["firstBatches"])
            except (ValueError, KeyError, TypeError) as error:
                raise StoreError(f"{register} is unreadable: {error!r}") from error
            if before != self._mode:
                raise StoreError(
                    f"{self._path} has output of mode {before}, but this job's mode is {self._mode}"
                )
            if query_id in firsts:
                return int(firsts[query_id])
        elif any(self._path.iterdir()):
            raise StoreError(f"{self._path} has files that no job of this kind wrote")
        numbers = _numbers(self._batches)
        first = numbers[-1] + 1 if numbers else 0
        state["firstBatches"][query_id] = first  # type: ignore[index]
        temporary = register.with_name("_odradek.json.new")
        temporary.write_text(json.dumps(state), encoding="utf-8")
        _sync(temporary)
        temporary.rename(register)
        _sync(self._path)
        return first


def _numbers(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    names = (entry.name.removeprefix(_PREFIX) for entry in folder.glob(f"{_PREFIX}*"))
    return sorted(int(name) for name in names if name.isdigit())


def _sync_tree(folder: Path) -> None:
    for parent, _, names in os.walk(folder):
        for name in names:
            _sync(Path(parent) / name)
        _sync(Path(parent))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
