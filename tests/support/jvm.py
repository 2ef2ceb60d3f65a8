"""JVMs that start fast: archives of the classes that a program loads, and programs compiled once.

The first run of a program that ends by itself leaves an archive in the project's cache, which the
runs after it map instead of reading the jars (class data sharing). Nothing depends on an archive:
a JVM that cannot use one starts without it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

CACHE = Path.home() / ".cache" / "odradek" / "jvm"
# What a JVM says of its archive would be taken for the program's words.
QUIET = "-Xlog:disable"

_numbers = itertools.count()


class Archive:
    """The classes of one program on one class path, whose jars the archive's name stands for."""

    def __init__(self, program: str, classpath: str) -> None:
        CACHE.mkdir(parents=True, exist_ok=True)
        self._path = CACHE / f"{program}-{_digest(classpath)}.jsa"
        self._partial = self._path.with_suffix(f".{os.getpid()}-{next(_numbers)}.partial")

    @property
    def exists(self) -> bool:
        """Return whether there is one."""
        return self._path.exists()

    @property
    def options(self) -> list[str]:
        """Return what makes a JVM use the archive, or write one at its end where there is none."""
        if self.exists:
            return [QUIET, f"-XX:SharedArchiveFile={self._path}"]
        return [QUIET, f"-XX:ArchiveClassesAtExit={self._partial}"]

    def keep(self) -> None:
        """Keep what a JVM with these options wrote that has ended."""
        if self._partial.exists():
            self._partial.rename(self._path)


def compiled(source: Path, classpath: str, *used: Path) -> Path:
    """Return the folder with the classes of a program, compiled once and kept in the cache.

    `used` are the sources that it uses.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    sources = (source, *used)
    content = hashlib.sha256(b"".join(one.read_bytes() for one in sources)).hexdigest()[:12]
    folder = CACHE / f"{source.stem}-{content}-{_digest(classpath)}"
    with locked():
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=CACHE) as partial:
                compiler = ("java", "-m", "jdk.compiler/com.sun.tools.javac.Main")
                jars = ":".join(map(str, _entries(classpath)))
                subprocess.run(
                    [*compiler, "-cp", jars, "-d", f"{partial}/classes", *map(str, sources)],
                    check=True,
                )
                Path(partial, "classes").rename(folder)
    return folder


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Keep other processes from writing to the cache."""
    with (CACHE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _digest(classpath: str) -> str:
    """Return what changes with the JVM and the jars of a class path."""
    java = shutil.which("java") or "java"
    found = [(os.path.realpath(java), 0, 0)]
    for path in _entries(classpath):
        stat = path.stat()
        found.append((str(path), stat.st_size, stat.st_mtime_ns))
    return hashlib.sha256(repr(found).encode()).hexdigest()[:12]


def _entries(classpath: str) -> Iterator[Path]:
    """Yield what a class path names, its wildcards resolved."""
    for entry in classpath.split(":"):
        folder, star, _ = entry.partition("/*")
        yield from sorted(Path(folder).glob("*.jar")) if star else [Path(folder)]
