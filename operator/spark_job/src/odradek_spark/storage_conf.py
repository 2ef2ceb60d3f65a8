"""The Spark properties of what a job stores, and where; pure."""

from odradek_spark.config import DeltaSink, Job

# Delta rewrites only files below this size, so that a row is not rewritten without end.
_OPTIMIZED_FILE_BYTES = 128 * 1024 * 1024


def storage_conf(job: Job, tasks: int) -> dict[str, str]:
    """Return the properties for the job's sink and checkpoint; `tasks` run at the same time."""
    conf: dict[str, str] = {}
    urls = [job.checkpoint]
    if isinstance(job.sink, DeltaSink):
        urls.append(job.sink.path)
        conf |= _delta(tasks)
    if job.event_log is not None:
        conf |= event_log_conf(job.event_log)
    if any(url.startswith("s3a://") for url in urls):
        # No driver replaces what another has committed (io.odradek.s3.PutIfAbsent).
        conf["spark.hadoop.fs.s3a.audit.enabled"] = "true"
        conf["spark.hadoop.fs.s3a.audit.execution.interceptors"] = "io.odradek.s3.PutIfAbsent"
    if job.checkpoint.startswith("s3a://"):
        # Spark's default writes a file and renames it, which is a copy on S3. This one uploads a
        # file when it is whole, or never.
        conf["spark.sql.streaming.checkpointFileManagerClass"] = (
            "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
        )
    return conf


def event_log_conf(url: str) -> dict[str, str]:
    """Return the properties for event logs in a folder, a URL or a path.

    A job without an end would fill one file for ever.
    """
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{url}" if url.startswith("/") else url,
        "spark.eventLog.rolling.enabled": "true",
        "spark.eventLog.compress": "true",
    }


def _delta(tasks: int) -> dict[str, str]:
    size = str(_OPTIMIZED_FILE_BYTES)
    return {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # The defaults are for large clusters: 50 tasks per look at a table, 10000 per clean-up.
        "spark.databricks.delta.snapshotPartitions": str(tasks),
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(tasks),
        "spark.databricks.delta.optimize.minFileSize": size,
        "spark.databricks.delta.optimize.maxFileSize": size,
    }
