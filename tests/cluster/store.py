"""The images that a new node begins with, unpacked once below the cache.

A containerd that runs no pods unpacks changed images into a store. A node begins with a copy of it:
hard links to the files of images, which nobody writes (containers write to layers of their own),
and copies of the databases. So only a change costs time, and nodes share memory for what they read.
"""

import json
import os
import shutil
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cluster import components
from tests.cluster.settings import Paths
from tests.cluster.shell import run, wait_until

COMPONENT = "containerd-images"
DATABASES = ("io.containerd.metadata.v1.bolt", "io.containerd.snapshotter.v1.overlayfs/metadata.db")
# What containerd keeps of images; the rest it makes.
KEPT = ("io.containerd.content.v1.content", "io.containerd.snapshotter.v1.overlayfs", DATABASES[0])


def ctr(socket: Path, *words: str | Path) -> str:
    """Run containerd's command line, for the images of Kubernetes."""
    return run(["ctr", "-a", socket, "-n", "k8s.io", *words])


def take(socket: Path, name: str, archive: Path) -> None:
    """Unpack an image from an archive without the layers that containerd has.

    The image that it replaces has them. It keeps another name meanwhile: containerd may collect
    what no image has at any time, and the new one refers to its layers only when it is unpacked.
    """
    replaced = f"{name}-replaced"
    known = ctr(socket, "images", "list", "--quiet").split()
    if name in known:
        ctr(socket, "images", "tag", "--force", name, replaced)
    ctr(socket, "images", "import", archive)
    if name in known:
        ctr(socket, "images", "remove", replaced)


def layers(socket: Path, root: Path) -> dict[str, Path]:
    """Return the files of the layers that images have, by the hash in their digest.

    `root` is the directory of the containerd that listens at `socket`.
    """
    blobs = root / KEPT[0] / "blobs/sha256"
    found: dict[str, Path] = {}
    for line in ctr(socket, "images", "list").splitlines()[1:]:
        _, _, digest, *_ = line.split()
        manifest = json.loads((blobs / digest.removeprefix("sha256:")).read_text())
        for layer in manifest["layers"]:
            name = layer["digest"].removeprefix("sha256:")
            found[name] = blobs / name
    return found


def read_ids(file: Path) -> dict[str, str]:
    """Return the ids of loaded images by name; {} without the file."""
    try:
        known: dict[str, str] = json.loads(file.read_text())
    except FileNotFoundError:
        return {}
    return known


def write_ids(file: Path, known: Mapping[str, str]) -> None:
    """Write the ids of loaded images, all or none."""
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(known, indent=1))
    partial.replace(file)


class Store:
    """The store; `root` is containerd's directory in it, `ids` the images that it has."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.folder = paths.cache / "node-images"
        self.root = self.folder / "containerd"
        self.ids = self.folder / "images.json"
        self.socket = paths.socket("images")
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start its containerd."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        config = self.folder / "containerd.toml"
        config.write_text(
            f'version = 2\nroot = "{self.root}"\nstate = "{self.socket.parent}"\n'
            'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
            f'[grpc]\n  address = "{self.socket}"\n'
            f'[plugins."io.containerd.internal.v1.opt"]\n  path = "{self.folder}/opt"\n'
        )
        components.start(
            self.paths, COMPONENT, ["containerd", "-c", str(config)], group="images/system"
        )

        def answers() -> bool:
            components.require(self.paths, COMPONENT)
            return components.listens(self.socket)

        wait_until(answers, COMPONENT, timeout_s=120, interval_s=0.05)

    def add(self, archive: Path, name: str, identity: str) -> None:
        """Unpack an image; needs its containerd. Threads may add at once."""
        take(self.socket, name, archive)
        with self._lock:
            write_ids(self.ids, {**read_ids(self.ids), name: identity})

    def stop(self) -> None:
        """Stop its containerd, after which its files can be copied."""
        components.stop(self.paths, COMPONENT)

    def give(self, target: Path) -> None:
        """Make containerd's directory of a node, `target`, unless the node has one."""
        if target.exists():
            return
        partial = target.with_name("containerd.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        # Links need one file system.
        linked = self.root.stat().st_dev == partial.stat().st_dev
        how = ["--link"] if linked else ["--reflink=auto"]
        run(["cp", "--archive", *how, *(self.root / name for name in KEPT), partial])
        for name in DATABASES:
            copy(self.root / name, partial / name)
        shutil.copyfile(self.ids, target.with_name("images.json"))
        partial.rename(target)


def copy(source: Path, target: Path) -> None:
    """Replace links to a database, a file or a folder of files, by copies."""
    files: Sequence[str] = [name.name for name in source.iterdir()] if source.is_dir() else [""]
    for name in files:
        own = (target / name).with_suffix(".copied")
        shutil.copy2(source / name, own)
        os.replace(own, target / name)
