"""An environment of another Python for this project's brokers, with the locked dependencies.

The Python is a program of this machine, or that of an image whose file system is in a folder. It
then runs with the C library, OpenSSL and whatever else the image has, though without a container.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
LOCK: Final = ROOT / "broker_image" / "requirements.lock"
OLDEST: Final = (3, 11)
NEWEST: Final = (3, 13)
# In the root of a file system: where Debian's and Docker's images have Python.
_PREFIXES: Final = ("usr/local", "usr")
_LOADERS: Final = ("usr/lib64/ld-linux-*.so.*", "usr/lib/ld-linux-*.so.*")
_LIBRARIES: Final = ("usr/local/lib", "usr/lib/*-linux-gnu")
_PIPS: Final = (
    "usr/share/python-wheels/pip-*.whl",
    "usr/local/lib/python3*/ensurepip/_bundled/pip-*.whl",
)


class UnusableError(argparse.ArgumentTypeError):
    """An interpreter cannot run brokers; the message says why."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """How to call a Python, its version, and the root of the image that it is from, if any."""

    words: tuple[str, ...]
    version: str
    root: Path | None = None


def find(program: str) -> Interpreter:
    """Return the interpreter of a path or a name, or of the image in a folder.

    Raises UnusableError.
    """
    if Path(program).is_dir():
        root = Path(program).resolve()
        words = _words_in(root)
        return Interpreter(words, _version(program, words), root)
    path = shutil.which(program)
    if path is None:
        raise UnusableError(f"there is no program {program}")
    return Interpreter((path,), _version(path, (path,)))


def _version(path: str, words: tuple[str, ...]) -> str:
    try:
        said = _run(*words, "-c", "import platform; print(platform.python_version())").strip()
        major, minor = (int(one) for one in said.split(".")[:2])
    except (UnusableError, ValueError) as error:
        raise UnusableError(f"{path} is no Python that runs") from error
    if not OLDEST <= (major, minor) <= NEWEST:
        raise UnusableError(f"{path} is Python {said}; brokers need 3.11, 3.12 or 3.13")
    return said


def _words_in(root: Path) -> tuple[str, ...]:
    """Return how to call the Python of an image: by the loader of its C library."""
    programs = (
        one for prefix in _PREFIXES for one in sorted((root / prefix / "bin").glob("python3"))
    )
    loaders = (one for pattern in _LOADERS for one in sorted(root.glob(pattern)))
    program, loader = next(programs, None), next(loaders, None)
    if program is None or loader is None:
        raise UnusableError(f"{root} has no Python of an image")
    libraries = ":".join(str(one) for pattern in _LIBRARIES for one in root.glob(pattern))
    return (str(loader), "--library-path", libraries, str(program))


def environment(python: Interpreter, folder: Path) -> str:
    """Make a virtual environment as `tests/setup.sh` does, with what the broker's image has.

    Return the path of its interpreter. Raises UnusableError.
    """
    if python.root is None:
        _run(*python.words, "-m", "venv", str(folder))
        pips = None
    else:
        # Debian's ensurepip would look for pip outside of the folder.
        started = start_script(python, folder.with_name("base"))
        _run(started, "-m", "venv", "--without-pip", str(folder))
        pips = next((str(one) for pattern in _PIPS for one in python.root.glob(pattern)), None)
        if pips is None:
            raise UnusableError(f"{python.root} has no pip")
    made = str(folder / "bin" / "python")
    pip = (made, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    _run(*pip, "--require-hashes", "--requirement", str(LOCK), path=pips)
    _run(*pip, "--no-deps", "--editable", str(ROOT), path=pips)
    return made


def start_script(python: Interpreter, folder: Path) -> str:
    """Make a program that is the Python of an image, with its library beside it; return its path.

    An environment links to it. Python looks for its library by the path it was called by.
    """
    *loader, program = python.words
    (folder / "bin").mkdir(parents=True)
    (folder / "lib").symlink_to(Path(program).parents[1] / "lib")
    script = folder / "bin" / "python3"
    line = f'{shlex.join(loader)} --argv0 "$0" {shlex.quote(program)} "$@"'
    script.write_text(f"#!/bin/sh\nexec {line}\n")
    script.chmod(0o755)
    return str(script)


def _run(*words: str, path: str | None = None) -> str:
    environment = {**os.environ, "PYTHONPATH": path} if path else None
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    except OSError as error:
        raise UnusableError(f"{words[0]}: {error.strerror}") from error
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise UnusableError(f"{' '.join(words)} failed: {' '.join(last)}")
    return done.stdout
