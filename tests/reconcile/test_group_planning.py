"""What a ConsumerGroup's status says of what was seen."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest

from odradek.values import BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from odradek.zk import znodes
from odradek.zk.znodes import PartitionState, TopicAssignment
from odradek_operator.group import conditions as group_conditions
from odradek_operator.group import driver as drivers
from odradek_operator.group import group_spec
from odradek_operator.group.conditions import JobView
from odradek_operator.group.driver import Action, DriverDecision, RestartState
from odradek_operator.group.observe import find_leaders
from odradek_operator.group.znodes import ObservedGroup
from odradek_operator.shared import spec, status, topic_patterns
from odradek_operator.shared.zookeeper import Znode


def group(
    job: dict[str, Any] | None = None, slo: dict[str, int] | None = None
) -> group_spec.GroupSpec:
    body = {"kind": "ConsumerGroup", "metadata": {"name": "g"}}
    wanted = {"clusterRef": {"name": "c"}, "slo": slo or {}, **({"job": job} if job else {})}
    return group_spec.parse_group({**body, "spec": wanted})


@pytest.mark.parametrize(
    ("slo", "lag", "seconds", "phase", "verdict"),
    [
        ({}, None, None, "Running", None),
        # Nothing is behind now, and nobody would read the next record.
        ({}, 0, 0, "Starting", "STOP"),
        ({}, 0, 0, "Stalled", "STOP"),
        ({}, 9, 9, "Running", "OK"),
        ({}, 9, 9, "Starting", "STOP"),
        ({}, None, None, "Restarting", "STOP"),
        ({}, None, None, "Completed", None),
        ({}, None, None, "Suspended", None),
        ({"maxLag": 8}, 9, 0, "Running", "WARN"),
        ({"maxLag": 9}, 9, 0, "Running", "OK"),
        ({"maxLagSeconds": 5}, 9, 6, "Running", "WARN"),
        ({"maxLagSeconds": 5}, 9, None, "Running", "OK"),
    ],
)
def test_verdict(
    slo: dict[str, int], lag: int | None, seconds: int | None, phase: str, verdict: str | None
) -> None:
    assert group_conditions.judge_verdict(group(slo=slo), lag, seconds, phase) == verdict


def test_group_whose_driver_fails_is_stopped_though_nobody_tells_its_lag() -> None:
    assert judge("Restarting")[1]["verdict"] == "STOP"


def judge(
    phase: str,
    report: dict[str, Any] | None = None,
    failures: int = 0,
    obstacle: str | None = None,
    waited: float = 0,
    **job: Any,
) -> tuple[tuple[status.Condition, ...], dict[str, Any]]:
    wanted = group(job={"sink": {"console": {}}, "executors": {"instances": 2}, **job})
    assert wanted.job is not None
    decision = DriverDecision(Action.NONE, RestartState(phase, failures), "why")
    seen = JobView(report, obstacle, timedelta(seconds=waited))
    return group_conditions.judge_job(wanted, wanted.job, decision, seen, "g-driver")


def judged(phase: str, report: dict[str, Any] | None, **more: Any) -> tuple[str, str, str | None]:
    """Return the reason of Ready, the conditions that are true, and the verdict."""
    conditions, fields = judge(phase, report, **more)
    true = [one.type for one in conditions if one.status]
    return conditions[0].reason, ",".join(true), fields["verdict"]


GOOD = {"state": "Running", "executors": 2, "lastBatchId": 4, "totalLag": 0}


def test_job_whose_driver_waits_for_something_says_for_what() -> None:
    waits = {"state": "Starting", "waitsFor": "topic t does not exist"}
    conditions, _ = judge("Running", waits)
    assert conditions[0].reason == "Starting"
    assert conditions[0].message == "the driver reports Starting: topic t does not exist"


@pytest.mark.parametrize(
    ("phase", "report", "expected"),
    [
        ("Running", GOOD, ("Running", "Ready", "OK")),
        # Nothing has come to be read yet.
        ("Running", {"state": "Running", "executors": 2}, ("Running", "Ready", None)),
        ("Running", {**GOOD, "state": "Starting"}, ("Starting", "Reconciling", "OK")),
        ("Running", None, ("DriverUnreachable", "Reconciling", None)),
        ("Pending", None, ("Pending", "Reconciling", "STOP")),
        ("Running", {**GOOD, "executors": 1}, ("ExecutorsPending", "Reconciling", "OK")),
        ("Running", {**GOOD, "executors": 0}, ("ExecutorsPending", "Reconciling", "STOP")),
        (
            "Running",
            {"state": "Running", "executors": 2, "batchRunningSeconds": 9},
            ("Starting", "Reconciling", None),
        ),
        ("Running", {**GOOD, "batchRunningSeconds": 3599}, ("Running", "Ready", "OK")),
        ("Running", {**GOOD, "batchRunningSeconds": 3600}, ("BatchOverdue", "Stalled", "STALL")),
    ],
)
def test_a_job_is_ready_only_when_its_executors_run_and_batches_complete(
    phase: str, report: dict[str, Any] | None, expected: tuple[str, str, str | None]
) -> None:
    assert judged(phase, report) == expected


@pytest.mark.parametrize("phase", ["Running", "Completed"])
def test_job_whose_sink_may_have_a_row_twice_says_so(phase: str) -> None:
    (ready, *_), _ = judge(phase, GOOD, sink={"topic": {"name": "t"}})
    assert ready.status
    assert ready.message.endswith("(at least once)")
    others: list[dict[str, Any]] = [{"console": {}}, {"delta": {"path": "/data/t"}}]
    for sink in others:
        assert judge(phase, GOOD, sink=sink)[0][0].message == "why"


SCHEDULED = {"trigger": "availableNow", "schedule": "@hourly"}


@pytest.mark.parametrize(
    ("phase", "report", "more", "expected"),
    [
        # Between runs the lag is not known, and nobody is to be called.
        ("Scheduled", None, {}, ("Scheduled", "Ready", None)),
        ("Completed", None, {}, ("Scheduled", "Ready", None)),
        ("Due", None, {}, ("Due", "Reconciling", None)),
        ("Pending", None, {}, ("Pending", "Reconciling", None)),
        ("Running", {"state": "Starting", "executors": 0}, {}, ("Starting", "Reconciling", None)),
        ("Running", GOOD, {}, ("Running", "Ready", "OK")),
        ("Running", {**GOOD, "executors": 0}, {}, ("ExecutorsPending", "Reconciling", "STOP")),
        # A run that takes too long to start, or has failed, does not do its work.
        ("Pending", None, {"waited": 300}, ("Pending", "Stalled", "STOP")),
        ("Pending", None, {"failures": 1}, ("Pending", "Reconciling", "STOP")),
        ("Due", None, {"failures": 5}, ("JobFailing", "Stalled", "STOP")),
        ("Restarting", None, {"failures": 1}, ("Restarting", "Reconciling", "STOP")),
    ],
)
def test_job_that_rests_by_its_schedule_is_ready_and_not_stopped(
    phase: str,
    report: dict[str, Any] | None,
    more: dict[str, Any],
    expected: tuple[str, str, str | None],
) -> None:
    assert judged(phase, report, **more, **SCHEDULED) == expected


def test_executors_that_cannot_be_scheduled_say_why_and_stall_the_job_in_the_end() -> None:
    report = {"state": "Running", "executors": 0, "batchRunningSeconds": 5000}
    why = "0/3 nodes are available: 3 Insufficient memory."
    conditions, fields = judge("Running", report, obstacle=why, waited=299)
    assert conditions[0].message == f"0 of 2 executors run: {why}"
    assert (fields["state"], fields["job"]["phase"]) == ("ExecutorsPending", "Starting")
    late = judged("Running", report, obstacle=why, waited=300)
    assert late == ("ExecutorsPending", "Stalled", "STOP")
    patient = judged("Running", report, obstacle=why, waited=300, timeouts={"startSeconds": 301})
    assert patient == ("ExecutorsPending", "Reconciling", "STOP")
    # A job that infers its schema waits for executors before it has a query.
    early = {"state": "Starting", "executors": 0}
    assert judged("Running", early, obstacle=why)[0] == "ExecutorsPending"
    assert judged("Running", early)[0] == "Starting"


def test_long_first_batch_is_no_slow_start() -> None:
    report = {"state": "Running", "executors": 2, "batchRunningSeconds": 400}
    assert judged("Running", report, waited=400) == ("Starting", "Reconciling", None)
    assert judged("Pending", None, waited=400)[1] == "Stalled"


@pytest.mark.parametrize(
    ("conf", "executors"),
    [
        ({}, 2),
        ({"spark.executor.instances": "5"}, 5),
        ({"spark.dynamicAllocation.enabled": "true"}, 0),
        (
            {
                "spark.dynamicAllocation.enabled": "true",
                "spark.dynamicAllocation.minExecutors": "3",
            },
            3,
        ),
        ({"spark.executor.instances": "many"}, 0),
    ],
)
def test_executors_that_a_job_needs_are_those_that_spark_asks_for(
    conf: dict[str, str], executors: int
) -> None:
    wanted = group(job={"sink": {}, "executors": {"instances": 2}, "sparkConf": conf})
    assert wanted.job is not None
    assert wanted.job.executors == executors


@pytest.mark.parametrize(
    ("executors", "conf", "followed"),
    [
        ({"instances": 2}, {}, 2),
        ({}, {}, 1),
        ({"dynamicAllocation": {"min": 1, "max": 4}}, {}, None),
        ({"instances": 2}, {"spark.executor.instances": "5"}, None),
        ({"instances": 2}, {"spark.dynamicAllocation.enabled": "true"}, None),
    ],
)
def test_running_job_follows_the_number_of_executors_unless_something_else_sets_it(
    executors: dict[str, Any], conf: dict[str, str], followed: int | None
) -> None:
    wanted = group(job={"sink": {}, "executors": executors, "sparkConf": conf})
    assert wanted.job is not None
    assert wanted.job.instances == followed
    if "dynamicAllocation" in executors:
        assert wanted.job.executors == 1


def test_stalled_job_says_why() -> None:
    wanted = group(job={"sink": {"console": {}}})
    assert wanted.job is not None
    rests = RestartState("Stalled", settled_hash="h", message="TopicRecreated: t is new")
    decision = DriverDecision(Action.NONE, rests, rests.message)
    conditions, fields = group_conditions.judge_job(
        wanted, wanted.job, decision, JobView(), "g-driver"
    )
    assert conditions == status.stalled("TopicRecreated", "t is new")
    assert (fields["state"], fields["verdict"]) == ("Stalled", "STOP")
    job = fields["job"]
    assert (job["phase"], job["message"], job["executors"]) == ("Stalled", rests.message, 0)


@pytest.mark.parametrize(
    ("phase", "report", "members"),
    [
        ("Running", None, None),
        ("Suspending", None, None),
        ("Running", {"state": "Running", "members": 2, "executors": 2}, 2),
        ("Suspended", None, 0),
        ("Pending", None, 0),
    ],
)
def test_members_of_a_driver_that_does_not_answer_are_not_known(
    phase: str, report: dict[str, Any] | None, members: int | None
) -> None:
    _, fields = judge(phase, report)
    assert fields["members"] == members


def test_a_job_that_fails_again_and_again_is_stalled() -> None:
    failing = judged("Restarting", None, failures=drivers.BROKEN_AFTER)
    assert failing == ("JobFailing", "Stalled", "STOP")
    before = judged("Restarting", None, failures=drivers.BROKEN_AFTER - 1)
    assert before == ("Restarting", "Reconciling", "STOP")


@pytest.mark.parametrize(
    "report",
    [
        {"state": "Starting", "executors": 0},
        {"state": "Running", "executors": 0},
        {"state": "Running", "executors": 2, "batchRunningSeconds": 9},
    ],
)
def test_the_next_driver_of_a_failing_job_changes_nothing_until_it_works(
    report: dict[str, Any],
) -> None:
    conditions, _ = judge("Running", report, failures=drivers.BROKEN_AFTER)
    assert (conditions[0].reason, conditions[2].status) == ("JobFailing", True)
    assert judged("Running", GOOD, failures=drivers.BROKEN_AFTER)[0] == "Running"


@pytest.mark.parametrize(
    ("phase", "message", "told"),
    [("Pending", "starting the driver", "; starting the driver"), ("Restarting", "exit 1", "")],
)
def test_a_failing_job_says_how_its_last_driver_ended(phase: str, message: str, told: str) -> None:
    wanted = group(job={"sink": {"console": {}}})
    assert wanted.job is not None
    memory = RestartState(phase, drivers.BROKEN_AFTER, message="exit 1")
    decision = DriverDecision(Action.NONE, memory, message)
    conditions, _ = group_conditions.judge_job(wanted, wanted.job, decision, JobView(), "g-driver")
    assert conditions[0].message == f"failed {drivers.BROKEN_AFTER} times in a row; exit 1{told}"


def test_group_without_znodes_is_absent_and_one_without_members_empty() -> None:
    views = (ObservedGroup(False, 0, {}), ObservedGroup(True, 0, {}), ObservedGroup(True, 2, {}))
    states = [group_conditions.state_of(view) for view in views]
    assert states == ["Absent", "Empty", "Stable"]


def test_pattern_that_would_occupy_a_backtracking_engine_for_ever_is_matched_at_once() -> None:
    pattern = topic_patterns.compile_pattern("(a+)+b")
    assert pattern.fullmatch("a" * 248 + "b")
    assert not pattern.fullmatch("a" * 249)


@pytest.mark.parametrize("pattern", ["(", "(?!a)b", "(a)\\1", "a{1001}", "(" * 2000 + ")" * 1999])
def test_pattern_that_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(spec.InvalidSpec) as caught:
        topic_patterns.compile_pattern(pattern)
    assert caught.value.reason == "InvalidTopicPattern"


def test_pattern_of_a_job_holds_no_comma_which_its_group_would_take_for_or() -> None:
    body: dict[str, Any] = {"kind": "ConsumerGroup", "metadata": {"name": "g"}}
    body["spec"] = {"clusterRef": {"name": "c"}, "topicPattern": "app-[0-9]{1,3}"}
    assert group_spec.parse_group(body).topic_pattern == "app-[0-9]{1,3}"
    body["spec"]["job"] = {"sink": {"console": {}}}
    with pytest.raises(spec.InvalidSpec, match="cannot hold a comma") as caught:
        group_spec.parse_group(body)
    assert caught.value.reason == "InvalidTopicPattern"


class Topics:
    """The znodes of these topics, of one partition each, led by broker 1."""

    def __init__(self, *names: str) -> None:
        one = BrokerId(1)
        state = PartitionState(one, LeaderEpoch(0), (one,), ControllerEpoch(1))
        self._names = list(names)
        self._data = {}
        for name in names:
            self._data[znodes.topic_path(name)] = znodes.encode_topic(TopicAssignment({0: (one,)}))
            self._data[znodes.state_path(name, 0)] = znodes.encode_state(state)

    def children(self, paths: Iterable[str]) -> dict[str, list[str]]:
        return {path: self._names if path == znodes.TOPICS_PATH else [] for path in paths}

    def read(self, paths: Iterable[str]) -> dict[str, Znode | None]:
        found = {path: self._data.get(path) for path in paths}
        return {
            path: None if data is None else Znode(data, 0, 0, 0) for path, data in found.items()
        }


def test_pattern_of_a_group_leaves_internal_topics_out() -> None:
    wanted = replace(group(), topic_pattern=".*")
    zookeeper = Topics("__consumer_offsets", "t", "u")
    leaders = find_leaders(cast(Any, zookeeper), wanted, ObservedGroup(False, 0, {}))
    assert leaders == {TopicPartition("t", 0): 1, TopicPartition("u", 0): 1}


def test_whole_names_are_matched() -> None:
    pattern = topic_patterns.compile_pattern("views-(eu|us)")
    assert [bool(pattern.fullmatch(one)) for one in ("views-eu", "views-eu-old")] == [True, False]
