"""The Lease: of two operators one acts, and the other takes over."""

from pathlib import Path

from odradek.zk import znodes
from odradek_operator.loop.lease import Leases
from tests.reconcile import kills
from tests.reconcile.conftest import Operator, Place
from tests.support.apiserver import ApiServer
from tests.support.kubectl import eventually


def test_second_operator_waits_and_takes_over_when_the_first_ends(
    api: ApiServer, place: Place, operator: Operator, tmp_path: Path
) -> None:
    eventually(lambda: operator.page("/readyz") == 200, "the first to be ready", pause_s=0.2)
    place.create_cluster(1)
    log = tmp_path / "second.log"
    with Operator(api, place.namespace, log, "operator-1") as second:
        eventually(lambda: second.page("/healthz") == 200, "the second to be alive", pause_s=0.2)
        assert second.page("/readyz") == 503
        eventually(lambda: second.series("odradek_operator_leader"), "its metrics", pause_s=0.2)
        place.kubectl.apply(place.topic("one", partitions=1, replicationFactor=1))
        eventually(lambda: place.client.exists(znodes.topic_path("one")), "the topic", pause_s=0.2)
        assert second.metric("odradek_operator_writes_total") == 0
        assert operator.end() == 0
        eventually(lambda: second.page("/readyz") == 200, "the second to be ready", pause_s=0.2)
        place.kubectl.apply(place.topic("two", partitions=1, replicationFactor=1))
        eventually(lambda: place.client.exists(znodes.topic_path("two")), "the topic", pause_s=0.2)
        holder = place.kubectl.get("lease", "odradek-operator")["spec"]["holderIdentity"]
        assert holder == f"{place.namespace}/operator-1"


def test_operator_of_another_release_leaves_a_namespace_to_the_one_that_has_it(
    api: ApiServer, place: Place, operator: Operator, tmp_path: Path
) -> None:
    place.create_cluster(1)
    place.kubectl.apply(place.topic("one", partitions=1, replicationFactor=1))
    eventually(lambda: place.client.exists(znodes.topic_path("one")), "the topic", pause_s=0.2)
    home = f"{place.namespace}-other"
    api.create_namespace(home)
    log = tmp_path / "second.log"
    with Operator(api, place.namespace, log, "operator-0", home=home) as second:
        # Its own Lease is free, so it looks; but another operator acts in this namespace.
        eventually(lambda: second.page("/readyz") == 200, "the second to be ready", pause_s=0.2)
        place.kubectl.apply(place.topic("two", partitions=1, replicationFactor=1))
        eventually(lambda: place.client.exists(znodes.topic_path("two")), "the topic", pause_s=0.2)
        eventually(lambda: "waiting for the Lease" in log.read_text(), "the second to wait")
        assert second.metric("odradek_operator_writes_total") == 0
        assert second.series("odradek_resource_ready{") == []
        eventually(lambda: operator.series("odradek_resource_ready{"), "what the first tells")
        operator.kill()
        place.kubectl.apply(place.topic("three", partitions=1, replicationFactor=1))
        eventually(
            lambda: place.client.exists(znodes.topic_path("three")), "the topic", pause_s=0.2
        )


def test_operator_that_waits_for_the_lease_ends_when_told(
    api: ApiServer, place: Place, operator: Operator, tmp_path: Path
) -> None:
    eventually(lambda: operator.page("/readyz") == 200, "the first to be ready", pause_s=0.2)
    log = tmp_path / "second.log"
    with Operator(api, place.namespace, log, "operator-1") as second:
        eventually(lambda: second.page("/healthz") == 200, "the second to be alive", pause_s=0.2)
        second.end()
    assert operator.page("/readyz") == 200


def test_lease_of_a_namespace_is_given_up_when_nothing_is_left_there(api: ApiServer) -> None:
    home, preview = "leases-home", "leases-preview"
    for name in (home, preview):
        api.create_namespace(name)

    def holder() -> str:
        lease = api.call.get("lease", "odradek-operator", "-n", preview)
        return str(lease["spec"].get("holderIdentity", ""))

    leases = Leases(kills.client(api.kubeconfig), home, "odradek-operator", "me")
    try:
        assert leases.acquire()
        eventually(lambda: leases.act_in(preview), "the Lease", pause_s=0.1)
        assert holder() == "me"
        leases.keep({preview, "another"})
        assert holder() == "me"
        leases.keep(set())
        assert holder() == ""
        assert leases.held
        eventually(lambda: leases.act_in(preview), "the Lease once more", pause_s=0.1)
        assert holder() == "me"
    finally:
        leases.release()
