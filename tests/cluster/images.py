"""Builds the project's images when their inputs change, and loads them into the nodes.

A label of an image has the hash of its inputs. A node stores the id of each loaded image, so that
an unchanged image is not loaded again.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import buildah, node
from tests.cluster.layout import Node
from tests.cluster.settings import REPO, Paths
from tests.cluster.shell import ClusterError, step

INPUTS_LABEL = "io.odradek.inputs"
IGNORED = {"__pycache__", ".DS_Store"}


@dataclass(frozen=True, slots=True)
class Image:
    """An image and its input files, relative to the repository."""

    name: str
    dockerfile: str
    inputs: tuple[str, ...]
    # .dockerignore limits the build context.
    folder: str = "."

    @property
    def tag(self) -> str:
        """The image name in pods."""
        return f"localhost/odradek/{self.name}:dev"

    @property
    def context(self) -> Path:
        """The build context of the Dockerfile."""
        return REPO / self.folder


WHEEL = ("pyproject.toml", "README.md", "LICENSE", "broker_image/src", "operator/src")
SPARK_SOURCES = "operator/spark_job/src"
IMAGES = (
    Image(
        "broker",
        "broker_image/Dockerfile",
        (*WHEEL, SPARK_SOURCES, "broker_image/requirements.lock"),
    ),
    Image("operator", "operator/Dockerfile", (*WHEEL, SPARK_SOURCES, "operator/requirements.lock")),
    Image("spark-job", "operator/spark_job/Dockerfile", (*WHEEL, "operator/spark_job")),
    Image(
        "collector",
        "examples/quickstart/collector/Dockerfile",
        ("examples/quickstart/collector",),
        folder="examples/quickstart/collector",
    ),
    Image(
        "zookeeper",
        "tests/cluster/images/zookeeper/Dockerfile",
        ("tests/cluster/images/zookeeper",),
    ),
    Image(
        "prometheus",
        "tests/cluster/images/prometheus/Dockerfile",
        ("tests/cluster/images/prometheus",),
    ),
)


def fingerprint(image: Image, base: str) -> str:
    """Return the hash of the image's inputs: names and bytes of files, and the base."""
    digest = hashlib.sha256(f"{image.name} {base}\n".encode())
    for file in _files((image.dockerfile, *image.inputs)):
        executable = os.access(file, os.X_OK)
        digest.update(f"{file.relative_to(REPO)} {executable}\n".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _files(inputs: Iterable[str]) -> list[Path]:
    found: set[Path] = set()
    for name in inputs:
        path = REPO / name
        if path.is_file():
            found.add(path)
        found.update(file for file in path.rglob("*") if file.is_file())
    return sorted(file for file in found if not IGNORED.intersection(file.parts))


def build_all(paths: Paths, images: Sequence[Image] = IMAGES) -> None:
    """Build missing and outdated images. Raises ClusterError."""
    buildah.ensure_base(paths, paths.build_logs / "image-base.log")
    base = buildah.image_id(paths, buildah.BASE)
    for image in images:
        if not (REPO / image.dockerfile).exists():
            raise ClusterError(f"{image.dockerfile} is missing")
        wanted = fingerprint(image, base)
        if buildah.label(paths, image.tag, INPUTS_LABEL) == wanted:
            continue
        log = paths.build_logs / f"image-{image.name}.log"
        with step(f"image {image.tag}", log):
            marks = {INPUTS_LABEL: wanted}
            file = REPO / image.dockerfile
            buildah.build(paths, image.tag, file, image.context, marks, log)


def load_all(paths: Paths, nodes: Sequence[Node], images: Sequence[Image] = IMAGES) -> list[str]:
    """Load the images into nodes without them, and return the names of changed images."""
    changed = []
    for image in images:
        current = buildah.image_id(paths, image.tag)
        lacking = [member for member in nodes if _loaded(paths, member).get(image.tag) != current]
        if not lacking:
            continue
        with step(f"loading {image.tag} on {len(lacking)} nodes"):
            _load(paths, image.tag, current, lacking)
        changed.append(image.tag)
    return changed


def _load(paths: Paths, name: str, current: str, nodes: Sequence[Node]) -> None:
    archive = paths.cache / "tmp" / "load.tar"
    buildah.export(paths, name, archive)

    def give(member: Node) -> None:
        node.ctr(member, paths, "images", "import", archive)
        known = {**_loaded(paths, member), name: current}
        _memory(paths, member).write_text(json.dumps(known, indent=1))

    try:
        # Unpacking takes one processor per node and the disk; two nodes saturate it.
        with ThreadPoolExecutor(max_workers=2) as workers:
            list(workers.map(give, nodes))
    finally:
        archive.unlink(missing_ok=True)


def _memory(paths: Paths, member: Node) -> Path:
    return paths.node(member.name) / "images.json"


def _loaded(paths: Paths, member: Node) -> dict[str, str]:
    try:
        known: dict[str, str] = json.loads(_memory(paths, member).read_text())
    except FileNotFoundError:
        return {}
    return known


def pause_archive(paths: Paths) -> Path:
    """Return the archive of the pause image, built once."""
    archive = paths.cache / "pause.tar"
    if not archive.exists() or archive.stat().st_mtime < (paths.bin / "pause").stat().st_mtime:
        buildah.from_scratch(paths, node.PAUSE_IMAGE, paths.bin / "pause")
        buildah.export(paths, node.PAUSE_IMAGE, archive)
    return archive
