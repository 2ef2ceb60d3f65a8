"""Finds the jars of Spark's Kafka connector, which pyspark does not have."""

import importlib.resources
import importlib.util
import os
from pathlib import Path

_CONNECTOR = "spark-sql-kafka-0-10_*.jar"
# Of the wheel odradek-spark-jars (operator/spark_jars), which `odradek[all]` installs.
_PACKAGE = "odradek_spark_jars"


class MissingJarsError(Exception):
    """The connector is not there; one line for the user."""


def jars(given: str | None) -> list[Path]:
    """Return the jars to add: those that are given, or of the package odradek-spark-jars.

    There are none to add where Spark has the connector, as in the image. `given` is a folder of
    jars, or their paths with commas between them. Raises MissingJarsError if the connector is in
    none of them.
    """
    if given:
        found = _listed(given)
        if any(jar.match(_CONNECTOR) for jar in found):
            return found
        raise MissingJarsError(f"{given} has no {_CONNECTOR}")
    spec = importlib.util.find_spec("pyspark")
    home = os.environ.get("SPARK_HOME") or (spec and spec.origin and str(Path(spec.origin).parent))
    if home and any(Path(home, "jars").glob(_CONNECTOR)):
        return []
    if importlib.util.find_spec(_PACKAGE) is not None:
        found = sorted(Path(str(importlib.resources.files(_PACKAGE))).glob("*.jar"))
        if any(jar.match(_CONNECTOR) for jar in found):
            return found
    raise MissingJarsError(
        "Spark's Kafka connector is missing: install odradek-spark-jars, or name the folder of its "
        "jars with --jars or ODRADEK_SPARK_JARS (docs/walkthrough.md says how to get them)"
    )


def _listed(given: str) -> list[Path]:
    found = []
    for text in given.split(","):
        try:
            path = Path(text.strip()).expanduser()
        except RuntimeError as error:  # the home of a user who has none
            raise MissingJarsError(f"cannot use {text.strip()}: {error}") from error
        found += sorted(path.glob("*.jar")) if path.is_dir() else [path]
    missing = [str(path) for path in found if not path.is_file()]
    if missing:
        raise MissingJarsError(f"{missing[0]} is neither a jar nor a folder of jars")
    return [path.absolute() for path in found]
