"""The API server or ZooKeeper away for a minute: nothing is lost, and all goes on."""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from odradek.values import BrokerId
from odradek.zk import consumers, znodes
from odradek_operator.topic.state import STEADY_SECONDS
from tests.reconcile.conftest import OFTEN, Operator, Place
from tests.reconcile.test_reassignment_flow import config, move, reassignment, wait_for_request
from tests.support import zookeeper
from tests.support.apiserver import ApiServer
from tests.support.kubectl import eventually
from tests.support.sampling import how_many

# Four times what a Lease lasts.
OUTAGE_SECONDS = how_many(15, full=60)
# Its longest pause between two tries is 15 s; machines may be busy.
CONVERGED_SECONDS = 60
# A Topic that is ready is not looked at before.
NOTICED_SECONDS = STEADY_SECONDS + 30
ONE = {"partitions": 1, "replicationFactor": 1}
EVERYTHING = {
    "kafkacluster/main": "BrokersReady",
    "topic/kept": "Synced",
    "topic/going": "Synced",
    "consumergroup/g": "Observed",
    "reassignment/r": "Running",
}


@pytest.fixture
def own_api(tmp_path: Path) -> Iterator[ApiServer]:
    """An API server that a test may kill."""
    folder = tmp_path / "api"
    folder.mkdir()
    with ApiServer(folder) as server:
        server.install_crds()
        server.create_namespace("outages")
        yield server


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[zookeeper.Server]:
    """A ZooKeeper that a test may kill."""
    folder = tmp_path / "zookeeper"
    folder.mkdir()
    with zookeeper.Server(folder) as server:
        yield server


def fill(place: Place) -> None:
    """Make one of each kind: at rest, and a move that is under way."""
    place.create_cluster(2)
    claim = znodes.ControllerClaim(BrokerId(0), 1)
    place.client.create(znodes.CONTROLLER_PATH, znodes.encode_controller(claim))
    place.make("moving", (0,))
    place.client.create(consumers.offset_path("g", "kept", 0), b"5", makepath=True)
    place.kubectl.apply(
        place.topic("kept", **ONE, config={"retention.ms": "5000000"}),
        place.topic("going", **ONE, deletionPolicy="Delete"),
        reassignment("r", "Explicit", moves=[move("moving", 0, 1)]),
        {
            "apiVersion": "odradek.io/v1alpha1",
            "kind": "ConsumerGroup",
            "metadata": {"name": "g"},
            "spec": {
                "clusterRef": {"name": "main"},
                "topics": ["kept"],
                "deletionPolicy": "Delete",
            },
        },
    )
    wait_for_request(place)
    for topic in ("kept", "going"):
        eventually(partial(place.client.exists, znodes.topic_path(topic)), topic)
        place.elect(topic)
    await_reasons(place, EVERYTHING)


def await_reasons(place: Place, wanted: dict[str, str], seconds: float = CONVERGED_SECONDS) -> None:
    """Wait until the resources tell this of Ready."""

    def as_wanted() -> bool:
        found = {one: place.kubectl.condition(*one.split("/")).get("reason") for one in wanted}
        assert found == wanted, found
        return True

    eventually(as_wanted, str(wanted), seconds, 0.5)


def written(client: KazooClient, path: str = "") -> dict[str, tuple[int, int]]:
    """Which transactions made and changed each znode, but for those that live with a session."""
    try:
        stat = client.exists(path or "/")
        found = {path: (stat.czxid, stat.mzxid)} if not stat.ephemeralOwner else {}
        for child in client.get_children(path or "/"):
            found |= written(client, f"{path}/{child}")
    except (NoNodeError, AttributeError):
        return {}
    return found


def identities(place: Place) -> dict[str, str]:
    """The uid of each of the operator's resources and of what it made of them."""
    kinds = (
        "kafkaclusters,topics,consumergroups,reassignments,"
        "statefulsets,services,configmaps,poddisruptionbudgets"
    )
    found = place.kubectl.get(kinds)["items"]
    return {f"{one['kind']}/{one['metadata']['name']}": one["metadata"]["uid"] for one in found}


