"""Runs pytest, and the few tests that failed once more, alone.

The suite starts some thousand processes on two processors, so a test can fail for want of time.
One that passes alone is named at the end as flaky, which is a fault of the test or of the product,
and is mended like any other. A run fails if a test fails twice, or tests of more than `MOST_FILES`
files fail: that is no accident. `python -m tests.second_try` takes pytest's arguments.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest

MOST_FILES: Final = 3


def worth_a_second_try(failed: Iterable[str]) -> bool:
    """Return whether these node ids come from few enough files."""
    return 0 < len({test.partition("::")[0] for test in failed}) <= MOST_FILES


def main(arguments: list[str]) -> int:
    """Run pytest with these arguments; return its exit code, 0 if the second try passed."""
    with tempfile.TemporaryDirectory() as cache:
        again = [*arguments, "-o", f"cache_dir={cache}"]
        code = _pytest(again)
        if code != pytest.ExitCode.TESTS_FAILED:
            return code
        failed = _failed(Path(cache))
        if not worth_a_second_try(failed):
            return code
        print(f"\n{len(failed)} failed: they run again, alone", flush=True)
        code = _pytest([*again, "--last-failed", "-n", "0"])
        if code == pytest.ExitCode.OK:
            print("FLAKY, passed on the second try only; mend the cause (CONTRIBUTING.md):")
            print("".join(f"  {test}\n" for test in failed), end="", flush=True)
        return code


def _pytest(arguments: list[str]) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


def _failed(cache: Path) -> list[str]:
    """Return the node ids that the run wrote into its cache."""
    path = cache / "v/cache/lastfailed"
    return sorted(json.loads(path.read_bytes())) if path.exists() else []


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
