"""A job whose query changes while it has state: refused before anything is stopped."""

from __future__ import annotations

import json
from typing import Any

from tests.reconcile.conftest import Operator, Place
from tests.reconcile.drivers import reporting
from tests.reconcile.job_drivers import run_at
from tests.support.kubectl import eventually
from tests.support.ports import own_address

ADDRESS = own_address()
PAGES = "select page, count(*) as views from t group by page"
USERS = "select user, count(*) as views from t group by user"


def counting(sql: str, *, executors: int = 1, more: Any = None, **job: Any) -> dict[str, Any]:
    volume = {"sink": {"console": {}}, "volume": {"size": "1Gi"}}
    wanted = {"sql": sql, "executors": {"instances": executors}, **volume, **job}
    return {
        "apiVersion": "odradek.io/v1alpha1",
        "kind": "ConsumerGroup",
        "metadata": {"name": "counting"},
        "spec": {"clusterRef": {"name": "main"}, "topics": ["t"], "job": wanted, **(more or {})},
    }


def test_change_of_a_stateful_query_leaves_its_driver_alone_until_it_is_asked_for(
    operator: Operator, place: Place
) -> None:
    place.create_cluster(1)

    def uid() -> str:
        return str(place.kubectl.get("pod", "counting-driver")["metadata"]["uid"])

    def started_with() -> str:
        found = place.kubectl.get("configmap", "counting-job")["data"]["job.json"]
        return str(json.loads(found)["job"]["sql"])

    def next_driver(former: str) -> str:
        assert uid() != former
        return uid()

    report: dict[str, Any] = {"state": "Running", "executors": 1, "lastBatchId": 0}
    place.kubectl.apply(counting("select 1"))
    stateless = eventually(uid, "a driver", pause_s=0.2)
    with reporting(ADDRESS, report):
        run_at(place, "counting", ADDRESS)
        report.update(keepsState=False)
        place.wait_for("consumergroup", "counting", "Running")
        place.kubectl.apply(counting(PAGES))
        first = eventually(lambda: next_driver(stateless), "another query", pause_s=0.2)
        report.update(keepsState=True, executorsWanted=1)
        run_at(place, "counting", ADDRESS)
        place.wait_for("consumergroup", "counting", "Running")

        reset = {"reset": {"requestId": "r", "strategy": "Earliest"}}
        place.kubectl.apply(counting(USERS, executors=3, more=reset))
        told = place.wait_for("consumergroup", "counting", "StatefulQueryChanged")
        assert told["status"] == "False"
        assert told["message"].startswith("spec.job.sql was changed, and the checkpoint has state")
        assert place.kubectl.condition("consumergroup", "counting", "Stalled")["status"] == "True"
        # The former query is scaled, and started again where it has to be.
        report.update(executors=3, executorsWanted=3)
        place.kubectl("delete", "pod", "counting-driver", "--force", "--grace-period=0")
        again = eventually(lambda: next_driver(first), "the former query again", pause_s=0.2)
        assert started_with() == PAGES
        run_at(place, "counting", ADDRESS)
        found = place.kubectl.get("consumergroup", "counting")["status"]
        assert "lastReset" not in found

        place.kubectl.apply(counting(PAGES, executors=3))
        place.wait_for("consumergroup", "counting", "Running")
        assert uid() == again

        migration = {"requestId": "a", "strategy": "NewCheckpoint"}
        place.kubectl.apply(counting(USERS, executors=3, migration=migration))
        last = eventually(lambda: next_driver(again), "the next query", pause_s=0.2)
        assert started_with() == USERS
        run_at(place, "counting", ADDRESS)
        place.wait_for("consumergroup", "counting", "Running")
        # The request has been carried out, and says nothing of the next change.
        place.kubectl.apply(counting(PAGES, executors=3, migration=migration))
        place.wait_for("consumergroup", "counting", "StatefulQueryChanged")
        assert uid() == last
