"""What `make release` makes is the same again, complete, and refused where it would be untrue."""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.cluster import buildah, settings
from tests.cluster.settings import REPO
from tests.cluster.shell import ClusterError, run
from tests.docs import blocks
from tests.docs.test_commands import every_block
from tests.release import archives, chart, images, python, sbom, source
from tests.release.__main__ import build, notes
from tests.release.images import Archived
from tests.release.source import ReleaseError, Source
from tests.support import helm, registry
from tests.support.ports import free_port

VERSION = source.version_of(REPO)
REGISTRY = "registry.example.com/odradek"
STATED = ("pyproject.toml", "CHANGELOG.md", "charts/odradek/Chart.yaml")
PARTS = (
    *("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "charts", "broker_image"),
    *("operator", "examples/quickstart/requirements.lock"),
)
JARS = "operator/spark_jars"
WHOLE = (*PARTS, ".dockerignore", ".gitignore")
NOBODY = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.com")
EPOCH = 1_700_000_000


def commit(repository: Path, *words: str) -> None:
    source.git(repository, "add", "--all")
    source.git(repository, *NOBODY, "commit", "--quiet", "--message", "A change", *words)


def new_repository(made: Path, parts: tuple[str, ...]) -> Path:
    for name in parts:
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        if (REPO / name).is_dir():
            shutil.copytree(REPO / name, made / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(REPO / name, made / name)
    source.git(made, "init", "--quiet")
    commit(made)
    return made


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with what a release says of itself."""
    return new_repository(tmp_path / "repository", STATED)


def edit(file: str, old: str, new: str) -> Callable[[Path], None]:
    def change(repository: Path) -> None:
        text = (repository / file).read_text()
        assert old in text
        (repository / file).write_text(text.replace(old, new, 1))
        commit(repository)

    return change


def heading() -> str:
    """Return the line of CHANGELOG above what is new in the version."""
    lines = (REPO / "CHANGELOG.md").read_text().splitlines()
    return next(line for line in lines if line.startswith(f"## {VERSION}"))


def tag_another(repository: Path) -> None:
    source.git(repository, *NOBODY, "tag", "-a", "-m", "A release", f"v{VERSION}")
    commit(repository, "--allow-empty")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(
            lambda folder: (folder / "new.py").touch(),
            "the checkout is not its commit: commit or remove new.py first",
            id="a file that is not committed",
        ),
        pytest.param(
            edit("pyproject.toml", f'version = "{VERSION}"', 'version = "9.0.0"'),
            "pyproject.toml has the version 9.0.0, but charts/odradek/Chart.yaml the version "
            f"{VERSION}: write the same into both",
            id="two versions",
        ),
        pytest.param(
            edit("charts/odradek/Chart.yaml", f"appVersion: {VERSION}", "appVersion: 0.0.9"),
            f"pyproject.toml has the version {VERSION}, but charts/odradek/Chart.yaml the "
            "appVersion 0.0.9: write the same into both",
            id="images of another version",
        ),
        pytest.param(
            edit("CHANGELOG.md", heading(), "## Unreleased"),
            f"CHANGELOG.md says nothing about {VERSION}: add a section '## {VERSION}' with what "
            "changed",
            id="no notes",
        ),
        pytest.param(
            edit("CHANGELOG.md", heading(), f"## {VERSION}\n\n## 0.0.9"),
            f"CHANGELOG.md says nothing about {VERSION}: add a section '## {VERSION}' with what "
            "changed",
            id="empty notes",
        ),
        pytest.param(
            edit("pyproject.toml", f"odradek-spark-jars=={VERSION}", "odradek-spark-jars==0.0.9"),
            f"pyproject.toml has the version {VERSION}, but its extra all asks for other jars: "
            f"write odradek-spark-jars=={VERSION} there",
            id="jars of another version",
        ),
        pytest.param(
            tag_another,
            f"the tag v{VERSION} is another commit: raise the version in pyproject.toml and "
            "charts/odradek/Chart.yaml",
            id="a version that was released",
        ),
    ],
)
def test_a_commit_that_cannot_be_released_is_refused_in_one_line(
    repository: Path, change: Callable[[Path], None], said: str
) -> None:
    assert source.read(repository).version == VERSION
    change(repository)
    with pytest.raises(ReleaseError, match=f"^{re.escape(said)}$"):
        source.read(repository)


@pytest.mark.parametrize("name", ["", "https://registry.example.com", "registry/", "a b"])
def test_a_registry_that_cannot_be_one_is_refused(repository: Path, name: str) -> None:
    with pytest.raises(ReleaseError, match="is no registry"):
        build(repository, name, settings.paths())


def test_a_tagged_commit_is_released_with_the_notes_of_its_version(repository: Path) -> None:
    written = f"## {VERSION}\n\nNew.\n\n### Jobs\n\nOld.\n\n## 0.0.9"
    edit("CHANGELOG.md", heading(), written)(repository)
    source.git(repository, *NOBODY, "tag", "-a", "-m", "A release", f"v{VERSION}")
    released = source.read(repository)
    assert released.notes == "New.\n\n### Jobs\n\nOld."
    text = notes(released, REGISTRY, {"broker": Archived("sha256:1", "linux/arm64")})
    assert f"`{REGISTRY}/broker:{VERSION}` | linux/arm64 | `sha256:1`" in text
    assert text.endswith("Old.\n")


def test_documents_install_the_version_that_is_released() -> None:
    named = {
        found: block.where
        for block in every_block()
        if REGISTRY in block.text or "pip install 'dist/" in block.text
        for found in re.findall(r"(?<![.\d])\d+\.\d+\.\d+\b(?!\.)", block.text)
    }
    assert named.keys() == {VERSION}, named


def parts(repository: Path, folder: Path) -> dict[str, str]:
    """Make what needs no images; return the hashes by the names of files."""
    made = folder / "dist"
    made.mkdir(parents=True)
    released = source.read(repository)
    source.export(repository, released.commit, folder / "tree")
    python.build(folder / "tree", made)
    python.write_sbom(folder / "tree", made / "odradek.cdx.json")
    python.build_spark_jars(folder / "tree", made, released.version)
    chart.build(folder / "tree", made, REGISTRY, settings.paths())
    archives.write_checksums(made)
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=made, check=True)
    return {file.name: archives.sha256(file) for file in made.iterdir()}


def test_wheel_source_archive_chart_and_sbom_are_the_same_bytes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = new_repository(tmp_path / "repository", PARTS)
    first = parts(repository, tmp_path / "first")
    # The same files, committed by another person, on another day and elsewhere.
    monkeypatch.setenv("GIT_COMMITTER_DATE", f"{EPOCH} +0000")
    commit(repository, "--amend")
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    for name, text in (("COUNT", "1"), ("KEY_0", "core.autocrlf"), ("VALUE_0", "true")):
        monkeypatch.setenv(f"GIT_CONFIG_{name}", text)
    before = os.umask(0o077)
    try:
        assert parts(repository, tmp_path / "second folder") == first
    finally:
        os.umask(before)
    assert sorted(first) == [
        "SHA256SUMS",
        f"odradek-{VERSION}-py3-none-any.whl",
        f"odradek-{VERSION}.tar.gz",
        f"odradek-{VERSION}.tgz",
        f"odradek-spark-jars-{VERSION}.cdx.json",
        "odradek.cdx.json",
        f"odradek_spark_jars-{VERSION}-py3-none-any.whl",
    ]
    made = tmp_path / "first/dist"
    with zipfile.ZipFile(made / f"odradek-{VERSION}-py3-none-any.whl") as wheel:
        packages = {name.split("/")[0] for name in wheel.namelist()}
        metadata = wheel.read(f"odradek-{VERSION}.dist-info/METADATA").decode()
    assert {"odradek", "odradek_operator", "odradek_local", "odradek_spark"} <= packages
    assert f"Requires-Dist: odradek-spark-jars=={VERSION}; extra == 'all'" in metadata
    components = json.loads((made / "odradek.cdx.json").read_text())["components"]
    assert "pyspark" in {each["name"] for each in components}
    with registry.running(tmp_path / "registry", f"127.0.0.1:{free_port()}") as served:
        place = f"oci://{served.address}/odradek/charts"
        trust = f"--ca-file={served.authority}"
        helm.run("push", str(made / f"odradek-{VERSION}.tgz"), place, trust)
        rendered = helm.run(
            *("template", "odradek", f"{place}/odradek", "--version", VERSION, trust),
            *("--kube-version", helm.KUBE_VERSION),
        )
    assert f"{REGISTRY}/broker:{VERSION}" in rendered
    assert "localhost/" not in rendered


def test_the_wheel_of_jars_has_the_pinned_ones_with_licences_and_an_sbom(tmp_path: Path) -> None:
    tree, made = tmp_path / "tree", tmp_path / "dist"
    shutil.copytree(REPO / JARS, tree / JARS, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(REPO / name, tree / name)
    made.mkdir()
    python.build_spark_jars(tree, made, VERSION)
    folder = "odradek_spark_jars"
    with zipfile.ZipFile(made / f"{folder}-{VERSION}-py3-none-any.whl") as wheel:
        wheel.extractall(tmp_path / "installed")
    licences = tmp_path / "installed" / f"{folder}-{VERSION}.dist-info/licenses"
    assert (licences / "LICENSE").read_bytes() == (REPO / "LICENSE").read_bytes()
    package = tmp_path / "installed" / folder
    run(["sha256sum", "--check", "--quiet", "--strict", "SHA256SUMS"], cwd=package)
    jars = sorted(jar.name for jar in package.glob("*.jar"))
    assert [line.split()[1] for line in (package / "SHA256SUMS").read_text().splitlines()] == jars
    without_version = {re.sub(r"-\d+\.\d+\.\d+\.jar", "", name) for name in jars}
    notice = (licences / "NOTICE").read_text()
    assert set(re.findall(r"^  (\S+) +Apache License 2\.0$", notice, re.M)) == without_version
    text = (made / f"odradek-spark-jars-{VERSION}.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    listed = {each["hashes"][0]["content"] for each in json.loads(text)["components"]}
    assert listed == {archives.sha256(jar) for jar in package.glob("*.jar")}

    pins = tree / JARS / "src" / folder / "SHA256SUMS"
    pins.write_text(pins.read_text().replace("kafka-clients-3.9.0", "kafka-clients-3.9.1"))
    said = r"kafka-clients-3\.9\.1\.jar is not what operator/spark_job/pom\.xml makes: "
    with pytest.raises(ClusterError, match=said):
        python.build_spark_jars(tree, made, VERSION)


@pytest.fixture
def own_cache(tmp_path: Path) -> settings.Paths:
    """The directories of a machine on which nobody else makes a release."""
    where = replace(settings.paths(), cache=tmp_path / "cache")
    where.cache.mkdir()
    where.bin.symlink_to(settings.paths().bin)
    return where


def test_dist_is_replaced_whole_or_stays_as_it_was(
    tmp_path: Path, own_cache: settings.Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = new_repository(tmp_path / "repository", (*PARTS, ".gitignore"))
    (repository / "dist").mkdir()
    (repository / "dist/former").touch()

    def fail(*_: object) -> dict[str, Archived]:
        raise ClusterError("no image can be built")

    with monkeypatch.context() as failing:
        # What comes before the images is made below.
        for part in ("build", "write_sbom", "build_spark_jars"):
            failing.setattr(python, part, lambda *_: None)
        failing.setattr(images, "build", fail)
        with pytest.raises(ClusterError, match="no image"):
            build(repository, REGISTRY, own_cache)
    assert [file.name for file in (repository / "dist").iterdir()] == ["former"]
    monkeypatch.setattr(images, "build", lambda *_: {"broker": Archived("sha256:1", "linux/a")})
    made = build(repository, REGISTRY, own_cache)
    assert made == repository / "dist"
    assert {"RELEASE_NOTES.md", f"odradek-{VERSION}.tgz"} <= {file.name for file in made.iterdir()}
    assert not (made / "former").exists()
    assert not (repository / "build/release").exists()


def test_one_release_is_made_at_a_time(repository: Path, own_cache: settings.Paths) -> None:
    with (own_cache.cache / "release.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ClusterError, match="another release is being made"):
            build(repository, REGISTRY, own_cache)


SOURCE_OF_IT = f"odradek-{VERSION}.dist-info/direct_url.json"


def mirrors() -> list[bytes]:
    """Return the hosts from which builds on this machine have Debian's packages."""
    lines = buildah.debian_mirrors(Path("/etc/apt"))
    return [line.split()[1].partition("://")[2].partition("/")[0].encode() for line in lines]


def files_in(image: Path) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of every file in the layers of an OCI archive, the newest first."""

    def blob(files: tarfile.TarFile, digest: str) -> IO[bytes]:
        found = files.extractfile(f"blobs/{digest.replace(':', '/')}")
        assert found
        return found

    with tarfile.open(image) as files:
        (index,) = json.load(files.extractfile("index.json") or io.BytesIO())["manifests"]
        layers = json.load(blob(files, index["digest"]))["layers"]
        for layer in reversed(layers):
            with tarfile.open(fileobj=blob(files, layer["digest"])) as content:
                for member in content:
                    if found := content.extractfile(member) if member.isfile() else None:
                        yield member.name, found.read()


def push(repository: Path, served: registry.Registry, place: str) -> None:
    """Push the release in dist/ as README says."""
    text = blocks.take("README.md", "push a release").replace(REGISTRY, place)
    path = f"{helm.binary().parent}:{os.environ['PATH']}"
    blocks.run(text, {"PATH": path, **served.environment}, repository, seconds=600)


@pytest.mark.full(
    "tests/release/test_release.py::"
    "test_wheel_source_archive_chart_and_sbom_are_the_same_bytes_again"
)
@pytest.mark.timeout(5400)
def test_two_whole_releases_are_the_same_bytes_and_a_registry_serves_them(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "repository", WHOLE)
    address = f"127.0.0.1:{free_port()}"
    place = f"{address}/odradek"
    made = build(repository, place, settings.paths())
    first = {file.name: archives.sha256(file) for file in made.iterdir()}
    made = build(repository, place, settings.paths())
    assert {file.name: archives.sha256(file) for file in made.iterdir()} == first
    for image in images.NAMES:
        archive = made / f"odradek-{image}-{VERSION}.oci.tar"
        assert archive.name in first
        text = (made / f"odradek-{image}-{VERSION}.cdx.json").read_text()
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
        found = {each["name"] for each in json.loads(text)["components"]}
        assert {"odradek", "kazoo", "libc6"} <= found
        wanted = [
            (name, content)
            for name, content in files_in(archive)
            if name.startswith(("etc/", "var/")) or name.endswith(SOURCE_OF_IT)
        ]
        source_of_it = next(content for name, content in wanted if name.endswith(SOURCE_OF_IT))
        installed = json.loads(source_of_it)["archive_info"]["hashes"]["sha256"]
        assert installed == first[f"odradek-{VERSION}-py3-none-any.whl"]
        # The published base names Debian's own mirror.
        named = {name for name, content in wanted if any(one in content for one in mirrors())}
        assert named <= {"etc/apt/sources.list.d/debian.sources"}

    with registry.running(tmp_path / "registry", address) as served:
        push(repository, served, place)
        rendered = helm.run(
            *("template", "odradek", f"oci://{place}/charts/odradek", "--version", VERSION),
            *(f"--ca-file={served.authority}", "--kube-version", helm.KUBE_VERSION),
        )
        assert "localhost/" not in rendered
        said = (made / "RELEASE_NOTES.md").read_text()
        for image in images.NAMES:
            name = f"{place}/{image}:{VERSION}"
            assert name in rendered
            look = ["skopeo", "inspect", "--format", "{{.Os}}/{{.Architecture}} | `{{.Digest}}`"]
            trusting = {**os.environ, **served.environment}
            row = run([*look, f"docker://{name}"], env=trusting).strip()
            assert f"| `{name}` | {row} |" in said


def test_an_sbom_names_packages_distributions_and_jars(tmp_path: Path) -> None:
    status = tmp_path / "var/lib/dpkg/status"
    status.parent.mkdir(parents=True)
    package = "Package: {}\nStatus: {}\nArchitecture: amd64\nVersion: 1:2-3\n"
    status.write_text(
        package.format("libc6", "install ok installed")
        + "\n"
        + package.format("gone", "deinstall ok config-files")
    )
    site = tmp_path / "opt/odradek/lib/python3.13/site-packages"
    (site / "Py_Yaml-6.0.dist-info").mkdir(parents=True)
    (site / "Py_Yaml-6.0.dist-info/METADATA").write_text("Name: Py_Yaml\nVersion: 6.0\n")
    headers = tmp_path / "usr/local/include/python3.13"
    headers.mkdir(parents=True)
    (headers / "patchlevel.h").write_text('#define PY_VERSION              "3.13.7"\n')
    pip = tmp_path / "usr/local/lib/python3.13/site-packages/pip-25.2.dist-info"
    pip.mkdir(parents=True)
    (pip / "METADATA").write_text("Name: pip\nVersion: 25.2\n")
    jars = tmp_path / "opt/odradek/spark/jars"
    jars.mkdir(parents=True)
    with zipfile.ZipFile(jars / "a-1.jar", "w") as jar:
        jar.writestr(
            "META-INF/maven/org.example/a/pom.properties",
            "groupId=org.example\nartifactId=a\nversion=1\n",
        )
    # As Spark has some that Hive needs in another version.
    (jars / "hive").mkdir()
    with zipfile.ZipFile(jars / "hive/a-1.jar", "w") as jar:
        jar.write(jars / "a-1.jar", "inner.jar")
        jar.writestr(
            "META-INF/maven/org.example/a/pom.properties",
            "groupId=org.example\nartifactId=a\nversion=1\n",
        )
    with zipfile.ZipFile(jars / "b-2.0-tests.jar", "w") as jar:
        jar.writestr("nothing", "")
    released = Source("1234", EPOCH, VERSION, "Notes")
    text = sbom.of_image(tmp_path, "broker", "sha256:12", released)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert sbom.of_image(tmp_path, "broker", "sha256:12", released) == text
    assert sorted(each["purl"] for each in json.loads(text)["components"]) == [
        "pkg:deb/debian/libc6@1:2-3?arch=amd64",
        "pkg:generic/b@2.0-tests?file_name=b-2.0-tests.jar",
        "pkg:generic/python@3.13.7",
        *2 * ("pkg:maven/org.example/a@1",),
        "pkg:pypi/pip@25.2",
        "pkg:pypi/py-yaml@6.0",
    ]
