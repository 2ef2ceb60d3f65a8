"""An environment of another Python for this project's brokers, with the locked dependencies."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
LOCK: Final = ROOT / "broker_image" / "requirements.lock"
OLDEST: Final = (3, 11)
NEWEST: Final = (3, 13)


class UnusableError(argparse.ArgumentTypeError):
    """An interpreter cannot run brokers; the message says why."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The path of a Python, and its version."""

    path: str
    version: str


def find(program: str) -> Interpreter:
    """Return the interpreter of a path or a name. Raises UnusableError."""
    path = shutil.which(program)
    if path is None:
        raise UnusableError(f"there is no program {program}")
    try:
        said = _run(path, "-c", "import platform; print(platform.python_version())").strip()
        major, minor = (int(one) for one in said.split(".")[:2])
    except (UnusableError, ValueError) as error:
        raise UnusableError(f"{path} is no Python that runs") from error
    if not OLDEST <= (major, minor) <= NEWEST:
        raise UnusableError(f"{path} is Python {said}; brokers need 3.11, 3.12 or 3.13")
    return Interpreter(path, said)


def environment(python: Interpreter, folder: Path) -> str:
    """Make a virtual environment as `tests/setup.sh` does, with what the broker's image has.

    Return the path of its interpreter. Raises UnusableError.
    """
    _run(python.path, "-m", "venv", str(folder))
    made = str(folder / "bin" / "python")
    pip = (made, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    _run(*pip, "--require-hashes", "--requirement", str(LOCK))
    _run(*pip, "--no-deps", "--editable", str(ROOT))
    return made


def _run(*words: str) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UnusableError(f"{words[0]}: {error.strerror}") from error
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise UnusableError(f"{' '.join(words)} failed: {' '.join(last)}")
    return done.stdout
