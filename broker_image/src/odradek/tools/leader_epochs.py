"""Leader epochs that cannot be right, and what they must have been.

A broker writes the leader epoch into a batch, so the checksum does not cover it. Epochs only rise
in a log, and readers are refused where they do not. A flipped bit changes no record: it is mended
in place, and nothing is cut. Which of two batches is wrong is decided by all others, and by the
file `leader-epoch-checkpoint`: as many batches as possible stay, and each that the file agrees with
counts twice. What remains open is called uncertain; so is a single batch in order with which only
the file disagrees.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from odradek.log.partition import checkpoints
from odradek.log.partition.epochs import FILE_NAME
from odradek.log.records.batch import NO_EPOCH, CorruptBatchError, Header
from odradek.log.segment import batch_file
from odradek.log.segment.names import LOG_SUFFIX, base_offset_of

# Runs of batches of one epoch that are compared with each other; a log has few.
_MOST_RUNS = 4000


@dataclass(slots=True)
class Run:
    """Neighbouring batches with one leader epoch: how many, and where the first of them is."""

    log: Path
    position: int
    offset: int
    epoch: int
    expected: int | None
    count: int = 1

    @property
    def weight(self) -> int:
        """What speaks for this epoch."""
        return self.count * (2 if self.epoch == self.expected else 1)


@dataclass(frozen=True, slots=True)
class WrongEpoch:
    """A batch with a leader epoch that cannot be right, and the epoch that it must have had.

    Uncertain if others could be the wrong ones, or if several epochs would fit.
    """

    run: Run
    wanted: int
    is_known: bool

    def __str__(self) -> str:
        run = self.run
        return (
            f"leader epoch {run.epoch} at byte {run.position}, offset {run.offset}, "
            f"cannot be right: {'' if self.is_known else 'probably '}{self.wanted}"
        )


class EpochCheck:
    """Collects the leader epochs of a partition's batches, in their order."""

    def __init__(self, folder: Path) -> None:
        self.checkpoint = _checkpoint(folder / FILE_NAME)
        self._offsets = [offset for _, offset in self.checkpoint]
        self._runs: list[Run] = []

    def take(self, log: Path, position: int, header: Header) -> None:
        """Add the next batch. Formats before 0.11 have no epoch."""
        if header.magic < 2:
            return
        at = bisect_right(self._offsets, header.base_offset)
        expected = self.checkpoint[at - 1][0] if at else None
        last = self._runs[-1] if self._runs else None
        if last is not None and (last.epoch, last.expected) == (header.leader_epoch, expected):
            last.count += 1
        else:
            self._runs.append(Run(log, position, header.base_offset, header.leader_epoch, expected))

    def scan(self, log: Path | None) -> None:
        """Add the batches of a whole segment, up to the first damaged one."""
        if log is None:
            return
        position = 0
        with log.open("rb") as file:
            try:
                for data, header in batch_file.whole_batches(file.fileno(), log.stat().st_size):
                    self.take(log, position, header)
                    position += len(data)
            except CorruptBatchError:
                return

    def found(self) -> list[WrongEpoch]:
        """Return what is wrong with the epochs, in order of offset."""
        return judge(self._runs) or doubtful(self._runs)


def doubtful(runs: Sequence[Run]) -> list[WrongEpoch]:
    """Return single batches, of runs in order, with which the checkpoint disagrees.

    All are uncertain: the file may be damaged, or a power failure may have taken an epoch out.
    """
    found: list[WrongEpoch] = []
    for number, run in enumerate(runs):
        wanted = run.expected
        if wanted is None or run.count > 1 or run.epoch == wanted:
            continue
        fits_before = number == 0 or runs[number - 1].epoch <= wanted
        fits_after = number + 1 == len(runs) or wanted <= runs[number + 1].epoch
        if fits_before and fits_after:
            found.append(WrongEpoch(run, wanted, is_known=False))
    return found


def judge(runs: Sequence[Run]) -> list[WrongEpoch]:
    """Return the runs that must be wrong if the heaviest rising sequence of runs is right."""
    if all(one.epoch <= other.epoch for one, other in pairwise(runs)):
        return []
    kept, is_only_way = _heaviest_rising(runs)
    wrong: list[WrongEpoch] = []
    for number, run in enumerate(runs):
        if number in kept:
            continue
        lowest = max((runs[one].epoch for one in kept if one < number), default=NO_EPOCH)
        highest = min((runs[one].epoch for one in kept if one > number), default=math.inf)
        if run.expected is not None and lowest <= run.expected <= highest:
            wanted, is_known = run.expected, True
        else:
            wanted = lowest if lowest != NO_EPOCH or highest == math.inf else int(highest)
            is_known = lowest == highest
        # One bit flips, not the same one in several batches.
        wrong.append(WrongEpoch(run, wanted, is_known and is_only_way and run.count == 1))
    return wrong


def _heaviest_rising(runs: Sequence[Run]) -> tuple[set[int], bool]:
    """Return the numbers of the runs of the heaviest rising sequence, and whether no other is as
    heavy.
    """
    considered = range(min(len(runs), _MOST_RUNS))
    best: list[int] = []
    ways: list[int] = []
    previous: list[int] = []
    for number in considered:
        before = [one for one in range(number) if runs[one].epoch <= runs[number].epoch]
        most = max((best[one] for one in before), default=0)
        heaviest = [one for one in before if best[one] == most]
        best.append(most + runs[number].weight)
        ways.append(min(2, sum(ways[one] for one in heaviest)) if heaviest else 1)
        previous.append(heaviest[-1] if heaviest else -1)
    ends = [one for one in considered if best[one] == max(best)]
    is_only_way = sum(ways[one] for one in ends) == 1 and len(runs) <= _MOST_RUNS
    kept: set[int] = set()
    number = ends[0]
    while number >= 0:
        kept.add(number)
        number = previous[number]
    return kept, is_only_way


def neighbours(log: Path) -> tuple[Path | None, Path | None]:
    """Return the segments before and after one."""
    found = log.parent.glob("*" + LOG_SUFFIX)
    others = sorted(one for one in found if base_offset_of(one.stem) is not None)
    before = [one for one in others if one.stem < log.stem]
    after = [one for one in others if one.stem > log.stem]
    return before[-1] if before else None, after[0] if after else None


def _checkpoint(file: Path) -> list[tuple[int, int]]:
    """Return the (epoch, first offset) pairs of the file, none if it is missing or damaged."""
    try:
        found = checkpoints.read_epochs(str(file)) or []
    except checkpoints.CorruptCheckpointError:
        return []
    rises = all(a < c and b < d for (a, b), (c, d) in pairwise(found))
    return found if rises else []
