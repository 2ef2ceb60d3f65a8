"""Programs on a machine that lets them start no process and no thread."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_LIMITED: Final = ["prlimit", "--nproc=0", "--"]
_NOBODY: Final = 65534
# There is no limit for root, whose Python the program may need: it may use any file, and nothing
# else that root may.
_CAPABILITIES: Final = "-all,+dac_override,+dac_read_search"
_AS_NOBODY: Final = [
    *("setpriv", "--reuid", str(_NOBODY), "--clear-groups"),
    *(f"--inh-caps={_CAPABILITIES}", f"--ambient-caps={_CAPABILITIES}", "--"),
]


@contextmanager
def folder() -> Iterator[Path]:
    """Yield a folder that such a program finds its own."""
    with tempfile.TemporaryDirectory() as name:
        if os.geteuid() == 0:
            os.chown(name, _NOBODY, _NOBODY)
        yield Path(name)


def run(
    words: list[str], *, is_limited: bool = True, environment: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Run a program to its end; return its status and what it said.

    Without `is_limited` only its user is one for whom such a limit would hold.
    """
    done = subprocess.run(
        [*(_AS_NOBODY if os.geteuid() == 0 else []), *(_LIMITED if is_limited else []), *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        timeout=120,
    )
    return done.returncode, done.stdout, done.stderr
