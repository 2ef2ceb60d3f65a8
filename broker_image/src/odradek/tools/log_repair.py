"""`odradek log repair PATH`: truncate damaged segments, rebuild indexes, mend leader epochs.

PATH is a partition folder, or the `.log` file of one segment. Without --execute nothing is changed:
the command says what it would do and exits with 1, or with 0 when there is nothing to do. What is
removed is kept beside the segment, in a file that neither this broker nor Kafka reads. Lost offsets
stay a gap, as compaction leaves them. A folder whose broker runs is refused, as is a path that is
no log: one line, exit status 2.

A wrong leader epoch costs no record: it is overwritten in its batch (see `leader_epochs`), with
--force also where it is uncertain which one is wrong.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import click

from odradek.clock import wall_ms
from odradek.log.partition import producers
from odradek.log.partition.epochs import FILE_NAME as CHECKPOINT
from odradek.log.records.batch import LEADER_EPOCH_POSITION, CorruptBatchError
from odradek.log.segment import batch_file
from odradek.log.segment.batch_file import BatchSequence
from odradek.log.segment.files import fsync_path
from odradek.log.segment.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    base_offset_of,
)
from odradek.log.segment.segment import Segment, SegmentSettings
from odradek.log.segment.transaction_index import CorruptTransactionIndexError
from odradek.tools import leader_epochs, log_dump
from odradek.tools.leader_epochs import EpochCheck, WrongEpoch
from odradek.tools.log_dump import commands
from odradek.topic_config import TopicConfig

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Cut:
    """The repair of one segment: keep `sound` of its `size` bytes, and rebuild its indexes.

    `lost` is the gap that stays, empty where only the indexes are wrong.
    """

    log: Path
    size: int
    sound: int
    reason: str
    lost: range

    @property
    def removed(self) -> Path:
        """File that keeps the bytes that are removed."""
        return self.log.with_name(f"{self.log.name}.removed-at-{self.sound}")


@commands.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--execute", is_flag=True, help="Repair; without this only say what would be done.")
@click.option("--force", is_flag=True, help="Mend leader epochs also where that is a guess.")
def repair(path: Path, execute: bool, force: bool) -> None:
    """Truncate the damaged segments of PATH behind their last sound batch.

    What is removed is lost to readers. If another replica has it, move the partition's folder
    away instead: the broker copies it again, and nothing is lost.
    """
    logs = _logs(path)
    with _locked(logs[0].parent.parent), log_dump.readable(path):
        epochs = EpochCheck(logs[0].parent)
        epochs.scan(leader_epochs.neighbours(logs[0])[0])
        cuts = [cut for log in logs if (cut := _find_damage(log, epochs)) is not None]
        epochs.scan(leader_epochs.neighbours(logs[-1])[1])
        wrong = [one for one in epochs.found() if one.run.log in logs]
        mended = [one for one in wrong if one.is_known or (force and one.run.count == 1)]
        useless = [] if path.is_file() else _useless_snapshots(path, cuts)
        useless += _misled_checkpoint(logs[0].parent, epochs, mended)
        for cut in cuts:
            _tell(cut)
        for one in wrong:
            _tell_epoch(one, is_mended=one in mended)
        for file in useless:
            click.echo(f"{file.name}: moved aside, the broker rebuilds it")
        if not cuts and not wrong and not useless:
            click.echo("sound")
            return
        if not execute:
            click.echo("nothing was changed; run with --execute to repair")
            sys.exit(1)
        for cut in cuts:
            _carry_out(cut)
        for one in mended:
            _mend(one)
        for file in useless:
            file.rename(file.with_name(file.name + ".removed"))
        fsync_path(str(logs[0].parent))
        if len(mended) < len(wrong):
            click.echo("done, except for leader epochs that are uncertain")
            sys.exit(1)
        click.echo("done")


def _logs(path: Path) -> list[Path]:
    """Return the log files of PATH, oldest first. Ends the process when there are none."""
    found = [one for one in log_dump.files(path) if one.suffix == LOG_SUFFIX]
    if not found and path.is_file():
        log_dump.fail(f"{path} is not the .log file of a segment", 2)
    if not found:
        log_dump.fail(f"{path} holds no segments", 2)
    return [one.absolute() for one in found]


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keep brokers, ours and Kafka's, away from a log directory. A folder that was copied
    elsewhere has no lock file and needs none.
    """
    try:
        lock = (directory / ".lock").open("r+b")
    except FileNotFoundError:
        yield
        return
    except OSError as error:
        log_dump.fail(f"cannot lock {directory}: {error.strerror}", 2)
    with lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            log_dump.fail(f"a broker is running on {directory}", 2)
        yield


