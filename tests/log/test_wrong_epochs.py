"""A leader epoch that a flipped bit changed is found, and mended without losing a record."""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner, Result

from odradek.log.partition import checkpoints
from odradek.log.records import batch as batches
from odradek.log.segment import batch_file
from odradek.tools import leader_epochs, log_dump, log_repair
from odradek.tools.leader_epochs import Run
from tests.log.test_repair import CONFIG, contents, offsets
from tests.support.logs import Partition, batch, flip

CHECKPOINT = "leader-epoch-checkpoint"
LOG = Path("0.log")


class Place(NamedTuple):
    log: Path
    position: int
    epoch: int


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    """Forty batches of the epochs 1, 3, 5, 7 and 9, which change within segments."""
    partition = Partition(tmp_path / "topic-0", CONFIG)
    log = partition.open(clean=True)
    for number in range(40):
        log.append_as_leader(batch(b"value%d" % number), 1 + number // 8 * 2)
    partition.close(log)
    return partition


def places(partition: Partition) -> list[Place]:
    found = []
    for log in sorted(partition.folder.glob("*.log")):
        position = 0
        with log.open("rb") as file:
            for data, header in batch_file.whole_batches(file.fileno(), log.stat().st_size):
                found.append(Place(log, position, header.leader_epoch))
                position += len(data)
    return found


def last_of_first_segment(partition: Partition) -> int:
    found = places(partition)
    return max(number for number, one in enumerate(found) if one.log == found[0].log)


def flip_epoch(place: Place, bit: int) -> None:
    """Flip a bit of a batch's leader epoch; 0 is the lowest."""
    byte = batches.LEADER_EPOCH_POSITION + 3 - bit // 8
    flip(place.log, (place.position + byte) * 8 + bit % 8)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(log_repair.repair, [str(one) for one in arguments])


def verify(path: Path) -> Result:
    return CliRunner().invoke(log_dump.verify, [str(path)])


@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_raised_epoch_of_a_segments_last_batch_is_mended(
    partition: Partition, with_checkpoint: bool
) -> None:
    if not with_checkpoint:
        (partition.folder / CHECKPOINT).unlink()
    before = contents(partition.folder)
    place = places(partition)[last_of_first_segment(partition)]
    flip_epoch(place, 6)
    for path in (partition.folder, place.log):
        told = verify(path)
        assert told.exit_code == 1
        assert f"leader epoch {place.epoch + 64} at byte {place.position}" in told.output
    damaged = contents(partition.folder)
    for path in (partition.folder, place.log):
        told = run(path)
        assert told.exit_code == 1
        assert f"{place.epoch}: overwritten, no record is lost" in told.output
        assert contents(partition.folder) == damaged, "a dry run touches nothing"
    assert run(partition.folder, "--execute").exit_code == 0
    assert contents(partition.folder) == before
    assert verify(partition.folder).exit_code == 0


@pytest.mark.parametrize("bit", [0, 1, 2, 5, 30, 31])
@pytest.mark.parametrize("number", [0, 7, 8, 19, 39])
def test_no_flipped_epoch_costs_a_record(partition: Partition, number: int, bit: int) -> None:
    before = contents(partition.folder)
    flip_epoch(places(partition)[number], bit)
    if contents(partition.folder) == before:
        return
    told = run(partition.folder, "--execute")
    assert not list(partition.folder.glob("*.removed*"))
    if told.exit_code == 1:
        assert "--force" in told.output
        forced = run(partition.folder, "--execute", "--force")
        assert forced.exit_code == 0, forced.output
    assert run(partition.folder).output == "sound\n"
    assert contents(partition.folder) == before
    assert offsets(partition) == list(range(40))


def test_nothing_is_guessed_unasked(partition: Partition) -> None:
    """Two batches of which either may be wrong, and nothing that says which."""
    (partition.folder / CHECKPOINT).unlink()
    flip_epoch(places(partition)[-2], 4)
    damaged = contents(partition.folder)
    told = run(partition.folder, "--execute")
    assert told.exit_code == 1
    assert "kept as it is, --force overwrites it" in told.output
    assert contents(partition.folder) == damaged
    assert run(partition.folder, "--execute", "--force").exit_code == 0
    assert run(partition.folder).output == "sound\n"
    assert offsets(partition) == list(range(40))


def test_checkpoint_that_took_the_wrong_epoch_over_is_made_anew(partition: Partition) -> None:
    number = last_of_first_segment(partition)
    flip_epoch(places(partition)[number], 6)
    wrong = places(partition)[number].epoch
    checkpoint = partition.folder / CHECKPOINT
    checkpoint.write_text(f"0\n3\n1 0\n3 8\n{wrong} {number}\n")
    told = run(partition.folder, "--execute")
    assert told.exit_code == 0, told.output
    assert f"{CHECKPOINT}: moved aside" in told.output
    log = partition.open(clean=True)
    assert log.epochs.entries == [(1, 0), (3, 8), (5, 16), (7, 24), (9, 32)]
    partition.close(log)


def runs(*epochs: int, expected: tuple[int, ...] | None = None) -> list[Run]:
    return [
        Run(LOG, number, number, epoch, None if expected is None else expected[number])
        for number, epoch in enumerate(epochs)
    ]


@pytest.mark.parametrize(
    ("epochs", "expected", "wrong"),
    [
        ((1, 1, 2, 3), None, []),
        ((1, 9, 2, 3), None, [(1, 1, False)]),
        ((2, 9, 2, 3), None, [(1, 2, True)]),
        ((1, 9, 2, 3), (1, 2, 2, 3), [(1, 2, True)]),
        ((3, 3, 0, 3), None, [(2, 3, True)]),
        ((9, 2), (2, 2), [(0, 2, True)]),
        ((2, 3, 9, 4), (2, 3, 4, 4), [(2, 4, True)]),
        ((2, 3, 1), (2, 3, 3), [(2, 3, True)]),
    ],
)
def test_most_batches_and_the_checkpoint_say_which_is_wrong(
    epochs: tuple[int, ...],
    expected: tuple[int, ...] | None,
    wrong: list[tuple[int, int, bool]],
) -> None:
    found = leader_epochs.judge(runs(*epochs, expected=expected))
    assert [(one.run.offset, one.wanted, one.is_known) for one in found] == wrong


def test_what_is_mended_is_in_order() -> None:
    chance = random.Random(5)
    for _ in range(500):
        epochs = [chance.randrange(6) for _ in range(chance.randrange(1, 9))]
        expected = tuple(sorted(chance.randrange(6) for _ in epochs))
        some = runs(*epochs, expected=expected if chance.random() < 0.5 else None)
        for wrong in leader_epochs.judge(some):
            wrong.run.epoch = wrong.wanted
        mended = [one.epoch for one in some]
        assert mended == sorted(mended), (epochs, expected)


def test_no_beginning_of_a_checkpoint_passes_for_a_whole_one(tmp_path: Path) -> None:
    """Files that are written in place may lose their end in a power failure."""
    whole = checkpoints.format_epochs([(0, 0), (5, 1234)])
    path = tmp_path / CHECKPOINT
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(checkpoints.CorruptCheckpointError):
            checkpoints.read_epochs(str(path))
    path.write_bytes(whole)
    assert checkpoints.read_epochs(str(path)) == [(0, 0), (5, 1234)]


@pytest.mark.parametrize("entry", [(2**31, 0), (0, 2**63), (0, 10**30)])
def test_a_checkpoint_with_numbers_that_no_answer_can_hold_is_damaged(
    tmp_path: Path, entry: tuple[int, int]
) -> None:
    path = tmp_path / CHECKPOINT
    path.write_bytes(checkpoints.format_epochs([entry]))
    with pytest.raises(checkpoints.CorruptCheckpointError):
        checkpoints.read_epochs(str(path))
