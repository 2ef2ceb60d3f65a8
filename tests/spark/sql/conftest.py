"""A cluster, and the environment of shells, which take a JVM one after the other."""

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
def environment(
    tmp_path_factory: pytest.TempPathFactory, drivers_jvm: spark_jvm.SharedJvm
) -> Mapping[str, str]:
    """The environment of shells: a home of their own, and the JVM with its jars."""
    drivers_jvm.clear()
    return {
        **os.environ,
        "HOME": str(tmp_path_factory.mktemp("home")),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        **drivers_jvm.environment,
    }
