"""What the table of a Topic needs, as a pure function."""

from __future__ import annotations

from typing import Any

import pytest

from odradek_operator.group.report import read_report
from odradek_operator.shared import spec
from odradek_operator.topic import table, topic_spec
from odradek_operator.topic.table import TableContext, TablePlaces, TablePlan
from tests.support import steps

URL = "s3a://lake/orders"


def topic(path: str | None = URL, *, name: str = "orders", **more: Any) -> dict[str, Any]:
    """A Topic that lands in a table; `more` are fields of it."""
    wanted: dict[str, Any] = {"clusterRef": {"name": "c"}}
    if path is not None:
        wanted["table"] = {"format": "delta", "path": path, **more}
    metadata = {
        "name": name,
        "namespace": "n",
        "uid": f"uid-{name}",
        "creationTimestamp": "2026-11-21T11:00:00Z",
    }
    return {"kind": "Topic", "metadata": metadata, "spec": wanted}


def plan(body: dict[str, Any], *others: dict[str, Any], **known: Any) -> TablePlan:
    """Plan a Topic beside ConsumerGroups and other Topics."""
    topics = [one for one in (body, *others) if "table" in one["spec"]]
    groups = {one["metadata"]["name"]: one for one in others if one["kind"] == "ConsumerGroup"}
    meta, wanted = spec.parse_meta(body), topic_spec.parse_topic(body)
    return table.plan(
        meta,
        wanted,
        body,
        TableContext(TablePlaces(topics), groups),
        exists=known.get("exists", True),
        paused=known.get("paused", False),
    )


def made(body: dict[str, Any], **status: Any) -> dict[str, Any]:
    """The ConsumerGroup of a Topic as the API server has it, with a status."""
    found = plan(body).apply
    assert found is not None
    metadata = {**found["metadata"], "generation": 3}
    return {**found, "metadata": metadata, "status": {"observedGeneration": 3, **status}}


def ready(status: str, reason: str, message: str = "") -> list[dict[str, str]]:
    return [{"type": "Ready", "status": status, "reason": reason, "message": message}]


def told(done: TablePlan) -> tuple[bool | None, str]:
    assert done.condition is not None
    assert done.condition.type == "TableReady"
    return done.condition.status, done.condition.reason


def test_topic_gets_a_group_of_its_own_with_the_job_that_lands_it() -> None:
    secret = {"name": "s3"}
    body = topic(schema="id long", partitionBy=["day"], secretRef=secret, trigger="1m")
    done = plan(body)
    assert told(done) == (False, "Pending")
    assert done.fields == {"format": "delta", "path": URL}
    assert done.apply is not None
    assert done.apply["metadata"]["name"] == "orders-table"
    (owner,) = done.apply["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Topic", "uid-orders", True)
    assert done.apply["spec"]["topics"] == ["orders"]
    assert done.apply["spec"]["job"] == {
        "format": "json",
        "schema": "id long",
        "trigger": "1m",
        "sink": {
            "delta": {
                "path": URL,
                "mergeSchema": True,
                "partitionBy": ["day"],
                "secretRef": secret,
            }
        },
        "suspend": False,
        "checkpoint": {"url": f"{URL}/_checkpoints", "secretRef": secret},
    }
    on_volume = plan(topic("/data/t", volume={"size": "1Gi"})).apply
    assert on_volume is not None
    assert "checkpoint" not in on_volume["spec"]["job"]
    elsewhere: dict[str, Any] = {"checkpoint": {"url": "s3a://lake/c"}, "secretRef": {"name": "s3"}}
    apart = plan(topic("/data/t", volume={"size": "1Gi"}, **elsewhere)).apply
    assert apart is not None
    assert apart["spec"]["job"]["sink"] == {"delta": {"path": "/data/t", "mergeSchema": True}}
    assert apart["spec"]["job"]["checkpoint"] == {"url": "s3a://lake/c", "secretRef": secret}


def test_another_table_is_another_group_and_the_same_one_is_not() -> None:
    def group(body: dict[str, Any]) -> str:
        return str(made(body)["spec"]["group"])

    assert group(topic()) == group(topic("s3a://lake//orders/", schema="a int"))
    assert group(topic()) != group(topic("s3a://lake/orders2"))
    moved = topic("s3a://lake/orders2")
    former = made(topic())
    done = plan(moved, former)
    assert (done.delete, done.apply) == (former, None)
    assert told(done) == (False, "Pending")


def test_nothing_is_written_again_that_is_as_wanted() -> None:
    assert plan(topic(), made(topic())).apply is None
    # A field that is taken away, and one that somebody changed.
    assert plan(topic(), made(topic(schema="a int"))).apply is not None
    changed = made(topic())
    changed["spec"]["job"]["suspend"] = True
    assert plan(topic(), changed).apply is not None


