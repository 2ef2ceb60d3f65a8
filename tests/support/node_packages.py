"""Downloads the packages of Node programs with npm at their locked versions, once."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path

from tests.support.kafka_peer import CACHE
from tests.support.missing import skip_unless_ci

LIMIT_SECONDS = 300


def node_path(program: Path) -> str:
    """Return NODE_PATH for the programs in a folder with package.json and its lock.

    Without Node skip, or fail under CI.
    """
    missing = [name for name in ("node", "npm") if shutil.which(name) is None]
    if missing:
        skip_unless_ci(f"{' and '.join(missing)} not found: install Node 14 or later with npm")
    lock_file = program / "package-lock.json"
    cache = CACHE / "node" / hashlib.sha256(lock_file.read_bytes()).hexdigest()[:16]
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # npm makes this file last: without it an installation was cut off.
        if not (cache / "node_modules/.package-lock.json").exists():
            _install(program, cache)
    return str(cache / "node_modules")


def _install(program: Path, cache: Path) -> None:
    """Install the packages; npm checks them against the checksums in the lock."""
    for name in ("package.json", "package-lock.json"):
        shutil.copy(program / name, cache)
    subprocess.run(
        ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"],
        cwd=cache,
        check=True,
        timeout=LIMIT_SECONDS,
    )