@pytest.mark.full(
    "tests/reconcile/test_watch_gaps.py::test_lists_that_are_empty_or_old_delete_nothing_and_the_truth_is_followed_again"
)
def test_api_server_away_for_a_minute(
    own_api: ApiServer, own_zookeeper: zookeeper.Server, tmp_path: Path
) -> None:
    log = tmp_path / "operator.log"
    with own_zookeeper.client() as root:
        root.ensure_path("/outages")
    with (
        own_zookeeper.client("/outages") as client,
        Operator(own_api, "outages", log, "operator-0") as operator,
    ):
        place = Place(own_api, own_zookeeper, client, "outages")
        fill(place)
        resources, asked = identities(place), place.requested()
        assert operator.series("odradek_operator_leader") == ["odradek_operator_leader 1.0"]

        own_api.kill_api()
        began = time.monotonic()
        eventually(lambda: operator.page("/readyz") == 503, "the operator not to be ready")
        assert operator.page("/healthz") == 200
        assert operator.series("odradek_operator_leader") == ["odradek_operator_leader 0.0"]
        # Somebody changes what the operator would change back, and nobody may act now.
        theirs = znodes.topic_config_path("kept")
        client.set(theirs, znodes.encode_config({"retention.ms": "7"}))
        before = written(client)
        # The fault lasts that long; nothing is measured.
        time.sleep(max(0.0, began + OUTAGE_SECONDS - time.monotonic()))
        assert written(client) == before
        assert operator.page("/healthz") == 200

        own_api.start_api()
        # It is ready a moment before it tells clients of all kinds.
        asking = place.topic("asked", **ONE)

        def is_asked_for() -> bool:
            place.kubectl.apply(asking)
            return True

        eventually(is_asked_for, "a topic to be asked for")
        mended = {"retention.ms": "5000000"}
        eventually(
            lambda: config(place, "topics", "kept") == mended,
            "the drift to be mended",
            CONVERGED_SECONDS,
        )
        eventually(
            lambda: client.exists(znodes.topic_path("asked")), "the topic", CONVERGED_SECONDS
        )
        place.elect("asked")
        await_reasons(place, {**EVERYTHING, "topic/asked": "Synced"})
        after = written(client)
        assert {one for one in before if after.get(one) != before[one]} == {theirs}
        added = {one for one in after if one not in before}
        assert all("asked" in one or znodes.CONFIG_CHANGES_PATH in one for one in added), added
        assert place.requested() == asked
        assert resources.items() <= identities(place).items()


def test_zookeeper_away_for_a_minute(
    api: ApiServer, own_zookeeper: zookeeper.Server, tmp_path: Path
) -> None:
    log = tmp_path / "operator.log"
    api.create_namespace("zookeeper-away")
    with own_zookeeper.client() as root:
        root.ensure_path("/zookeeper-away")
    with (
        own_zookeeper.client("/zookeeper-away") as client,
        Operator(api, "zookeeper-away", log, "operator-0", modules=OFTEN) as operator,
    ):
        place = Place(api, own_zookeeper, client, "zookeeper-away")
        fill(place)
        resources, asked, before = identities(place), place.requested(), written(client)

        own_zookeeper.kill()
        began = time.monotonic()
        place.kubectl.apply(place.topic("asked", **ONE))
        place.kubectl("delete", "topic", "going", "--wait=false")
        away = dict.fromkeys([*EVERYTHING, "topic/asked"], "ZooKeeperUnreachable")
        await_reasons(place, away, NOTICED_SECONDS)
        time.sleep(max(0.0, began + OUTAGE_SECONDS - time.monotonic()))
        await_reasons(place, away)
        assert operator.page("/readyz") == operator.page("/healthz") == 200
        assert place.kubectl.get("topic", "going")["metadata"]["finalizers"]

        own_zookeeper.start()
        with own_zookeeper.client("/zookeeper-away") as later:
            # The sessions of the brokers may have ended: they come back.
            place.client = later
            for broker_id in range(2):
                if later.exists(znodes.broker_path(broker_id)):
                    later.delete(znodes.broker_path(broker_id))
                place.register(broker_id)
            request = znodes.delete_topic_path("going")
            eventually(lambda: later.exists(request), "the deletion", CONVERGED_SECONDS)
            eventually(
                lambda: later.exists(znodes.topic_path("asked")), "the topic", CONVERGED_SECONDS
            )
            place.elect("asked")
            after = written(later)
            assert {one: after.get(one) for one in before} == before
            added = {one for one in after if one not in before}
            assert all("asked" in one or one == request for one in added), added
            place.finish_deletion("going")
            remaining = {one: reason for one, reason in EVERYTHING.items() if one != "topic/going"}
            await_reasons(place, {**remaining, "topic/asked": "Synced"})
            assert place.requested() == asked
            place.kubectl("wait", "--for=delete", "topic/going", "--timeout=120s")
            going = {("Topic/going", resources["Topic/going"])}
            assert resources.items() - identities(place).items() == going