def _find_damage(log: Path, epochs: EpochCheck) -> Cut | None:
    """Return what has to be cut from a segment, None when it is sound; let `epochs` take its sound
    batches.
    """
    size, base = log.stat().st_size, int(log.stem)
    following = _next_base(log)
    order, sound = BatchSequence(base), 0
    with log.open("rb") as file, log_dump.progress(log, size) as advance:
        try:
            for data, header in batch_file.whole_batches(file.fileno(), size):
                before = order.next_offset
                order.leader_epoch = header.leader_epoch  # not a reason to cut
                order.take(sound, header)
                if following is not None and order.next_offset > following:
                    order.next_offset = before
                    raise CorruptBatchError(sound, f"offsets reach over {following}, which follows")
                epochs.take(log, sound, header)
                sound += len(data)
                advance(len(data))
        except CorruptBatchError as error:
            end = order.next_offset if following is None else following
            return Cut(log, size, sound, str(error), range(order.next_offset, end))
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        index = log.with_suffix(suffix)
        reason = "missing" if not index.exists() else next(log_dump.problems(index), None)
        if reason is not None:
            return Cut(log, size, size, f"{index.name}: {reason}", range(0))
    return None


def _next_base(log: Path) -> int | None:
    bases = (base_offset_of(one.stem) for one in log.parent.glob("*" + LOG_SUFFIX))
    following = (base for base in bases if base is not None and base > int(log.stem))
    return min(following, default=None)


def _useless_snapshots(folder: Path, cuts: list[Cut]) -> list[Path]:
    """Return the producer snapshots that are damaged, or are above the truncated end of the log."""
    last = max(_logs(folder))
    end = next((cut.lost.start for cut in cuts if cut.log == last and cut.sound < cut.size), None)
    useless = []
    for snapshot in sorted(folder.absolute().glob("*" + producers.SNAPSHOT_SUFFIX)):
        offset = base_offset_of(snapshot.stem)
        if offset is None:
            continue
        beyond = end is not None and offset > end
        if beyond or next(log_dump.problems(snapshot), None) is not None:
            useless.append(snapshot)
    return useless


def _tell(cut: Cut) -> None:
    if cut.sound == cut.size:
        click.echo(f"{cut.log.name}: indexes rebuilt: {cut.reason}")
        return
    lost = f", offsets {cut.lost.start}..{cut.lost.stop - 1} are lost" if cut.lost else ""
    click.echo(
        f"{cut.log.name}: {cut.reason}: {cut.size - cut.sound} bytes truncated at {cut.sound}, "
        f"kept in {cut.removed.name}{lost}"
    )


def _tell_epoch(wrong: WrongEpoch, *, is_mended: bool) -> None:
    run = wrong.run
    if is_mended:
        click.echo(f"{run.log.name}: {wrong}: overwritten, no record is lost")
    elif run.count == 1:
        click.echo(f"{run.log.name}: {wrong}: kept as it is, --force overwrites it")
    else:
        click.echo(f"{run.log.name}: {wrong}, in {run.count} batches: kept as they are")


def _misled_checkpoint(folder: Path, epochs: EpochCheck, mended: list[WrongEpoch]) -> list[Path]:
    """Return the checkpoint of leader epochs if it has taken over one that is wrong."""
    wrong = {(one.run.epoch, one.run.offset) for one in mended}
    return [] if wrong.isdisjoint(epochs.checkpoint) else [folder / CHECKPOINT]


def _mend(wrong: WrongEpoch) -> None:
    with wrong.run.log.open("r+b") as file:
        file.seek(wrong.run.position + LEADER_EPOCH_POSITION)
        file.write(wrong.wanted.to_bytes(4, "big", signed=True))
        file.flush()
        os.fsync(file.fileno())


def _carry_out(cut: Cut) -> None:
    if cut.sound < cut.size:
        if cut.removed.exists():
            log_dump.fail(f"{cut.removed} exists already", 2)
        with cut.log.open("r+b") as file:
            try:
                _keep_removed(cut, file)
            except OSError as error:
                log_dump.fail(f"cannot write {cut.removed}: {error.strerror}", 1)
            os.ftruncate(file.fileno(), cut.sound)
    topic = TopicConfig()
    settings = SegmentSettings(topic.index_interval_bytes, topic.segment_index_bytes, wall_ms())
    segment = Segment(str(cut.log.parent), int(cut.log.stem), settings)
    # A damaged index of aborted transactions is left to the broker, which reads the batches for it.
    with contextlib.suppress(FileNotFoundError, CorruptTransactionIndexError):
        segment.aborted.load(segment.base_offset, None)
    segment.recover(lambda position, header, data: None)
    segment.become_inactive()
    segment.flush()
    segment.retire()


def _keep_removed(cut: Cut, file: BinaryIO) -> None:
    """Copy what is to be removed to its file, which goes again if that fails. Raises OSError."""
    with cut.removed.open("xb") as kept:
        try:
            file.seek(cut.sound)
            with log_dump.progress(cut.removed, cut.size - cut.sound) as advance:
                _copy(lambda: file.read(_CHUNK), kept.write, advance)
            kept.flush()
            os.fsync(kept.fileno())
        except BaseException:
            # It would be in the way of the next try.
            cut.removed.unlink()
            raise
    fsync_path(str(cut.log.parent))


def _copy(
    read: Callable[[], bytes], write: Callable[[bytes], int], advance: Callable[[int], None]
) -> None:
    while data := read():
        write(data)
        advance(len(data))
