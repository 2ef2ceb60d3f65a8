"""Argo CD's Lua and Flux' kstatus judge every status of the operator as a reader of it would."""

import json
import re
import subprocess
from datetime import UTC, datetime
from typing import Any

import lupa
import pytest
import yaml

from odradek_operator import reassignment_status, status
from odradek_operator.reassignment import FINISHED
from odradek_operator.reassignment_status import Flags
from tests.cluster.settings import REPO
from tests.support.apiserver import require_programs

NOW = datetime(2026, 11, 21, tzinfo=UTC)


@pytest.fixture(scope="module")
def health() -> Any:
    """The Lua of the example as a function of a resource."""
    config = yaml.safe_load((REPO / "examples/argocd/argocd-cm.yaml").read_text())
    customizations = yaml.safe_load(config["data"]["resource.customizations"])
    (lua,) = [entry["health.lua"] for entry in customizations.values()]
    runtime = lupa.LuaRuntime()
    function = runtime.eval(f"function(obj) {lua} end")

    def judge(resource: dict[str, Any]) -> tuple[str, str]:
        found = function(runtime.table_from(resource, recursive=True))
        return found["status"], found["message"]

    return judge


def resource(
    conditions: tuple[status.Condition, ...],
    *,
    observed: int = 3,
    spec: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "apiVersion": "odradek.io/v1alpha1",
        "kind": "Topic",
        "metadata": {"name": "r", "namespace": "n", "generation": 3},
        "spec": spec or {},
        "status": {
            "observedGeneration": observed,
            "conditions": status.merge_conditions([], conditions, observed, NOW),
        },
    }


def test_ready_is_healthy(health: Any) -> None:
    assert health(resource(status.ready("Synced", "as wanted"))) == ("Healthy", "as wanted")


def test_rolling_change_is_progressing_not_degraded(health: Any) -> None:
    rolling = resource(status.progressing("Rolling", "broker 2 restarts"))
    assert health(rolling) == ("Progressing", "broker 2 restarts")


def test_plan_that_waits_for_approval_is_suspended(health: Any) -> None:
    waiting = resource(status.progressing("AwaitingApproval", "set spec.approvedPlanHash"))
    waiting["status"]["phase"] = "AwaitingApproval"
    assert health(waiting) == ("Suspended", "its plan waits for approval")


def test_what_waits_for_somebody_is_degraded(health: Any) -> None:
    refused = resource(status.stalled("ReplicationFactorTooHigh", "4 replicas on 3 brokers"))
    assert health(refused) == ("Degraded", "4 replicas on 3 brokers")


def test_verdict_on_an_older_generation_does_not_count(health: Any) -> None:
    assert health(resource(status.ready("Synced"), observed=2))[0] == "Progressing"
    assert health(resource(status.stalled("Refused", "no"), observed=2))[0] == "Progressing"


def test_new_resource_is_progressing(health: Any) -> None:
    fresh = {"metadata": {"generation": 1}, "spec": {}, "status": {"observedGeneration": -1}}
    assert health(fresh)[0] == "Progressing"
    assert health({"metadata": {"generation": 1}, "spec": {}})[0] == "Progressing"


@pytest.mark.parametrize("spec", [{"paused": True}, {"job": {"suspend": True}}], ids=str)
def test_paused_is_suspended(health: Any, spec: dict[str, Any]) -> None:
    assert health(resource(status.progressing("Paused", "paused"), spec=spec))[0] == "Suspended"


def test_running_job_is_not_suspended(health: Any) -> None:
    running = resource(status.ready("Running"), spec={"paused": False, "job": {"suspend": False}})
    assert health(running)[0] == "Healthy"


def test_files_that_the_examples_name_exist() -> None:
    folder = REPO / "examples/argocd"
    for file in folder.glob("*.yaml"):
        comments = "\n".join(re.findall(r"^# .*$", file.read_text(), re.M))
        named = re.findall(r"[\w-]+\.yaml", comments)
        assert [name for name in named if not (folder / name).exists()] == []


def test_the_entry_covers_all_kinds_of_the_group() -> None:
    config = yaml.safe_load((REPO / "examples/argocd/argocd-cm.yaml").read_text())
    customizations = yaml.safe_load(config["data"]["resource.customizations"])
    assert list(customizations) == ["odradek.io/*"]


def kstatus(*resources: dict[str, Any]) -> list[str]:
    """What kstatus itself, a Go program, makes of these."""
    binary = require_programs("kstatus") / "kstatus"
    found = subprocess.run(
        [binary], input=json.dumps(resources), capture_output=True, text=True, check=True
    )
    return [one["status"] for one in json.loads(found.stdout)]


# What a person would say, Argo CD's word, kstatus' word.
SAME = {"Healthy": "Current", "Progressing": "InProgress", "Degraded": "Failed"}


def judged_by_both(health: Any, resources: list[dict[str, Any]], truth: list[str]) -> None:
    assert [health(one)[0] for one in resources] == truth
    assert kstatus(*resources) == [SAME[one] for one in truth]


def test_both_judges_agree_with_the_truth(health: Any) -> None:
    shown = [
        resource(status.ready("Synced")),
        resource(status.progressing("WaitingForBrokers", "1 of 3")),
        resource(status.stalled("InvalidConfig", "retention.ms")),
        resource(status.ready("Synced"), observed=2),
        {**resource(()), "status": {"observedGeneration": -1}},
    ]
    truth = ["Healthy", "Progressing", "Degraded", "Progressing", "Progressing"]
    judged_by_both(health, shown, truth)
    going = resource(status.ready("Synced"))
    going["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    assert kstatus(going) == ["Terminating"]


def test_both_judges_follow_a_reassignment_through_its_phases(health: Any) -> None:
    truth = {
        "Pending": "Progressing",
        "Planned": "Progressing",
        "Running": "Progressing",
        "Completed": "Healthy",
        "Cancelled": "Healthy",
        "RolledBack": "Degraded",
        "Failed": "Degraded",
    }
    assert set(FINISHED) < set(truth)
    troubled = Flags(blocked="somebody else", missing="broker 3", rolling_back="Cancelled")
    for flags in (Flags(planned=True, approved=True), troubled):
        shown = [
            resource(reassignment_status.conditions(phase, phase, "why", flags)) for phase in truth
        ]
        judged_by_both(health, shown, list(truth.values()))
