"""The lag exporter of a cluster: made with it as the installation says, gone where it says so."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from odradek_operator.loop.reconciler import Reconciler
from odradek_operator.runtime import SettingsError, read_settings
from odradek_operator.shared.apply import Platform
from odradek_operator.shared.kube import KubeError
from odradek_operator.shared.objects import CLUSTER_LABEL
from odradek_operator.shared.spec import ClusterKey
from odradek_operator.shared.status import condition_of
from odradek_operator.shared.store import ResourceStore, key_of
from tests.reconcile.in_memory import cluster, existing_topic
from tests.support import helm
from tests.support.memory import MemoryKube, MemoryPool, context

ENVIRONMENT = {
    "ODRADEK_BROKER_IMAGE": "b:1",
    "ODRADEK_SPARK_IMAGE": "s:1",
}
NAME = "c-lag-exporter"


def platform(values: Mapping[str, Any] | None = None) -> Platform:
    """What an operator reads from the Deployment of the chart with these values for exporters."""
    objects = helm.template({"exporter": values or {}})
    (deployment,) = [one for one in objects if one["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return read_settings({one["name"]: one.get("value", "") for one in container["env"]}).platform


def reconcile(kube: MemoryKube, body: dict[str, Any], given: Platform) -> None:
    store = ResourceStore()
    store.put(body)
    effects = context(kube, MemoryPool({"zk:2181": existing_topic()}), platform=given)
    done = Reconciler(effects, store).reconcile("n", ClusterKey("n", "c"), {key_of(body): body})
    assert not [one for one in done.values() if isinstance(one, Exception)]


def made(given: Platform) -> dict[str, Any]:
    body = cluster()
    kube = MemoryKube(body)
    reconcile(kube, body, given)
    found = kube.get("apps/v1", "Deployment", "n", NAME)
    assert found is not None
    return found


def test_values_of_the_chart_reach_the_exporter_which_takes_them() -> None:
    place = {"nodeSelector": {"pool": "infra"}, "tolerations": [{"operator": "Exists"}]}
    names = {"groups": "a|b", "excludeGroups": "b", "topics": "t.*", "excludeTopics": "x, y"}
    given = platform({"intervalSeconds": 30, **names, **place})
    pod = made(given)["spec"]["template"]["spec"]
    assert {key: pod[key] for key in place} == place
    (container,) = pod["containers"]
    assert container["image"] == "localhost/odradek/operator:0.1.0"
    assert container["resources"]["limits"] == {"memory": "256Mi"}
    assert set(container["args"]) == {
        "--zookeeper=zk:2181",
        "--port=9308",
        "--interval=30",
        "--groups=a|b",
        "--exclude-groups=b",
        "--topics=t.*",
        "--exclude-topics=x, y",
    }
    # An option that it does not know would end it with status 2 before its help.
    words = [sys.executable, *container["command"][1:], *container["args"], "--help"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_exporter_changes_with_the_settings_of_the_installation() -> None:
    body = cluster()
    kube = MemoryKube(body)
    hashes = set()
    for values in ({}, {"groups": "a"}, {}, {"nodeSelector": {"pool": "infra"}}):
        reconcile(kube, body, platform(values))
        found = kube.get("apps/v1", "Deployment", "n", NAME)
        assert found is not None
        hashes.add(found["metadata"]["annotations"]["odradek.io/template-hash"])
    assert len(hashes) == 3


def test_exporter_goes_when_it_is_switched_off_and_nobody_elses_deployment_does() -> None:
    body = cluster()
    others = {"kind": "Deployment", "metadata": {"name": NAME, "namespace": "n"}}
    for there, left in ((made(platform()), []), (others, [NAME])):
        kube = MemoryKube(body, there)
        reconcile(kube, body, platform({"enabled": False}))
        assert kube.names("Deployment") == left


@pytest.mark.parametrize("text", ["{", "[]", '{"image": "i", "unheard": 1}', "{}"])
def test_settings_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="ODRADEK_EXPORTER"):
        read_settings({**ENVIRONMENT, "ODRADEK_EXPORTER": text})


def test_pod_is_restricted_and_has_no_token() -> None:
    pod = made(platform())["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    (container,) = pod["containers"]
    security = {**pod["securityContext"], **container["securityContext"]}
    assert security["runAsNonRoot"] is True
    assert security["readOnlyRootFilesystem"] is True
    assert json.dumps(security["capabilities"]) == '{"drop": ["ALL"]}'


class Refusing(MemoryKube):
    """An API server that takes no such Deployment."""

    def apply(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        if wanted["kind"] == "Deployment":
            raise KubeError(422, "Deployment is invalid")
        return super().apply(wanted)


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("without_rights", [True, False])
def test_refused_exporter_is_told_and_holds_up_nothing(
    *, enabled: bool, without_rights: bool
) -> None:
    # Rights as a chart without exporters gave them, where somebody else keeps the roles.
    forbidden = frozenset({"Deployment"} if without_rights else ())
    body = cluster()
    kube = Refusing(body, forbidden=forbidden)
    reconcile(kube, body, platform({"enabled": enabled}))
    assert kube.names("StatefulSet") == ["c-broker"]
    stalled = condition_of(kube.statuses[-1], "Stalled")
    assert stalled is not None
    assert stalled["status"] == "False"
    told = condition_of(kube.statuses[-1], "LagExporter")
    if enabled or without_rights:
        assert told is not None
        assert (told["status"], told["reason"]) == ("False", "ApplyRejected")
    else:
        assert told is None


def test_affinities_that_select_brokers_do_not_regard_exporters() -> None:
    found = made(platform())
    pod = found["spec"]["template"]["metadata"]["labels"]
    assert found["spec"]["selector"]["matchLabels"].items() <= pod.items()
    # As examples/kubectl/cluster-on-chosen-nodes.yaml selects brokers.
    assert CLUSTER_LABEL not in pod
