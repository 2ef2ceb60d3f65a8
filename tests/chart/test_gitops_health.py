"""Argo CD and Flux, by their own engines, judge the operator's statuses as a reader would.

What operators really wrote is judged at the end of the tests in `tests/reconcile`.
"""

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from odradek_operator.reassignment import status as reassignment_status
from odradek_operator.reassignment.status import Flags
from odradek_operator.shared import status, status_update
from odradek_operator.shared.views import FINISHED_PHASES
from tests.cluster.settings import REPO
from tests.reconcile import statuses
from tests.support import judges, yaml_text
from tests.support.judges import Verdicts

NOW = datetime(2026, 11, 21, tzinfo=UTC)


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
            "conditions": status_update.merge_conditions([], conditions, observed, NOW),
        },
    }


def verdicts(one: dict[str, Any]) -> Verdicts:
    (found,) = judges.judge([one])
    return found


ROLLING = (
    status.Condition("Ready", True, "BrokersRolling", "3 of 3 brokers registered"),
    status.Condition(
        "Reconciling",
        True,
        "BrokersRolling",
        "brokers are restarted one at a time with the new pod template",
    ),
    status.Condition("Stalled", False, "BrokersRolling"),
)
PAUSED = status.Condition("Paused", True, "Paused")
SHOWN: dict[str, tuple[dict[str, Any], tuple[str, str]]] = {
    "ready": (resource(status.ready("Synced", "as wanted")), ("Healthy", "Current")),
    "under way": (
        resource(status.progressing("WaitingForBrokers", "1 of 3")),
        ("Progressing", "InProgress"),
    ),
    # Its brokers serve, but a sync that waits for the change must go on waiting.
    "a rolling change": (resource(ROLLING), ("Progressing", "InProgress")),
    "refused": (
        resource(status.stalled("InvalidReplicationFactor", "4 replicas on 3 brokers")),
        ("Degraded", "Failed"),
    ),
    "ready a generation ago": (
        resource(status.ready("Synced"), observed=2),
        ("Progressing", "InProgress"),
    ),
    "refused a generation ago": (
        resource(status.stalled("Refused", "no"), observed=2),
        ("Progressing", "InProgress"),
    ),
    "nobody has looked": (
        {**resource(()), "status": {"observedGeneration": -1}},
        ("Progressing", "InProgress"),
    ),
    "going": (
        {
            **resource(status.ready("Synced")),
            "metadata": {
                "name": "r",
                "namespace": "n",
                "generation": 3,
                "deletionTimestamp": "2026-11-21T12:00:00Z",
            },
        },
        ("Progressing", "Terminating"),
    ),
    "paused by its spec": (
        resource(status.ready("Paused"), spec={"paused": True}),
        ("Suspended", "Current"),
    ),
    "paused with its cluster": (
        resource((*status.stalled("Paused", "waits"), PAUSED)),
        ("Suspended", "Failed"),
    ),
    "a job that is suspended": (
        resource(status.ready("Suspended"), spec={"job": {"suspend": True}}),
        ("Suspended", "Current"),
    ),
    "a job that runs": (
        resource(status.ready("Running"), spec={"paused": False, "job": {"suspend": False}}),
        ("Healthy", "Current"),
    ),
}


@pytest.mark.parametrize(("shown", "truth"), SHOWN.values(), ids=SHOWN)
def test_both_judges_agree_with_the_truth(shown: dict[str, Any], truth: tuple[str, str]) -> None:
    found = verdicts(shown)
    assert (found.argo, found.kstatus) == truth


def test_argo_tells_the_operators_own_words() -> None:
    assert verdicts(resource(status.ready("Synced", "as wanted"))).message == "as wanted"
    refused = resource(status.stalled("InvalidReplicationFactor", "4 replicas on 3 brokers"))
    assert verdicts(refused).message == "4 replicas on 3 brokers"


def test_plan_that_waits_for_approval_is_suspended() -> None:
    waiting = resource(status.progressing("AwaitingApproval", "set spec.approvedPlanHash"))
    waiting["status"]["phase"] = "AwaitingApproval"
    assert verdicts(waiting) == ("Suspended", "InProgress", "its plan waits for approval")


def test_resource_without_any_status_is_progressing() -> None:
    fresh = resource(())
    del fresh["status"]
    assert verdicts(fresh).argo == "Progressing"


@pytest.mark.parametrize(
    "flags",
    [
        Flags(planned=True, approved=True),
        Flags(blocked="somebody else", missing="broker 3", rolling_back="Cancelled"),
    ],
    ids=["plain", "troubled"],
)
def test_both_judges_follow_a_reassignment_through_its_phases(flags: Flags) -> None:
    assert set(FINISHED_PHASES) < set(statuses.PHASES)
    shown = [
        {
            **resource(reassignment_status.conditions(phase, phase, "why", flags)),
            "kind": "Reassignment",
        }
        for phase in statuses.PHASES
    ]
    for one, phase in zip(shown, statuses.PHASES, strict=True):
        one["status"]["phase"] = phase
    assert statuses.disagreements(shown) == []


def test_a_status_that_misleads_a_judge_is_told() -> None:
    lying = resource(status.ready("WaitingForBrokers"))
    unheard = resource(status.ready("Whatever"))
    told = statuses.disagreements([lying, unheard])
    assert told == [
        "Topic r, WaitingForBrokers: Argo CD Healthy, kstatus Current, not Progressing, InProgress",
        "Topic r: tests/reconcile/statuses.py has no word on 'Whatever'",
    ]


def test_the_truth_is_of_reasons_that_the_operator_gives() -> None:
    sources = [
        *REPO.glob("operator/src/**/*.py"),
        *REPO.glob("operator/spark_job/src/*/*.py"),
        REPO / "broker_image/src/odradek/stateful_query.py",
    ]
    given = "".join(file.read_text() for file in sources)
    assert [reason for reason in sorted(statuses.reasons()) if f'"{reason}"' not in given] == []


def test_files_that_the_examples_name_exist() -> None:
    folder = REPO / "examples/argocd"
    for file in folder.glob("*.yaml"):
        comments = "\n".join(re.findall(r"^# .*$", file.read_text(), re.M))
        named = re.findall(r"[\w-]+\.yaml", comments)
        assert [name for name in named if not (folder / name).exists()] == []


def test_the_entry_covers_all_kinds_of_the_group() -> None:
    config = yaml_text.load((REPO / "examples/argocd/argocd-cm.yaml").read_text())
    customizations = yaml_text.load(config["data"]["resource.customizations"])
    assert list(customizations) == ["odradek.io/*"]
