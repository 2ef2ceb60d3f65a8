"""What a new node has of the images that were unpacked once, and what runs beside each other."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.cluster import (
    buildah,
    builtin,
    components,
    control,
    images,
    layout,
    network,
    node,
    settings,
    shell,
    tools,
)
from tests.cluster import store as store_module
from tests.cluster.store import DATABASES, Store, read_ids

LIMIT_S = 60


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


@pytest.mark.parametrize("known", ["", "localhost/a:1\n"])
def test_a_replaced_image_keeps_its_layers_until_the_new_one_is_unpacked(
    monkeypatch: pytest.MonkeyPatch, known: str
) -> None:
    calls: list[str] = []

    def ctr(socket: Path, *words: str | Path) -> str:
        calls.append(" ".join(map(str, words[1:])))
        return known

    monkeypatch.setattr(store_module, "ctr", ctr)
    store_module.take(Path("socket"), "localhost/a:1", Path("a.tar"))
    tagged = "tag --force localhost/a:1 localhost/a:1-replaced"
    around = ([tagged], ["remove localhost/a:1-replaced"]) if known else ([], [])
    assert calls == ["list --quiet", *around[0], "import a.tar", *around[1]]


def test_what_runs_beside_a_failure_goes_on_and_the_error_is_told() -> None:
    done: list[str] = []

    def fail() -> None:
        raise shell.ClusterError("no disk")

    with pytest.raises(shell.ClusterError, match="no disk"):
        shell.side_by_side(fail, lambda: done.append("built"))
    assert done == ["built"]


def named(name: str) -> images.Image:
    return images.Image(name, "Dockerfile", ())


def test_an_image_is_unpacked_while_the_next_is_built(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked = threading.Event()

    def add(self: Store, archive: Path, name: str, identity: str) -> None:
        added.append((name, identity))
        unpacked.set()

    added: list[tuple[str, str]] = []
    monkeypatch.setattr(Store, "start", lambda self: None)
    monkeypatch.setattr(Store, "add", add)
    monkeypatch.setattr(images, "layers", lambda socket, root: {})
    monkeypatch.setattr(buildah, "image_id", lambda paths, name: f"id of {name}")
    monkeypatch.setattr(buildah, "export", lambda paths, name, target, known: None)
    store.ids.write_text('{"localhost/odradek/same:dev": "id of localhost/odradek/same:dev"}')

    def built() -> Iterator[images.Image]:
        yield named("same")
        assert not added
        yield named("first")
        assert unpacked.wait(LIMIT_S)
        yield named("second")

    images.store_each(store.paths, store, built())
    names = [f"localhost/odradek/{name}:dev" for name in ("first", "second")]
    assert added == [(name, f"id of {name}") for name in names]


def test_images_after_the_first_are_built_two_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[str] = []
    two = threading.Barrier(2)

    def build(paths: settings.Paths, name: str, *_: object) -> None:
        began.append(name)
        if name != named("broker").tag:
            two.wait(LIMIT_S)

    monkeypatch.setattr(buildah, "ensure_base", lambda paths, log: None)
    for name in ("image_id", "label"):
        monkeypatch.setattr(buildah, name, lambda *_: "none")
    monkeypatch.setattr(buildah, "build", build)
    where = settings.Paths(tmp_path / "state", tmp_path / "cache", tmp_path / "run")
    built = list(images.build_each(where, images.IMAGES[:3]))
    assert built == list(images.IMAGES[:3])
    assert began[0] == named("broker").tag
    assert sorted(began) == sorted(image.tag for image in built)


def test_the_control_plane_starts_beside_the_images_of_new_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting, building = threading.Event(), threading.Event()
    done: list[str] = []

    def record(module: ModuleType, name: str) -> None:
        monkeypatch.setattr(module, name, lambda *_, **__: done.append(name))

    def start(paths: settings.Paths) -> None:
        starting.set()
        assert building.wait(LIMIT_S)
        done.append("control")

    def wanted() -> Iterator[images.Image]:
        building.set()
        assert starting.wait(LIMIT_S)
        done.append("images")
        yield from ()

    def ready(condition: Callable[[], bool], what: str, **_: float) -> None:
        done.append(what)

    record(builtin, "_remember_host")
    record(tools, "ensure")
    record(network, "create")
    for name in ("create_identities", "apply"):
        record(control, name)
    for name in ("write_files", "start_runtime", "start_agents"):
        record(node, name)
    for name in ("start", "stop"):
        record(components, name)
    monkeypatch.setattr(control, "start", start)
    monkeypatch.setattr(builtin, "store_pause", lambda paths, store: done.append("pause"))
    monkeypatch.setattr(Store, "give", lambda self, target: done.append("give"))
    monkeypatch.setattr(builtin, "wait_until", ready)
    where = settings.Paths(tmp_path / "state", tmp_path / "cache", tmp_path / "run")
    builtin.up([layout.Node(1, {})], where, wanted())
    done.remove("control")
    assert done[:3] == ["_remember_host", "create", "ensure"]
    assert done[-3:] == ["start_agents", "apply", "all nodes to be Ready"]
    beside = [one for one in done[3:-3] if one != "create_identities"]
    assert beside == ["images", "pause", "stop", "write_files", "give", "start_runtime"]


def test_a_program_that_cannot_be_built_ends_the_start_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(paths: settings.Paths, wanted: tuple[tools.Tool, ...]) -> None:
        raise shell.ClusterError("no compiler")

    monkeypatch.setattr(builtin, "_remember_host", lambda paths: None)
    monkeypatch.setattr(network, "create", lambda nodes: None)
    monkeypatch.setattr(tools, "ensure", fail)
    monkeypatch.setattr(components, "stop", lambda paths, name: None)
    where = settings.Paths(tmp_path / "state", tmp_path / "cache", tmp_path / "run")
    with pytest.raises(shell.ClusterError, match="no compiler"):
        builtin.up([layout.Node(1, {})], where, [])
