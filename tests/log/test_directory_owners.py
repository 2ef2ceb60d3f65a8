"""Log directories that refuse a start: owned by others, in use, named twice, or none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from odradek.log.directory import LogDirError
from odradek.log.partition import checkpoints
from tests.log.conftest import Make


@pytest.mark.parametrize(
    ("wrong", "says"), [({"broker_id": 2}, "broker.id 1"), ({"cluster": "x"}, "cluster.id cluster")]
)
def test_a_directory_of_another_owner_refuses_the_start(
    make: Make, wrong: dict[str, object], says: str
) -> None:
    make().close()
    with pytest.raises(LogDirError, match=says) as caught:
        make(**wrong)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"", b"broker.id=\\uzzzz", b"\0" * 40])
def test_unreadable_ownership_refuses_the_start(make: Make, tmp_path: Path, content: bytes) -> None:
    make().close()
    (tmp_path / "a" / "meta.properties").write_bytes(content)
    with pytest.raises(LogDirError, match="the owner"):
        make()


def test_a_directory_in_use_refuses_the_start(make: Make, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    script = (
        "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX);"
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "a" / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(LogDirError, match="in use"):
            make()


@pytest.mark.parametrize("second", ["a/", "b/../a", "link"])
def test_a_directory_that_is_there_twice_refuses_the_start(
    make: Make, tmp_path: Path, second: str
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    with pytest.raises(LogDirError, match=r"^log\.dirs has the same directory twice: /.*/a and /"):
        make(dirs=("a", second))
    assert [path.name for path in (tmp_path / "a").iterdir()] == [".lock"]


def test_a_directory_that_another_would_read_as_a_partition_refuses_the_start(
    make: Make, tmp_path: Path
) -> None:
    with pytest.raises(LogDirError, match=r"^log\.dirs has /.*/a/disk-1/logs inside /.*/a, under"):
        make(dirs=("a", "a/disk-1/logs"))
    assert not list((tmp_path / "a" / "disk-1").glob("*.log"))
    make(dirs=("a", "a/disk1")).close()


@pytest.mark.parametrize("other", ["a/disk-1", "b"])
def test_a_directory_that_another_links_to_as_a_partition_refuses_the_start(
    make: Make, tmp_path: Path, other: str
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "disk-1").symlink_to(tmp_path / "b")
    with pytest.raises(LogDirError, match=rf"^log\.dirs has /.*/{other} inside /.*/a, under"):
        make(dirs=("a", other))
    assert not list((tmp_path / "b").glob("*.log"))


@pytest.mark.parametrize(
    ("path", "reason"), [("file", "Not a directory"), ("loop", "Too many levels of symbolic links")]
)
def test_what_is_no_directory_is_said_to_be_none(
    make: Make, tmp_path: Path, path: str, reason: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(LogDirError, match=rf"none of log\.dirs can be used: .*{reason}"):
        make(dirs=(path,))


def test_an_owner_from_before_kafka_wrote_cluster_ids_is_completed(
    make: Make, tmp_path: Path
) -> None:
    make().close()
    meta = tmp_path / "a" / "meta.properties"
    meta.write_text("#\n#Fri Nov 27 14:00:00 UTC 2026\nversion=0\nbroker.id=1\n")
    with pytest.raises(LogDirError, match=r"broker\.id 1"):
        make(broker_id=2)
    manager = make()
    manager.record_owner()
    manager.close()
    assert checkpoints.read_meta(str(meta)) == checkpoints.LogDirMeta(1, "cluster")
