"""What a ConsumerGroup's status says of what was seen."""

from typing import Any

import pytest

from odradek_operator import groups, job, spec
from odradek_operator.groups import GroupView
from odradek_operator.job import Action, Decision, Memory


def group(**slo: Any) -> spec.GroupSpec:
    body = {"kind": "ConsumerGroup", "metadata": {"name": "g"}}
    return spec.parse_group({**body, "spec": {"clusterRef": {"name": "c"}, "slo": slo}})


@pytest.mark.parametrize(
    ("slo", "lag", "seconds", "phase", "verdict"),
    [
        ({}, None, None, "Running", None),
        ({}, 0, 0, "Starting", "OK"),
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
    assert groups.judge_verdict(group(**slo), lag, seconds, phase) == verdict


def test_group_whose_driver_fails_is_stopped_though_nobody_tells_its_lag() -> None:
    decision = Decision(Action.NONE, Memory("Restarting", 1), "why")
    assert groups.judge_job(group(), decision, None, "g-driver")[1]["verdict"] == "STOP"


def judged(phase: str, report: dict[str, Any] | None, failures: int = 0) -> tuple[str, str]:
    decision = Decision(Action.NONE, Memory(phase, failures), "why")
    conditions, _ = groups.judge_job(group(), decision, report, "g-driver")
    true = [one.type for one in conditions if one.status]
    return conditions[0].reason, ",".join(true)


def test_a_job_is_ready_only_when_its_query_runs() -> None:
    assert judged("Running", {"state": "Running"}) == ("Running", "Ready")
    assert judged("Running", {"state": "Starting"}) == ("Starting", "Reconciling")
    assert judged("Pending", None) == ("Pending", "Reconciling")


def test_a_job_that_fails_again_and_again_is_stalled() -> None:
    assert judged("Restarting", None, job.BROKEN_AFTER) == ("JobFailing", "Stalled")
    assert judged("Restarting", None, job.BROKEN_AFTER - 1) == ("Restarting", "Reconciling")


def test_group_without_znodes_is_absent_and_one_without_members_empty() -> None:
    views = (GroupView(False, 0, {}), GroupView(True, 0, {}), GroupView(True, 2, {}))
    states = [groups.state_of(view) for view in views]
    assert states == ["Absent", "Empty", "Stable"]


def test_pattern_that_would_occupy_a_backtracking_engine_for_ever_is_matched_at_once() -> None:
    pattern = spec.compile_pattern("(a+)+b")
    assert pattern.fullmatch("a" * 248 + "b")
    assert not pattern.fullmatch("a" * 249)


@pytest.mark.parametrize("pattern", ["(", "(?!a)b", "(a)\\1", "a{1001}", "(" * 2000 + ")" * 1999])
def test_pattern_that_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(spec.InvalidSpec) as caught:
        spec.compile_pattern(pattern)
    assert caught.value.reason == "InvalidTopicPattern"


def test_whole_names_are_matched() -> None:
    pattern = spec.compile_pattern("views-(eu|us)")
    assert [bool(pattern.fullmatch(one)) for one in ("views-eu", "views-eu-old")] == [True, False]
