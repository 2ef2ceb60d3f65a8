"""An operator that is replaced by a later version, on the real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from odradek.values import BrokerId
from odradek.zk import znodes
from tests.reconcile import later_version
from tests.reconcile.conftest import OFTEN, Operator, Place
from tests.reconcile.nodes import Nodes
from tests.support.apiserver import ApiServer
from tests.support.kubectl import eventually

FORMER, LATER, OWN = (f"registry.test/{one}" for one in ("broker:1", "broker:2", "own:7"))
ON_REQUEST = {"upgrades": "OnRequest"}


@contextmanager
def operator_of(api: ApiServer, place: Place, folder: Path, image: str) -> Iterator[Operator]:
    """Run an operator of the version that has this image of brokers."""
    log = folder / f"operator-{image[-1]}.log"
    modules = OFTEN if image == FORMER else (*OFTEN, "tests.reconcile.later_operator")
    identity = f"operator-{image[-1]}"
    with Operator(api, place.namespace, log, identity, modules=modules, image=image) as running:
        yield running
        # A clean end gives the Lease back.
        assert running.end() == 0
    print(log.read_text())


class Cluster(Nodes):
    """A KafkaCluster, and what Kubernetes and brokers do for it."""

    def __init__(self, place: Place, name: str, brokers: dict[str, int], **spec: Any) -> None:
        super().__init__(place, name, f"/{name}")
        for path in (*znodes.PERSISTENT_PATHS, znodes.CONTROLLER_PATH):
            place.client.ensure_path(self.root + path.rpartition("/")[0])
        for path in znodes.PERSISTENT_PATHS:
            place.client.ensure_path(self.root + path)
        claim = znodes.encode_controller(znodes.ControllerClaim(BrokerId(0), 1))
        place.client.create(self.root + znodes.CONTROLLER_PATH, claim, ephemeral=True)
        connect = {"connect": place.zookeeper, "chroot": f"/{place.namespace}/{name}"}
        self.body: dict[str, Any] = {
            "apiVersion": "odradek.io/v1alpha1",
            "kind": "KafkaCluster",
            "metadata": {"name": name},
            "spec": {"zookeeper": connect, "brokers": brokers, **spec},
        }
        place.kubectl.apply(self.body)

    def change(self, **spec: Any) -> None:
        """Change fields of the spec; None takes one out."""
        patch = json.dumps({"spec": spec})
        self.place.kubectl("patch", "kafkacluster", self.cluster, "--type=merge", f"-p={patch}")

    def ready(self) -> None:
        """Wait until what was asked for last is done."""

        def is_seen() -> bool:
            self.play()
            found = self.place.kubectl.get("kafkacluster", self.cluster)
            return bool(found["status"]["observedGeneration"] == found["metadata"]["generation"])

        eventually(is_seen, f"a look at {self.cluster}", pause_s=0.2)
        self.wait("BrokersReady")

    def restarted(self, *times: int) -> None:
        """Wait until the pods, by their names, were made so many times each, and all is ready."""

        def is_so() -> bool:
            self.play()
            assert [self.made[one] for one in sorted(self.made)] == [*times], self.made
            return True

        eventually(is_so, f"pods of {self.cluster}", pause_s=0.3)
        self.ready()
        assert is_so()

    def up_to_date(self, reason: str | None) -> str:
        """Wait until UpToDate has this reason, and return its message. None: there is none."""

        def probe() -> str:
            self.play()
            found = self.place.kubectl.condition("kafkacluster", self.cluster, "UpToDate")
            assert found.get("reason") == reason, found
            assert not found or found["status"] == str(reason == "UpToDate")
            return str(found.get("message", "")) or "-"

        return eventually(probe, f"{self.cluster} {reason}", pause_s=0.3) or ""

    def template(self, letter: str = "") -> dict[str, Any]:
        found = self.stateful_set(f"{self.cluster}-broker{letter}")
        assert found is not None
        return dict(found["spec"]["template"])

    def images(self) -> set[str]:
        """The images of brokers, as the status has them; the same as those of the pods."""

        def probe() -> set[str]:
            listed = self.place.kubectl.get("kafkacluster", self.cluster)["status"]["brokers"]
            # The status of a moment ago may have a broker without its pod.
            told = [one["image"] for one in listed if "image" in one]
            present = [one["spec"]["containers"][0]["image"] for one in self.pods().values()]
            assert sorted(told) == sorted(present)
            return set(told)

        return eventually(probe, "the images of brokers", pause_s=0.2) or set()

    def of_later(self) -> set[bool]:
        """Whether pods are as the later version makes them."""
        return {
            later_version.VARIABLE in one["spec"]["containers"][0]["env"]
            for one in self.pods().values()
        }

    def properties(self, letter: str = "") -> str:
        config = self.place.kubectl.get("configmap", f"{self.cluster}-broker{letter}")
        return str(config["data"]["server.properties"])


def test_an_upgrade_restarts_the_brokers_of_the_cluster_that_follows_and_no_others(
    place: Place, api: ApiServer, tmp_path: Path
) -> None:
    two = {"replicas": 2}
    follows = Cluster(place, "follows", two)
    pinned = Cluster(place, "pinned", two, image=OWN)
    other = Cluster(place, "other", two, image=OWN, rollout=ON_REQUEST)
    asks = Cluster(place, "asks", two, rollout=ON_REQUEST)
    everyone = (follows, pinned, other, asks)
    with operator_of(api, place, tmp_path, FORMER):
        for one in everyone:
            one.restarted(1, 1)
        assert [one.images() for one in everyone] == [{FORMER}, {OWN}, {OWN}, {FORMER}]
        assert [one.up_to_date("UpToDate") for one in everyone[1:]] == ["-"] * 3
        before = [(one.template(), one.properties()) for one in everyone]

    with operator_of(api, place, tmp_path, LATER):
        assert "instead of" not in pinned.up_to_date("UpgradeWaiting")
        assert f"image {LATER} instead of {FORMER}" in asks.up_to_date("UpgradeWaiting")
        other.up_to_date("UpgradeWaiting")
        follows.restarted(2, 2)
        assert follows.images() == {LATER}
        assert follows.of_later() == {True}
        assert later_version.SETTING in follows.properties()
        follows.up_to_date(None)
        for one, was in zip(everyone[1:], before[1:], strict=True):
            assert (one.template(), one.properties()) == was
            one.restarted(1, 1)

        # A pod that dies comes back as it was.
        place.kubectl("delete", "pod", "pinned-broker-0", "--wait=false")
        pinned.restarted(2, 1)
        assert (pinned.images(), pinned.of_later()) == ({OWN}, {False})
        # Nor does a change that is none of pods' restart any.
        pinned.change(brokers={"replicas": 3, "config": {"log.retention.ms": "5"}})
        pinned.restarted(2, 1, 1)
        assert (pinned.of_later(), pinned.template()) == ({False}, before[1][0])

        # What the operator does differently comes with the request, once.
        for one, times in ((pinned, (3, 2, 2)), (asks, (2, 2))):
            one.change(rollout={"requestId": "1"})
            one.restarted(*times)
            one.up_to_date("UpToDate")
            assert one.of_later() == {True}
            assert later_version.SETTING in one.properties()
        assert (pinned.images(), asks.images()) == ({OWN}, {LATER})
        asks.change(rollout={"requestId": None})
        asks.restarted(2, 2)

        # And with a change that pods must be restarted for.
        other.change(brokers={"resources": {"requests": {"cpu": "1m"}}})
        other.restarted(2, 2)
        other.up_to_date("UpToDate")
        assert (other.images(), other.of_later()) == ({OWN}, {True})
        # Without an image of its own, it follows: here, once it is asked to.
        other.change(image=None)
        assert f"image {LATER} instead of {OWN}" in other.up_to_date("UpgradeWaiting")
        other.change(rollout={"upgrades": None})
        other.restarted(3, 3)
        assert other.images() == {LATER}
        other.up_to_date(None)

    with operator_of(api, place, tmp_path, LATER):
        # An operator that starts anew restarts nothing.
        restarts = ((2, 2), (3, 2, 2), (3, 3), (2, 2))
        for one, so_often in zip(everyone, restarts, strict=True):
            one.change(brokers={"config": {"log.retention.ms": "7"}})
            one.restarted(*so_often)


def test_brokers_that_share_nodes_keep_their_pods_and_a_lost_statefulset_comes_back(
    place: Place, api: ApiServer, tmp_path: Path
) -> None:
    wide = Cluster(place, "wide", {"replicas": 4, "perNode": 2}, image=OWN)
    with operator_of(api, place, tmp_path, FORMER):
        wide.restarted(1, 1, 1, 1)
        before = [(wide.template(one), wide.properties(one)) for one in ("", "-b")]
    with operator_of(api, place, tmp_path, LATER):
        wide.up_to_date("UpgradeWaiting")
        wide.change(brokers={"replicas": 6})
        wide.restarted(1, 1, 1, 1, 1, 1)
        assert wide.of_later() == {False}
        assert [(wide.template(one), wide.properties(one)) for one in ("", "-b")] == before

        place.kubectl("delete", "statefulset", "wide-broker-b")
        # First those of the first set.
        wide.restarted(1, 1, 1, 2, 2, 2)
        assert later_version.VARIABLE["name"] in str(wide.template("-b"))
        assert wide.template() == before[0][0]
        wide.up_to_date("UpgradeWaiting")

        wide.change(rollout={"requestId": "1"})
        wide.restarted(2, 2, 2, 3, 3, 3)
        wide.up_to_date("UpToDate")
        assert (wide.images(), wide.of_later()) == ({OWN}, {True})


def test_an_image_that_nobody_has_stops_at_one_broker_and_the_next_change_mends_it(
    place: Place, api: ApiServer, tmp_path: Path
) -> None:
    with operator_of(api, place, tmp_path, FORMER):
        main = Cluster(place, "main", {"replicas": 3}, image=OWN)
        main.restarted(1, 1, 1)
        main.missing = {"registry.test/none:1"}
        main.change(image="registry.test/none:1")
        told = main.wait("BrokersStarting", "ErrImagePull")
        assert "2 of 3 brokers registered; main-broker-2: ErrImagePull" in told["message"]
        assert main.images() == {OWN, "registry.test/none:1"}
        assert main.up_to_date("Rolling")
        assert list(main.made.values()) == [1, 1, 2]
        # Both at once, while it rolls.
        main.change(image="registry.test/own:8", rollout={"requestId": "1"})
        main.restarted(2, 2, 3)
        assert main.images() == {"registry.test/own:8"}
        assert main.up_to_date("UpToDate")


def test_brokers_of_a_version_that_marked_nothing_are_not_restarted(
    place: Place, api: ApiServer, tmp_path: Path
) -> None:
    with operator_of(api, place, tmp_path, FORMER):
        main = Cluster(place, "main", {"replicas": 2})
        main.restarted(1, 1)
        before = main.template()
    marks = ("odradek.io/spec-hash-", "odradek.io/template-hash=of-pods-alone")
    place.kubectl("annotate", "statefulset", "main-broker", *marks, "--overwrite")

    def is_marked() -> bool:
        main.play()
        found = main.stateful_set("main-broker")
        assert found is not None
        return "odradek.io/spec-hash" in found["metadata"]["annotations"]

    with operator_of(api, place, tmp_path, FORMER):
        eventually(is_marked, "the marks", pause_s=0.2)
        main.restarted(1, 1)
        assert main.template() == before
    with operator_of(api, place, tmp_path, LATER):
        main.restarted(2, 2)
        # To pin it now, to what it runs, is no reason to restart it.
        main.change(image=LATER)
        main.restarted(2, 2)
        main.up_to_date("UpToDate")
