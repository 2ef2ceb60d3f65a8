"""Archives with the same bytes for the same files: sorted, owned by nobody, with one time."""

from __future__ import annotations

import gzip
import hashlib
import tarfile
from pathlib import Path
from typing import Final

# 1980-01-02, in every time zone after the first second that a wheel and a jar can hold.
FILES_EPOCH: Final = 315619200


def write_tar(folder: Path, target: Path, *, compressed: bool = False) -> None:
    """Write the files below a folder, by their paths in it, to a tar archive."""
    members = sorted(file for file in folder.rglob("*") if file.is_file())
    with target.open("wb") as raw:
        packed = gzip.GzipFile("", "wb", mtime=FILES_EPOCH, fileobj=raw) if compressed else None
        with tarfile.open(fileobj=packed or raw, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for file in members:
                archive.add(file, str(file.relative_to(folder)), filter=_plain)
        if packed:
            packed.close()


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mtime = FILES_EPOCH
    member.mode = 0o755 if member.mode & 0o100 else 0o644
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def sha256(file: Path) -> str:
    """Return the hash of a file in hexadecimal digits."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def write_checksums(folder: Path) -> None:
    """Write SHA256SUMS for `sha256sum --check`, of the other files in a folder."""
    files = sorted(file for file in folder.iterdir() if file.name != "SHA256SUMS")
    lines = [f"{sha256(file)}  {file.name}\n" for file in files]
    (folder / "SHA256SUMS").write_text("".join(lines))
