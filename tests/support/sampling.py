"""How much of the expensive tests runs: a sample for every change, everything in `make chaos`.

ODRADEK_FULL_COUNTS=1 asks for everything. Tests that are expensive as a whole have the marker
`full` and are collected only then (`tests/conftest.py`). It names the test of the same mechanism
that runs for every change; `tests/layout/test_samples.py` looks whether it does.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

FULL = bool(os.environ.get("ODRADEK_FULL_COUNTS"))

Case = TypeVar("Case")


def how_many(sample: int, *, full: int) -> int:
    """Return how often a test that tries cases by chance does so."""
    return full if FULL else sample


def some_of(cases: Sequence[Case], sample: Sequence[Case]) -> Sequence[Case]:
    """Return all cases of a matrix, or those of the sample, which are some of them."""
    assert all(case in cases for case in sample), "a sample is a part of all cases"
    return cases if FULL else sample
