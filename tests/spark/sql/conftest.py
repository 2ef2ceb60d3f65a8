"""A cluster, and one JVM that every shell of the tests takes, one after the other."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support import spark_jvm
from tests.support.broker import STEADY, Cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), settings=STEADY) as running:
        yield running


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """The environment of shells: a home of their own, and the JVM with its jars."""
    folder = tmp_path_factory.mktemp("jvm")
    with spark_jvm.shared(folder) as jvm:
        yield {
            **os.environ,
            "HOME": str(folder),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            **jvm.environment,
        }
