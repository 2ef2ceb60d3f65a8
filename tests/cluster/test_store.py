"""What a new node has of the images that were unpacked once, and what runs beside each other."""

from pathlib import Path

import pytest

from tests.cluster import settings, shell
from tests.cluster.store import DATABASES, Store, read_ids


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store as containerd leaves it: a blob, an unpacked file and two databases."""
    made = Store(settings.Paths(tmp_path / "state", tmp_path / "cache", tmp_path / "run"))
    for name in (
        "io.containerd.content.v1.content/blobs/sha256/0a",
        "io.containerd.snapshotter.v1.overlayfs/snapshots/1/fs/bin/program",
        "io.containerd.snapshotter.v1.overlayfs/metadata.db",
        "io.containerd.metadata.v1.bolt/meta.db",
        "tmpmounts/left",
    ):
        file = made.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    made.ids.write_text('{"localhost/a:1": "sha256:1"}')
    return made


def test_a_new_node_shares_the_files_of_images_and_no_database(store: Store) -> None:
    node = store.paths.containerd("node1")
    store.give(node)
    shared = [one for one in node.rglob("*") if one.is_file() and one.stat().st_nlink > 1]
    assert {one.name for one in shared} == {"0a", "program"}
    own = [node / DATABASES[0] / "meta.db", node / DATABASES[1]]
    assert [one.read_text() for one in own] == [str(one.relative_to(node)) for one in own]
    assert not (node / "tmpmounts").exists()
    assert read_ids(store.paths.loaded("node1")) == {"localhost/a:1": "sha256:1"}


def test_a_node_keeps_what_it_has_and_an_interrupted_copy_starts_anew(store: Store) -> None:
    node = store.paths.containerd("node1")
    partial = node.with_name("containerd.partial")
    partial.mkdir(parents=True)
    (partial / "half").touch()
    store.give(node)
    assert not (node / "half").exists()
    (node / "its own").touch()
    store.give(node)
    assert (node / "its own").exists()


def test_what_runs_beside_a_failure_goes_on_and_the_error_is_told() -> None:
    done: list[str] = []

    def fail() -> None:
        raise shell.ClusterError("no disk")

    with pytest.raises(shell.ClusterError, match="no disk"):
        shell.side_by_side(fail, lambda: done.append("built"))
    assert done == ["built"]
