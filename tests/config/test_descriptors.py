"""Descriptors are divided so that neither clients nor partitions can take all of them."""

import resource
import subprocess
import sys

import pytest

from odradek import descriptors


@pytest.mark.parametrize("limit", [64, 256, 1024, 20_000, 1_048_576, 2**31 - 1])
def test_something_is_left_for_what_cannot_wait(limit: int) -> None:
    parts = descriptors.divide(limit)
    assert parts.connections == limit // 2
    assert parts.log_files > 0
    assert limit - parts.connections - parts.log_files >= min(128, limit // 8)


def test_limit_is_raised_as_far_as_the_system_allows() -> None:
    program = (
        "import resource; from odradek import descriptors;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300));"
        "descriptors.raise_limit(); print(descriptors.budget())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(descriptors.divide(300))
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] != 300
