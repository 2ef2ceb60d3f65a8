"""A broker may have more partitions than descriptors; running short of them fails no directory.

What needs a limit of its own runs in a process of its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from odradek import config_loading
from odradek.log.directory import LogDirError
from odradek.log.manager import LogManager, NewLog
from odradek.log.partition import topic_identity
from odradek.log.partition.topic_identity import TopicIdentity
from odradek.log.segment import files
from odradek.log.segment.files import SharedFile
from odradek.log.segment.open_files import OpenFiles
from odradek.protocol.errors import ErrorCode
from odradek.topic_config import TopicConfig
from odradek.values import TopicPartition
from tests.log.conftest import Make
from tests.support.logs import batch, new_log, read_all

LIMIT = 100
PARTITIONS = 50
KEYS = [TopicPartition("t", number) for number in range(PARTITIONS)]


def manager_on(directory: str) -> LogManager:
    settings, _ = config_loading.from_values(
        {"broker.id": "1", "zookeeper.connect": "unused", "log.dirs": directory}
    )
    manager = LogManager(settings, "cluster", lambda topic: TopicConfig())
    manager.load()
    return manager


def use(manager: LogManager, records: int) -> None:
    """Write to every partition, and read everything, from the newest partition to the oldest."""
    for key in KEYS:
        log = manager.get(*key)
        assert log is not None, key
        log.append_as_leader(batch(b"a value", timestamp=records), 0)
    for key in reversed(KEYS):
        log = manager.get(*key)
        assert log is not None
        log.high_watermark = log.log_end_offset
        assert len(read_all(log)) == records
        log.roll()  # trims the indexes, and looks into them


def live(directory: str) -> None:
    """Create the partitions, use them, restart after a clean stop and after a crash."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
    os.fsync = lambda fd: None
    manager = manager_on(directory)
    refused = manager.make_missing({key: NewLog(TopicConfig()) for key in KEYS})
    assert not refused, refused
    use(manager, 1)
    manager.close()
    manager = manager_on(directory)
    use(manager, 2)
    Path(directory, ".kafka_cleanshutdown").unlink(missing_ok=True)
    for log in manager.logs().values():
        log.abandon()
    os.close(manager._directories[0].lock_fd)
    manager = manager_on(directory)
    use(manager, 3)
    manager.close()


def test_partitions_outnumber_descriptors(tmp_path: Path) -> None:
    program = f"from {__name__} import live; live({str(tmp_path / 'data')!r})"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "offline" not in done.stderr


def take_all_descriptors() -> None:
    with contextlib.suppress(OSError):
        while True:
            os.dup(0)


def starve(directory: str) -> None:
    """Let clients take all descriptors, then use, truncate and delete partitions."""
    os.fsync = lambda fd: None
    manager = manager_on(directory)
    manager.make_missing({key: NewLog(TopicConfig()) for key in KEYS})
    use(manager, 1)
    limit = len(os.listdir("/proc/self/fd")) + 5
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    take_all_descriptors()
    for key in KEYS[:10]:
        log = manager.get(*key)
        assert log is not None
        log.append_as_leader(batch(b"another"), 1)
        log.flush()
        log.truncate_to(1)
    manager.housekeep()
    assert not manager.remove(KEYS[:10])
    assert manager.online_directories == [directory]


def test_clients_that_take_all_descriptors_take_no_directory_offline(tmp_path: Path) -> None:
    program = f"from {__name__} import starve; starve({str(tmp_path / 'data')!r})"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def refuse(directory: str) -> None:
    """Create a partition where no descriptor is left, and again where some are."""
    os.fsync = lambda fd: None
    manager = manager_on(directory)
    assert not manager.make_missing({KEYS[0]: NewLog(TopicConfig())})
    limit = len(os.listdir("/proc/self/fd")) + 5
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    take_all_descriptors()
    refused = manager.make_missing({key: NewLog(TopicConfig()) for key in KEYS[:2]})
    assert refused.keys() == {KEYS[1]}
    assert refused[KEYS[1]].code is ErrorCode.KAFKA_STORAGE_ERROR
    assert f"{limit} file descriptors (ulimit -n, LimitNOFILE" in refused[KEYS[1]].message
    assert manager.online_directories == [directory]
    os.closerange(limit - 4, limit)
    assert not manager.make_missing({KEYS[1]: NewLog(TopicConfig())})
    use_one = manager.get(*KEYS[0])
    assert use_one is not None
    use_one.append_as_leader(batch(b"a value"), 0)


def test_new_partition_is_refused_with_the_reason_where_descriptors_ran_out(tmp_path: Path) -> None:
    program = f"from {__name__} import refuse; refuse({str(tmp_path / 'data')!r})"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def starve_identities(directory: str) -> None:
    """Let clients take all descriptors before each look at the topic that a log belongs to."""
    os.fsync = lambda fd: None
    manager = manager_on(directory)
    manager.make_missing({key: NewLog(TopicConfig()) for key in KEYS})
    use(manager, 1)
    log = manager.get(*KEYS[0])
    assert log is not None
    identity = TopicIdentity("a" * 22)
    topic_identity.write(log.directory, identity)
    limit = len(os.listdir("/proc/self/fd")) + 5
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    take_all_descriptors()
    assert topic_identity.read(log.directory) == identity
    for key in KEYS[1:4]:  # in place of some files that were closed
        other = manager.get(*key)
        assert other is not None
        other.append_as_leader(batch(b"another"), 1)
    take_all_descriptors()
    assert log.read_file(topic_identity.FILE_NAME) is not None


def test_topics_of_logs_are_known_where_clients_take_all_descriptors(tmp_path: Path) -> None:
    program = f"from {__name__} import starve_identities as f; f({str(tmp_path / 'data')!r})"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_files_that_nobody_uses_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = OpenFiles(limit=10)
    monkeypatch.setattr(files, "OPEN_FILES", pool)
    shared = [SharedFile(str(tmp_path / str(number))) for number in range(40)]
    in_use = shared[0].acquire()
    for one in shared[1:]:
        one.acquire()
        one.release()
        assert pool.count <= 10
    assert os.fstat(in_use).st_ino == os.stat(shared[0].path).st_ino
    for one in shared:
        one.retire()
    shared[0].release()
    assert pool.count == 0


def test_files_in_use_stay_open_beyond_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = OpenFiles(limit=10)
    monkeypatch.setattr(files, "OPEN_FILES", pool)
    shared = [SharedFile(str(tmp_path / str(number))) for number in range(40)]
    for one in shared:
        os.fstat(one.acquire())
    assert pool.count == 40
    for one in shared:
        one.release()
    late = SharedFile(str(tmp_path / "late"))
    late.acquire()
    late.release()
    later = SharedFile(str(tmp_path / "later"))
    later.acquire()
    later.release()
    assert pool.count <= 10
    for one in (*shared, late, later):
        one.retire()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_shortage_at_the_start_ends_it_with_one_clear_line(
    make: Make, failures: list[str], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    first = make()
    for partition in range(4):
        new_log(first, "t", partition, TopicConfig()).append_as_leader(batch(b"kept"), 0)
    first.close()
    scandir, opened = os.open, []

    def run_short(path: str, *arguments: object, **named: object) -> int:
        if str(path).endswith(".log"):
            opened.append(path)
            raise OSError(code, os.strerror(code), path)
        return scandir(path, *arguments, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", run_short)
        with pytest.raises(LogDirError, match=r"LimitNOFILE") as told:
            make()
    assert opened
    assert os.strerror(code) in str(told.value)
    assert "\n" not in str(told.value)
    assert not failures, "no directory failed"
