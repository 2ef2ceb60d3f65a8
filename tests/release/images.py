"""The images of a release: built from nothing, in a storage of their own, as OCI archives.

Files in layers have one time for ever, so a layer whose files did not change is the same in the
next release, and nodes fetch only what is new. A label has the time of the commit.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from tests.cluster import buildah, mounts
from tests.cluster.images import IMAGES, Image
from tests.cluster.settings import Paths
from tests.cluster.shell import ClusterError, run, step
from tests.release import archives, sbom
from tests.release.source import Source

# What the chart names; the others are for the tests' cluster.
NAMES: Final = ("broker", "operator", "spark-job")
_LABELS: Final = "org.opencontainers.image"


@dataclass(frozen=True, slots=True)
class Archived:
    """An image in its archive: the digest of its manifest, and the platform, like linux/amd64."""

    digest: str
    platform: str


def build(tree: Path, target: Path, source: Source, paths: Paths) -> dict[str, Archived]:
    """Write each image of an exported commit, and its SBOM; return the images by name.

    Raises ClusterError.
    """
    own = replace(paths, storage_name="release-images")
    _remove(own)
    try:
        with patch.dict(os.environ, {"SOURCE_DATE_EPOCH": str(archives.FILES_EPOCH)}):
            buildah.ensure_base(own, paths.build_logs / "release-base.log")
            wanted = [image for image in IMAGES if image.name in NAMES]
            return {image.name: _build(image, tree, target, source, own) for image in wanted}
    finally:
        with step("removing what they were built in"):
            _remove(own)


def _remove(paths: Paths) -> None:
    folders = (paths.storage, paths.storage_run)
    if left := mounts.unmount(folders):
        raise ClusterError(f"{left[0]} cannot be unmounted; end what uses it, and begin again")
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _build(image: Image, tree: Path, target: Path, source: Source, paths: Paths) -> Archived:
    log = paths.build_logs / f"release-{image.name}.log"
    name = f"localhost/odradek/{image.name}:{source.version}"
    with step(f"image {name}", log):
        created = datetime.fromtimestamp(source.epoch, UTC).isoformat()
        labels = {
            f"{_LABELS}.created": created,
            f"{_LABELS}.revision": source.commit,
            f"{_LABELS}.version": source.version,
            f"{_LABELS}.licenses": "Apache-2.0",
        }
        buildah.build(paths, name, tree / image.dockerfile, tree / image.folder, labels, log)
    with step(f"archive and SBOM of {name}"):
        stem = f"odradek-{image.name}-{source.version}"
        archived = _archive(name, source.version, target / f"{stem}.oci.tar", paths)
        with buildah.mounted(paths, name) as root:
            text = sbom.of_image(root, image.name, archived.digest, source)
        (target / f"{stem}.cdx.json").write_text(text)
    return archived


def _archive(name: str, version: str, target: Path, paths: Paths) -> Archived:
    """Write a stored image as an archive."""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        copy = ["skopeo", "--insecure-policy", "copy", "--quiet", buildah.stored(paths, name)]
        run([*copy, f"oci:{scratch}:{version}"], env=buildah.environment(paths))
        archives.write_tar(Path(scratch), target)
        return _describe(Path(scratch))


def _describe(layout: Path) -> Archived:
    def blob(digest: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            (layout / "blobs" / digest.replace(":", "/")).read_text()
        )
        return found

    (manifest,) = json.loads((layout / "index.json").read_text())["manifests"]
    config = blob(blob(manifest["digest"])["config"]["digest"])
    return Archived(manifest["digest"], f"{config['os']}/{config['architecture']}")
