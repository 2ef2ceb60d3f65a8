"""What is wrong with the racks of brokers, and that the status of their cluster says so."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from odradek.values import BrokerId
from odradek.zk import znodes
from odradek_operator.cluster import racks
from odradek_operator.cluster.racks import NodeRacks
from odradek_operator.shared.status import condition_of
from tests.reconcile.in_memory import cluster, existing_topic, run, status_of
from tests.reconcile.test_brokers_per_node import NEW, OLD, SIX, pod, view

KEY = "topology.kubernetes.io/zone"
ZONES = {"n0": "a", "n1": "b", "n2": "c"}
REFUSED = "; while only some brokers have a rack, clients cannot create topics"
RESTART = (
    "have not the racks of their nodes, which they read when they start: set "
    "spec.rollout.requestId to another value to restart all brokers, in turn"
)


def told(
    by_node: dict[str, str],
    has: dict[int, str | None],
    key: str | None = KEY,
    readable: bool = True,
    rolling: Collection[int] = (),
) -> list[tuple[str, str]]:
    """Return reasons and messages for six brokers on the nodes n0 to n2, which have these racks.

    Those that are `rolling` are still to be restarted.
    """
    endpoint = znodes.BrokerEndpoint("PLAINTEXT", "h", 9092)
    registered = {
        BrokerId(one): znodes.BrokerRegistration(BrokerId(one), (endpoint,), rack=rack)
        for one, rack in has.items()
    }
    seen = view(*(pod(one, OLD if one in rolling else NEW) for one in SIX))
    found = racks.warnings(key, NodeRacks(by_node, readable), seen, registered)
    return [(one.reason, one.message) for one in found]


def of_nodes(by_node: dict[str, str]) -> dict[int, str | None]:
    return {one: by_node.get(f"n{one % 100}") for one in SIX}


def test_brokers_with_the_racks_of_their_nodes_are_as_they_should_be() -> None:
    assert told(ZONES, of_nodes(ZONES)) == []
    alike = dict.fromkeys(ZONES, "a")
    assert told(alike, of_nodes(alike)) == []
    assert told({}, of_nodes({}), key=None) == []
    # Where it runs is known, and what it reads when it starts is not yet to be seen.
    assert told(ZONES, {}) == []


@pytest.mark.parametrize(
    ("by_node", "nodes", "refused"),
    [({"n0": "a", "n1": "b"}, "n2", REFUSED), ({}, "n0, n1, n2", "")],
)
def test_nodes_without_the_label_are_named(
    by_node: dict[str, str], nodes: str, refused: str
) -> None:
    text = f"nodes {nodes} have no label {KEY}, and brokers that start there no rack{refused}"
    assert told(by_node, of_nodes(by_node)) == [("RackUnknown", text)]


def test_nodes_whose_labels_the_operator_may_not_read_are_not_said_to_have_none() -> None:
    assert told(ZONES, of_nodes(ZONES), readable=False) == []
    text = "the operator may not read nodes, and knows no racks of n0, n1, n2: brokers that start"
    ((reason, message),) = told({}, of_nodes({}), readable=False)
    assert (reason, message) == ("RackUnknown", f"{text} there have none")


def test_brokers_that_started_before_the_racks_were_as_they_are_now_are_named() -> None:
    # The key came later, and one broker has crashed since.
    since = of_nodes({}) | {1: "b"}
    text = f"brokers 0, 2, 100, ... {RESTART}{REFUSED}"
    assert told(ZONES, since) == [("RackOutdated", text)]
    # The label of a node was changed; the key was taken out.
    assert told(ZONES | {"n1": "c"}, of_nodes(ZONES)) == [
        ("RackOutdated", f"brokers 1, 101 {RESTART}")
    ]
    assert [one for one, _ in told({}, of_nodes(ZONES), key=None)] == ["RackOutdated"]
    # A roll gives it to the others.
    assert told(ZONES, since, rolling=(0, 2, 100, 101, 102)) == []
    assert told(ZONES, since, rolling=(0, 2, 100)) == [
        ("RackOutdated", f"brokers 101, 102 {RESTART}{REFUSED}")
    ]
    # A label that was taken away is lacked by those that start next.
    fewer = {"n0": "a", "n1": "b"}
    assert [one for one, _ in told(fewer, of_nodes(ZONES))] == ["RackUnknown", "RackOutdated"]


def test_what_is_registered_of_a_broker_that_is_down_says_nothing() -> None:
    down = [replace(pod(one, NEW), ready=False) for one in SIX]
    registration = znodes.BrokerRegistration(BrokerId(0), ())
    found = racks.warnings(KEY, NodeRacks(ZONES), view(*down), {BrokerId(0): registration})
    assert found == ()


def test_status_of_a_cluster_says_whose_node_lacks_the_label() -> None:
    broker: dict[str, Any] = {
        "kind": "Pod",
        "metadata": {"name": "c-broker-0", "namespace": "n", "labels": {}},
        "spec": {"nodeName": "node-1", "containers": []},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    body = cluster(brokers={"replicas": 1, "rackTopologyKey": "zone"})
    reasons = {}
    for value in ("", "a"):
        labels = {"zone": value}
        node = {"kind": "Node", "metadata": {"name": "node-1", "labels": labels}}
        found = status_of(run([body], [broker, node], existing_topic()))
        reasons[value] = condition_of(found, "ConfigWarning") or {}
    assert "nodes node-1 have no label zone, and brokers that" in reasons[""]["message"]
    assert f"brokers 0 {RESTART}" in reasons["a"]["message"]
