"""One Spark session with the connector for the whole folder; driver processes have their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.support import spark_jars


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "640m")
        .config("spark.driver.extraJavaOptions", " ".join(spark_jars.java_options()))
        .config("spark.jars", ",".join(map(str, spark_jars.connector_jars())))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
