"""What a ConsumerGroup's status says of what was seen."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

import pytest

from odradek.values import BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from odradek.zk import znodes
from odradek.zk.znodes import PartitionState, TopicAssignment
from odradek_operator.group import conditions as group_conditions
from odradek_operator.group import driver as drivers
from odradek_operator.group.driver import Action, DriverDecision, RestartState
from odradek_operator.group.observe import find_leaders
from odradek_operator.group.znodes import ObservedGroup
from odradek_operator.shared import spec
from odradek_operator.shared.zookeeper import Znode


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
    assert group_conditions.judge_verdict(group(**slo), lag, seconds, phase) == verdict


def test_group_whose_driver_fails_is_stopped_though_nobody_tells_its_lag() -> None:
    decision = DriverDecision(Action.NONE, RestartState("Restarting", 1), "why")
    assert group_conditions.judge_job(group(), decision, None, "g-driver")[1]["verdict"] == "STOP"


def judged(phase: str, report: dict[str, Any] | None, failures: int = 0) -> tuple[str, str]:
    decision = DriverDecision(Action.NONE, RestartState(phase, failures), "why")
    conditions, _ = group_conditions.judge_job(group(), decision, report, "g-driver")
    true = [one.type for one in conditions if one.status]
    return conditions[0].reason, ",".join(true)


def test_a_job_is_ready_only_when_its_query_runs() -> None:
    assert judged("Running", {"state": "Running"}) == ("Running", "Ready")
    assert judged("Running", {"state": "Starting"}) == ("Starting", "Reconciling")
    assert judged("Pending", None) == ("Pending", "Reconciling")


def test_a_job_that_fails_again_and_again_is_stalled() -> None:
    assert judged("Restarting", None, drivers.BROKEN_AFTER) == ("JobFailing", "Stalled")
    assert judged("Restarting", None, drivers.BROKEN_AFTER - 1) == ("Restarting", "Reconciling")


def test_group_without_znodes_is_absent_and_one_without_members_empty() -> None:
    views = (ObservedGroup(False, 0, {}), ObservedGroup(True, 0, {}), ObservedGroup(True, 2, {}))
    states = [group_conditions.state_of(view) for view in views]
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


def test_pattern_of_a_job_holds_no_comma_which_its_group_would_take_for_or() -> None:
    body: dict[str, Any] = {"kind": "ConsumerGroup", "metadata": {"name": "g"}}
    body["spec"] = {"clusterRef": {"name": "c"}, "topicPattern": "app-[0-9]{1,3}"}
    assert spec.parse_group(body).topic_pattern == "app-[0-9]{1,3}"
    body["spec"]["job"] = {"sink": {"console": {}}}
    with pytest.raises(spec.InvalidSpec, match="cannot hold a comma") as caught:
        spec.parse_group(body)
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
        return {path: None if data is None else Znode(data, 0, 0) for path, data in found.items()}


def test_pattern_of_a_group_leaves_internal_topics_out() -> None:
    wanted = replace(group(), topic_pattern=".*")
    zookeeper = Topics("__consumer_offsets", "t", "u")
    leaders = find_leaders(cast(Any, zookeeper), wanted, ObservedGroup(False, 0, {}))
    assert leaders == {TopicPartition("t", 0): 1, TopicPartition("u", 0): 1}


def test_whole_names_are_matched() -> None:
    pattern = spec.compile_pattern("views-(eu|us)")
    assert [bool(pattern.fullmatch(one)) for one in ("views-eu", "views-eu-old")] == [True, False]
