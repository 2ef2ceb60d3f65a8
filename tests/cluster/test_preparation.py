"""Decisions before a build: mirrors, missing packages, outdated images, volumes."""

import argparse
import json
import os
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from tests.cluster import __main__ as cli
from tests.cluster import (
    buildah,
    builtin,
    components,
    control,
    host,
    images,
    kind,
    network,
    settings,
    tools,
    volumes,
)


def sources(apt: Path, name: str, text: str) -> Path:
    file = apt / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return apt


@pytest.mark.parametrize(
    "text",
    [
        "deb http://mirror.example/debian bookworm main\n",
        "deb [signed-by=/usr/share/keyrings/a.gpg] http://mirror.example/debian bookworm main\n",
        "# deb http://other.example/debian\nTypes: deb\nURIs: http://mirror.example/debian\n",
    ],
)
def test_the_hosts_own_mirror_is_used_in_either_format(tmp_path: Path, text: str) -> None:
    apt = sources(tmp_path, "sources.list.d/debian.sources", text)
    assert buildah.debian_mirrors(apt) == ["deb http://mirror.example/debian trixie main"]


def test_images_get_security_updates_where_the_host_does(tmp_path: Path) -> None:
    text = "Types: deb\nURIs: http://mirror.example/debian{}\n"
    sources(tmp_path, "sources.list.d/a.sources", text.format("-security/"))
    assert buildah.debian_mirrors(tmp_path) == []
    sources(tmp_path, "sources.list.d/debian.sources", text.format(""))
    assert buildah.debian_mirrors(tmp_path) == [
        "deb http://mirror.example/debian trixie main",
        "deb http://mirror.example/debian-security/ trixie-security main",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "deb http://mirror.example/ubuntu noble main\n",
        "deb http://mirror.example/debian-security bookworm-security main\n",
        "deb-src http://mirror.example/debian bookworm main\n",
    ],
)
def test_an_archive_without_debians_packages_is_no_mirror(tmp_path: Path, text: str) -> None:
    assert buildah.debian_mirrors(sources(tmp_path, "sources.list", text)) == []


