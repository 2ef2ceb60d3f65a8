"""Applies the user's transformation: SQL over views, or a Python function, on a DataFrame.

Nothing here reads or writes: the same functions transform a static DataFrame in tests and the
stream in a driver.
"""

import importlib
from collections.abc import Callable

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame
from pyspark.sql.types import TimestampType

from odradek_spark import config, sources


def transform(records: DataFrame, job: config.Job, topics: tuple[str, ...]) -> DataFrame:
    """Return the DataFrame for the sink. Each of `topics` gets a view.

    Raises JobConfigError if the watermark, the SQL or the function does not fit the records.
    """
    pipeline = job.pipeline
    if pipeline.watermark is not None:
        records = with_watermark(records, pipeline.watermark)
    sources.register_views(records, topics)
    try:
        if pipeline.sql is not None:
            result = records.sparkSession.sql(pipeline.sql)
        elif pipeline.python is not None:
            result = load_function(pipeline.python)(records)
        else:
            result = records
    except (AnalysisException, ParseException) as error:
        raise config.JobConfigError(f"the query: {sources.first_line(error)}") from error
    if not isinstance(result, DataFrame):
        kind = type(result).__name__
        raise config.JobConfigError(
            f"job.python {pipeline.python} returned {kind}, not a DataFrame"
        )
    return result


def with_watermark(records: DataFrame, watermark: config.Watermark) -> DataFrame:
    """Set the watermark; raises JobConfigError if the column is no timestamp."""
    column = watermark.column
    if column not in records.columns:
        raise config.JobConfigError(f"job.watermark.column {column} is not among the columns")
    if not isinstance(records.schema[column].dataType, TimestampType):
        raise config.JobConfigError(f"job.watermark.column {column} is not a timestamp")
    return records.withWatermark(column, watermark.delay)


def load_function(reference: str) -> Callable[[DataFrame], DataFrame]:
    """Return the function that `module:function` names; raises JobConfigError."""
    module_name, _, function_name = reference.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise config.JobConfigError(f"job.python {reference}: {error}") from error
    if not callable(function):
        raise config.JobConfigError(f"job.python {reference} is not a function")
    found: Callable[[DataFrame], DataFrame] = function
    return found


def output_mode(result: DataFrame, requested: str | None, sink: config.Sink) -> str:
    """Return append, update or complete.

    Without a request it is append if Spark accepts that, and complete otherwise: an aggregation
    without a watermark is never final, so each batch writes the whole result. The answer comes from
    Spark's own check at the start of a query. Raises JobConfigError.
    """
    if requested == "update" and isinstance(sink, config.ParquetSink | config.JdbcSink):
        raise config.JobConfigError(
            "outputMode update needs a sink that takes changes: topic or console"
        )
    if requested is not None:
        refusal = _refusal(result, requested)
        if refusal is not None:
            raise config.JobConfigError(f"outputMode {requested}: {refusal}")
        return requested
    append_refusal = _refusal(result, "append")
    if append_refusal is None:
        return "append"
    if _refusal(result, "complete") is None:
        return "complete"
    raise config.JobConfigError(f"the query cannot be streamed: {append_refusal}")


def _refusal(result: DataFrame, mode: str) -> str | None:
    jvm = result.sparkSession._jvm
    assert jvm is not None
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    try:
        checker.checkForStreaming(
            result._jdf.queryExecution().analyzed(), getattr(modes, mode.capitalize())()
        )
    except AnalysisException as error:
        return sources.first_line(error)
    return None
