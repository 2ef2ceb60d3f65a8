"""Changes of a streaming query that its state does not survive: one rule for operator and jobs.

State in a Spark checkpoint has no names. Spark 4.0 refuses another number or type of grouping keys
and aggregates, other stateful operators, and another number of sources. It reads state of the same
types as if it belonged to the new query: `group by user` goes on with the counts of `group by
page`, `sum(m)` with those of `sum(n)`, windows of five minutes with those of one, a join with rows
by the former key. A query that goes from append to complete shows no window that was closed before.
And it ignores another number of shuffle partitions, or state store. So whatever may change what the
state means counts as a change, except what provably does not: white space and comments of the SQL,
columns added to the end of the schema, topics added, and another delay of the watermark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

# The reason of a refusal, for conditions.
REASON: Final = "StatefulQueryChanged"
NEW_CHECKPOINT: Final = "NewCheckpoint"
KEEP_STATE: Final = "KeepState"

# Properties whose first value a checkpoint keeps: Spark ignores another one.
_FIXED_PROPERTIES: Final = frozenset(
    {
        "spark.sql.shuffle.partitions",
        "spark.sql.streaming.aggregation.stateFormatVersion",
        "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion",
        "spark.sql.streaming.join.stateFormatVersion",
        "spark.sql.streaming.multipleWatermarkPolicy",
        "spark.sql.streaming.stateStore.compression.codec",
        "spark.sql.streaming.stateStore.encodingFormat",
        "spark.sql.streaming.stateStore.providerClass",
        "spark.sql.streaming.stateStore.rocksdb.formatVersion",
        "spark.sql.streaming.statefulOperator.useStrictDistribution",
    }
)
_SQL_PART: Final = re.compile(
    r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`"  # kept as they are
    r"|(?P<blank>(?:\s|--[^\n]*|/\*(?!\+).*?\*/)+)"
    r"|.",
    re.DOTALL,
)

Definition = Mapping[str, Any]


def definition(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return of a job file what its state depends on, by the names that users know; JSON."""
    job = document["job"]
    properties = job.get("sparkConf") or {}
    found = {
        "spec.topics": sorted(document.get("topics") or ()),
        "spec.topicPattern": document.get("topicPattern"),
        "spec.job.format": job.get("format") or "json",
        "spec.job.schema": job.get("schema"),
        "spec.job.sql": job.get("sql"),
        "spec.job.python": job.get("python"),
        "spec.job.outputMode": job.get("outputMode"),
        "spec.job.watermark.column": (job.get("watermark") or {}).get("column"),
    }
    for name in sorted(_FIXED_PROPERTIES & set(properties)):
        found[f"spec.job.sparkConf.{name}"] = properties[name]
    return {name: value for name, value in found.items() if value}


def changes(before: Definition, now: Definition) -> tuple[str, ...]:
    """Return the fields that differ so that state of the query `before` means something else."""
    return tuple(
        name
        for name in sorted(before.keys() | now.keys())
        if not _is_same(name, before.get(name), now.get(name))
    )


def _is_same(name: str, before: Any, now: Any) -> bool:
    if before == now:
        return True
    if before is None or now is None:
        return False
    match name:
        case "spec.job.sql":
            return _words(before) == _words(now)
        case "spec.job.schema":
            return _schema(now) == _schema(before) or _schema(now).startswith(f"{_schema(before)},")
        case "spec.topics":
            return set(before) <= set(now)
        case _:
            return False


def _words(sql: str) -> str:
    """Return a query without comments, and with one space where it has any space."""
    parts = _SQL_PART.finditer(sql)
    return "".join(" " if one["blank"] else one[0] for one in parts).strip()


def _schema(text: str) -> str:
    """Return a DDL string with single spaces, or an Avro schema in one form of JSON."""
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except ValueError:
        return re.sub(r"\s*,\s*", ",", " ".join(text.split()))


def request_id(document: Mapping[str, Any]) -> str | None:
    """Return the id of the migration that a job file asks for."""
    found: str | None = (document["job"].get("migration") or {}).get("requestId")
    return found


def refusal(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return why a job with state in its checkpoint cannot become `now`; both are job files.

    None: its state means the same, or the new job says what becomes of it, or its checkpoint is
    another one.
    """
    if request_id(now) not in (None, request_id(before)) or _place(before) != _place(now):
        return None
    changed = changes(definition(before), definition(now))
    return advice(changed) if changed else None


def _place(document: Mapping[str, Any]) -> tuple[str | None, bool]:
    url = document.get("checkpointUrl")
    return url, url is None and bool(document.get("claimName"))


def advice(changed: tuple[str, ...]) -> str:
    """Return one line about fields that changed, and what users can do."""
    verb = "was" if len(changed) == 1 else "were"
    return (
        f"{', '.join(changed)} {verb} changed, and the checkpoint has state of the former query; "
        f"take the change back, or give spec.job.migration a new requestId with strategy "
        f"{NEW_CHECKPOINT} (the state starts empty) or {KEEP_STATE} (it means the same)"
    )
