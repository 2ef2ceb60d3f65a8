"""Finds a Java that can run Spark and ZooKeeper."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from odradek import thread_errors
from odradek_local.errors import LocalError

OLDEST: Final = 17
_HOW: Final = (
    "install it with `apt-get install openjdk-21-jre-headless`, `dnf install "
    "java-21-openjdk-headless`, or without root from "
    "https://adoptium.net, and set JAVA_HOME"
)
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')


def find() -> Path:
    """Return the program: JAVA_HOME's, or that on the PATH. Raises LocalError."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if found is None:
        raise LocalError(f"Java {OLDEST} or later is missing: {_HOW}")
    where = f"JAVA_HOME {home}" if home else found
    try:
        told = subprocess.run(
            [found, "-Xshare:auto", "-version"],
            capture_output=True,
            text=True,
            check=False,
            # Ctrl-C is not for it: it would look as if this Java did not run.
            start_new_session=True,
        )
    except OSError as error:
        if thread_errors.is_no_process(error):
            raise LocalError(thread_errors.NO_THREAD, 1) from error
        raise LocalError(f"{where} has no Java that runs ({error.strerror}): {_HOW}") from error
    version = _VERSION.search(told.stderr)
    if told.returncode or version is None:
        raise LocalError(f"{where} has no Java that runs: {_HOW}")
    if int(version[1]) < OLDEST:
        raise LocalError(f"{where} is Java {version[1]}, and {OLDEST} or later is needed: {_HOW}")
    return Path(found)
