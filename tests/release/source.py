"""The commit that is released: a clean one, with a version and what changed in it."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support import tar_files

_CHART: Final = "charts/odradek/Chart.yaml"
# What the extra `all` asks for: the wheel of the same release.
_JARS: Final = "odradek-spark-jars=={version}"
_HEADING: Final = re.compile(r"^## ([^\s,]+).*$", re.MULTILINE)


class ReleaseError(Exception):
    """There can be no release; one line that says what to do."""


@dataclass(frozen=True, slots=True)
class Source:
    """What is released; `notes` is Markdown, `epoch` the time of the commit in Unix seconds."""

    commit: str
    epoch: int
    version: str
    notes: str


def git(repository: Path, *words: str) -> bytes:
    """Return what git prints. Raises ReleaseError."""
    done = subprocess.run(["git", "-C", repository, *words], capture_output=True, check=False)
    if done.returncode:
        raise ReleaseError(f"git {words[0]}: {done.stderr.decode().strip()}")
    return done.stdout


def read(repository: Path) -> Source:
    """Return the commit of a checkout as a release. Raises ReleaseError.

    Its version is that of pyproject.toml, which Chart.yaml repeats. A version that has a tag is
    that commit for ever.
    """
    if changes := git(repository, "status", "--porcelain").decode().splitlines():
        name = changes[0][3:]
        raise ReleaseError(f"the checkout is not its commit: commit or remove {name} first")
    last = git(repository, "log", "-1", "--no-show-signature", "--format=%H %ct")
    commit, epoch = last.decode().split()
    version = version_of(repository)
    chart = yaml.safe_load((repository / _CHART).read_text())
    for key in ("version", "appVersion"):
        if chart[key] != version:
            raise ReleaseError(
                f"pyproject.toml has the version {version}, but {_CHART} the {key} {chart[key]}: "
                "write the same into both"
            )
    if _JARS.format(version=version) not in _project(repository)["optional-dependencies"]["all"]:
        raise ReleaseError(
            f"pyproject.toml has the version {version}, but its extra all asks for other jars: "
            f"write {_JARS.format(version=version)} there"
        )
    tag = git(repository, "for-each-ref", "--format=%(objectname) %(*objectname)", _tag(version))
    if tag.strip() and commit not in tag.decode().split():
        raise ReleaseError(
            f"the tag v{version} is another commit: "
            f"raise the version in pyproject.toml and {_CHART}"
        )
    return Source(commit, int(epoch), version, notes(repository, version))


def version_of(repository: Path) -> str:
    """Return the version that pyproject.toml states."""
    return str(_project(repository)["version"])


def _project(repository: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    return found


def _tag(version: str) -> str:
    return f"refs/tags/v{version}"


def notes(repository: Path, version: str) -> str:
    """Return what CHANGELOG.md says below the heading of a version. Raises ReleaseError."""
    text = (repository / "CHANGELOG.md").read_text()
    headings = list(_HEADING.finditer(text))
    for number, heading in enumerate(headings):
        if heading[1] == version:
            following = headings[number + 1 : number + 2]
            end = following[0].start() if following else len(text)
            found = text[heading.end() : end].strip()
            if found:
                return found
    raise ReleaseError(
        f"CHANGELOG.md says nothing about {version}: add a section '## {version}' with what changed"
    )


def export(repository: Path, commit: str, target: Path) -> None:
    """Write the files of a commit, and no others, to a new folder. Raises ReleaseError."""
    # Whatever umask and line ends whoever releases has.
    plain = ("-c", "tar.umask=0022", "-c", "core.autocrlf=false")
    archive = git(repository, *plain, "archive", commit)
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        tar_files.extract(files, target)
