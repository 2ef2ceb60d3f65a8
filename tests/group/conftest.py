"""A coordinator of groups on a real log, where offsets are committed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.offsets_in_transactions import Coordinating
from tests.support.replicas import Replicas


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[Replicas]:
    async with Replicas(tmp_path, offset_metadata_max_bytes="10") as built:
        yield built


@pytest.fixture
async def coordinating(replicas: Replicas) -> AsyncIterator[Coordinating]:
    """A coordinator where group g has committed offset 1 in the partition 0."""
    built = Coordinating(replicas)
    await built.start()
    await built.commit({0: 1})
    yield built
    built.coordinator.close()
