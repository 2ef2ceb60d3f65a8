"""What a broker freezes, checked in a process of its own.

These checks look through every object, and a worker that has collected all tests has millions.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CHECKS = Path(__file__).with_name("long_lived_checks.py")


def test_replicas_are_frozen_and_freed_when_they_are_deleted() -> None:
    alone = {key: text for key, text in os.environ.items() if not key.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CHECKS)],
        env=alone,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout
