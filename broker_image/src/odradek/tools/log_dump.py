"""`odradek log dump|verify PATH`: print the files of a partition, and check them.

PATH is a file of a segment or a partition folder. `dump` prints one line per batch (and per record,
with --records), index entry or producer. `verify` checks every checksum, the order of offsets, and
every index entry against the log; it prints what is wrong and exits with 1. A path that cannot be
read is one line on stderr and exit status 2. Files larger than 64 MiB show progress on a terminal.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import click

from odradek.log.partition import checkpoints, producers, topic_identity
from odradek.log.partition.epochs import FILE_NAME as EPOCHS
from odradek.log.records import compression, contents
from odradek.log.records.batch import CorruptBatchError, Header
from odradek.log.segment import batch_file
from odradek.log.segment.index import OffsetIndex, TimeIndex
from odradek.log.segment.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    base_offset_of,
    file_name,
)
from odradek.terminal_text import plain, tell
from odradek.tools.leader_epochs import EpochCheck, neighbours

_CHUNK = 1 << 20
_PROGRESS_FROM = 64 << 20
_KNOWN = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, producers.SNAPSHOT_SUFFIX)
_OF_PARTITION = (EPOCHS, topic_identity.FILE_NAME)
_WANTED = f"an offset of 20 digits with {', '.join(_KNOWN)}; or {', '.join(_OF_PARTITION)}"


@click.group("log")
def commands() -> None:
    """Print and check a partition's files, and repair them."""


@commands.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--records", "with_records", is_flag=True, help="Show every record of every batch.")
def dump(path: Path, with_records: bool) -> None:
    """Print what is in PATH, a file of a segment or a partition folder."""
    if sys.stdout is None:
        fail("stdout is closed", 2)
    for file in files(path):
        click.echo(f"{file.name}:")
        with readable(file):
            if file.suffix == LOG_SUFFIX:
                _dump_log(file, with_records)
            elif file.suffix == producers.SNAPSHOT_SUFFIX:
                _dump_snapshot(file)
            elif file.name == EPOCHS:
                for epoch, offset in checkpoints.read_epochs(str(file)) or ():
                    click.echo(f"  epoch {epoch} from offset {offset}")
            elif file.name == topic_identity.FILE_NAME:
                click.echo(f"  {topic_identity.read(str(file.parent))}")
            else:
                for key, value in _entries(file):
                    click.echo(f"  {_describe(file, key, value)}")


@commands.command()
@click.argument("path", type=click.Path(path_type=Path))
def verify(path: Path) -> None:
    """Check checksums, offsets and indexes of PATH; exit with 1 if something is wrong."""
    found = 0
    chosen = files(path)
    with readable(path):
        epochs = EpochCheck(path if path.is_dir() else path.parent)
        before, after = neighbours(path) if path.suffix == LOG_SUFFIX else (None, None)
        epochs.scan(before)
    for file in chosen:
        with readable(file):
            for problem in problems(file, epochs):
                found += 1
                click.echo(f"{file.name}: {problem}")
    with readable(path):
        epochs.scan(after)
    for wrong in epochs.found():
        found += 1
        click.echo(f"{wrong.run.log.name}: {wrong}")
    if found:
        sys.exit(1)
    click.echo("sound")


