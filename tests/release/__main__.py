"""Command line of releases: `python -m tests.release --registry REGISTRY` writes dist/."""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.cluster import host, tools
from tests.cluster.settings import REPO, Paths, paths
from tests.cluster.shell import ClusterError, step
from tests.release import archives, chart, images, python, source
from tests.release.images import Archived
from tests.release.source import ReleaseError, Source

# As in an image's name: a host, perhaps a port, and a path.
_REGISTRY: Final = re.compile(r"[a-z0-9.-]+(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*")
_WORK: Final = "build/release"


def build(repository: Path, registry: str, where: Paths) -> Path:
    """Make the release of a checkout's commit; return dist/, which is replaced whole.

    Raises ReleaseError or ClusterError.
    """
    if not _REGISTRY.fullmatch(registry):
        raise ReleaseError(
            f"{registry!r} is no registry: take one like registry.example.com/odradek"
        )
    released = source.read(repository)
    where.cache.mkdir(parents=True, exist_ok=True)
    with (where.cache / "release.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ClusterError("another release is being made; begin again after it") from error
        host.ensure(host.BUILD_PACKAGES, where)
        tools.ensure(where, (tools.HELM,))
        return _make(repository, released, registry, where)


def _make(repository: Path, released: Source, registry: str, where: Paths) -> Path:
    work = repository / _WORK
    shutil.rmtree(work, ignore_errors=True)
    tree, made = work / "tree", work / "dist"
    made.mkdir(parents=True)
    source.export(repository, released.commit, tree)
    with step("wheel and source archive"):
        python.build(tree, made)
        python.write_sbom(tree, made / f"odradek-{released.version}.cdx.json")
    with step("wheel of Spark's connectors"):
        python.build_spark_jars(tree, made, released.version)
    archived = images.build(tree, made, released, where)
    chart.build(tree, made, registry, where)
    (made / "RELEASE_NOTES.md").write_text(notes(released, registry, archived))
    archives.write_checksums(made)
    target = repository / "dist"
    if target.exists():
        target.rename(work / "replaced")
    made.rename(target)
    shutil.rmtree(work)
    host.give_to_caller(work.parent, target, *target.iterdir())
    return target


def notes(released: Source, registry: str, archived: Mapping[str, Archived]) -> str:
    """Return the notes of a release: where its images belong, what they run on, what changed."""
    rows = [
        f"| `{registry}/{name}:{released.version}` | {image.platform} | `{image.digest}` |"
        for name, image in archived.items()
    ]
    lines = (
        f"# Odradek {released.version}",
        "",
        f"Commit {released.commit}.",
        "",
        "| image | platform | digest |",
        "|---|---|---|",
        *rows,
        "",
        released.notes,
        "",
    )
    return "\n".join(lines)


def main() -> int:
    """Make a release. An error is one line on stderr; exit status 2 says: change the checkout."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.release", description=__doc__)
    parser.add_argument("--registry", required=True, help="where the images will be pushed")
    arguments = parser.parse_args()
    where = paths()
    os.environ["PATH"] = f"{where.bin}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    # A build that nobody waits for would be in the way of the next release.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        host.become_root("tests.release")
        print(build(REPO, arguments.registry, where))
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (ClusterError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted; dist/ is as it was", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
