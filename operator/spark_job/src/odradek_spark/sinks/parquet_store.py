"""Stores micro-batches in a folder of Parquet in which readers see whole batches only.

    PATH/current                       link to the newest snapshot
    PATH/_snapshots/G/batch_id=LAST    append: links to the folders with the rows
    PATH/_snapshots/batch_id=N/...     complete: the whole result as of batch N
    PATH/_batches/FIRST-LAST/...       append: the rows of these batches, never changed
    PATH/_staging/EPOCH/...            being written; Parquet readers skip names that begin with `_`
    PATH/_odradek.json                 output mode, and the number of the first batch per checkpoint

Append: a batch appears with its link, which is renamed into the snapshot. Once FAN_IN small folders
follow one another, their rows are written to one folder, and a new snapshot has its link in place
of theirs. `current` is then renamed to the new snapshot. So each row is once in a snapshot at any
moment, and 10 000 batches leave less than a hundred folders. Complete: each batch is a snapshot.

The three newest snapshots are kept. Whoever resolves `current` once and reads what it pointed to
has all these files until two more snapshots came (append: at least FAN_IN batches more).

A rerun batch that is in the snapshot is dropped. Spark counts batches from 0 in every new
checkpoint. The store therefore remembers each checkpoint's id and its first number.

Fence: everything that changes what readers see is one rename from or to the folder EPOCH of the
driver's own start, by a handle of that folder. A later driver creates its own folder, and then
removes those of earlier ones: their renames fail from then on, however long they were paused, and
although executors may create the path again. A driver that finds the folder of a later one ends.

Python and Spark must see PATH as the same folder, on the shared volume.
"""

import errno
import json
import os
import shutil
import uuid
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from odradek_spark.errors import FencedError

FAN_IN = 32
LARGE_BYTES = 128 * 1024 * 1024
"""A folder of this size is not written anew."""

SCHEMA_FILE = "_schema.json"

_SNAPSHOTS_KEPT = 3
BATCH_FOLDER = "batch_id"
_PREFIX = f"{BATCH_FOLDER}="
_FORMER = "former-"
_LAYOUT = 2


class StoreError(RuntimeError):
    """The store cannot write this job's output to the folder."""


class StorePathError(StoreError):
    """The folder is not one for this job's output, and never will be: the job needs another."""


# A part of the path is a file, or the path is longer than the file system takes.
_IMPOSSIBLE = frozenset({errno.EEXIST, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP})


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch: its number in the store, and the folder that Spark writes to."""

    number: int
    staging: Path


@dataclass(frozen=True, slots=True, order=True)
class BatchRange:
    """A folder with the rows of batches `first` to `last`."""

    first: int
    last: int

    @property
    def name(self) -> str:
        """The folder's name."""
        return f"{self.first}-{self.last}"

    def level(self, fan_in: int) -> int:
        """Return how often rows like these were merged: 0 for a batch as it came."""
        level, span = 0, self.last - self.first + 1
        while span >= fan_in:
            level, span = level + 1, span // fan_in
        return level


@dataclass(frozen=True, slots=True)
class Merge:
    """Segments whose rows are to be written to `staging`, as `files` files per partition.

    All have the same `schema`, the text of their SCHEMA_FILE.
    """

    segments: tuple[BatchRange, ...]
    parts: tuple[Path, ...]
    schema: str
    files: int
    staging: Path


def newest_run(segments: Sequence[BatchRange], mergeable: Sequence[bool], fan_in: int) -> int:
    """Return how many of the last segments to merge into one, 0 for none.

    `fan_in` of a level become one of the next level, and so on, in one step.
    """
    taken, level = 0, 0
    while True:
        left = len(segments) - taken
        same = 0
        while same < left:
            segment = segments[left - same - 1]
            if not mergeable[left - same - 1] or segment.level(fan_in) != level:
                break
            same += 1
        # What is taken already counts as one of this level.
        if same + (1 if taken else 0) < fan_in:
            return taken
        taken += same
        level += 1


