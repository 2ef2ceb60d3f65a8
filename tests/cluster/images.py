"""Builds the project's images when their inputs change, and gives them to the nodes.

A label of an image has the hash of its inputs. A new node begins with the images of the store, a
running one loads those that changed. Both note the id of each image that they have.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import buildah, node
from tests.cluster.layout import Node
from tests.cluster.settings import REPO, Paths
from tests.cluster.shell import ClusterError, step
from tests.cluster.store import Store, layers, read_ids, take, write_ids

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
        return self.tagged("dev")

    def tagged(self, name: str) -> str:
        """Return the image name with another tag."""
        return f"localhost/odradek/{self.name}:{name}"

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


def ensure_base(paths: Paths) -> None:
    """Pull or build what all images are made of, unless it is stored. Raises ClusterError."""
    buildah.ensure_base(paths, paths.build_logs / "image-base.log")


def build_all(paths: Paths, images: Sequence[Image] = IMAGES) -> None:
    """Build missing and outdated images. Raises ClusterError."""
    for _ in build_each(paths, images):
        pass


def build_each(paths: Paths, images: Sequence[Image] = IMAGES) -> Iterator[Image]:
    """Yield images, each when it is built, if it was missing or outdated. Raises ClusterError."""
    ensure_base(paths)
    base = buildah.image_id(paths, buildah.BASE)

    def built(image: Image) -> Image:
        if not (REPO / image.dockerfile).exists():
            raise ClusterError(f"{image.dockerfile} is missing")
        wanted = fingerprint(image, base)
        if buildah.label(paths, image.tag, INPUTS_LABEL) != wanted:
            log = paths.build_logs / f"image-{image.name}.log"
            with step(f"image {image.tag}", log):
                marks = {INPUTS_LABEL: wanted}
                file = REPO / image.dockerfile
                buildah.build(paths, image.tag, file, image.context, marks, log)
        return image

    # The first one makes the wheel, which others take from the cache of layers.
    yield from map(built, images[:1])
    with ThreadPoolExecutor(max_workers=2) as workers:
        yield from workers.map(built, images[1:])


def store_each(paths: Paths, store: Store, images: Iterable[Image]) -> None:
    """Unpack changed images for new nodes, each while the next is made. Raises ClusterError.

    Leaves the store's containerd running if any changed.
    """
    stored = read_ids(store.ids)
    known: dict[str, Path] = {}
    adding: list[Future[None]] = []
    # One is written from buildah's layers while another is unpacked.
    with ThreadPoolExecutor(max_workers=2) as workers:
        for image in images:
            current = buildah.image_id(paths, image.tag)
            if stored.get(image.tag) == current:
                continue
            if not adding:
                store.start()
                known.update(layers(store.socket, store.root))
            adding.append(workers.submit(_store, paths, store, image.tag, current, known))
    for one in adding:
        one.result()


def store_pause(paths: Paths, store: Store) -> None:
    """Unpack what every pod needs, if it changed. Raises ClusterError.

    Leaves the store's containerd running if it did.
    """
    pause = paths.bin / "pause"
    current = hashlib.sha256(pause.read_bytes()).hexdigest()
    if read_ids(store.ids).get(node.PAUSE_IMAGE) != current:
        buildah.from_scratch(paths, node.PAUSE_IMAGE, pause)
        store.start()
        _store(paths, store, node.PAUSE_IMAGE, current, {})


def _store(paths: Paths, store: Store, name: str, identity: str, known: Mapping[str, Path]) -> None:
    with step(f"unpacking {name}"), _archive(paths, name, known) as archive:
        store.add(archive, name, identity)


def load_all(paths: Paths, nodes: Sequence[Node], images: Sequence[Image] = IMAGES) -> list[str]:
    """Load the images into running nodes without them, and return the names of changed images."""
    changed = []
    for image in images:
        current = buildah.image_id(paths, image.tag)
        lacking = [
            member
            for member in nodes
            if read_ids(paths.loaded(member.name)).get(image.tag) != current
        ]
        if not lacking:
            continue
        with step(f"loading {image.tag} on {len(lacking)} nodes"):
            _load(paths, image.tag, current, lacking)
        changed.append(image.tag)
    return changed


def tag(paths: Paths, nodes: Sequence[Node], image: Image, name: str) -> None:
    """Give an image that nodes have one more tag."""
    for member in nodes:
        node.ctr(member, paths, "images", "tag", "--force", image.tag, image.tagged(name))


def _load(paths: Paths, name: str, current: str, nodes: Sequence[Node]) -> None:
    def give(member: Node) -> None:
        take(paths.socket(member.name), name, archive)
        loaded = paths.loaded(member.name)
        write_ids(loaded, {**read_ids(loaded), name: current})

    theirs = [layers(paths.socket(one.name), paths.containerd(one.name)) for one in nodes]
    known = {
        digest: file for digest, file in theirs[0].items() if all(digest in one for one in theirs)
    }
    # Unpacking takes one processor per node and the disk; two nodes saturate it.
    with _archive(paths, name, known) as archive, ThreadPoolExecutor(max_workers=2) as workers:
        list(workers.map(give, nodes))


@contextmanager
def _archive(paths: Paths, name: str, known: Mapping[str, Path]) -> Iterator[Path]:
    """Yield the image as an archive without the known layers, which is removed afterwards."""
    archive = paths.cache / "tmp" / f"{re.sub('[/:]', '-', name)}.tar"
    buildah.export(paths, name, archive, known)
    try:
        yield archive
    finally:
        archive.unlink(missing_ok=True)
