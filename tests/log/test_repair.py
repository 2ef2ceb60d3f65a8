"""`odradek log repair` cuts what is damaged, keeps what it cuts, and touches nothing unasked."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from odradek.tools.log_repair import repair
from odradek.topic_config import TopicConfig
from tests.support.logs import Partition, batch, flip, read_all
from tests.support.transactions import aborted_in, end, write

CONFIG = TopicConfig(segment_bytes=900, index_interval_bytes=50)


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    partition = Partition(tmp_path / "topic-0", CONFIG)
    log = partition.open(clean=True)
    for number in range(40):
        values: dict[str, Any] = {"producer_id": 3, "producer_epoch": 0, "base_sequence": number}
        log.append_as_leader(batch(b"value%d" % number, codec=number % 5, **values), number // 10)
    partition.close(log)
    return partition


def run(*arguments: object) -> Result:
    return CliRunner().invoke(repair, [str(one) for one in arguments])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def offsets(partition: Partition) -> list[int]:
    log = partition.open(clean=True)
    found = [record.offset for record in read_all(log)]
    partition.close(log)
    return found


def test_a_sound_log_is_left_alone(partition: Partition) -> None:
    before = contents(partition.folder)
    for arguments in ((), ("--execute",)):
        result = run(partition.folder, *arguments)
        assert (result.exit_code, result.output) == (0, "sound\n")
    assert contents(partition.folder) == before


def test_a_damaged_segment_is_cut_and_what_follows_stays(partition: Partition) -> None:
    before = contents(partition.folder)
    second, third = sorted(partition.folder.glob("*.log"))[1:3]
    flip(second, 200 * 8)
    damaged = contents(partition.folder)
    told = run(partition.folder)
    assert told.exit_code == 1
    assert second.name in told.output
    assert "nothing was changed" in told.output
    assert contents(partition.folder) == damaged, "a dry run touches nothing"
    done = run(partition.folder, "--execute")
    assert (done.exit_code, done.output.splitlines()[:-1]) == (0, told.output.splitlines()[:-1])
    (side,) = partition.folder.glob("*.removed-at-*")
    assert second.read_bytes() + side.read_bytes() == damaged[second.name]
    assert third.read_bytes() == before[third.name]
    assert run(partition.folder).output == "sound\n"
    found = offsets(partition)
    gap = sorted(set(range(40)) - set(found))
    assert gap == list(range(gap[0], int(third.stem)))
    assert f"offsets {gap[0]}..{gap[-1]} are lost" in told.output


def test_damage_in_the_last_segment_shortens_the_log(partition: Partition) -> None:
    last = max(partition.folder.glob("*.log"))
    flip(last, 70 * 8)
    assert run(last, "--execute").exit_code == 0
    assert run(partition.folder, "--execute").exit_code == 0
    assert offsets(partition) == list(range(int(last.stem)))
    log = partition.open(clean=True)
    next_batch = batch(b"next", producer_id=3, producer_epoch=0, base_sequence=int(last.stem))
    assert log.append_as_leader(next_batch, 9).base_offset == int(last.stem)
    partition.close(log)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("how", ["missing", "flipped"])
def test_indexes_are_made_anew(partition: Partition, suffix: str, how: str) -> None:
    before = contents(partition.folder)
    index = min(partition.folder.glob("*" + suffix))
    if how == "missing":
        index.unlink()
    else:
        flip(index, 6)
    assert run(partition.folder).exit_code == 1
    assert run(partition.folder, "--execute").exit_code == 0
    assert run(partition.folder).output == "sound\n"
    assert (
        contents(partition.folder)[index.with_suffix(".log").name]
        == (before[index.with_suffix(".log").name])
    )
    assert offsets(partition) == list(range(40))


def test_markers_that_are_cut_off_are_no_more_in_the_index(partition: Partition) -> None:
    log = partition.open(clean=True)
    for _ in range(2):
        write(log, 7)
        marker = end(log, 7, commit=False)
    path, size = Path(log.segments.active.log.path), log.segments.active.size
    partition.close(log)
    flip(path, (size - 1) * 8)
    assert run(partition.folder, "--execute").exit_code == 0
    log = partition.open(clean=True)
    told = aborted_in(log)
    assert [one.last_offset for one in told] == [marker - 2]
    partition.close(log)


def test_a_damaged_snapshot_is_moved_aside(partition: Partition) -> None:
    snapshot = max(partition.folder.glob("*.snapshot"))
    flip(snapshot, 100)
    assert run(partition.folder, "--execute").exit_code == 0
    assert not snapshot.exists()
    assert snapshot.with_name(snapshot.name + ".removed").exists()
    assert offsets(partition) == list(range(40))


def test_any_damage_leaves_a_log_that_is_sound(partition: Partition) -> None:
    chance = random.Random(41)
    log = partition.folder
    for _ in range(25):
        before = contents(log)
        path = chance.choice(sorted(log.glob("*.log")))
        flip(path, chance.randrange(path.stat().st_size * 8))
        run(log, "--execute")
        assert run(log).output == "sound\n"
        found = offsets(partition)
        assert found == sorted(set(found))
        for name in set(contents(log)) - set(before):
            (log / name).unlink()
        for name, data in before.items():
            (log / name).write_bytes(data)


def test_a_full_disk_leaves_a_log_that_can_be_repaired(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip(sorted(partition.folder.glob("*.log"))[1], 200 * 8)
    before = contents(partition.folder)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        failed = run(partition.folder, "--execute")
    assert failed.exit_code == 1
    assert failed.stderr.startswith(f"odradek: cannot write {partition.folder}")
    assert failed.stderr.endswith(": No space left on device\n")
    assert contents(partition.folder) == before
    assert run(partition.folder, "--execute").exit_code == 0
    assert run(partition.folder).output == "sound\n"


def test_a_folder_in_use_is_refused(partition: Partition, tmp_path: Path) -> None:
    flip(min(partition.folder.glob("*.log")), 200 * 8)
    lock = tmp_path / ".lock"
    lock.touch()
    script = "import fcntl,sys,time;f=open(sys.argv[1],'r+');fcntl.lockf(f,fcntl.LOCK_EX);"
    with subprocess.Popen(
        [sys.executable, "-c", script + "print('held',flush=True);time.sleep(60)", str(lock)],
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        before = contents(partition.folder)
        result = run(partition.folder, "--execute")
        holder.kill()
    assert result.exit_code == 2
    assert result.stderr == f"odradek: a broker is running on {tmp_path}\n"
    assert contents(partition.folder) == before


@pytest.mark.parametrize("name", ["missing", "notes.txt", "empty", "abc.log", "only-abc"])
def test_a_path_that_is_no_log_is_one_line_and_exit_2(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "abc.log").write_text("hello")
    (tmp_path / "empty").mkdir()
    (tmp_path / "only-abc").mkdir()
    (tmp_path / "only-abc" / "abc.log").write_text("hello")
    result = run(tmp_path / name, "--execute")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
