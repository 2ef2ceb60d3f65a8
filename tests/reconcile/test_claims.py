"""Volume claims of brokers that somebody deletes, on the real API server."""

from __future__ import annotations

import json

from tests.reconcile.conftest import Operator, Place
from tests.reconcile.nodes import Nodes
from tests.reconcile.test_cluster_flow import become_controller, make_claim
from tests.support.kubectl import eventually


def test_a_pod_whose_claim_was_deleted_is_left_to_the_user(
    place: Place, operator: Operator
) -> None:
    nodes = Nodes(place)
    place.create_cluster(3, storage={"size": "1Gi"})
    for broker_id in range(3):
        nodes.unregister(broker_id)
    become_controller(place, 0)
    eventually(lambda: nodes.stateful_set("main-broker") is not None, "brokers", pause_s=0.2)
    make_claim(place, "data-main-broker-1", grows=False)
    nodes.wait("BrokersReady", "3 of 3")

    # Like a pod that uses it, its finalizer keeps it.
    place.kubectl("delete", "pvc", "data-main-broker-1", "--wait=false")
    roll = json.dumps({"spec": {"rollout": {"requestId": "1"}}})
    place.kubectl("patch", "kafkacluster", "main", "--type=merge", f"--patch={roll}")

    def others_are_rolled() -> bool:
        nodes.play()
        told = place.kubectl.condition("kafkacluster", "main", "Reconciling")
        assert told.get("message", "").endswith(
            "brokers [1] wait for you, as ConfigWarning says"
        ), told
        return nodes.made == {"main-broker-0": 2, "main-broker-1": 1, "main-broker-2": 2}

    eventually(others_are_rolled, "a roll of the others", pause_s=0.3)
    warning = place.kubectl.condition("kafkacluster", "main", "ConfigWarning")
    assert (warning["status"], warning["reason"]) == ("True", "ClaimDeleted")
    assert "data-main-broker-1" in warning["message"]
    assert place.kubectl.get("pdb", "main-broker")["spec"]["maxUnavailable"] == 0

    # What Kubernetes does once the pod is gone.
    place.kubectl("delete", "pod", "main-broker-1", "--wait=false")
    free = json.dumps({"metadata": {"finalizers": None}})
    place.kubectl("patch", "pvc", "data-main-broker-1", "--type=merge", f"--patch={free}")
    nodes.wait("BrokersReady", "3 of 3")
    assert nodes.made["main-broker-1"] == 2

    def all_is_well() -> bool:
        nodes.play()
        warning = place.kubectl.condition("kafkacluster", "main", "ConfigWarning")
        most = place.kubectl.get("pdb", "main-broker")["spec"]["maxUnavailable"]
        return (warning["reason"], most) == ("NoWarnings", 1)

    eventually(all_is_well, "no warning", pause_s=0.3)
