"""The chart of a release: it names the registry where the images of the same release will be."""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path
from typing import Final

from tests.cluster.settings import Paths
from tests.cluster.shell import run
from tests.release import archives
from tests.support import tar_files

_CHECKOUT: Final = "repository: localhost/odradek/"
_VALUES: Final = "charts/odradek/values.yaml"


def build(tree: Path, target: Path, registry: str, paths: Paths) -> None:
    """Write the chart of an exported commit as `helm push` takes it. Raises ClusterError.

    The tree is changed: images are in `registry` then.
    """
    values = tree / _VALUES
    text = values.read_text()
    values.write_text(text.replace(_CHECKOUT, f"repository: {registry}/"))
    with tempfile.TemporaryDirectory(dir=target) as scratch:
        packed, files = Path(scratch) / "packed", Path(scratch) / "files"
        run([paths.bin / "helm", "package", values.parent, "--destination", packed])
        (made,) = packed.iterdir()
        # helm writes the time of packing into the archive.
        with tarfile.open(made) as archive:
            tar_files.extract(archive, files)
        archives.write_tar(files, target / made.name, compressed=True)
