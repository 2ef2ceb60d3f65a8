"""What /metrics tells of each resource."""

from typing import Any

import pytest

from odradek_operator.loop.resource_states import ResourceStates
from odradek_operator.shared import status, status_update
from odradek_operator.shared.status import Condition
from odradek_operator.shared.store import ResourceStore
from tests.reconcile.in_memory import resource
from tests.reconcile.test_reassignment import NOW

READY, STALLED, RESTING, WANTED, REGISTERED = (
    "odradek_resource_ready",
    "odradek_resource_stalled",
    "odradek_consumergroup_resting",
    "odradek_cluster_brokers_wanted",
    "odradek_cluster_brokers_registered",
)
ENDS = "odradek_cluster_authority_not_after_timestamp_seconds"
PAUSED = Condition("Paused", True, "Paused")


def told(body: dict[str, Any], *conditions: Condition, **fields: Any) -> dict[str, Any]:
    """A resource with this status."""
    return {**body, "status": status_update.build(body, conditions, fields, NOW)}


def series(
    *bodies: dict[str, Any], acting: frozenset[str] = frozenset("n")
) -> dict[tuple[str, ...], float]:
    store = ResourceStore()
    for body in bodies:
        store.put(body)
    families = ResourceStates(store, acting.__contains__).collect()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def cluster(name: str, *, replicas: int = 3, **fields: Any) -> dict[str, Any]:
    return resource("KafkaCluster", name, brokers={"replicas": replicas}, **fields)


def test_cluster_tells_what_it_lacks_also_before_it_ever_started() -> None:
    broken = status.progressing("BrokersStarting", "1 of 3 brokers registered")
    assert series(told(cluster("c"), *broken, replicas=1)) == {
        (READY, "KafkaCluster", "n", "c"): 0,
        (STALLED, "KafkaCluster", "n", "c"): 0,
        (WANTED, "n", "c"): 3,
        (REGISTERED, "n", "c"): 1,
    }
    # Nobody has looked at it yet, or ZooKeeper did not answer.
    assert series(cluster("new")) == {
        (READY, "KafkaCluster", "n", "new"): 0,
        (STALLED, "KafkaCluster", "n", "new"): 0,
        (WANTED, "n", "new"): 3,
    }


def test_cluster_tells_when_its_authorities_end() -> None:
    ends = {"name": "clients-ca", "notAfter": "1970-01-02T00:00:00Z", "phase": "Signing"}
    found = series(told(cluster("c"), *status.ready("BrokersReady"), authorities=[ends]))
    assert found[ENDS, "n", "c", "clients-ca"] == 86_400
    assert not [key for key in series(cluster("plain")) if key[0] == ENDS]


@pytest.mark.parametrize(
    ("kind", "conditions", "values"),
    [
        ("Topic", status.ready("Synced"), (1, 0)),
        ("Topic", status.progressing("WaitingForLeaders", ""), (0, 0)),
        ("Topic", status.stalled("InvalidConfig", ""), (0, 1)),
        ("Topic", (*status.stalled("Paused", ""), PAUSED), None),
        ("Topic", status.progressing("Reassigning", ""), None),
        ("ConsumerGroup", status.ready("Running"), (1, 0)),
        ("ConsumerGroup", status.progressing("Pending", ""), (0, 0)),
        ("ConsumerGroup", status.stalled("JobStalled", ""), (0, 1)),
        ("ConsumerGroup", (*status.stalled("Paused", ""), PAUSED), None),
        ("Reassignment", status.progressing("AwaitingApproval", ""), None),
        ("Reassignment", status.progressing("Running", ""), None),
        ("Reassignment", status.stalled("RolledBack", ""), (0, 1)),
        ("Reassignment", status.ready("Completed"), (1, 0)),
    ],
)
def test_resource_that_is_not_meant_to_be_ready_now_has_no_series(
    kind: str, conditions: tuple[Condition, ...], values: tuple[float, float] | None
) -> None:
    found = series(told(resource(kind, "one", clusterRef={"name": "c"}), *conditions))
    names = [(name, kind, "n", "one") for name in (READY, STALLED)]
    assert found == dict(zip(names, values or (), strict=False))


def test_groups_whose_jobs_rest_on_purpose_are_named() -> None:
    def resting(*conditions: Condition, **fields: Any) -> set[tuple[str, ...]]:
        body = resource("ConsumerGroup", "one", clusterRef={"name": "c"}, **fields)
        return {key for key in series(told(body, *conditions)) if key[0] == RESTING}

    assert resting(*status.ready("Suspended")) == {(RESTING, "n", "c", "one")}
    assert resting(*status.ready("Suspended"), group="g") == {(RESTING, "n", "c", "g")}
    assert resting(*status.ready("Scheduled")) == {(RESTING, "n", "c", "one")}
    assert resting(*status.ready("Completed")) == {(RESTING, "n", "c", "one")}
    assert not resting(*status.ready("Running"))
    # Another resource has the group.
    assert not resting(*status.stalled("ResourceConflict", ""), job={"suspend": True})


def test_only_who_acts_in_a_namespace_tells_of_it() -> None:
    here, there = resource("Topic", "t"), resource("Topic", "t", namespace="other")
    told_of = {(READY, "Topic", "n", "t"): 0, (STALLED, "Topic", "n", "t"): 0}
    assert series(here, there) == told_of
    assert series(here, there, acting=frozenset()) == {}
