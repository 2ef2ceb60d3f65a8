"""Replicas on disks between which they move."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.replica.moving_disks import Disks


@pytest.fixture
async def disks(tmp_path: Path) -> AsyncIterator[Disks]:
    async with Disks(tmp_path) as running:
        await running.replicas.lead()
        yield running
