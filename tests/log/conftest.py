"""What several tests of the log share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def without_fsync() -> Iterator[None]:
    """For tests that end processes, not machines: what was written is there, synced or not, and
    thousands of cases need not wait for the disk.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda fd: None)
        yield