@pytest.mark.parametrize(
    ("status", "reason", "expected"),
    [
        ("True", "Running", True),
        ("False", "TopicRecreated", False),
        ("False", "InvalidJob", False),
        # Nothing lands.
        ("True", "Suspended", False),
    ],
)
def test_condition_is_that_of_the_job(status: str, reason: str, expected: bool) -> None:
    conditions = ready(status, reason, "why")
    done = plan(topic(), made(topic(), conditions=conditions))
    assert told(done) == (expected, reason)
    assert done.condition is not None
    assert done.condition.message == "why"
    outdated = made(topic(), conditions=conditions)
    outdated["status"]["observedGeneration"] = 2
    assert told(plan(topic(), outdated)) == (False, "Pending")


def test_what_is_not_known_is_left_out_and_a_known_commit_stays_a_fact() -> None:
    body = topic()
    shown = {"format": "delta", "path": URL, "consumerGroup": "orders-table"}
    assert plan(body, made(body)).fields == shown
    job = {"tableRows": 0, "lastCommitTime": "2026-11-22T10:00:00Z"}
    known = plan(body, made(body, totalLag=0, job=job)).fields
    facts = {"rows": 0, "lastCommit": "2026-11-22T10:00:00Z"}
    assert known == {**shown, **facts, "totalLag": 0}
    # A new driver knows nothing yet; the lag is not known either.
    body["status"] = {"table": known}
    assert plan(body, made(body, job={})).fields == {**shown, **facts}
    # Of another table nothing is known.
    moved = topic("s3a://lake/other")
    moved["status"] = {"table": known}
    assert plan(moved, made(moved)).fields == {**shown, "path": "s3a://lake/other"}


def test_table_waits_for_its_topic_and_ends_with_it() -> None:
    body = topic()
    assert told(plan(body, exists=False)) == (False, "WaitingForTopic")
    # The job of a topic that is gone says so itself.
    gone = plan(body, made(body, conditions=ready("False", "Restarting")), exists=False)
    assert (gone.apply, gone.delete, told(gone)) == (None, None, (False, "Restarting"))
    assert plan(topic(None), made(body)).delete == made(body)
    assert plan(topic(None), made(body)).condition is None
    ending = topic()
    ending["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    assert plan(ending, made(body)).delete == made(body)


def test_paused_topic_changes_nothing() -> None:
    assert told(plan(topic(), paused=True)) == (False, "Paused")
    done = plan(topic(None), made(topic()), paused=True)
    assert (done.delete, done.condition) == (None, None)
    running = made(topic(), conditions=ready("True", "Running"))
    assert told(plan(topic(), running, paused=True)) == (True, "Running")


def test_group_of_somebody_else_is_left_alone() -> None:
    foreign = made(topic())
    foreign["metadata"]["ownerReferences"] = []
    done = plan(topic(), foreign)
    assert (done.apply, done.delete) == (None, None)
    assert told(done) == (False, "ResourceConflict")
    assert plan(topic(None), foreign).delete is None


@pytest.mark.parametrize(
    "theirs", [URL, f"{URL}/", "s3a://lake//orders", "s3a://lake", f"{URL}/part"]
)
def test_one_place_has_one_table(theirs: str) -> None:
    mine, other = topic(name="z"), topic(theirs, name="a")
    # Of the same age.
    done = plan(mine, other, made(mine))
    assert told(done) == (False, "PathInUse")
    assert done.delete == made(mine)
    assert done.condition is not None
    assert "Topic n/a" in done.condition.message
    assert told(plan(other, mine)) == (False, "Pending")
    # Who has the table keeps it, however old others are.
    mine["status"] = {"table": {"path": URL}}
    assert told(plan(mine, other)) == (False, "Pending")
    assert told(plan(other, mine)) == (False, "PathInUse")
    mine["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    assert told(plan(other, mine)) == (False, "Pending")


def test_other_places_are_no_rivals() -> None:
    mine = topic(name="z")
    assert told(plan(mine, topic("s3a://lake/orders2", name="a"))) == (False, "Pending")
    assert told(plan(mine, topic("gs://lake/orders", name="a"))) == (False, "Pending")
    # Each job has a volume of its own.
    here, there = (topic("/data/t", name=one, volume={"size": "1Gi"}) for one in "az")
    assert told(plan(there, here)) == (False, "Pending")


@pytest.mark.parametrize("stamp", ["soon", "2026-11-22", "2026-04-31T10:00:00Z", 5, None])
def test_report_of_a_driver_is_taken_only_where_it_is_well_typed(stamp: object) -> None:
    told = {"tableRows": 5, "lastCommitTime": "2026-11-22T10:00:00Z"}
    assert read_report(told) == told
    assert read_report({"tableRows": "5", "lastCommitTime": stamp}) == {}


def test_a_topic_looks_only_at_tables_that_may_overlap_its_own() -> None:
    def beside(count: int) -> int:
        others = [topic(f"s3a://lake/{number}/t", name=f"t{number}") for number in range(count)]
        places = TablePlaces([*others, topic()])
        return steps.count(table.path_rival, topic(), topic()["spec"]["table"], places)

    assert beside(10) == beside(300)
