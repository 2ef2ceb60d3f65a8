"""What /metrics tells of the operator itself: who acts, what waits, how old its sessions are."""

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reconcile.conftest import Operator, Place
from tests.support import zookeeper
from tests.support.apiserver import ApiServer
from tests.support.kubectl import eventually

NAMESPACE = "operator-metrics"
LEADER = "odradek_operator_leader"
AGE = "odradek_operator_zookeeper_session_age_seconds"
QUEUE = "odradek_operator_queued_resources"
READY = "odradek_resource_ready{"
BROKERS = "odradek_cluster_brokers_"


@pytest.fixture
def own_place(api: ApiServer, tmp_path: Path) -> Iterator[tuple[Place, zookeeper.Server]]:
    """A place with a ZooKeeper that a test may stop."""
    api.create_namespace(NAMESPACE)
    with zookeeper.Server(tmp_path) as server:
        with server.client() as root:
            root.ensure_path(f"/{NAMESPACE}")
        with server.client(f"/{NAMESPACE}") as client:
            yield Place(api, server, client, NAMESPACE), server


def test_metrics_tell_who_acts_what_waits_and_how_old_sessions_are(
    api: ApiServer, own_place: tuple[Place, zookeeper.Server], tmp_path: Path
) -> None:
    place, ensemble = own_place
    log = tmp_path / "operator.log"
    with Operator(api, NAMESPACE, log, "operator-0") as operator:
        eventually(lambda: operator.page("/readyz") == 200, "the operator", pause_s=0.2)
        assert operator.series(LEADER) == [f"{LEADER} 1.0"]
        assert operator.series(AGE) == operator.series(QUEUE) == []
        with Operator(api, NAMESPACE, tmp_path / "2.log", "operator-1") as second:
            eventually(lambda: second.page("/healthz") == 200, "the second", pause_s=0.2)
            # The port of the metrics opens after that of the health.
            told = eventually(lambda: second.series(LEADER), "its metrics", pause_s=0.2)
            assert told == [f"{LEADER} 0.0"]

        began = time.monotonic()
        place.create_cluster(1)
        place.kubectl.apply(place.topic("one", partitions=1, replicationFactor=1))
        place.wait_for("topic", "one", "WaitingForLeaders")
        place.elect("one")
        place.wait_for("topic", "one", "Synced")
        (session,) = operator.series(AGE)
        assert session.startswith(f'{AGE}{{connect="{ensemble.connect}/{NAMESPACE}"}} ')
        age, asked = operator.metric(AGE), time.monotonic()
        assert 0 < age < asked - began
        assert f"{ensemble.connect}/{NAMESPACE}: session of " in operator.text("/healthz")
        queue = f'{QUEUE}{{cluster="main",namespace="{NAMESPACE}"}}'
        eventually(lambda: operator.series(QUEUE) == [f"{queue} 0.0"], "an empty queue")

        def states() -> bool:
            place_of = f'namespace="{NAMESPACE}"'
            return set(operator.series(READY) + operator.series(BROKERS)) == {
                # The brokers are registrations only, without a controller.
                f'{READY}kind="KafkaCluster",name="main",{place_of}}} 0.0',
                f'{READY}kind="Topic",name="one",{place_of}}} 1.0',
                f'{BROKERS}wanted{{cluster="main",{place_of}}} 1.0',
                f'{BROKERS}registered{{cluster="main",{place_of}}} 1.0',
            }

        eventually(states, "the states of both resources", pause_s=0.2)

        # ZooKeeper answers nothing: a pass waits for it, and everything else for the pass.
        ensemble.pause()
        place.kubectl.apply(
            *(place.topic(f"t{one}", partitions=1, replicationFactor=1) for one in range(20))
        )
        touches = itertools.count()

        def queued() -> bool:
            # All that comes before a pass begins is in that pass.
            place.kubectl("annotate", "topic", "--all", f"touch={next(touches)}", "--overwrite")
            return operator.metric(QUEUE) >= 10

        eventually(queued, "a queue", pause_s=0.1)
        ensemble.resume()
        place.wait_for("topic", "t19", "WaitingForLeaders")
        eventually(lambda: operator.metric(QUEUE) == 0, "an empty queue", pause_s=0.2)

        place.kubectl("delete", "kafkacluster", "main")
        eventually(lambda: operator.series(AGE) == [], "the end of the session", pause_s=0.2)
        assert operator.series(BROKERS) == []
        assert not [one for one in operator.series(READY) if "KafkaCluster" in one]
