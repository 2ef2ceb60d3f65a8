"""When a driver is started, stopped and started again, as pure decisions."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek_operator.group import driver as drivers
from odradek_operator.group import group_spec, schedule
from odradek_operator.group.driver import Action, RestartState
from odradek_operator.shared.job_spec import JobSpec

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def task(**fields: Any) -> JobSpec:
    parsed = group_spec.parse_group(
        {
            "kind": "ConsumerGroup",
            "metadata": {"name": "g"},
            "spec": {
                "clusterRef": {"name": "c"},
                "topics": ["t"],
                "job": {"sink": {"console": {}}, **fields},
            },
        }
    ).job
    assert parsed is not None
    return parsed


def stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def pod(
    phase: str, *, marked: str = "h", age: timedelta = timedelta(minutes=1), **status: Any
) -> Any:
    return {
        "metadata": {"name": "g-driver", "annotations": {drivers.SPEC_HASH: marked}},
        "status": {"phase": phase, "startTime": stamp(NOW - age), **status},
    }


def ended(code: int, reason: str = "Error") -> list[dict[str, Any]]:
    return [{"state": {"terminated": {"exitCode": code, "reason": reason}}}]


def test_missing_driver_is_created_at_once_the_first_time() -> None:
    assert drivers.decide(task(), None, "h", RestartState(), NOW).action is Action.CREATE


def test_driver_of_another_spec_is_replaced_without_counting() -> None:
    decision = drivers.decide(
        task(), pod("Running", marked="old"), "h", RestartState("Running", 2, 1), NOW
    )
    assert decision.action is Action.DELETE
    assert (decision.memory.application, decision.memory.infrastructure) == (0, 0)


def test_suspended_job_ends_its_driver_and_stays_without_one() -> None:
    stopping = drivers.decide(task(suspend=True), pod("Running"), "h", RestartState("Running"), NOW)
    assert stopping.action is Action.DELETE
    stopped = drivers.decide(task(suspend=True), None, "h", stopping.memory, NOW)
    assert (stopped.action, stopped.memory.phase) == (Action.NONE, "Suspended")
    again = drivers.decide(task(), None, "h", stopped.memory, NOW)
    assert again.action is Action.CREATE


@pytest.mark.parametrize(
    ("status", "outside"),
    [
        ({"containerStatuses": ended(1)}, False),
        ({"containerStatuses": ended(137, "OOMKilled")}, False),
        ({"containerStatuses": ended(137)}, True),
        ({"containerStatuses": ended(143)}, True),
        ({"reason": "Evicted", "message": "disk pressure"}, True),
        ({"reason": "NodeShutdown"}, True),
        ({}, True),
    ],
)
def test_ends_are_counted_where_they_came_from(status: dict[str, Any], outside: bool) -> None:
    decision = drivers.decide(task(), pod("Failed", **status), "h", RestartState("Running"), NOW)
    counts = (decision.memory.application, decision.memory.infrastructure)
    assert counts == ((0, 1) if outside else (1, 0))


def test_a_failed_pod_is_counted_once_and_kept_until_its_restart_is_due() -> None:
    failed = pod("Failed", containerStatuses=ended(1))
    first = drivers.decide(task(), failed, "h", RestartState("Running", 3, 0), NOW)
    assert (first.action, first.memory.application) == (Action.NONE, 4)
    soon = drivers.decide(task(), failed, "h", first.memory, NOW + timedelta(seconds=1))
    assert (soon.action, soon.memory) == (Action.NONE, first.memory)
    due = drivers.decide(task(), failed, "h", first.memory, NOW + first.memory.wait)
    assert (due.action, due.memory) == (Action.DELETE, first.memory)
    gone = drivers.decide(task(), None, "h", due.memory, NOW + first.memory.wait)
    assert gone.action is Action.CREATE


def test_how_the_driver_failed_is_remembered_until_the_next_one_works() -> None:
    (container,) = ended(1)
    container["state"]["terminated"]["message"] = "no sink"
    failed = pod("Failed", containerStatuses=[container])
    words = "the driver ended with exit code 1: no sink"
    memory = drivers.decide(task(), failed, "h", RestartState("Running", 4, 0), NOW).memory
    going = failed | {"metadata": {**failed["metadata"], "deletionTimestamp": stamp(NOW)}}
    running = pod("Running", containerStatuses=[{"ready": False, "state": {}}])
    killed = pod("Failed", containerStatuses=ended(137))
    late = NOW + memory.wait
    for next_pod in (going, None, pod("Pending"), running, killed, None):
        memory = drivers.decide(task(), next_pod, "h", memory, late).memory
        written = drivers.status_fields(memory, "g-driver", None)
        assert written["message"] == words
        memory = drivers.remember({"job": written})
    due = schedule.decide(
        task(trigger="availableNow", schedule="@hourly"),
        None,
        "h",
        replace(memory, times=drivers.RunTimes(next=NOW)),
        None,
        NOW,
    )
    assert (due.memory.phase, due.memory.message) == ("Due", words)
    works = pod("Running", age=drivers.HEALTHY_AFTER, containerStatuses=[{"ready": True}])
    assert drivers.decide(task(), works, "h", memory, NOW).memory.message == ""
    changed = drivers.decide(task(), failed, "other", memory, NOW)
    assert changed.memory.message == ""


def test_counters_go_back_after_a_healthy_run() -> None:
    healthy = pod(
        "Running", age=drivers.HEALTHY_AFTER, containerStatuses=[{"ready": True, "state": {}}]
    )
    decision = drivers.decide(task(), healthy, "h", RestartState("Running", 4, 2), NOW)
    assert decision.memory == RestartState("Running", 0, 0, None)


def refused(line: str, **fields: Any) -> Any:
    (container,) = ended(drivers.STALLED_CODE)
    container["state"]["terminated"]["message"] = line
    return pod("Failed", containerStatuses=[container], **fields)


@pytest.mark.parametrize(
    ("line", "message", "reason", "text"),
    [
        ("odradek-spark: the query: [PARSE] no", "the query: [PARSE] no", "InvalidJob", None),
        ("odradek-spark: TopicRecreated: t is new", "TopicRecreated: t is new", None, "t is new"),
        ("log\nodradek-spark: DataTruncated: gone\n", "DataTruncated: gone", None, "gone"),
        ("Unknown: x", "Unknown: x", "InvalidJob", None),
        ("", "the driver gave no reason", "InvalidJob", None),
    ],
)
def test_job_that_only_another_spec_can_help_rests_at_once(
    line: str, message: str, reason: str | None, text: str | None
) -> None:
    before = RestartState("Running", 3, 1, NOW)
    rests = drivers.decide(task(), refused(line), "h", before, NOW)
    assert (rests.action, rests.memory.phase) == (Action.NONE, "Stalled")
    assert rests.memory.message == message
    expected = (reason or message.partition(":")[0], text or message)
    assert drivers.stalled_reason(rests.message) == expected


def test_exit_code_of_a_sidecar_says_nothing_of_the_job() -> None:
    (failed,), (side,) = ended(1), ended(drivers.STALLED_CODE)
    containers = [{"name": "proxy", **side}, {"name": "driver", **failed}]
    both = pod("Failed", containerStatuses=containers)
    decision = drivers.decide(task(), both, "h", RestartState("Running"), NOW)
    assert (decision.memory.phase, decision.memory.application) == ("Restarting", 1)


def test_nothing_is_started_for_a_stalled_job_until_it_changes() -> None:
    end = refused("odradek-spark: no")
    rests = drivers.decide(task(), end, "h", RestartState("Running"), NOW)
    kept = drivers.remember({"job": drivers.status_fields(rests.memory, "g-driver", None)})
    assert kept == rests.memory
    later = NOW + timedelta(days=9)
    for now in (NOW, later):
        for seen in (end, None):
            again = drivers.decide(task(), seen, "h", kept, now)
            assert (again.action, again.memory) == (Action.NONE, kept)
    going = refused("odradek-spark: no")
    going["metadata"]["deletionTimestamp"] = stamp(NOW)
    for before in (kept, RestartState("Running")):
        assert drivers.decide(task(), going, "h", before, NOW).memory == kept
    changed = drivers.decide(task(), end, "new", kept, NOW)
    assert (changed.action, changed.memory.phase) == (Action.DELETE, "Restarting")
    assert drivers.decide(task(), None, "new", kept, NOW).action is Action.CREATE
    resting = drivers.decide(task(suspend=True), None, "h", kept, NOW)
    assert drivers.decide(task(), None, "h", resting.memory, NOW).action is Action.CREATE


def test_driver_that_vanished_while_it_ran_counts_as_infrastructure() -> None:
    decision = drivers.decide(task(), None, "h", RestartState("Running"), NOW)
    assert (decision.action, decision.memory.infrastructure) == (Action.NONE, 1)


def test_driver_that_somebody_ends_is_counted_once_whether_its_pod_is_seen_or_not() -> None:
    going = pod("Running")
    going["metadata"]["deletionTimestamp"] = stamp(NOW)
    memory = RestartState("Running", 2, 0)
    for seen in (going, going, None):
        decision = drivers.decide(task(), seen, "h", memory, NOW)
        memory = decision.memory
        assert (decision.action, memory.phase) == (Action.NONE, "Restarting")
        assert (memory.application, memory.infrastructure, memory.last_restart) == (2, 1, NOW)
    # Not one that this operator replaces.
    changed = drivers.decide(task(), going, "new", RestartState("Running", 2, 0), NOW)
    assert changed.memory.infrastructure == 0


def test_finished_batch_job_is_complete_and_a_stream_that_ends_is_restarted() -> None:
    done = drivers.decide(
        task(trigger="availableNow"), pod("Succeeded"), "h", RestartState("Running"), NOW
    )
    assert (done.action, done.memory.phase) == (Action.NONE, "Completed")
    over = pod("Succeeded", containerStatuses=ended(0, "Completed"))
    stream = drivers.decide(task(), over, "h", RestartState("Running"), NOW)
    assert (stream.memory.phase, stream.memory.application) == ("Restarting", 1)


def test_completed_job_stays_so_without_its_pod_until_the_job_changes() -> None:
    batch, gone = task(trigger="availableNow"), pod("Succeeded")
    gone["metadata"]["deletionTimestamp"] = stamp(NOW)
    written = drivers.decide(batch, pod("Succeeded"), "h", RestartState("Running"), NOW).memory
    # The pod goes after the end was written down, or before, as nobody had looked yet.
    for before in (written, RestartState("Running")):
        going = drivers.decide(batch, gone, "h", before, NOW)
        kept = drivers.remember({"job": drivers.status_fields(going.memory, "g-driver", None)})
        assert going.memory == kept == written
        stays = drivers.decide(batch, None, "h", kept, NOW)
        assert (stays.action, stays.memory) == (Action.NONE, written)
        assert drivers.decide(batch, None, "changed", kept, NOW).action is Action.CREATE
    changing = drivers.decide(batch, gone, "changed", RestartState("Restarting"), NOW)
    assert drivers.decide(batch, None, "changed", changing.memory, NOW).action is Action.CREATE


def test_a_pod_that_is_going_is_waited_for_whatever_else_is_wanted() -> None:
    going = pod("Running", marked="old")
    going["metadata"]["deletionTimestamp"] = stamp(NOW)
    assert drivers.decide(task(), going, "h", RestartState("Running"), NOW).action is Action.NONE


phases = st.sampled_from(["", "Pending", "Starting", "Running", "Restarting", "Suspended"])
memories = st.builds(
    RestartState,
    phase=phases,
    application=st.integers(0, 40),
    infrastructure=st.integers(0, 40),
    last_restart=st.none() | st.just(NOW - timedelta(seconds=1)),
)


@given(memory=memories)
def test_a_missing_driver_is_always_started_within_the_longest_wait(memory: RestartState) -> None:
    now = NOW
    for _ in range(4):
        decision = drivers.decide(task(), None, "h", memory, now)
        if decision.action is Action.CREATE:
            return
        memory, now = decision.memory, now + timedelta(seconds=max(decision.requeue_after, 1))
    pytest.fail(f"no driver after {now - NOW}")


@given(memory=memories, phase=st.sampled_from(["Pending", "Running", "Failed", "Succeeded"]))
def test_no_second_driver_is_ever_created_beside_a_pod(memory: RestartState, phase: str) -> None:
    assert drivers.decide(task(), pod(phase), "h", memory, NOW).action is not Action.CREATE


def test_memory_survives_the_status() -> None:
    memory = RestartState("Restarting", 2, 1, NOW)
    assert drivers.remember({"job": drivers.status_fields(memory, "g-driver", None)}) == memory
