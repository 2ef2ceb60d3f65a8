"""Tables of Topics through the real operator process, the real API server and ZooKeeper."""

from __future__ import annotations

from typing import Any

from odradek.zk import znodes
from tests.reconcile.conftest import Operator, Place
from tests.support.kubectl import eventually

URL = "s3a://lake/orders"


def apply(place: Place, name: str, path: str | None, **more: Any) -> None:
    table = {} if path is None else {"table": {"format": "delta", "path": path, **more}}
    place.kubectl.apply(place.topic(name, partitions=1, replicationFactor=1, **table))


def table_reason(place: Place, name: str, reason: str) -> dict[str, Any]:
    """Wait until TableReady has this reason."""

    def probe() -> dict[str, Any]:
        found = place.kubectl.condition("topic", name, "TableReady")
        assert found.get("reason") == reason, found
        return found

    return eventually(probe, f"topic {name}: {reason}", pause_s=0.2) or {}


def group(place: Place, name: str) -> dict[str, Any] | None:
    found = place.kubectl.get("consumergroup")["items"]
    return next((one for one in found if one["metadata"]["name"] == name), None)


def is_gone(place: Place, name: str) -> None:
    def probe() -> bool:
        return group(place, name) is None

    eventually(probe, f"{name} is gone", pause_s=0.2)


def end_driver(place: Place) -> None:
    """Take the pod away as a kubelet does; the operator may have been faster."""
    words = ("--grace-period=0", "--force", "--ignore-not-found")
    place.kubectl("delete", "pod", "orders-table-driver", *words)


def test_topic_lands_in_a_table_as_long_as_it_says_so(place: Place, operator: Operator) -> None:
    place.create_cluster(1)
    # Its broker is no real one: the driver is a pod that nobody runs.
    apply(place, "orders", URL, schema="id long", partitionBy=["day"])
    eventually(lambda: place.client.exists(znodes.topic_path("orders")), "the topic", pause_s=0.2)
    place.elect("orders")
    place.wait_for("topic", "orders", "Synced")
    said = table_reason(place, "orders", "Pending")
    assert said["status"] == "False"
    first = eventually(lambda: group(place, "orders-table"), "a group", pause_s=0.2)
    assert first is not None
    assert first["spec"]["topics"] == ["orders"]
    former = first["metadata"]["uid"]
    wanted = {"format": "delta", "path": URL, "consumerGroup": "orders-table"}

    def names_its_group() -> bool:
        return bool(place.kubectl.get("topic", "orders")["status"]["table"] == wanted)

    eventually(names_its_group, "a status that names the group", pause_s=0.2)

    # Somebody deletes it, and the garbage collector its driver.
    place.kubectl("delete", "consumergroup", "orders-table")
    end_driver(place)

    def made_again() -> bool:
        found = group(place, "orders-table")
        return found is not None and found["metadata"]["uid"] != former

    eventually(made_again, "another group", pause_s=0.2)
    # Its driver has no process that could end.
    apply(place, "orders", URL, suspend=True)

    def is_suspended() -> bool:
        end_driver(place)
        found = place.kubectl.condition("topic", "orders", "TableReady")
        return found.get("reason") == "Suspended"

    eventually(is_suspended, "a suspended table", pause_s=0.2)
    said = table_reason(place, "orders", "Suspended")
    assert said["status"] == "False"
    job = (group(place, "orders-table") or {})["spec"]["job"]
    assert "schema" not in job
    assert "partitionBy" not in job["sink"]["delta"]

    # Who comes second waits, and may go on when the first one leaves.
    apply(place, "others", f"{URL}/nested", suspend=True)
    eventually(lambda: place.client.exists(znodes.topic_path("others")), "a topic", pause_s=0.2)
    place.elect("others")
    said = table_reason(place, "others", "PathInUse")
    assert f"Topic {place.namespace}/orders" in said["message"]
    assert group(place, "others-table") is None
    apply(place, "orders", None)
    is_gone(place, "orders-table")

    def has_none() -> bool:
        told = place.kubectl.get("topic", "orders")["status"]
        types = {one["type"] for one in told["conditions"]}
        return "TableReady" not in types and "table" not in told

    eventually(has_none, "a status without a table", pause_s=0.2)
    table_reason(place, "others", "Suspended")
    one_group = (group(place, "others-table") or {})["spec"]["group"]
    apply(place, "others", "s3a://lake/elsewhere", suspend=True)

    def moved() -> bool:
        found = group(place, "others-table")
        return found is not None and found["spec"]["group"] != one_group

    eventually(moved, "a group for the other table", pause_s=0.2)
    table_reason(place, "others", "Suspended")
    assert operator.metric("odradek_operator_reconcile_errors_total") == 0


def test_table_that_the_api_server_refuses_is_told(place: Place, operator: Operator) -> None:
    place.create_cluster(1)
    place.make("orders", (0,))
    foreign = {
        "apiVersion": "odradek.io/v1alpha1",
        "kind": "ConsumerGroup",
        "metadata": {"name": "taken-table"},
        "spec": {"clusterRef": {"name": "main"}, "topics": ["orders"]},
    }
    place.kubectl.apply(foreign)
    apply(place, "taken", URL)
    eventually(lambda: place.client.exists(znodes.topic_path("taken")), "the topic", pause_s=0.2)
    place.elect("taken")
    table_reason(place, "taken", "ResourceConflict")
    assert "job" not in (group(place, "taken-table") or {})["spec"]
    place.kubectl("delete", "consumergroup", "taken-table")
    # It was not this Topic's to be woken by.
    table_reason(place, "taken", "Pending")
    assert group(place, "taken-table")
