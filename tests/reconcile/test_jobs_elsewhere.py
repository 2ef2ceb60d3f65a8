"""Jobs in a namespace of their own, of a cluster in another one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.reconcile import job_drivers
from tests.reconcile.conftest import Operator, Place
from tests.support import zookeeper
from tests.support.apiserver import ApiServer
from tests.support.kubectl import KubectlError, eventually


class TwoNamespaces(Operator):
    """An operator that may act anywhere, and watches two namespaces."""

    watched: tuple[str, str]

    def start(self) -> None:
        words = ["run", "--log-format=json", "-m", "odradek_operator.handlers"]
        for name in self.watched:
            words += ["-n", name]
        self._process = self._run(words)


@pytest.fixture
def analytics(
    api: ApiServer, zk: zookeeper.Server, place: Place, tmp_path: Path
) -> Iterator[Place]:
    """A second namespace, with an operator for both."""
    name = f"{place.namespace}-analytics"
    api.create_namespace(name)
    process = TwoNamespaces(api, "", tmp_path / "log", "operator-0", home=place.namespace)
    process.watched = (place.namespace, name)
    with process:
        yield Place(api, zk, place.client, name)
    print(process.log.read_text())


def test_job_lives_in_its_own_namespace_while_the_cluster_allows_it(
    api: ApiServer, place: Place, analytics: Place, tmp_path: Path
) -> None:
    def group(name: str, cluster: str = "main", **job: Any) -> dict[str, Any]:
        wanted = job_drivers.group(name, **job)
        wanted["spec"]["clusterRef"] = {"name": cluster, "namespace": place.namespace}
        return wanted

    def grant(*namespaces: str) -> None:
        body = place.kubectl.get("kafkacluster", "main")
        spec = {**body["spec"], "jobs": {"allowedNamespaces": list(namespaces)}}
        kept = {name: body[name] for name in ("apiVersion", "kind")}
        place.kubectl.apply({**kept, "metadata": {"name": "main"}, "spec": spec})

    def pods(where: Place) -> list[str]:
        return [one["metadata"]["name"] for one in where.kubectl.get("pods")["items"]]

    place.create_cluster(1)
    analytics.kubectl.apply(group("far"), group("nowhere", "missing"))
    far = analytics.wait_for("consumergroup", "far", "RefNotPermitted")
    nowhere = analytics.wait_for("consumergroup", "nowhere", "RefNotPermitted")
    assert far["message"].replace("/main ", "/missing ") == nowhere["message"]
    assert pods(analytics) == []

    grant(analytics.namespace)
    job_drivers.limit_jobs(api)
    job = job_drivers.driver_of(analytics, api, "far", tmp_path)
    assert "far-driver" not in pods(place)
    assert job.job.zookeeper == f"{place.zookeeper}/{place.namespace}"
    for kind in ("serviceaccount", "role", "rolebinding"):
        assert analytics.kubectl.get(kind, "odradek-job-far")
    # The policy guards this namespace as any other.

    def is_guarded() -> bool:
        stray = job.executor()
        del stray["metadata"]["ownerReferences"]
        return "is not owned by the driver" in job.create(stray)

    eventually(is_guarded, "the policy holds", pause_s=0.2)
    assert job.create(job.executor()) == ""

    grant("somebody-else")
    told = analytics.wait_for("consumergroup", "far", "RefNotPermitted")
    assert told["message"] == far["message"]
    eventually(lambda: "far-driver" not in pods(analytics), "the driver is gone", pause_s=0.2)
    assert analytics.kubectl.get("consumergroup", "far")["status"]["verdict"] == "STOP"
    grant("*")
    analytics.wait_for("consumergroup", "far", "Pending")
    with pytest.raises(KubectlError, match="clusterRef is immutable"):
        analytics.kubectl.apply({**group("far"), "spec": job_drivers.group("far")["spec"]})
    with pytest.raises(KubectlError, match="allowedNamespaces"):
        grant("a*")