class readable:  # noqa: N801 (used as a statement)
    """Turn an unreadable file into one line and exit status 2, damage into status 1."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            fail(f"cannot read {self.file}: {error.strerror}", 2)
        if isinstance(
            error,
            CorruptBatchError
            | producers.CorruptSnapshotError
            | checkpoints.CorruptCheckpointError
            | topic_identity.CorruptIdentityError,
        ):
            fail(f"{self.file.name}: {error}", 1)


def fail(message: str, status: int) -> NoReturn:
    """End the process with one line on stderr."""
    tell(message)
    sys.exit(status)


def files(path: Path) -> list[Path]:
    """Return the files to read, in order of offset. Ends the process for a path that has none."""
    with readable(path):
        if path.is_dir():
            found = sorted(file for file in path.iterdir() if _is_known(file))
            if not found:
                fail(f"{path} holds no segments", 2)
            return found
        if not path.exists():
            fail(f"{path} does not exist", 2)
    if not _is_known(path):
        fail(f"{path} is not named as a file of a partition: {_WANTED}", 2)
    return [path]


def _is_known(file: Path) -> bool:
    is_segment = file.suffix in _KNOWN and base_offset_of(file.stem) is not None
    return is_segment or file.name in _OF_PARTITION


def _batches(file: Path) -> Iterator[tuple[int, Header, memoryview]]:
    """Yield each batch of a log file with its position and bytes, after checking its checksum.

    Raises CorruptBatchError, also for a last batch that is cut off.
    """
    size = file.stat().st_size
    with file.open("rb") as source, progress(file, size) as advance:
        position = 0
        for data, header in batch_file.whole_batches(source.fileno(), size):
            yield position, header, data
            position += header.size
            advance(header.size)


class progress:  # noqa: N801 (used as a statement)
    """A progress bar on stderr for big files on a terminal; yields a function that advances it."""

    def __init__(self, file: Path, size: int) -> None:
        self._bar = None
        if size >= _PROGRESS_FROM and sys.stderr is not None and sys.stderr.isatty():
            self._bar = click.progressbar(length=size, label=file.name, file=sys.stderr)
        self._waiting = 0

    def __enter__(self) -> Callable[[int], None]:
        if self._bar is not None:
            self._bar.__enter__()
        return self._advance

    def _advance(self, count: int) -> None:
        self._waiting += count
        if self._bar is not None and self._waiting >= _CHUNK:
            self._bar.update(self._waiting)
            self._waiting = 0

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.update(self._waiting)
            self._bar.__exit__(None, None, None)


def _dump_log(file: Path, with_records: bool) -> None:
    for position, header, data in _batches(file):
        flags = [
            name
            for name, present in (
                ("control", header.is_control),
                ("transactional", header.is_transactional),
                ("append-time", header.is_log_append_time),
            )
            if present
        ]
        codec = compression.NAMES[header.codec] if header.codec < 5 else str(header.codec)
        first, count = header.base_offset, header.record_count
        found = []
        if with_records or header.magic < 2:
            found = contents.decode(data, with_headers=True)
        if header.magic < 2:  # a wrapper's header does not tell
            first, count = found[0].offset, len(found)
        click.echo(
            f"  offsets {first}..{header.last_offset} position {position} size "
            f"{header.size} records {count} epoch {header.leader_epoch} magic "
            f"{header.magic} codec {codec} newest {header.max_timestamp} producer "
            f"{header.producer_id}/{header.producer_epoch} sequence {header.base_sequence}"
            + "".join(f" {flag}" for flag in flags)
        )
        if with_records:
            for record in found:
                click.echo(
                    f"    {record.offset} {record.timestamp} key {record.key!r} value "
                    f"{record.value!r}"
                    + "".join(f" {plain(name)}={text!r}" for name, text in record.headers)
                )


def _dump_snapshot(file: Path) -> None:
    for producer in producers.decode(file.read_bytes()):
        click.echo(
            f"  producer {producer.producer_id} epoch {producer.epoch} last sequence "
            f"{producer.last_sequence} newest {producer.timestamp}"
        )


def _entries(file: Path) -> Iterator[tuple[int, int]]:
    """Yield the entries of an index file, without the zeros of a preallocated tail."""
    entry = (OffsetIndex if file.suffix == INDEX_SUFFIX else TimeIndex).ENTRY
    data = file.read_bytes()
    whole = len(data) - len(data) % entry.size
    for first, second in entry.iter_unpack(data[:whole]):
        if (first, second) != (0, 0):
            yield first, second


def _describe(file: Path, first: int, second: int) -> str:
    base = int(file.stem)
    if file.suffix == INDEX_SUFFIX:
        return f"offset {base + first} position {second}"
    return f"timestamp {first} offset {base + second}"


def problems(file: Path, epochs: EpochCheck | None = None) -> Iterator[str]:
    """Yield what is wrong with a file, line by line; let `epochs` take the batches of a log."""
    if file.suffix == LOG_SUFFIX:
        yield from _log_problems(file, epochs)
    elif file.suffix == producers.SNAPSHOT_SUFFIX:
        try:
            producers.decode(file.read_bytes())
        except producers.CorruptSnapshotError as error:
            yield str(error)
    elif file.name == EPOCHS:
        try:
            checkpoints.read_epochs(str(file))
        except checkpoints.CorruptCheckpointError as error:
            yield str(error)
    elif file.name == topic_identity.FILE_NAME:
        try:
            topic_identity.read(str(file.parent))
        except topic_identity.CorruptIdentityError as error:
            yield str(error)
    else:
        yield from _index_problems(file)


def _log_problems(file: Path, epochs: EpochCheck | None) -> Iterator[str]:
    expected = int(file.stem)
    try:
        for position, header, data in _batches(file):
            if header.base_offset < expected:
                yield f"offset {header.base_offset} at byte {position}, below {expected}"
            contents.decode(data)
            expected = header.last_offset + 1
            if epochs is not None:
                epochs.take(file, position, header)
    except CorruptBatchError as error:
        yield str(error)


def _index_problems(file: Path) -> Iterator[str]:
    """Yield entries that do not rise, or that disagree with the log beside the index."""
    entry = (OffsetIndex if file.suffix == INDEX_SUFFIX else TimeIndex).ENTRY
    if file.stat().st_size % entry.size:
        yield f"{file.stat().st_size} bytes are no whole entries"
    log = file.with_name(file_name(int(file.stem), LOG_SUFFIX))
    positions: dict[int, Header] = {}
    lasts: list[int] = []
    newest: list[int] = []
    if log.exists():
        so_far = -1
        try:
            for position, header, _ in _batches(log):
                so_far = max(so_far, header.max_timestamp)
                positions[position] = header
                lasts.append(header.last_offset)
                newest.append(so_far)
        except CorruptBatchError:
            return  # the log's own check reports it
    previous = (-1, -1)
    for first, second in _entries(file):
        if first <= previous[0] or second < previous[1]:
            yield f"{_describe(file, first, second)} after {_describe(file, *previous)}"
        previous = first, second
        if not log.exists():
            continue
        if file.suffix == INDEX_SUFFIX:
            found = positions.get(second)
            if found is None or found.base_offset > int(file.stem) + first:
                yield f"{_describe(file, first, second)}: no such batch"
        else:
            number = bisect_left(lasts, int(file.stem) + second)
            if number == len(lasts) or newest[number] != first:
                yield f"{_describe(file, first, second)}: not the newest up to there"
