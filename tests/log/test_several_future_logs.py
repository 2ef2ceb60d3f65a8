"""Several folders of one partition in the directories, and the moves that could leave them."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from odradek.log.manager import LogManager
from odradek.log.partition import future
from odradek.log.partition.log import Log
from odradek.protocol.errors import KafkaError
from tests.log.conftest import Make
from tests.log.moves import KEY, SMALL, begin, complete, copy_all, home, move, values
from tests.support.logs import batch, new_log


def filled(make: Make, *places: str) -> tuple[LogManager, Log]:
    manager = make(dirs=places)
    log = new_log(manager, *KEY, SMALL)
    log.append_as_leader(batch(b"a"), 3)
    log.append_as_leader(batch(b"b"), 3)
    log.high_watermark = 2
    return manager, log


def marked(*logs: Log) -> list[str]:
    return [home(log) for log in logs if os.path.exists(os.path.join(log.directory, future.MARK))]


def stubborn(monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    """Let renames of a folder fail for a reason that is not the disk's."""
    real = os.replace

    def replace(source: str, target: str) -> None:
        if source == folder:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)


def test_a_move_waits_while_a_former_folder_has_the_name(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a crash could leave three folders, two of them marked, and no start would succeed."""
    manager, log = filled(make, "a", "b", "c")
    former = log.directory
    with monkeypatch.context() as patched:
        begin(manager)
        copy_all(manager)
        done = manager.switch_to_future(KEY)
        assert done is not None
        other = begin(manager, str(tmp_path / "c"))  # asked for before the first one ended
        stubborn(patched, former)
        manager.finish_switch(KEY, done)
        with pytest.raises(KafkaError, match="former log"):
            copy_all(manager)
        assert marked(done.log, other) == ["b"], "a start after a crash knows which one counts"
        manager.futures.discard([KEY])
        with pytest.raises(KafkaError, match="former log"):
            begin(manager, str(tmp_path / "c"))
    assert home(move(manager, str(tmp_path / "c"))) == "c"
    assert not os.path.exists(former)
    moved = manager.get(*KEY)
    assert moved is not None
    assert values(moved) == [b"a", b"b"]
    assert marked(moved) == []


def test_the_folder_of_a_cancelled_move_goes_before_the_next_begins(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, _ = filled(make, "a", "b", "c")
    copy = begin(manager, str(tmp_path / "b"))
    with monkeypatch.context() as patched:
        stubborn(patched, copy.directory)
        manager.futures.discard([KEY])
        with pytest.raises(KafkaError, match="former log"):
            begin(manager, str(tmp_path / "c"))
    begin(manager, str(tmp_path / "c"))
    assert not list((tmp_path / "b").glob("*-future"))
    assert home(complete(manager)) == "c"


def test_the_best_of_several_copies_replaces_a_lost_log(make: Make, tmp_path: Path) -> None:
    manager, _ = filled(make, "a", "b")
    copy = begin(manager)
    copy_all(manager)
    manager.close()
    folder = Path(copy.directory)
    older = folder.with_name(f"orders-0.{'f' * 32}-future")
    shutil.copytree(folder, older)
    for log_file in older.glob("*.log"):
        log_file.write_bytes(log_file.read_bytes()[:-5])
    older.with_name(f"orders-0.{'0' * 32}-future").mkdir()
    shutil.rmtree(tmp_path / "a")
    log = make().get(*KEY)
    assert log is not None
    assert values(log) == [b"a", b"b"]
    assert not list((tmp_path / "b").glob("*-future"))
