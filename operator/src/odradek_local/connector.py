"""How Spark starts here: fast, with its Kafka connector from a folder or package, or fetched."""

from __future__ import annotations

import importlib.metadata
import os
import shlex
from collections.abc import Mapping
from typing import Final

from odradek_local.errors import LocalError
from odradek_spark import connector

# A first look is over before the optimizing compiler would help, or a collector with threads.
_QUICK: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
_ARGUMENTS: Final = "PYSPARK_SUBMIT_ARGS"
_FETCH: Final = "--packages"
_COORDINATES: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13"
# Since Spark 4.0, which has another version of Ivy.
FETCHED_TO: Final = "~/.ivy2.5.2"


def environment(given: str | None) -> Mapping[str, str]:
    """Return the environment of a driver; Spark fetches the connector where nobody has brought it.

    Options that the user has set for Spark's JVM stay. Raises LocalError if `given` has no
    connector.
    """
    return {_OPTIONS: os.environ.get(_OPTIONS) or _QUICK, **_arguments(given)}


def _arguments(given: str | None) -> Mapping[str, str]:
    try:
        jars = connector.jars(given)
    except connector.MissingJarsError as error:
        if given:
            raise LocalError(str(error)) from error
        version = importlib.metadata.version("pyspark")
        return {_ARGUMENTS: f"{_FETCH} {_COORDINATES}:{version} pyspark-shell"}
    if not jars:
        return {}
    path = ":".join(map(str, jars))
    return {_ARGUMENTS: f"--driver-class-path {shlex.quote(path)} pyspark-shell"}


def is_fetched(environment: Mapping[str, str]) -> bool:
    """Return whether Spark fetches the connector."""
    return environment.get(_ARGUMENTS, "").startswith(_FETCH)
