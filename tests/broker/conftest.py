"""One broker that the tests of a module share, where they do not hurt it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import STEADY, Cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A single broker with automatic topic creation."""
    directory: Path = tmp_path_factory.mktemp("cluster")
    with Cluster(directory, settings=STEADY) as running:
        yield running
