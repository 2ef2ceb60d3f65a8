"""Applies the user's transformation: SQL over views, or a Python function, on a DataFrame.

Nothing here reads or writes: the same functions transform a static DataFrame in tests and the
stream in a driver.
"""

import importlib
from collections.abc import Callable

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql.types import TimestampType

from odradek_spark import config, sources
from odradek_spark.errors import JobError

# What a function raises that is wrong itself. Other errors may come from what it reads.
_MISTAKES = (
    ImportError,
    SyntaxError,
    NameError,
    AttributeError,
    TypeError,
    ValueError,
    LookupError,
    AssertionError,
    NotImplementedError,
)


def transform(records: DataFrame, job: config.Job, topics: tuple[str, ...]) -> DataFrame:
    """Return the DataFrame for the sink. Each of `topics` gets a view.

    Raises JobConfigError if the watermark, the SQL or the function does not fit the records, and
    JobError if the SQL names a topic that a pattern may match later.
    """
    pipeline = job.pipeline
    if pipeline.watermark is not None:
        records = with_watermark(records, pipeline.watermark)
    sources.register_views(records, topics)
    result: object = records
    try:
        if pipeline.sql is not None:
            result = records.sparkSession.sql(pipeline.sql)
        elif pipeline.python is not None:
            result = _call(pipeline.python, records)
    except AnalysisException as error:  # a ParseException is one, too
        if job.topic_pattern is not None and error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
            # A topic that is created later may be the view's.
            raise JobError(f"the query: {sources.first_line(error)}") from error
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


def _call(reference: str, records: DataFrame) -> object:
    function = load_function(reference)
    try:
        return function(records)
    except _MISTAKES as error:
        raise _mistake(reference, error) from error


def _mistake(reference: str, error: Exception) -> config.JobConfigError:
    kind, text = type(error).__name__, sources.first_line(error)
    return config.JobConfigError(f"job.python {reference}: {kind}: {text}")


def load_function(reference: str) -> Callable[[DataFrame], object]:
    """Return the function that `module:function` names; raises JobConfigError."""
    module_name, _, function_name = reference.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except _MISTAKES as error:
        raise _mistake(reference, error) from error
    if not callable(function):
        raise config.JobConfigError(f"job.python {reference} is not a function")
    found: Callable[[DataFrame], object] = function
    return found


def output_mode(result: DataFrame, requested: str | None, sink: config.Sink) -> str:
    """Return append, update or complete.

    Without a request it is append if Spark accepts that, then update if the sink has upsertKeys,
    and complete otherwise: an aggregation without a watermark is never final, so each batch writes
    the whole result. A delta sink with mergeKeys takes mode update. The answer comes from Spark's
    own check at the start of a query. Raises JobConfigError.
    """
    upserts = isinstance(sink, config.JdbcSink) and bool(sink.upsert_keys)
    once = config.ParquetSink | config.IcebergSink | config.JdbcSink
    takes_rows_once = isinstance(sink, once) and not upserts
    if requested == "update" and takes_rows_once:
        raise config.JobConfigError(
            "outputMode update needs a sink that takes changes: delta, topic, console, or jdbc with"
            " upsertKeys"
        )
    if isinstance(sink, config.DeltaSink):
        requested = _delta_mode(requested, sink)
    if requested is not None:
        refusal = _refusal(result, requested)
        if refusal is not None:
            raise config.JobConfigError(f"outputMode {requested}: {refusal}")
        return requested
    append_refusal = _refusal(result, "append")
    if append_refusal is None:
        return "append"
    if upserts and _refusal(result, "update") is None:
        return "update"
    if _refusal(result, "complete") is None:
        return "complete"
    raise config.JobConfigError(f"the query cannot be streamed: {append_refusal}")


def _delta_mode(requested: str | None, sink: config.DeltaSink) -> str | None:
    if sink.merge_keys and requested not in (None, "update"):
        raise config.JobConfigError(
            f"job.sink.delta.mergeKeys goes with outputMode update, not {requested}"
        )
    if requested == "update" and not sink.merge_keys:
        raise config.JobConfigError("outputMode update into delta needs job.sink.delta.mergeKeys")
    return "update" if sink.merge_keys else requested


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
