"""Kafka's small text files: offset checkpoints, epoch checkpoints, meta.properties.

    0                     version
    2                     number of entries
    topic 0 1234          topic, partition, offset
    topic 1 99

is the format of recovery-point-, log-start-offset-, replication-offset- and
cleaner-offset-checkpoint, and of leader-epoch-checkpoint

    0
    1
    5 1200                leader epoch, first offset

Kafka makes each of these files empty, before it has an entry to write.

`meta.properties` holds version=0, broker.id and cluster.id of the broker that owns the directory.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from odradek import properties
from odradek.log.segment.files import open_file, read_file, sync, write_atomically
from odradek.values import TopicPartition

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"

_VERSION = "0"
_LARGEST_EPOCH = properties.INT_MAX
_LARGEST_OFFSET = properties.LONG_MAX


class CorruptCheckpointError(Exception):
    """A checkpoint file in another format than the one above."""


def read_offsets(path: str) -> dict[TopicPartition, int]:
    """Return the offset of each partition; none for a missing or empty file. Raises
    CorruptCheckpointError.
    """
    rows = _read(path, 3) or ()
    try:
        return {
            TopicPartition(topic, int(partition)): _number(offset, _LARGEST_OFFSET)
            for topic, partition, offset in rows
        }
    except ValueError as error:
        raise CorruptCheckpointError(f"{path}: {error}") from error


def write_offsets(path: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace the file durably."""
    rows = (f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items())
    write_atomically(path, _format(rows))


def read_epochs(path: str) -> list[tuple[int, int]] | None:
    """Return [(epoch, first offset)]; None when the file is missing or empty and says nothing about
    the log. Raises CorruptCheckpointError.
    """
    rows = _read(path, 2)
    if rows is None:
        return None
    try:
        return [
            (_number(epoch, _LARGEST_EPOCH), _number(offset, _LARGEST_OFFSET))
            for epoch, offset in rows
        ]
    except ValueError as error:
        raise CorruptCheckpointError(f"{path}: {error}") from error


def format_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    """Return the bytes of an epoch checkpoint."""
    return _format(f"{epoch} {offset}" for epoch, offset in entries)


def _format(rows: Iterable[str]) -> bytes:
    lines = list(rows)
    return "\n".join([_VERSION, str(len(lines)), *lines, ""]).encode()


def _number(text: str, most: int) -> int:
    """Return the number of a text. Raises ValueError where it is none, or larger than `most`."""
    number = int(text)
    if number > most:
        raise ValueError(f"{text[:40]} is beyond {most}")
    return number


def _read(path: str, columns: int) -> list[list[str]] | None:
    try:
        data = read_file(path)
    except FileNotFoundError:
        return None
    if not data:
        return None
    if not data.endswith(b"\n"):
        # Its end is missing, and may have been more digits of the last offset.
        raise CorruptCheckpointError(f"{path}: the last line has no end")
    try:
        lines = data.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise CorruptCheckpointError(f"{path}: not text") from error
    if len(lines) < 2 or lines[0] != _VERSION or not lines[1].isdecimal():
        raise CorruptCheckpointError(f"{path}: no version and count")
    rows = [line.split() for line in lines[2:] if line.strip()]
    # As texts: a number of some thousand digits is none that Python reads.
    if str(len(rows)) != lines[1] or any(len(row) != columns for row in rows):
        raise CorruptCheckpointError(f"{path}: {len(rows)} entries, announced {lines[1]}")
    return rows


@dataclass(frozen=True, slots=True)
class LogDirMeta:
    """The owner of a log directory. Kafka before 2.4 did not write the cluster id: it is None."""

    broker_id: int
    cluster_id: str | None


def read_meta(path: str) -> LogDirMeta | None:
    """Read meta.properties; None when the file is missing. Raises CorruptCheckpointError."""
    try:
        with open(path, encoding="utf-8") as file:
            values = properties.load_properties(file.read())
    except FileNotFoundError:
        return None
    except (UnicodeDecodeError, properties.ConfigError) as error:
        raise CorruptCheckpointError(f"{path}: not text") from error
    try:
        if values.get("version", "0") != "0":
            raise CorruptCheckpointError(f"{path}: version {values['version']}")
        return LogDirMeta(int(values["broker.id"]), values.get("cluster.id"))
    except (KeyError, ValueError) as error:
        raise CorruptCheckpointError(f"{path}: broker.id is missing, or no number") from error


def write_meta(path: str, meta: LogDirMeta) -> None:
    """Replace meta.properties durably."""
    text = f"#\n#\nbroker.id={meta.broker_id}\nversion=0\ncluster.id={meta.cluster_id}\n"
    write_atomically(path, text.encode())


def take_clean_mark(directory: str) -> bool:
    """Return whether the directory was closed cleanly, and remove the mark durably: it holds for
    one start. Raises OSError; for want of a descriptor before the mark is gone.
    """
    directory_fd = open_file(directory, os.O_RDONLY)
    try:
        os.unlink(os.path.join(directory, CLEAN_SHUTDOWN))
        sync(directory_fd)
    except FileNotFoundError:
        return False
    finally:
        os.close(directory_fd)
    return True
