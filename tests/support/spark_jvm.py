"""One JVM with Spark for Python processes that take it one after the other."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest import mock

from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

from tests.support import spark_jars


@contextlib.contextmanager
def shared(folder: Path) -> Iterator[Mapping[str, str]]:
    """Yield the environment of Python processes that take one JVM, one after the other.

    Each of them stops its session before it ends. What the JVM says goes to a file in the folder.
    """
    settings = {
        "spark.driver.memory": "640m",
        "spark.driver.extraJavaOptions": " ".join(spark_jars.java_options()),
    }
    own = {"SPARK_HOME": str(spark_jars.home())}
    with (folder / "jvm.log").open("wb") as log, mock.patch.dict(os.environ, own):
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        gateway = launch_gateway(conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
    parameters = gateway.java_parameters
    try:
        yield {
            **own,
            "PYSPARK_GATEWAY_PORT": str(parameters.port),
            "PYSPARK_GATEWAY_SECRET": parameters.auth_token,
        }
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(60)
