"""Moves of logs between directories (KIP-113): what counts of the folders that a start finds, and
what becomes of folders that a failed move or deletion left.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from odradek.log.directory import LogDirError
from odradek.log.manager import LogManager
from odradek.log.partition import future, topic_identity
from odradek.log.partition.topic_identity import TopicIdentity
from odradek.protocol.errors import ErrorCode, KafkaError
from tests.log.conftest import Make
from tests.log.moves import (
    KEY,
    SMALL,
    begin,
    complete,
    copy_all,
    crashed_between_the_renames,
    folders,
    home,
    move,
    switched,
    values,
)
from tests.support.logs import batch, new_log

TOPIC = TopicIdentity("pPhN7wW2Rxa2B9JxJ5hXBA")


@pytest.mark.parametrize("spoilt", [False, True], ids=["sound", "spoilt epochs"])
def test_the_former_log_counts_if_it_was_in_use_after_the_move(
    make: Make, tmp_path: Path, spoilt: bool
) -> None:
    former, _ = crashed_between_the_renames(make)
    # The broker ran without the new directory, became leader and took records.
    alone = make(dirs=("a",))
    log = alone.get(*KEY)
    assert log is not None
    log.assign_epoch(1)
    log.append_as_leader(batch(b"acknowledged"), 1)
    alone.close()
    if spoilt:  # a power failure came after the file was written, but before its end was
        path = Path(log.epochs.path)
        path.write_bytes(path.read_bytes()[:-1] + b"\0")
    found = make().get(*KEY)
    assert found is not None
    assert home(found) == home(former) == "a"
    assert values(found) == [b"value", b"acknowledged"]
    assert folders(tmp_path) == ["a/orders-0"]


def test_a_mark_stays_while_a_directory_is_away(make: Make, tmp_path: Path) -> None:
    """The former log may be there."""
    crashed_between_the_renames(make)
    (tmp_path / "a").rename(tmp_path / "away")
    (tmp_path / "a").write_text("no directory")
    without = make()
    log = without.get(*KEY)
    assert log is not None
    assert os.path.exists(os.path.join(log.directory, future.MARK))
    without.close()
    (tmp_path / "a").unlink()
    (tmp_path / "away").rename(tmp_path / "a")
    found = make().get(*KEY)
    assert found is not None
    assert values(found) == [b"value", b"after"]
    assert folders(tmp_path) == ["b/orders-0"]


def test_two_logs_without_a_mark_stop_the_start(make: Make) -> None:
    """Kafka leaves them like this, and does not start either."""
    _, present = crashed_between_the_renames(make)
    os.unlink(os.path.join(present.directory, future.MARK))
    with pytest.raises(LogDirError, match=r"orders-0 is in both .*/a and .*/b"):
        make()


def test_a_move_that_kafka_began_goes_on(make: Make, tmp_path: Path) -> None:
    manager = make()
    log = new_log(manager, *KEY, SMALL)
    log.append_as_leader(batch(b"value"), 0)
    manager.close()
    (tmp_path / "b" / f"orders-0.{'0a' * 16}-future").mkdir()
    again = make()
    assert values(complete(again)) == [b"value"]
    assert folders(tmp_path) == ["b/orders-0"]


def test_future_logs_that_contradict_each_other_go(make: Make, tmp_path: Path) -> None:
    manager = make()
    log = new_log(manager, *KEY, SMALL)
    log.append_as_leader(batch(b"value"), 0)
    manager.close()
    for place, digit in (("a", "1"), ("b", "2"), ("b", "3")):
        (tmp_path / place / f"orders-0.{digit * 32}-future").mkdir()
    again = make()
    assert again.futures.get(KEY) is None
    assert folders(tmp_path) == ["a/orders-0"]
    assert home(move(again)) == "b"


def test_a_future_log_follows_what_its_original_lost_in_a_crash(make: Make) -> None:
    manager = make()
    log = new_log(manager, *KEY, SMALL)
    for epoch, value in enumerate((b"kept", b"lost", b"lost too")):
        log.assign_epoch(epoch)
        log.append_as_leader(batch(value), epoch)
    begin(manager)
    copy_all(manager)
    manager.close()
    alone = make(dirs=("a",))
    shorter = alone.get(*KEY)
    assert shorter is not None
    shorter.truncate_to(1)
    shorter.assign_epoch(7)
    shorter.append_as_leader(batch(b"new"), 7)
    shorter.append_as_leader(batch(b"newer"), 7)
    alone.close()
    again = make()
    copy = again.futures.get(KEY)
    assert copy is not None
    assert values(copy) == [b"kept"]
    assert values(complete(again)) == [b"kept", b"new", b"newer"]


def test_a_future_log_whose_original_is_away_is_not_taken_for_it(
    make: Make, tmp_path: Path
) -> None:
    manager = make()
    log = new_log(manager, *KEY, SMALL)
    log.append_as_leader(batch(b"value"), 0)
    begin(manager)
    copy_all(manager)
    manager.close()
    (tmp_path / "a").rename(tmp_path / "away")
    (tmp_path / "a").write_text("no directory")
    without = make()
    assert without.get(*KEY) is None
    with pytest.raises(KafkaError):
        new_log(without, *KEY, SMALL, is_new=False)
    without.close()
    (tmp_path / "a").unlink()


def begun(make: Make) -> LogManager:
    """A log whose copy has its first two records of three."""
    manager = make()
    log = new_log(manager, *KEY, SMALL)
    log.assign_epoch(3)
    topic_identity.write(log.directory, TOPIC)
    for value in (b"a", b"b"):
        log.append_as_leader(batch(value), 3)
    log.high_watermark = 2
    begin(manager)
    copy_all(manager)
    log.append_as_leader(batch(b"not copied"), 3)
    manager.save_high_watermarks()
    return manager


def test_a_copy_takes_over_from_an_original_whose_disk_was_replaced(
    make: Make, tmp_path: Path
) -> None:
    """Kafka would truncate it to the empty log that it makes; it may be the only copy."""
    begun(make).close()
    shutil.rmtree(tmp_path / "a")
    manager = make()
    log = manager.get(*KEY)
    assert log is not None
    assert manager.futures.get(KEY) is None
    assert values(log) == [b"a", b"b"]
    assert log.epochs.entries == [(3, 0)]
    assert log.high_watermark == 2
    assert topic_identity.read(log.directory) == TOPIC, "no topic of the same name adopts it"
    assert folders(tmp_path) == ["b/orders-0"]
    log.append_as_leader(batch(b"c"), 3)
    assert home(move(manager)) == "a"
    manager.close()
    again = make().get(*KEY)
    assert again is not None
    assert values(again) == [b"a", b"b", b"c"]


def test_a_copy_that_took_over_is_not_preferred_to_its_original(make: Make, tmp_path: Path) -> None:
    """Its disk was only away: both logs stay until somebody decides."""
    begun(make).close()
    (tmp_path / "a").rename(tmp_path / "away")
    make().close()
    shutil.rmtree(tmp_path / "a")
    (tmp_path / "away").rename(tmp_path / "a")
    with pytest.raises(LogDirError, match=r"orders-0 is in both .*/a and .*/b"):
        make()
    assert folders(tmp_path) == ["a/orders-0", "b/orders-0"]


def test_a_log_is_not_made_beside_its_future_log(make: Make, tmp_path: Path) -> None:
    make().close()
    copy = tmp_path / "b" / f"orders-0.{'0a' * 16}-future"
    copy.mkdir()
    manager = make()
    for partition in range(3):
        new_log(manager, "others", partition, SMALL)
    assert home(new_log(manager, *KEY, SMALL, is_new=False)) == "a"
    assert manager.futures.get(KEY) is not None
    manager.close()
    only = make(dirs=("b",))
    assert home(new_log(only, *KEY, SMALL, is_new=False)) == "b"
    assert only.futures.get(KEY) is None
    assert not copy.exists()


# -- folders that a failed move or deletion left --------------------------------------------------


def strays(tmp_path: Path) -> list[Path]:
    return sorted(tmp_path.glob("[ab]/*-stray"))


def test_a_new_log_does_not_adopt_what_a_failed_move_left(make: Make, tmp_path: Path) -> None:
    """The former folder has the partition's name still, and the topic may be another one now."""
    manager, done = switched(make)
    assert manager.remove([KEY]) == {}
    assert folders(tmp_path) == ["a/orders-0"]
    manager.placement.prefer(KEY, os.path.dirname(done.former.directory))
    log = new_log(manager, *KEY, SMALL)
    assert home(log) == "a"
    assert values(log) == []
    [kept] = strays(tmp_path)
    assert any(each.stat().st_size for each in kept.glob("*.log")), "it may be wanted"
    log.append_as_leader(batch(b"new"), 0)
    manager.close()
    again = make().get(*KEY)
    assert again is not None
    assert values(again) == [b"new"]


