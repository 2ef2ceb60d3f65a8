"""Which changes of a query its state survives, as a pure decision."""

from __future__ import annotations

from typing import Any

import pytest

from odradek import stateful_query

SQL = "select page, count(*) as n from records group by page"


def job_file(topics: tuple[str, ...] = ("t",), **job: Any) -> dict[str, Any]:
    named = {"checkpointUrl": job.pop("checkpointUrl")} if "checkpointUrl" in job else {}
    body = {"sql": SQL, "schema": "page string, n int", "sink": {"console": {}}, **job}
    return {
        "topics": list(topics),
        "topicPattern": None,
        "claimName": "g-data",
        "job": body,
    } | named


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"sql": SQL.replace("group by page", "group by user")}, "spec.job.sql"),
        ({"sql": SQL.replace("count", "COUNT")}, "spec.job.sql"),
        ({"sql": f"{SQL} -- '"}, None),
        ({"sql": SQL.replace(", ", ",/* how\noften */").replace(" from", "\n\tfrom")}, None),
        ({"sql": "select page, '--' from records"}, "spec.job.sql"),
        ({"sql": None, "python": "a:b"}, "spec.job.python, spec.job.sql"),
        ({"schema": "page string, n bigint"}, "spec.job.schema"),
        ({"schema": "n int, page string"}, "spec.job.schema"),
        ({"schema": "page  string,n int, user string"}, None),
        ({"schema": "page string, n interval"}, "spec.job.schema"),
        ({"schema": None}, "spec.job.schema"),
        ({"format": "csv"}, "spec.job.format"),
        ({"format": "json"}, None),
        ({"outputMode": "append"}, "spec.job.outputMode"),
        ({"watermark": {"column": "at", "delay": "1 minute"}}, "spec.job.watermark.column"),
        ({"topics": ("t", "u")}, None),
        ({"topics": ("u",)}, "spec.topics"),
        (
            {"sparkConf": {"spark.sql.shuffle.partitions": "9"}},
            "spec.job.sparkConf.spark.sql.shuffle.partitions",
        ),
        ({"sparkConf": {"spark.sql.streaming.minBatchesToRetain": "9"}}, None),
        ({"executors": {"instances": 9, "cores": 4}, "trigger": "1h"}, None),
        ({"sink": {"topic": {"name": "out"}}}, None),
        ({"sql": "select 1", "checkpointUrl": "s3a://b/n/g"}, None),
    ],
)
def test_changes_that_state_does_not_survive_are_named(
    changed: dict[str, Any], named: str | None
) -> None:
    told = stateful_query.refusal(job_file(), job_file(**changed))
    assert (told.split(" was ")[0].split(" were ")[0] if told else None) == named


def test_delay_of_a_watermark_may_change_and_its_column_not() -> None:
    def marked(column: str, delay: str) -> dict[str, Any]:
        return job_file(watermark={"column": column, "delay": delay})

    assert stateful_query.refusal(marked("at", "1 minute"), marked("at", "2 minutes")) is None
    assert stateful_query.refusal(marked("at", "1 minute"), marked("to", "1 minute")) is not None


def test_migration_is_asked_for_by_a_new_id_only() -> None:
    def asked(request: str, **job: Any) -> dict[str, Any]:
        return job_file(migration={"requestId": request, "strategy": "NewCheckpoint"}, **job)

    other: dict[str, Any] = {"sql": "select count(*) from records"}
    assert stateful_query.refusal(job_file(), asked("a", **other)) is None
    assert stateful_query.refusal(asked("a"), asked("b", **other)) is None
    # The id of a former change says nothing of this one, nor does its removal.
    assert stateful_query.refusal(asked("a"), asked("a", **other)) is not None
    assert stateful_query.refusal(asked("a"), job_file(**other)) is not None
