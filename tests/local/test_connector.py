"""Where Spark's connector comes from: a folder, Spark itself, a package, or Maven Central."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek_local import connector
from odradek_local.errors import LocalError

JAR = "spark-sql-kafka-0-10_2.13-4.0.0.jar"


def path_of(folder: Path) -> str:
    """Return the arguments of a driver that has the jar of a folder."""
    return f"--driver-class-path {shlex.quote(str(folder / JAR))} pyspark-shell"


@pytest.fixture(autouse=True)
def spark_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Spark without the connector."""
    home = tmp_path / "spark"
    (home / "jars").mkdir(parents=True)
    monkeypatch.setenv("SPARK_HOME", str(home))
    return home


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package of jars."""
    made = tmp_path / "installed/odradek_spark_jars"
    made.mkdir(parents=True)
    (made / "__init__.py").touch()
    (made / JAR).touch()
    monkeypatch.syspath_prepend(made.parent)
    yield made
    sys.modules.pop(made.name, None)


def test_without_folder_and_package_spark_fetches_the_connector() -> None:
    environment = connector.environment(None)
    assert connector.is_fetched(environment)
    assert "spark-sql-kafka-0-10_2.13:4.0.0" in environment["PYSPARK_SUBMIT_ARGS"]


def test_an_installed_package_is_taken_and_nothing_is_fetched(package: Path) -> None:
    environment = connector.environment(None)
    assert environment["PYSPARK_SUBMIT_ARGS"] == path_of(package)
    assert not connector.is_fetched(environment)


def test_a_package_without_the_connector_is_none(package: Path) -> None:
    (package / JAR).unlink()
    assert connector.is_fetched(connector.environment(None))


def test_a_folder_counts_more_than_the_package(package: Path, tmp_path: Path) -> None:
    folder = tmp_path / "jars"
    folder.mkdir()
    with pytest.raises(LocalError, match="has no spark-sql-kafka"):
        connector.environment(str(folder))
    (folder / JAR).touch()
    assert connector.environment(str(folder))["PYSPARK_SUBMIT_ARGS"] == path_of(folder)


def test_a_spark_with_the_connector_needs_no_package(package: Path, spark_home: Path) -> None:
    (spark_home / "jars" / JAR).touch()
    assert "PYSPARK_SUBMIT_ARGS" not in connector.environment(None)


def test_a_folder_with_an_apostrophe_is_one_argument(tmp_path: Path) -> None:
    folder = tmp_path / "o'brien's jars"
    folder.mkdir()
    (folder / JAR).touch()
    arguments = connector.environment(str(folder))["PYSPARK_SUBMIT_ARGS"]
    wanted = ["--driver-class-path", str(folder / JAR), "pyspark-shell"]
    assert shlex.split(arguments) == wanted


def test_a_folder_of_nobody_is_a_mistake() -> None:
    with pytest.raises(LocalError, match=r"^cannot use ~nobody-has-this-name/jars: "):
        connector.environment("~nobody-has-this-name/jars")