def test_an_empty_folder_that_was_left_is_not_kept(make: Make, tmp_path: Path) -> None:
    manager = make()
    (tmp_path / "a" / "orders-0").mkdir()
    (tmp_path / "a" / "orders-0" / topic_identity.FILE_NAME).write_text("of another topic")
    log = new_log(manager, *KEY, SMALL)
    assert topic_identity.FILE_NAME not in os.listdir(log.directory)
    assert not strays(tmp_path)
    assert folders(tmp_path) == ["a/orders-0"]


def test_a_log_moves_to_where_a_failed_move_left_a_folder(make: Make, tmp_path: Path) -> None:
    manager = make()
    log = new_log(manager, *KEY, SMALL)
    log.append_as_leader(batch(b"value"), 0)
    left = tmp_path / "b" / "orders-0"
    left.mkdir()
    (left / "00000000000000000000.log").write_bytes(b"stale")
    moved = move(manager)
    assert home(moved) == "b"
    assert values(moved) == [b"value"]
    assert len(strays(tmp_path)) == 1


def out_of_memory(*_: object) -> None:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def test_a_deletion_without_memory_for_a_rename_is_tried_again(
    make: Make, tmp_path: Path, failures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make()
    new_log(manager, *KEY, SMALL).append_as_leader(batch(b"value"), 0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", out_of_memory)
        assert manager.remove([KEY]) == {}
        manager.housekeep()
    assert failures == []
    assert folders(tmp_path) == ["a/orders-0"]
    manager.housekeep()
    assert folders(tmp_path) == []


def test_a_log_that_is_made_meanwhile_has_nothing_of_it(
    make: Make, tmp_path: Path, failures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make(dirs=("a",))
    new_log(manager, *KEY, SMALL).append_as_leader(batch(b"value"), 0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", out_of_memory)
        assert manager.remove([KEY]) == {}
        with pytest.raises(KafkaError):
            new_log(manager, *KEY, SMALL)
    log = new_log(manager, *KEY, SMALL)
    manager.housekeep()
    log.append_as_leader(batch(b"new"), 0)
    assert values(log) == [b"new"]
    assert not strays(tmp_path), "it was to be deleted"
    assert failures == []


def test_a_switch_without_memory_for_the_second_rename_keeps_its_mark(
    make: Make, tmp_path: Path, failures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, done = switched(make)
    with monkeypatch.context() as patched:
        real = os.replace

        def replace(source: str, target: str) -> None:
            if source == done.former.directory:
                out_of_memory()
            real(source, target)

        patched.setattr(os, "replace", replace)
        manager.finish_switch(KEY, done)
    assert failures == []
    assert folders(tmp_path) == ["a/orders-0", "b/orders-0"]
    assert os.path.exists(os.path.join(done.log.directory, future.MARK))
    manager.housekeep()
    assert folders(tmp_path) == ["b/orders-0"]
    # The mark does not outlive the next move, or a start after a crash would find two of them.
    begin(manager)
    copy_all(manager)
    manager.futures.prepare(KEY, done.log)
    assert not os.path.exists(os.path.join(done.log.directory, future.MARK))


def test_a_file_with_the_name_of_a_partition_costs_that_partition_only(
    make: Make, tmp_path: Path, failures: list[str]
) -> None:
    manager = make(dirs=("a",))
    (tmp_path / "a" / "orders-0").write_text("somebody's")
    with pytest.raises(KafkaError) as caught:
        new_log(manager, *KEY, SMALL)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert failures == []
    assert new_log(manager, "orders", 1, SMALL).log_end_offset == 0
