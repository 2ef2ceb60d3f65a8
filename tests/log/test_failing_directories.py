"""A disk that fails costs what is on it and nothing else; want of descriptors costs nothing."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from odradek.log.directory import LogDirError
from odradek.log.manager import NewLog
from odradek.log.partition import checkpoints
from odradek.log.segment import files
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.topic_config import TopicConfig
from odradek.values import TopicPartition
from tests.log.conftest import COMPACTED, Make, dirty_log
from tests.support.logs import FakeClock, batch, new_log, read_all


async def test_a_partition_that_cannot_be_made_takes_its_directory_only(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make()
    keys = [TopicPartition("t", partition) for partition in range(3)]
    with monkeypatch.context() as patched:
        made = os.mkdir

        def mkdir(path: str, mode: int) -> None:
            if path.startswith(str(tmp_path / "a")):
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            made(path, mode)

        patched.setattr(os, "mkdir", mkdir)
        refused = await manager.create_missing(dict.fromkeys(keys, NewLog(TopicConfig())))
    assert {key: refusal.code for key, refusal in refused.items()} == {
        ("t", 0): ErrorCode.KAFKA_STORAGE_ERROR
    }
    assert [os.path.dirname(log.directory) for log in manager.logs().values()] == [
        str(tmp_path / "b")
    ] * 2


def failing(error: int) -> Callable[..., int]:
    def fail(*_: object) -> int:
        raise OSError(error, os.strerror(error))

    return fail


def test_a_failed_write_leaves_no_torn_bytes_and_fails_its_directory_only(
    make: Make, failures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make()
    bad, good = (new_log(manager, "t", number, TopicConfig()) for number in range(2))
    bad.append_as_leader(batch(b"kept"), 0)
    size = os.stat(bad.segments.active.log.path).st_size

    def half(fd: int, buffers: list[bytes], position: int) -> int:
        os.pwrite(fd, b"torn", position)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", half)
        with pytest.raises(KafkaError) as caught:
            bad.append_as_leader(batch(b"lost"), 0)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert os.stat(bad.segments.active.log.path).st_size == size
    assert failures == [os.path.dirname(bad.directory)]
    for work in (lambda: bad.append_as_leader(batch(b"x"), 0), lambda: bad.reader.read(0, 100)):
        with pytest.raises(KafkaError) as caught:
            work()
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    good.append_as_leader(batch(b"fine"), 0)
    assert [one.value for one in read_all(good)] == [b"fine"]
    assert new_log(manager, "t", 9, TopicConfig()).directory.startswith(
        os.path.dirname(good.directory)
    )
    manager.close()
    assert not os.path.exists(os.path.join(failures[0], ".kafka_cleanshutdown"))
    again = make().get("t", 0)
    assert again is not None
    assert [one.value for one in read_all(again)] == [b"kept"]


def test_a_short_write_is_continued(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log(make(), "t", 0, TopicConfig())
    whole = os.pwritev

    def short(fd: int, buffers: list[bytes], position: int) -> int:
        return whole(fd, [memoryview(b"".join(buffers))[:5]], position)

    monkeypatch.setattr(os, "pwritev", short)
    log.append_as_leader(batch(b"value"), 0)
    assert [one.value for one in read_all(log)] == [b"value"]


def test_a_failed_fsync_is_never_retried_as_success(
    make: Make, failures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make(dirs=("a",))
    log = new_log(manager, "t", 0, TopicConfig())
    log.append_as_leader(batch(b"a"), 0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing(5))
        with pytest.raises(KafkaError):
            log.flush()
    assert failures == [os.path.dirname(log.directory)]
    with pytest.raises(KafkaError) as caught:
        log.flush()
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.recovery_point == 0


def test_running_out_of_descriptors_is_not_the_disks_fault(
    make: Make, failures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log(make(), "t", 0, TopicConfig())
    log.append_as_leader(batch(b"a"), 0)
    log.release_idle()
    log.release_idle()
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", failing(24))
        with pytest.raises(KafkaError):
            log.append_as_leader(batch(b"b"), 0)
    assert failures == []
    log.append_as_leader(batch(b"c"), 0)
    assert [one.value for one in read_all(log)] == [b"a", b"c"]


@pytest.mark.parametrize("error", [errno.EINVAL, errno.EISDIR, errno.ENAMETOOLONG, errno.EBUSY])
def test_an_error_of_one_name_fails_the_operation_only(
    make: Make, failures: list[str], monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    log = new_log(make(), "t", 0, TopicConfig())
    log.append_as_leader(batch(b"a"), 0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", failing(error))
        patched.setattr(os, "pwritev", failing(error))
        with pytest.raises(KafkaError) as caught:
            log.append_as_leader(batch(b"b"), 0)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert failures == []
    log.append_as_leader(batch(b"c"), 0)
    assert [one.value for one in read_all(log)] == [b"a", b"c"]


def test_a_partition_whose_name_is_too_long_for_the_file_system_fails_alone(
    make: Make, failures: list[str]
) -> None:
    manager = make(dirs=("a",))
    with pytest.raises(KafkaError) as caught:
        new_log(manager, "t" * 249, 1_000_000, TopicConfig())
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert failures == []
    assert new_log(manager, "t" * 249, 0, TopicConfig()).log_end_offset == 0


@pytest.mark.parametrize(
    "error",
    [
        *(errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EUCLEAN),
        *(errno.ENXIO, errno.ENODEV, errno.ESTALE),
        *(errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM),
    ],
)
def test_an_error_of_the_device_or_of_the_whole_directory_takes_it_offline(
    make: Make, failures: list[str], monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    log = new_log(make(), "t", 0, TopicConfig())
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", failing(error))
        patched.setattr(os, "pwritev", failing(error))
        with pytest.raises(KafkaError):
            log.append_as_leader(batch(b"b"), 0)
    assert failures == [os.path.dirname(log.directory)]


@pytest.mark.parametrize("error", [errno.EINVAL, errno.EINTR, errno.ENOMEM, errno.EBADF])
def test_a_failed_fsync_takes_the_directory_offline_whatever_the_reason(
    make: Make, failures: list[str], monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    log = new_log(make(), "t", 0, TopicConfig())
    log.append_as_leader(batch(b"a"), 0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing(error))
        with pytest.raises(KafkaError):
            log.flush()
    assert failures == [os.path.dirname(log.directory)]


def test_no_background_work_takes_a_directory_offline_for_want_of_descriptors(
    make: Make,
    clock: FakeClock,
    failures: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager = make(dirs=("a",), topic=COMPACTED)
    log = dirty_log(manager, "t")
    doomed = new_log(manager, "doomed", 0, TopicConfig(file_delete_delay_ms=0))
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", failing(24))
        patched.setattr(os, "scandir", failing(24))
        with pytest.raises(KafkaError):
            new_log(manager, "new", 0, TopicConfig())
        assert not manager.remove([TopicPartition("doomed", 0)])
        assert not os.path.exists(doomed.directory)
        manager.save_high_watermarks()
        clock.advance(3_600_000)
        manager.housekeep()
        assert not manager.compact()
        patched.setattr(checkpoints, "read_offsets", failing(24))
        assert not manager.compact()
    assert failures == []
    assert new_log(manager, "new", 0, TopicConfig()).log_end_offset == 0
    assert manager.compact()
    clock.advance(3_600_000)
    manager.housekeep()
    left = sorted(path.name for path in Path(log.directory).parent.iterdir() if path.is_dir())
    assert left == ["new-0", "t-0"]


def test_cut_that_cannot_be_noted_takes_the_directory_offline(
    make: Make, failures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log(make(dirs=("a",)), "t", 0, TopicConfig())
    for _ in range(4):
        log.append_as_leader(batch(b"value"), 0)
    log.flush()
    with monkeypatch.context() as patched, contextlib.suppress(KafkaError):
        patched.setattr(os, "open", failing(errno.EIO))
        log.truncate_to(2)
    assert failures == [os.path.dirname(log.directory)]


def test_no_partition_is_remade_while_a_directory_that_may_hold_it_is_offline(
    make: Make, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(b"a file where a directory should be")
    manager = make()
    assert manager.online_directories == [str(tmp_path / "b")]
    with pytest.raises(KafkaError) as caught:
        new_log(manager, "t", 0, TopicConfig(), is_new=False)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert new_log(manager, "t", 0, TopicConfig(), is_new=True).log_end_offset == 0


def test_no_usable_directory_refuses_the_start(make: Make, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(LogDirError, match=r"none of log\.dirs"):
        make(dirs=("a",))


def test_new_directories_on_a_full_disk_refuse_the_start(
    make: Make, tmp_path: Path, failures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = checkpoints.write_meta
    full = [str(tmp_path / "a")]

    def write_or_fail(path: str, meta: checkpoints.LogDirMeta) -> None:
        if os.path.dirname(path) in full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        write(path, meta)

    monkeypatch.setattr(checkpoints, "write_meta", write_or_fail)
    manager = make()
    assert manager.online_directories == [str(tmp_path / "b")], "the other one serves"
    manager.close()
    full.append(str(tmp_path / "c"))
    with pytest.raises(LogDirError, match=r"none of log\.dirs can be used: .*No space left"):
        make(dirs=("a", "c"))
    assert failures == [str(tmp_path / name) for name in "aac"]


def test_directories_that_fail_while_they_are_loaded(make: Make, tmp_path: Path) -> None:
    manager = make()
    for number in range(2):
        new_log(manager, "t", number, TopicConfig())
    manager.close()
    spoil(tmp_path / "a")
    manager = make()
    assert manager.online_directories == [str(tmp_path / "b")]
    manager.close()
    spoil(tmp_path / "b")
    with pytest.raises(LogDirError, match=r"none of log\.dirs"):
        make()


def spoil(directory: Path) -> None:
    """Have the log that is in the directory fail when it is opened."""
    (log,) = directory.glob("t-*/*.log")
    log.unlink()
    log.mkdir()


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (b"old", b"new", True),
        (b"old", b"longer", True),
        (None, b"new", True),
        # What is left of the former content would say too much.
        (b"longer", b"new", False),
        # Only a part of it may be on the disk after a power failure.
        (b"old", b"x" * 513, False),
    ],
)
def test_only_small_files_that_do_not_shrink_are_written_in_place(
    tmp_path: Path, before: bytes | None, after: bytes, expected: bool
) -> None:
    path = tmp_path / "file"
    if before is not None:
        path.write_bytes(before)
    inode = path.stat().st_ino if before is not None else None
    assert files.write_in_place(str(path), after) is expected
    assert path.read_bytes() == (after if expected else before)
    assert inode in (None, path.stat().st_ino)


def test_atomic_writes_leave_the_old_file_when_they_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "file")
    files.write_atomically(path, b"old")
    monkeypatch.setattr(os, "fsync", failing(5))
    with pytest.raises(OSError, match="Input/output"):
        files.write_atomically(path, b"new")
    assert Path(path).read_bytes() == b"old"
