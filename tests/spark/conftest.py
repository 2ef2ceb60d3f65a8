"""One JVM with the image's jars: for driver processes, and then for one Spark session."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.guarded_groups import Group, Run
from tests.support import broker, s3_store, spark_jars, spark_jvm
from tests.support.clients import create_topic
from tests.support.postgres import Postgres
from tests.support.s3_store import ACCESS_KEY, SECRET_KEY, S3Store
from tests.support.sampling import FULL


@pytest.fixture(scope="session")
def spark(
    drivers_jvm: spark_jvm.SharedJvm, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """A session in the JVM of drivers and shells, whose tests come before (`tests/conftest.py`).

    It has a JVM of its own in long runs, whose workers take tests in any order.
    """
    with contextlib.ExitStack() as stack:
        jvm = drivers_jvm
        if FULL:
            jvm = stack.enter_context(spark_jvm.shared(tmp_path_factory.mktemp("own-jvm")))
        session = new_session(jvm)
        yield session
        session.stop()


def new_session(jvm: spark_jvm.SharedJvm) -> SparkSession:
    """Begin a session in a JVM that nobody else takes any more."""
    with jvm.taken():
        session = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.shuffle.partitions", "2")
            .config(map={**spark_jars.INTERPRETED})
            .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
            .config(
                "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
            )
            .config("spark.databricks.delta.snapshotPartitions", "2")
            .config("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")
            .getOrCreate()
        )
    session.sparkContext.setLogLevel("ERROR")
    return session


@pytest.fixture(scope="session")
def drivers_jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[spark_jvm.SharedJvm]:
    """The JVM of drivers and shells, with the keys of the store that speaks S3."""
    with spark_jvm.shared(tmp_path_factory.mktemp("jvm"), s3_store.KEYS) as running:
        yield running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[broker.Cluster]:
    """One broker, for groups in both stores."""
    settings = {
        **broker.STEADY,
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "2",
        # A query that still asks for a deleted topic would create it.
        "auto.create.topics.enable": "false",
    }
    with broker.Cluster(tmp_path_factory.mktemp("cluster"), settings=settings) as running:
        yield running


@pytest.fixture
def group(cluster: broker.Cluster) -> Iterator[Callable[..., Group]]:
    made: list[Group] = []

    def make(partitions: int = 1, records: int = 0, **options: str) -> Group:
        name = f"g-{uuid.uuid4().hex[:8]}"
        create_topic(cluster.bootstrap, name, partitions=partitions)
        made.append(Group(cluster, name, **options))
        if records:
            made[-1].produce(records, partitions)
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[..., Run]]:
    made: list[Run] = []

    def make(one: Group, **job: object) -> Run:
        made.append(Run(one, spark, tmp_path, **job))
        return made[-1]

    yield make
    for each in made:
        each.finish()


@pytest.fixture(scope="session")
def store(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Store]:
    with S3Store(tmp_path_factory.mktemp("s3")) as running:
        conf = spark._jsc.hadoopConfiguration()
        settings = {
            **running.spark_conf,
            "spark.hadoop.fs.s3a.access.key": ACCESS_KEY,
            "spark.hadoop.fs.s3a.secret.key": SECRET_KEY,
            "spark.hadoop.fs.s3a.audit.enabled": "true",
            "spark.hadoop.fs.s3a.audit.execution.interceptors": "io.odradek.s3.PutIfAbsent",
        }
        for name, value in settings.items():
            conf.set(name.removeprefix("spark.hadoop."), value)
        yield running


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with Postgres() as running:
        yield running
