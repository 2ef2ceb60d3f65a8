"""The commands of runbooks and how-to pages, pasted into a shell beside the quick start."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.docs import blocks
from tests.docs.blocks import Block
from tests.layout.sources import ROOT
from tests.support.kubectl import Kubectl

pytestmark = pytest.mark.e2e

# What a reader puts in place of the words in capitals.
NAMES = {
    "NAMESPACE": "logs",
    "CLUSTER-broker-N": "main-broker-0",
    "CLUSTER": "main",
    "RELEASE": "odradek",
    "POD": "main-broker-0",
    "NAME-driver": "log-counts-driver",
    "KIND NAME": "topic cluster-logs",
    "NAME": "log-counts",
}
# A container that has never ended has no former log.
NO_FORMER = "previous terminated container"
BLOCKS = [
    ("docs/how-to/secure.md", "secured", "condition met"),
    ("docs/how-to/secure.md", "user", "condition met"),
    ("docs/how-to/secure.md", "authority", ""),
    ("docs/how-to/back-up.md", "copy-zookeeper-pod", "version-2/log."),
    ("docs/how-to/upgrade.md", "wait", "main"),
]


@pytest.fixture
def environment(kubectl: Kubectl, tmp_path: Path) -> Iterator[Mapping[str, str]]:
    """Variables with which a shell finds kubectl and the cluster; what is applied is deleted."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/kubectl").symlink_to(kubectl.binary)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    yield {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "KUBECONFIG": str(kubectl.kubeconfig),
    }
    kubectl("delete", "user", "shop", "--ignore-not-found")


def of_runbooks() -> Iterator[Block]:
    mark = ("run by", "tests/e2e/test_documented_commands.py::test_commands_of_runbooks_run")
    for page in sorted((ROOT / "docs/runbooks").glob("*.md")):
        yield from (one for one in blocks.blocks(page) if one.mark == mark)


def test_commands_of_runbooks_run(
    environment: Mapping[str, str], healthy: None, tmp_path: Path
) -> None:
    lines = [(one.where, line) for one in of_runbooks() for line in one.text.splitlines()]
    assert len(lines) > 25
    for where, text in lines:
        line = text
        for word, name in NAMES.items():
            line = line.replace(word, name)
        # What is searched for may be missing in a log of a healthy cluster; the log may not.
        ended = subprocess.run(
            ["bash", "-c", line.split(" | grep")[0]],
            env={**os.environ, **environment},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        former = "--previous" in line and NO_FORMER in ended.stderr
        assert ended.returncode == 0 or former, f"{where}: {line}\n{ended.stderr}"
        assert ended.stdout or former or "get" in line, f"{where}: {line} says nothing"
        assert "No resources found" not in ended.stderr, f"{where}: {line}"


def test_commands_of_how_to_pages_do_what_they_say(
    environment: Mapping[str, str], healthy: None, tmp_path: Path
) -> None:
    for document, name, shown in BLOCKS:
        said = blocks.run(blocks.take(document, name), environment, tmp_path, seconds=300)
        assert shown in said, f"{document} {name}: {said}"
    assert "BEGIN CERTIFICATE" in (tmp_path / "ca.pem").read_text()
