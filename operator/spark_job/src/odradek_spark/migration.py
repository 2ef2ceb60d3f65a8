"""Decides whether a query may go on with the state in its checkpoint, or begins a new one.

A file beside Spark's own in the checkpoint records what its state depends on
(`odradek.stateful_query`), and the id of the last migration. The operator refuses a changed query
before it stops the driver of the former one. This is for what the operator does not see: a
ConsumerGroup that was made anew over a claim that was kept, and Python code that changed behind the
same name, which shows in Spark's plan.

The record changes only once a batch of the new query is written, or once the old checkpoint is
gone. So a query that Spark refuses leaves the record to the former one.
"""

import json
import re
from typing import Any

from pyspark.sql import DataFrame

from odradek import stateful_query
from odradek_spark import config, offsets
from odradek_spark.errors import JobStalledError
from odradek_spark.storage import StorageFolder

_RECORD = "odradek_query.json"
# What Spark says of state that is not the query's; the last is about sources.
_SPARKS_REFUSALS = (
    "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
    "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
    "sources in the checkpoint offsets and now there are",
)
# Nodes of a streaming plan that keep state; a join does if both of its sides are streams.
_STATEFUL = re.compile(
    r"Aggregate|Distinct|Deduplicate\w*|FlatMapGroups\w*|TransformWithState\w*|GlobalLimit"
)
_PYTHON = "spec.job.python"


def wants_new_checkpoint(checkpoint: StorageFolder, job: config.Job) -> bool:
    """Return whether the job asks for a new checkpoint, at the start of a query.

    Raises JobStalledError if the state is another query's, and the job does not say what becomes of
    it.
    """
    recorded = _read(checkpoint)
    if _is_wanted(recorded, job):
        return job.migration == stateful_query.NEW_CHECKPOINT
    changed = stateful_query.changes(recorded.get("definition", job.definition), job.definition)
    if changed and offsets.has_state(checkpoint):
        raise _refusal(stateful_query.advice(changed))
    return False


def is_recorded(checkpoint: StorageFolder, job: config.Job) -> bool:
    """Return whether the record says that the checkpoint is this query's; never of Python, which
    may have changed behind its name.
    """
    recorded = _read(checkpoint)
    same = recorded.get("definition") == job.definition and not _is_wanted(recorded, job)
    return same and job.pipeline.python is None


def is_unknown(checkpoint: StorageFolder) -> bool:
    """Return whether nothing is recorded: the checkpoint is new, or of an earlier release."""
    return not _read(checkpoint)


def require_same_plan(checkpoint: StorageFolder, job: config.Job, result: DataFrame) -> None:
    """Raise JobStalledError if a Python function of the same name makes another query now.

    Its plan is compared with that of the last start, if Spark's version is the same.
    """
    recorded = _read(checkpoint)
    former = recorded.get("plan")
    if former is None or _is_wanted(recorded, job) or recorded["definition"] != job.definition:
        return
    now = _plan(result)
    is_other = former["spark"] == now["spark"] and former["text"] != now["text"]
    if is_other and offsets.has_state(checkpoint):
        raise _refusal(stateful_query.advice((f"the function of {_PYTHON}",)))


def needs_new_checkpoint(checkpoint: StorageFolder, result: DataFrame) -> bool:
    """Return whether Spark could not go on from a checkpoint that has no state to lose.

    It loads the state of the last batch for a query that keeps some, and takes the offsets of as
    many sources as there were.
    """
    sources = offsets.source_count(checkpoint)
    if sources is None or offsets.has_state(checkpoint):
        return False
    return _keeps_state(_node(result)) or sources != _source_count(_node(result))


def begin(checkpoint: StorageFolder, job: config.Job) -> None:
    """Delete a checkpoint, and record the job in what is the next one. No query may be running.

    Until the rest is gone, the former record says whose it is: who dies in between begins again.
    """
    value = _value(checkpoint, job)
    offsets.discard(checkpoint, kept=_RECORD)
    checkpoint.write(_RECORD, json.dumps(value))


def record(checkpoint: StorageFolder, job: config.Job, result: DataFrame) -> None:
    """Record that the checkpoint is this job's, once it has a batch of it."""
    value = _value(checkpoint, job)
    if job.pipeline.python is not None:
        value["plan"] = _plan(result)
    checkpoint.write(_RECORD, json.dumps(value))


def _value(checkpoint: StorageFolder, job: config.Job) -> dict[str, Any]:
    # An id that was taken out of the spec must not count anew when it comes back.
    request = job.migration_id or _read(checkpoint).get("requestId")
    return {"definition": dict(job.definition), "requestId": request}


def refused_by_spark(text: str) -> JobStalledError | None:
    """Return the error for a query that failed with this text because of its state, or None."""
    found = next((one for one in _SPARKS_REFUSALS if one in text), None)
    if found is None:
        return None
    told = stateful_query.advice(("the query",))
    return _refusal(f"Spark refuses the checkpoint ({found}): {told}")


def _refusal(text: str) -> JobStalledError:
    return JobStalledError(stateful_query.REASON, text)


def _read(checkpoint: StorageFolder) -> dict[str, Any]:
    text = checkpoint.read(_RECORD)
    return {} if text is None else dict(json.loads(text))


def _is_wanted(recorded: dict[str, Any], job: config.Job) -> bool:
    return job.migration_id not in (None, recorded.get("requestId"))


def _plan(result: DataFrame) -> dict[str, str]:
    """Return Spark's version, and the query's plan without sources and numbers of columns."""
    lines = str(_node(result).toString()).splitlines()
    # The delay of a watermark may change.
    kept = [line for line in lines if not re.search("StreamingRelation|EventTimeWatermark", line)]
    text = re.sub(r"#\d+L?|@[0-9a-f]+", "", "\n".join(kept))
    return {"spark": result.sparkSession.version, "text": text}


def _node(result: DataFrame) -> Any:
    return result._jdf.queryExecution().analyzed()


def _children(node: Any) -> list[Any]:
    return [node.children().apply(number) for number in range(node.children().size())]


def _source_count(node: Any) -> int:
    """Return how many streams a plan names; Spark counts one that is named twice as two."""
    children = _children(node)
    return sum(map(_source_count, children)) if children else int(node.isStreaming())


def _keeps_state(node: Any) -> bool:
    if not node.isStreaming():
        return False
    children = _children(node)
    name = str(node.getClass().getSimpleName())
    joins = name == "Join" and all(child.isStreaming() for child in children)
    return bool(_STATEFUL.fullmatch(name)) or joins or any(map(_keeps_state, children))
