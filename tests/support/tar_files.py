"""Extraction of tar files, with every Python that is supported."""

from __future__ import annotations

import tarfile
from pathlib import Path


def extract(archive: tarfile.TarFile, folder: Path) -> None:
    """Extract all files, none outside of the folder and none with rights that matter.

    Pythons before 3.11.4, such as that of Debian 12, know no filters: they trust the archive.
    """
    archive.extraction_filter = getattr(tarfile, "data_filter", None)
    archive.extractall(folder)
