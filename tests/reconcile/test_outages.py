"""The API server or ZooKeeper away for longer than the Lease: nothing is lost, and all goes on."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.zk import znodes
from odradek_operator import lease
from tests.reconcile.conftest import Operator, Place
from tests.support import zookeeper
from tests.support.apiserver import ApiServer
from tests.support.kubectl import eventually


@pytest.fixture
def own_api(tmp_path: Path) -> Iterator[ApiServer]:
    """An API server that a test may kill."""
    folder = tmp_path / "api"
    folder.mkdir()
    with ApiServer(folder) as server:
        server.install_crds()
        server.call("create", "namespace", "outages")
        yield server


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[zookeeper.Server]:
    """A ZooKeeper that a test may kill."""
    folder = tmp_path / "zookeeper"
    folder.mkdir()
    with zookeeper.Server(folder) as server:
        yield server


def test_outages_of_the_api_server_and_of_zookeeper_are_survived(
    own_api: ApiServer, own_zookeeper: zookeeper.Server, tmp_path: Path
) -> None:
    with own_zookeeper.client() as root:
        root.ensure_path("/outages")
    log = tmp_path / "operator.log"
    with (
        own_zookeeper.client("/outages") as client,
        Operator(own_api.kubeconfig, "outages", log, "operator-0") as operator,
    ):
        place = Place(own_api, own_zookeeper, client, "outages")
        place.create_cluster(1)
        one = {"partitions": 1, "replicationFactor": 1, "deletionPolicy": "Delete"}
        place.kubectl.apply(place.topic("before", **one))
        eventually(lambda: client.exists(znodes.topic_path("before")), "the topic", pause_s=0.2)
        place.elect("before")
        place.wait_for("topic", "before", "Synced")

        own_api.kill_api()
        # The fault lasts until the Lease has run out; nothing is measured.
        time.sleep(lease.DEADLINE_SECONDS + 2)
        eventually(lambda: operator.page("/readyz") == 503, "the operator not to be ready")
        assert operator.page("/healthz") == 200
        assert client.exists(znodes.topic_path("before"))
        own_api.start_api()
        place.kubectl.apply(place.topic("after", **one))
        eventually(lambda: client.exists(znodes.topic_path("after")), "the topic", pause_s=0.2)
        place.elect("after")
        place.wait_for("topic", "after", "Synced")

        own_zookeeper.kill()
        place.kubectl("annotate", "topic", "before", "touched=yes")
        place.wait_for("topic", "before", "ZooKeeperUnreachable")
        own_zookeeper.start()
        place.wait_for("topic", "before", "Synced")
        # The session of before may have expired with its brokers; the topics are still there.
        with own_zookeeper.client("/outages") as later:
            assert later.get_children(znodes.DELETE_TOPICS_PATH) == []
            assert sorted(later.get_children(znodes.TOPICS_PATH)) == ["after", "before"]
