"""Builds the site with MkDocs, strictly: a link or an anchor that leads nowhere fails.

MkDocs has an environment of its own, at the versions of requirements.lock, which is made once and
kept in ~/.cache/odradek. Diagrams are drawn by Mermaid, a file of the site. Nothing of the built
site comes from another host, and it can be read from a disk (file://).
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from tests.docs import staging
from tests.layout.sources import ROOT
from tests.support import node_packages

TARGET = ROOT / "build/docs"
HERE = Path(__file__).parent
LOCK = HERE / "requirements.lock"
CACHE = Path.home() / ".cache" / "odradek" / "docs"
LIMIT_SECONDS = 300
SCRIPTS = {
    "mermaid.js": "@mermaid-js/tiny/dist/mermaid.tiny.js",
    "iframe-worker.js": "iframe-worker/shim/index.js",
}


def build(target: Path = TARGET) -> Path:
    """Build the site below a folder, and return the folder of the site.

    Raises CalledProcessError, whose output names each page with a fault.
    """
    settings = staging.write(target)
    packages = Path(node_packages.node_path(HERE))
    for name, source in SCRIPTS.items():
        shutil.copy(packages / source, target / "pages/assets" / name)
    return render(settings)


def render(settings: Path) -> Path:
    """Run MkDocs on pages that are there, and return the folder of the site.

    Raises CalledProcessError.
    """
    target = settings.parent
    subprocess.run(
        [environment(), "-m", "mkdocs", "build", "--strict", "--config-file", settings],
        cwd=target,
        check=True,
        timeout=LIMIT_SECONDS,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={"NO_MKDOCS_2_WARNING": "true", "PATH": "/usr/bin:/bin"},
    )
    return target / "site"


def environment() -> Path:
    """Return the Python of the environment with MkDocs; make it where it is missing."""
    key = hashlib.sha256(LOCK.read_bytes() + sys.version.encode()).hexdigest()[:16]
    folder = CACHE / key
    folder.mkdir(parents=True, exist_ok=True)
    python = folder / "bin/python"
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # The last step: without it, making the environment was cut off.
        if not (folder / ".ready").exists():
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            locked = ["--require-hashes", "-r", str(LOCK)]
            subprocess.run([python, *install, *locked], check=True, timeout=LIMIT_SECONDS)
            (folder / ".ready").touch()
    return python
