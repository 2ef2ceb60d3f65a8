"""One JVM with Spark for Python processes that take it one after the other."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

from odradek_spark import cluster_conf
from tests.support import spark_jars

# How the program of a process begins that takes the JVM and is called by it. Java tells Python of
# each of its objects that it no longer needs, by a number: if all processes counted from 0, one
# would be told of objects of those before it, and forget its own.
TAKING = """
import os
from py4j import java_gateway

class Pool(java_gateway.PythonProxyPool):
    def __init__(self):
        super().__init__()
        self.next_id = os.getpid() << 32

java_gateway.PythonProxyPool = Pool
"""


class SharedJvm:
    """A running JVM; `environment` is what makes a Python process take it."""

    def __init__(self, gateway: Any) -> None:
        self._gateway = gateway
        self._taken = False
        parameters = gateway.java_parameters
        self.environment: Mapping[str, str] = {
            "SPARK_HOME": str(spark_jars.home()),
            "PYSPARK_GATEWAY_PORT": str(parameters.port),
            "PYSPARK_GATEWAY_SECRET": parameters.auth_token,
        }

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Let the Spark session that this process begins meanwhile have the JVM from now on."""
        self.clear()
        self._taken = True
        exec(TAKING, {})
        with mock.patch.dict(os.environ, self.environment):
            yield

    def clear(self) -> None:
        """Remove what a process left that is gone: its context if it was killed, and caches."""
        assert not self._taken, "a session of the tests' own process has this JVM until the end"
        jvm = self._gateway.jvm
        companion = getattr(getattr(jvm.org.apache.spark, "SparkContext$"), "MODULE$")
        context = companion.getActive()
        if context.isDefined():
            context.get().stop()
        jvm.org.apache.spark.sql.classic.SparkSession.clearActiveSession()
        jvm.org.apache.spark.sql.classic.SparkSession.clearDefaultSession()
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        jvm.org.apache.hadoop.fs.FileSystem.closeAll()


@contextlib.contextmanager
def shared(folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[SharedJvm]:
    """Yield a JVM for Python processes that take it one after the other.

    Each of them stops its session before it ends, or the JVM is cleared. What the JVM says and
    leaves goes to the folder.
    """
    settings = {
        **spark_jars.INTERPRETED,
        **cluster_conf.JAVA_OPTIONS,
        "spark.driver.memory": "640m",
        "spark.driver.extraJavaOptions": " ".join(spark_jars.java_options()),
    }
    own = {
        **(environment or {}),
        "SPARK_HOME": str(spark_jars.home()),
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_LAUNCHER_OPTS": " ".join(spark_jars.QUICK),
    }
    with (folder / "jvm.log").open("wb") as log, mock.patch.dict(os.environ, own):
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        output = {"stdout": log, "stderr": log, "cwd": folder}
        gateway = launch_gateway(conf, output)  # type: ignore[no-untyped-call]
    try:
        yield SharedJvm(gateway)
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(60)