def test_images_have_no_sources_of_packages_and_builds_mount_those_of_their_base(
    fresh: settings.Paths, tmp_path: Path
) -> None:
    assert not any("sources" in option for option in buildah.mounts(fresh))
    root = tmp_path / "root"
    named = "deb http://mirror.example/debian trixie main\n"
    sources(root / "etc/apt", "sources.list", named)
    (root / "etc/apt/apt.conf.d").mkdir()
    fresh.storage.mkdir(parents=True)
    for hook in buildah.hooks(fresh):
        subprocess.run(["sh", "-c", hook, "exec", root], check=True)
    assert "mirror.example" not in (root / "etc/apt/sources.list").read_text()
    (option,) = [one for one in buildah.mounts(fresh) if "sources" in one]
    kept, inside, _ = option.removeprefix("--volume=").split(":")
    assert Path(kept).read_text() == named
    assert inside == "/etc/apt/sources.list"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of the command line, which do nothing."""
    made: list[str] = []

    def record(module: ModuleType, name: str) -> None:
        def called(*arguments: object) -> list[str]:
            about = sorted(arguments[0]) if isinstance(arguments[0], dict) else []
            made.append(" ".join((f"{module.__name__.rpartition('.')[2]}.{name}", *about)))
            return []

        monkeypatch.setattr(module, name, called)

    record(host, "ensure")
    record(tools, "ensure")
    for module in (images, kind):
        record(module, "build_all")
        record(module, "load_all")
    return made


@pytest.fixture
def fresh(tmp_path: Path) -> settings.Paths:
    """The directories of a machine without a cluster."""
    return settings.Paths(tmp_path / "state", tmp_path / "cache", tmp_path / "run")


@pytest.mark.parametrize(
    ("on_docker", "done"),
    [
        (True, ["kind.build_all"]),
        (
            False,
            ["host.ensure buildah debian-archive-keyring mmdebstrap skopeo", "images.build_all"],
        ),
    ],
)
def test_images_are_built_without_a_cluster(
    calls: list[str], fresh: settings.Paths, *, on_docker: bool, done: list[str]
) -> None:
    cli._images(fresh, [], on_docker=on_docker, names=["broker"])
    assert calls == done


def test_a_cluster_that_was_made_without_docker_is_removed_so(
    fresh: settings.Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh.state.mkdir()
    (fresh.state / "host.json").write_text("{}")
    removed: list[settings.Paths] = []
    monkeypatch.setattr(kind, "engine_answers", lambda: True)
    monkeypatch.setattr(builtin, "down", lambda _, where: removed.append(where))
    cli._dispatch(argparse.Namespace(command="down"), fresh)
    assert removed == [fresh]
    assert fresh.state.exists()


@pytest.mark.parametrize("has_engine", [True, False])
def test_what_an_engine_has_made_since_is_left_alone(
    fresh: settings.Paths, monkeypatch: pytest.MonkeyPatch, *, has_engine: bool
) -> None:
    forwarding, made = fresh.state / "ip_forward", fresh.state / "containerd"
    made.mkdir(parents=True)
    forwarding.write_text("1\n")
    (fresh.state / "host.json").write_text(json.dumps({"absent": [str(made)], "ip_forward": "0"}))
    monkeypatch.setattr(network, "FORWARDING", forwarding)
    monkeypatch.setattr(builtin, "CONTAINERD", made)
    monkeypatch.setattr(components, "listens", lambda _: has_engine)
    builtin._restore_host(fresh)
    assert made.exists() == has_engine
    assert forwarding.read_text() == ("1\n" if has_engine else "0\n")


def test_the_kubeconfig_of_kind_is_the_callers(
    fresh: settings.Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Path] = []
    monkeypatch.setattr(host, "give_to_caller", lambda *paths: given.extend(paths))
    monkeypatch.setattr(kind, "run", lambda *_, **__: "")
    monkeypatch.setattr(kind, "run_logged", lambda *_: None)
    monkeypatch.setattr(kind, "_workers", lambda _: [])
    monkeypatch.setattr(control, "apply", lambda *_: None)
    kind.up(fresh)
    assert given == [fresh.kubeconfig]


@pytest.mark.parametrize("with_go", [True, False])
def test_programs_can_be_built_on_a_docker_host_without_go(
    calls: list[str], fresh: settings.Paths, monkeypatch: pytest.MonkeyPatch, *, with_go: bool
) -> None:
    monkeypatch.setattr(tools, "host_go_suffices", lambda _: with_go)
    cli._tools(fresh, on_docker=True)
    packages = "" if with_go else " buildah debian-archive-keyring mmdebstrap skopeo"
    assert calls == [f"host.ensure{packages}", "tools.ensure"]


def test_an_empty_variable_sets_no_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ODRADEK_CLUSTER_DIR", "ODRADEK_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "")
    where = settings.paths()
    assert where.state == Path("/var/lib/odradek-cluster")
    assert where.cache == Path.home() / ".cache/odradek"


def test_a_new_folder_belongs_to_whoever_has_the_one_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[Path, int, int]] = []
    monkeypatch.setattr(os, "chown", lambda path, user, group: given.append((path, user, group)))
    owner = tmp_path.stat()
    made = tmp_path / "cache/odradek"
    for _ in range(2):
        host.make_folder(made)
        assert made.is_dir()
        wanted = [(one, owner.st_uid, owner.st_gid) for one in (made.parent, made)]
        assert sorted(given) == wanted


def test_packages_are_missing_when_their_mark_is() -> None:
    wanted = {"iproute2": "ip", "openssl": "openssl", "buildah": "buildah"}
    assert host.missing(wanted, lambda mark: mark == "ip") == ["buildah", "openssl"]


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> images.Image:
    monkeypatch.setattr(images, "REPO", tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src/module.py").write_text("x = 1\n")
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    return images.Image("i", "Dockerfile", ("src",))


def test_an_image_is_outdated_when_any_input_changes(image: images.Image, tmp_path: Path) -> None:
    seen = {images.fingerprint(image, "base")}
    (tmp_path / "src/module.py").write_text("x = 2\n")
    seen.add(images.fingerprint(image, "base"))
    (tmp_path / "src/module.py").chmod(0o755)
    seen.add(images.fingerprint(image, "base"))
    (tmp_path / "src/module.py").rename(tmp_path / "src/other.py")
    seen.add(images.fingerprint(image, "base"))
    (tmp_path / "Dockerfile").write_text("FROM scratch\nUSER 1\n")
    seen.add(images.fingerprint(image, "base"))
    seen.add(images.fingerprint(image, "another base"))
    assert len(seen) == 6


def test_byte_code_does_not_outdate_an_image(image: images.Image, tmp_path: Path) -> None:
    before = images.fingerprint(image, "base")
    (tmp_path / "src/__pycache__").mkdir()
    (tmp_path / "src/__pycache__/module.pyc").write_bytes(b"\0")
    assert images.fingerprint(image, "base") == before


def test_every_image_has_its_dockerfile_and_inputs() -> None:
    for each in images.IMAGES:
        for name in (each.dockerfile, *each.inputs):
            assert (settings.REPO / name).exists(), name


def test_a_program_is_built_again_when_any_source_or_pin_of_it_changes(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    source = tmp_path / "part/main.go"
    source.write_text("package main\n")

    def fingerprint(*build: str) -> str:
        return tools.Tool("client", module=tmp_path, build=build).fingerprint()

    before = fingerprint("./part")
    assert fingerprint("./part") == before
    assert fingerprint("-modfile=old.mod", "./part") != before
    source.write_text("package main // changed\n")
    assert fingerprint("./part") != before


def test_only_released_volumes_of_ours_are_emptied_and_offered_again() -> None:
    def listed(name: str, phase: str, storage: str = volumes.STORAGE_CLASS) -> dict[str, object]:
        item = volumes.volume("node2", 1, f"/volumes/{name}")
        item["metadata"]["name"] = name
        item["spec"]["storageClassName"] = storage
        return {**item, "status": {"phase": phase}}

    items = [listed("a", "Released"), listed("b", "Bound"), listed("c", "Available")]
    items.append(listed("d", "Released", "other"))
    calls: list[tuple[str, ...]] = []
    emptied: list[tuple[str, str]] = []

    def kubectl(*words: str) -> str:
        calls.append(words)
        return json.dumps({"items": items})

    def empty(node: str, directory: str) -> None:
        emptied.append((node, directory))

    assert volumes.renew(kubectl, empty) == ["a"]
    assert emptied == [("node2", "/volumes/a")]
    assert [words[:3] for words in calls[1:]] == [("patch", "persistentvolume", "a")]
