"""The folder of Spark's event logs, which Spark itself does not make."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from odradek_spark import storage
from odradek_spark.config import JobConfigError
from tests.support.s3_store import ACCESS_KEY, SECRET_KEY, S3Store


def test_folder_of_event_logs_is_made_where_it_is_missing(
    spark: SparkSession, store: S3Store, tmp_path: Path
) -> None:
    url = f"{store.url}/events/deep"
    keys = {"access.key": ACCESS_KEY, "secret.key": SECRET_KEY}
    conf = {
        **store.spark_conf,
        **{f"spark.hadoop.fs.s3a.{name}": value for name, value in keys.items()},
    }
    for _ in range(2):
        storage.make_event_log_folder(conf, url)
        storage.make_event_log_folder({}, str(tmp_path / "a" / "b"))
    path = spark._jvm.org.apache.hadoop.fs.Path(url)  # type: ignore[union-attr]
    status = path.getFileSystem(spark._jsc.hadoopConfiguration()).getFileStatus(path)
    assert status.isDirectory()
    (tmp_path / "file").write_text("")
    with pytest.raises(JobConfigError, match="eventLog"):
        storage.make_event_log_folder({}, str(tmp_path / "file" / "c"))
    with pytest.raises(JobConfigError, match="no client"):
        storage.make_event_log_folder({}, "abfs://a@b/c")
