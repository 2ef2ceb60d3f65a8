"""What `make release` makes is the same again, complete, and refused where it would be untrue."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.cluster import settings
from tests.cluster.settings import REPO
from tests.cluster.shell import ClusterError, run
from tests.docs import blocks
from tests.release import archives, chart, images, python, sbom, source
from tests.release.__main__ import build, notes
from tests.release.source import ReleaseError, Source
from tests.support import helm, registry

REGISTRY = "registry.example.com/odradek"
STATED = ("pyproject.toml", "CHANGELOG.md", "charts/odradek/Chart.yaml")
PARTS = (
    *("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "charts", "broker_image"),
    *("operator", "examples/quickstart/requirements.lock"),
)
JARS = "operator/spark_jars"
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


def tag_another(repository: Path) -> None:
    source.git(repository, *NOBODY, "tag", "-a", "-m", "A release", "v0.1.0")
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
            edit("pyproject.toml", 'version = "0.1.0"', 'version = "0.2.0"'),
            "pyproject.toml has the version 0.2.0, but charts/odradek/Chart.yaml the version "
            "0.1.0: write the same into both",
            id="two versions",
        ),
        pytest.param(
            edit("charts/odradek/Chart.yaml", "appVersion: 0.1.0", "appVersion: 0.0.9"),
            "pyproject.toml has the version 0.1.0, but charts/odradek/Chart.yaml the appVersion "
            "0.0.9: write the same into both",
            id="images of another version",
        ),
        pytest.param(
            edit("CHANGELOG.md", "## 0.1.0, unreleased", "## Unreleased"),
            "CHANGELOG.md says nothing about 0.1.0: add a section '## 0.1.0' with what changed",
            id="no notes",
        ),
        pytest.param(
            edit("CHANGELOG.md", "## 0.1.0, unreleased", "## 0.1.0\n\n## 0.0.9"),
            "CHANGELOG.md says nothing about 0.1.0: add a section '## 0.1.0' with what changed",
            id="empty notes",
        ),
        pytest.param(
            tag_another,
            "the tag v0.1.0 is another commit: raise the version in pyproject.toml and "
            "charts/odradek/Chart.yaml",
            id="a version that was released",
        ),
    ],
)
def test_a_commit_that_cannot_be_released_is_refused_in_one_line(
    repository: Path, change: Callable[[Path], None], said: str
) -> None:
    assert source.read(repository).version == "0.1.0"
    change(repository)
    with pytest.raises(ReleaseError, match=f"^{re.escape(said)}$"):
        source.read(repository)


@pytest.mark.parametrize("name", ["", "https://registry.example.com", "registry/", "a b"])
def test_a_registry_that_cannot_be_one_is_refused(repository: Path, name: str) -> None:
    with pytest.raises(ReleaseError, match="is no registry"):
        build(repository, name, settings.paths())


def test_a_tagged_commit_is_released_with_the_notes_of_its_version(repository: Path) -> None:
    edit(
        "CHANGELOG.md", "## 0.1.0, unreleased", "## 0.1.0\n\nNew.\n\n### Jobs\n\nOld.\n\n## 0.0.9"
    )(repository)
    source.git(repository, *NOBODY, "tag", "-a", "-m", "A release", "v0.1.0")
    released = source.read(repository)
    assert released.notes == "New.\n\n### Jobs\n\nOld."
    text = notes(released, REGISTRY, {"broker": "sha256:1"})
    assert f"`{REGISTRY}/broker:0.1.0` | `sha256:1`" in text
    assert text.endswith("Old.\n")


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
        "odradek-0.1.0-py3-none-any.whl",
        "odradek-0.1.0.tar.gz",
        "odradek-0.1.0.tgz",
        "odradek-spark-jars-0.1.0.cdx.json",
        "odradek.cdx.json",
        "odradek_spark_jars-0.1.0-py3-none-any.whl",
    ]
    made = tmp_path / "first/dist"
    with zipfile.ZipFile(made / "odradek-0.1.0-py3-none-any.whl") as wheel:
        packages = {name.split("/")[0] for name in wheel.namelist()}
        metadata = wheel.read("odradek-0.1.0.dist-info/METADATA").decode()
    assert {"odradek", "odradek_operator", "odradek_local", "odradek_spark"} <= packages
    assert "Requires-Dist: odradek-spark-jars==0.1.0; extra == 'all'" in metadata
    components = json.loads((made / "odradek.cdx.json").read_text())["components"]
    assert "pyspark" in {each["name"] for each in components}
    with registry.running(tmp_path / "registry") as address:
        place = f"oci://{address}/odradek/charts"
        helm.run("push", str(made / "odradek-0.1.0.tgz"), place, "--plain-http")
        rendered = helm.run(
            *("template", "odradek", f"{place}/odradek", "--version", "0.1.0", "--plain-http"),
            *("--kube-version", helm.KUBE_VERSION),
        )
    assert f"{REGISTRY}/broker:0.1.0" in rendered
    assert "localhost/" not in rendered


def test_the_wheel_of_jars_has_the_pinned_ones_with_licences_and_an_sbom(tmp_path: Path) -> None:
    tree, made = tmp_path / "tree", tmp_path / "dist"
    shutil.copytree(REPO / JARS, tree / JARS, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(REPO / name, tree / name)
    made.mkdir()
    python.build_spark_jars(tree, made, "0.1.0")
    folder = "odradek_spark_jars"
    with zipfile.ZipFile(made / f"{folder}-0.1.0-py3-none-any.whl") as wheel:
        wheel.extractall(tmp_path / "installed")
    licences = tmp_path / "installed" / f"{folder}-0.1.0.dist-info/licenses"
    assert (licences / "LICENSE").read_bytes() == (REPO / "LICENSE").read_bytes()
    package = tmp_path / "installed" / folder
    run(["sha256sum", "--check", "--quiet", "--strict", "SHA256SUMS"], cwd=package)
    jars = sorted(jar.name for jar in package.glob("*.jar"))
    assert [line.split()[1] for line in (package / "SHA256SUMS").read_text().splitlines()] == jars
    without_version = {re.sub(r"-\d+\.\d+\.\d+\.jar", "", name) for name in jars}
    notice = (licences / "NOTICE").read_text()
    assert set(re.findall(r"^  (\S+) +Apache License 2\.0$", notice, re.M)) == without_version
    text = (made / "odradek-spark-jars-0.1.0.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    listed = {each["hashes"][0]["content"] for each in json.loads(text)["components"]}
    assert listed == {archives.sha256(jar) for jar in package.glob("*.jar")}

    pins = tree / JARS / "src" / folder / "SHA256SUMS"
    pins.write_text(pins.read_text().replace("kafka-clients-3.9.0", "kafka-clients-3.9.1"))
    said = r"kafka-clients-3\.9\.1\.jar is not what operator/spark_job/pom\.xml makes: "
    with pytest.raises(ClusterError, match=said):
        python.build_spark_jars(tree, made, "0.1.0")


def file_in(image: Path, name: str) -> bytes:
    """Return the newest file of this name in the layers of an OCI archive."""

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
                    if member.name.endswith(f"/{name}"):
                        found = content.extractfile(member)
                        assert found
                        return found.read()
    raise LookupError(f"no {name} in {image}")


@pytest.mark.full(
    "tests/release/test_release.py::"
    "test_wheel_source_archive_chart_and_sbom_are_the_same_bytes_again"
)
@pytest.mark.timeout(5400)
def test_two_whole_releases_are_the_same_bytes_and_a_registry_serves_them(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "repository", (*PARTS, ".dockerignore", ".gitignore"))
    with registry.running(tmp_path / "registry") as address:
        place = f"{address}/odradek"
        made = build(repository, place, settings.paths())
        first = {file.name: archives.sha256(file) for file in made.iterdir()}
        made = build(repository, place, settings.paths())
        assert {file.name: archives.sha256(file) for file in made.iterdir()} == first
        for image in images.NAMES:
            assert f"odradek-{image}-0.1.0.oci.tar" in first
            text = (made / f"odradek-{image}-0.1.0.cdx.json").read_text()
            assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
            found = {each["name"] for each in json.loads(text)["components"]}
            assert {"odradek", "kazoo", "libc6"} <= found
            source_of_it = file_in(made / f"odradek-{image}-0.1.0.oci.tar", "direct_url.json")
            installed = json.loads(source_of_it)["archive_info"]["hashes"]["sha256"]
            assert installed == first["odradek-0.1.0-py3-none-any.whl"]

        # The registry of the test speaks HTTP, which both tools must be told.
        pushed = blocks.take("README.md", "push a release").replace(REGISTRY, place)
        pushed = pushed.replace("skopeo copy", "skopeo copy --dest-tls-verify=false")
        pushed = pushed.replace("helm push", "helm push --plain-http")
        path = f"{helm.binary().parent}:{os.environ['PATH']}"
        blocks.run(pushed, {"PATH": path}, repository, seconds=600)
        rendered = helm.run(
            *("template", "odradek", f"oci://{place}/charts/odradek", "--version", "0.1.0"),
            *("--plain-http", "--kube-version", helm.KUBE_VERSION),
        )
        assert "localhost/" not in rendered
        said = (made / "RELEASE_NOTES.md").read_text()
        for image in images.NAMES:
            name = f"{place}/{image}:0.1.0"
            assert name in rendered
            look = ["skopeo", "inspect", "--tls-verify=false", "--format", "{{.Digest}}"]
            digest = run([*look, f"docker://{name}"]).strip()
            assert f"| `{name}` | `{digest}` |" in said


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
    with zipfile.ZipFile(jars / "b-2.0-tests.jar", "w") as jar:
        jar.writestr("nothing", "")
    released = Source("1234", EPOCH, "0.1.0", "Notes")
    text = sbom.of_image(tmp_path, "broker", "sha256:12", released)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert sbom.of_image(tmp_path, "broker", "sha256:12", released) == text
    assert sorted(each["purl"] for each in json.loads(text)["components"]) == [
        "pkg:deb/debian/libc6@1:2-3?arch=amd64",
        "pkg:generic/b@2.0-tests?file_name=b-2.0-tests.jar",
        "pkg:generic/python@3.13.7",
        "pkg:maven/org.example/a@1",
        "pkg:pypi/pip@25.2",
        "pkg:pypi/py-yaml@6.0",
    ]