class ParquetStore:
    """One output folder, written by one query in output mode append or complete.

    All methods raise FencedError once a driver with a higher epoch has opened the folder.
    """

    def __init__(
        self, path: Path, mode: str, query_id: str, epoch: int, fan_in: int = FAN_IN
    ) -> None:
        assert mode in ("append", "complete")
        self._path = path
        self._mode = mode
        self._epoch = epoch
        self._fan_in = fan_in
        self._sizes: dict[BatchRange, int] = {}
        self._schemas: dict[BatchRange, str | None] = {}
        self._no_merge_before = 0
        self._known_segments: list[BatchRange] | None = None
        register = self._read_register()
        self._staging = path / "_staging" / str(epoch)
        self._handle = self._take_over()
        weakref.finalize(self, os.close, self._handle)
        if self._mode == "append" and register.get("layout") != _LAYOUT:
            self._adopt_former_layout()
        self._first = self._register(register, query_id)

    # --- batches ----------------------------------------------------------------------------------

    def begin(self, batch_id: int) -> Batch:
        """Return where Spark's batch `batch_id` is written to; the folder does not exist yet."""
        return Batch(self._first + batch_id, self._staging / _unique("rows"))

    def finish(self, batch: Batch) -> None:
        """Make a batch that is complete in staging visible: durable and atomic."""
        batch.staging.mkdir(parents=True, exist_ok=True)
        if self._mode == "complete":
            self._finish_snapshot(batch)
        elif any(part.first <= batch.number <= part.last for part in self._segments()):
            self._discard(batch.staging)
        else:
            segment = BatchRange(batch.number, batch.number)
            self._store(batch.staging, segment)
            if self._generation() is None:
                self._publish([segment])
            else:
                self._link(segment)

    def _finish_snapshot(self, batch: Batch) -> None:
        final = self._snapshots / f"{_PREFIX}{batch.number}"
        shown = self._shown()
        is_shown = shown is not None and _number_of(shown) >= batch.number
        if is_shown:
            self._discard(batch.staging)
            return
        self._discard(final)
        _sync_tree(batch.staging)
        self._snapshots.mkdir(exist_ok=True)
        self._put(batch.staging.name, final)
        self._show(final.name)
        for old in _numbers(self._snapshots, _PREFIX)[:-_SNAPSHOTS_KEPT]:
            self._discard(self._snapshots / f"{_PREFIX}{old}")

    def _store(self, staging: Path, segment: BatchRange) -> None:
        """Move rows to their place, where no snapshot has them yet."""
        final = self._batches / segment.name
        self._discard(final)  # a crash may have left it before it had a link
        _sync_tree(staging)
        self._batches.mkdir(exist_ok=True)
        self._put(staging.name, final)

    def _link(self, segment: BatchRange) -> None:
        generation = self._generation()
        assert generation is not None
        name = _unique("link")
        self._symlink(name, Path("../..") / "_batches" / segment.name)
        self._put(name, self._snapshots / str(generation) / f"{_PREFIX}{segment.last}")
        self._known_segments = (
            None if self._known_segments is None else sorted([*self._known_segments, segment])
        )

    # --- compaction -------------------------------------------------------------------------------

    def next_merge(self) -> Merge | None:
        """Return what to merge now, or None. The caller writes the rows, then `finish_merge`."""
        if self._mode != "append":
            return None
        segments = self._segments()
        if not segments or segments[-1].last < self._no_merge_before:
            return None
        schema = self._schema(segments[-1])
        mergeable = [
            self._size(part) < LARGE_BYTES and self._schema(part) == schema for part in segments
        ]
        count = newest_run(segments, mergeable, self._fan_in)
        if not count or schema is None:
            return None
        run = segments[-count:]
        return Merge(
            segments=tuple(run),
            parts=tuple(self._batches / part.name for part in run),
            schema=schema,
            files=1 + sum(self._size(part) for part in run) // LARGE_BYTES,
            staging=self._staging / _unique("merged"),
        )

    def put_off_merge(self, merge: Merge) -> None:
        """Remove what was written of it; return none before as many batches as one takes came."""
        self._discard(merge.staging)
        self._no_merge_before = self._segments()[-1].last + self._fan_in

    def finish_merge(self, merge: Merge) -> None:
        """Show the merged rows in place of the segments that they came from."""
        merge.staging.mkdir(parents=True, exist_ok=True)
        (merge.staging / SCHEMA_FILE).write_text(merge.schema, encoding="utf-8")
        merged = BatchRange(merge.segments[0].first, merge.segments[-1].last)
        self._store(merge.staging, merged)
        gone = set(merge.segments)
        self._publish([*(part for part in self._segments() if part not in gone), merged])
        self._prune()

    def _publish(self, segments: list[BatchRange]) -> None:
        """Show a new snapshot with these segments."""
        numbers = _numbers(self._snapshots)
        name = str(numbers[-1] + 1 if numbers else 0)
        staged = self._staging / _unique("snapshot")
        staged.mkdir()
        for segment in segments:
            target = Path("../..") / "_batches" / segment.name
            (staged / f"{_PREFIX}{segment.last}").symlink_to(target)
        _sync(staged)
        self._snapshots.mkdir(exist_ok=True)
        self._put(staged.name, self._snapshots / name)
        self._show(name)
        self._known_segments = sorted(segments)

    def _prune(self) -> None:
        """Remove old snapshots, and the segments that no snapshot has any more."""
        generation = self._generation()
        numbers = _numbers(self._snapshots)
        for old in numbers[:-_SNAPSHOTS_KEPT]:
            if old != generation:
                self._discard(self._snapshots / str(old))
        kept = {
            os.readlink(link).rpartition("/")[2]
            for number in _numbers(self._snapshots)
            for link in (self._snapshots / str(number)).iterdir()
        }
        for folder in list(self._batches.iterdir()):
            if folder.name not in kept:
                self._discard(folder)
                self._sizes.pop(_segment(folder.name), None)
                self._schemas.pop(_segment(folder.name), None)

    def _size(self, segment: BatchRange) -> int:
        if segment not in self._sizes:
            folder = self._batches / segment.name
            self._sizes[segment] = sum(
                (Path(parent) / name).stat().st_size
                for parent, _, names in os.walk(folder)
                for name in names
            )
        return self._sizes[segment]

    def _schema(self, segment: BatchRange) -> str | None:
        """Return the text of the segment's SCHEMA_FILE; None of an earlier release."""
        if segment not in self._schemas:
            path = self._batches / segment.name / SCHEMA_FILE
            self._schemas[segment] = path.read_text(encoding="utf-8") if path.exists() else None
        return self._schemas[segment]

    # --- what readers see -------------------------------------------------------------------------

    @property
    def _snapshots(self) -> Path:
        return self._path / "_snapshots"

    @property
    def _batches(self) -> Path:
        return self._path / "_batches"

    def _shown(self) -> str | None:
        """Return the name of the snapshot that `current` points to."""
        return _shown(self._path)

    def _generation(self) -> int | None:
        """Return the number of the newest snapshot in mode append."""
        shown = self._shown()
        return None if shown is None else int(shown)

    def _segments(self) -> list[BatchRange]:
        """Return the segments of the newest snapshot in mode append, in order."""
        # Nobody else changes them: what a fenced driver remembers, it cannot write.
        if self._known_segments is None:
            self._known_segments = _segments(self._path)
        return self._known_segments

    def _show(self, name: str) -> None:
        link = _unique("current")
        self._symlink(link, Path("_snapshots") / name)
        self._put(link, self._path / "current")

    # --- changes, all fenced ----------------------------------------------------------------------

    def _put(self, name: str, final: Path) -> None:
        """Rename what is in this driver's staging folder to its place, durably."""
        try:
            os.rename(name, final, src_dir_fd=self._handle)
        except FileNotFoundError as error:
            raise self._fenced_or(error) from error
        _sync(final.parent)

    def _symlink(self, name: str, target: Path) -> None:
        try:
            os.symlink(target, name, dir_fd=self._handle)
        except FileNotFoundError as error:
            raise self._fenced_or(error) from error

    def _discard(self, path: Path) -> None:
        """Remove a file or a folder, if it exists: at once for readers."""
        name = _unique("trash")
        try:
            os.rename(path, name, dst_dir_fd=self._handle)
        except FileNotFoundError as error:
            if os.path.lexists(path):
                raise self._fenced_or(error) from error
            return
        shutil.rmtree(self._staging / name, ignore_errors=True)

    def _fenced_or(self, error: OSError) -> Exception:
        later = [number for number in _numbers(self._path / "_staging") if number > self._epoch]
        if later:
            return FencedError(
                f"a later driver writes to {self._path}: its epoch is {later[-1]}, this one's "
                f"{self._epoch}"
            )
        return StoreError(f"{self._path}: {error}")

    def _take_over(self) -> int:
        """Make the staging folder, and remove those of earlier drivers; return its handle."""
        self._staging.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(self._staging, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError as error:
            raise self._fenced_or(error) from error
        # A later driver sees this folder, or it was created when that one's was there already. One
        # look: the folder of a driver that comes after it is not to be touched.
        others = [path for path in self._staging.parent.iterdir() if path != self._staging]
        for other in others:
            if other.name.isdigit() and int(other.name) > self._epoch:
                os.close(handle)
                shutil.rmtree(self._staging, ignore_errors=True)
                raise self._fenced_or(FileNotFoundError(str(other)))
        try:
            self._trash(self._staging)
            for other in others:
                # Out of the way of executors, which would go on to write there.
                aside = self._staging / _unique(_FORMER)
                other.rename(aside)
                self._trash(aside)
        except FileNotFoundError as error:
            os.close(handle)
            raise self._fenced_or(error) from error
        return handle

    def _trash(self, folder: Path) -> None:
        """Empty a staging folder: its driver can rename each child wholly, or not at all."""
        for child in [*folder.iterdir()]:
            if child.name.startswith(_FORMER):
                self._trash(child)  # a driver died while it took over
                continue
            trash = self._staging / _unique("trash")
            child.rename(trash)
            if trash.is_dir() and not trash.is_symlink():
                shutil.rmtree(trash, ignore_errors=True)
            else:
                trash.unlink()
        if folder != self._staging:
            folder.rmdir()

    # --- the register -----------------------------------------------------------------------------

    def _read_register(self) -> dict[str, object]:
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno in _IMPOSSIBLE:
                raise StorePathError(f"{self._path}: {error.strerror}") from error
            raise
        register = self._path / "_odradek.json"
        if not register.exists():
            # A driver that died before it stored the register left its staging folder.
            if any(entry.name != "_staging" for entry in self._path.iterdir()):
                raise StorePathError(f"{self._path} has files that no job of this kind wrote")
            return {"outputMode": self._mode, "firstBatches": {}, "layout": _LAYOUT}
        state = _parse_register(register)
        if state["outputMode"] != self._mode:
            raise StorePathError(
                f"{self._path} has output of mode {state['outputMode']}, but this job's mode is "
                f"{self._mode}"
            )
        return state

    def _register(self, state: dict[str, object], query_id: str) -> int:
        """Return the number of the query's first batch, and store it if the query is new."""
        firsts = state["firstBatches"]
        assert isinstance(firsts, dict)
        if query_id in firsts and state.get("layout") == _LAYOUT:
            return int(firsts[query_id])
        if query_id not in firsts:
            if self._mode == "append":
                numbers = [segment.last for segment in self._segments()]
            else:
                numbers = _numbers(self._snapshots, _PREFIX)
            firsts[query_id] = numbers[-1] + 1 if numbers else 0
        new = self._staging / "_odradek.json"
        new.write_text(json.dumps({**state, "layout": _LAYOUT}), encoding="utf-8")
        _sync(new)
        self._put(new.name, self._path / new.name)
        return int(firsts[query_id])

    def _adopt_former_layout(self) -> None:
        """Move the folders PATH/batch_id=N of earlier releases, and show them as a snapshot."""
        self._batches.mkdir(exist_ok=True)
        for number in _numbers(self._path, _PREFIX):
            (self._path / f"{_PREFIX}{number}").rename(self._batches / f"{number}-{number}")
        if self._generation() is None:
            self._publish(sorted(_stored(self._batches)))


def holds(path: Path, query_id: str, batch_id: int, *, or_later: bool = False) -> bool:
    """Return whether the folder has a batch of the query with this id. Raises StoreError.

    With `or_later` also whether it has any with a higher number, of this query or of another one.
    """
    register = path / "_odradek.json"
    if not register.exists():
        return False
    state = _parse_register(register)
    firsts = state["firstBatches"]
    assert isinstance(firsts, dict)
    if query_id not in firsts:
        return False
    number = int(firsts[query_id]) + batch_id
    if state["outputMode"] == "complete":
        shown = _shown(path)
        stored = _numbers(path / "_snapshots", _PREFIX)
        return number in stored or (shown is not None and number <= _number_of(shown))
    former, segments = _numbers(path, _PREFIX), _segments(path)
    return (
        number in former
        or any(segment.first <= number <= segment.last for segment in segments)
        or (or_later and number <= max((*former, *(part.last for part in segments)), default=-1))
    )


def _number_of(snapshot: str) -> int:
    return int(snapshot.removeprefix(_PREFIX))


def _parse_register(register: Path) -> dict[str, object]:
    try:
        state = json.loads(register.read_text(encoding="utf-8"))
        state["firstBatches"] = {str(k): int(v) for k, v in state["firstBatches"].items()}
        state["outputMode"] = str(state["outputMode"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{register} is unreadable: {error!r}") from error
    return dict(state)


def _shown(path: Path) -> str | None:
    link = path / "current"
    return os.readlink(link).rpartition("/")[2] if link.is_symlink() else None


def _segments(path: Path) -> list[BatchRange]:
    shown = _shown(path)
    if shown is None:
        return []
    return sorted(_segment(os.readlink(link)) for link in (path / "_snapshots" / shown).iterdir())


def _stored(batches: Path) -> Iterator[BatchRange]:
    return (_segment(folder.name) for folder in batches.iterdir())


def _segment(target: str) -> BatchRange:
    first, _, last = target.rpartition("/")[2].partition("-")
    return BatchRange(int(first), int(last))


def _numbers(folder: Path, prefix: str = "") -> list[int]:
    if not folder.is_dir():
        return []
    names = (entry.name for entry in folder.iterdir() if entry.name.startswith(prefix))
    return sorted(
        int(name.removeprefix(prefix)) for name in names if name.removeprefix(prefix).isdigit()
    )


def _unique(kind: str) -> str:
    return f"{kind.rstrip('-')}-{uuid.uuid4().hex}"


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
