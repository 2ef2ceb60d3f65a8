"""`odradek log dump` and `odradek log verify` tell what is in files, and what is wrong with
them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from odradek.log.partition import topic_identity
from odradek.log.partition.topic_identity import Incarnation, TopicIdentity
from odradek.tools.log_dump import commands, progress
from odradek.tools.log_repair import repair
from odradek.topic_config import TopicConfig
from tests.support.logs import START_MS, Partition, batch


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    partition = Partition(
        tmp_path / "topic-0", TopicConfig(segment_bytes=900, index_interval_bytes=50)
    )
    log = partition.open(clean=True)
    for number in range(30):
        data = batch(
            b"value%d" % number,
            timestamp=START_MS + number,
            codec=number % 5,
            producer_id=3,
            producer_epoch=0,
            base_sequence=number,
        )
        log.append_as_leader(data, number // 10)
    partition.close(log)
    return tmp_path / "topic-0"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(commands, [str(one) for one in arguments])


def test_dump_shows_every_batch_record_entry_and_producer(folder: Path) -> None:
    result = run("dump", "--records", folder)
    assert result.exit_code == 0
    assert result.output.count("  offsets ") == 30
    for number in range(30):
        assert f"    {number} {START_MS + number} key b'k' value b'value{number}'" in result.output
    assert "  epoch 2 from offset 20" in result.output
    assert "  producer 3 epoch 0 last sequence 29" in result.output
    assert "  timestamp " in result.output
    assert " position " in result.output


def test_verify_finds_a_closed_log_sound(folder: Path) -> None:
    result = run("verify", folder)
    assert (result.exit_code, result.output) == (0, "sound\n")


def test_verify_takes_the_empty_checkpoint_that_kafka_makes_of_a_new_partition(
    folder: Path,
) -> None:
    (folder / "leader-epoch-checkpoint").write_bytes(b"")
    result = run("verify", folder)
    assert (result.exit_code, result.output) == (0, "sound\n")


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".snapshot"])
def test_verify_finds_a_flipped_bit(folder: Path, suffix: str) -> None:
    path = sorted(folder.glob("*" + suffix))[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x40
    path.write_bytes(data)
    result = run("verify", folder)
    assert result.exit_code == 1
    assert path.name in result.output


def test_dump_and_verify_read_the_topic_of_a_folder(folder: Path) -> None:
    identity = TopicIdentity("a" * 22, Incarnation(12, 7))
    topic_identity.write(str(folder), identity)
    path = folder / topic_identity.FILE_NAME
    for asked in (folder, path):
        assert f"{path.name}:\n  {identity}\n" in run("dump", asked).output
        assert run("verify", asked).output == "sound\n"
    path.write_text("version: 0\n")
    for command in ("dump", "verify"):
        result = run(command, path)
        assert result.exit_code == 1
        assert f"not the format of {path.name}" in result.output + result.stderr


def test_verify_finds_a_torn_tail(folder: Path) -> None:
    path = sorted(folder.glob("*.log"))[-1]
    path.write_bytes(path.read_bytes()[:-1])
    result = run("verify", path)
    assert result.exit_code == 1
    assert "cut off" in result.output


@pytest.mark.parametrize("name", ["missing", "notes.txt", "empty", "abc.log", "7.log", "7.index"])
def test_a_path_that_is_no_log_is_one_line_and_exit_2(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    for named in ("abc.log", "7.log", "7.index"):
        (tmp_path / named).write_text("hello")
    (tmp_path / "empty").mkdir()
    for command in ("dump", "verify", repair.name):
        result = run(command, tmp_path / name)
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1
        assert result.stdout == ""
        if "." in name:
            assert "an offset of 20 digits with .log, .index," in result.stderr


@pytest.mark.parametrize("command", ["dump", "verify", repair.name])
def test_a_path_that_no_file_can_have_is_one_line_and_exit_2(command: str) -> None:
    result = run(command, "x" * 4000)
    assert (result.exit_code, len(result.output.splitlines())) == (2, 1)
    assert result.output.endswith(": File name too long\n")


@pytest.mark.parametrize("command", ["dump", "verify", repair.name])
def test_logs_of_other_programs_beside_segments_are_left_out(folder: Path, command: str) -> None:
    others = ("server.log", "7.log", "7.snapshot")
    for name in others:
        (folder / name).write_bytes(b"INFO up\n")
    result = run(command, folder)
    assert result.exit_code == 0
    assert not any(line.startswith(others) for line in result.output.splitlines())


def test_folder_in_place_of_a_checkpoint_is_one_line_and_exit_2(folder: Path) -> None:
    (folder / "leader-epoch-checkpoint").unlink()
    (folder / "leader-epoch-checkpoint").mkdir()
    for command in ("dump", "verify", repair.name):
        result = run(command, folder)
        assert result.exit_code == 2
        assert result.output.splitlines()[-1].endswith(": Is a directory")


def test_nobody_is_shown_progress_where_stderr_is_closed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as closed:
        closed.setattr(sys, "stderr", None)
        with progress(tmp_path / "large.log", 1 << 30) as advance:
            advance(1 << 30)
