"""What Kubernetes and brokers would do with the StatefulSets of one KafkaCluster."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from typing import Any

from kazoo.exceptions import NodeExistsError, NoNodeError

from odradek.values import BrokerId
from odradek.zk import znodes
from tests.reconcile import kills
from tests.reconcile.conftest import Place
from tests.support.kubectl import eventually


class Nodes:
    """Makes pods of both StatefulSets, and their registrations in the znodes below `root`.

    The n-th pod of each set is on the node n. Nothing runs on the nodes `lost`, and no registry has
    the images `missing`. `made` counts the pods of each name so far.
    """

    def __init__(self, place: Place, cluster: str = "main", root: str = "") -> None:
        self.place = place
        self.cluster = cluster
        self.root = root
        self.kube = kills.client(place.kubectl.kubeconfig)
        self.sets = {f"{cluster}-broker": 0, f"{cluster}-broker-b": 100}
        self.lost: set[str] = set()
        self.missing: set[str] = set()
        self.made: dict[str, int] = {}

    def stateful_set(self, name: str) -> dict[str, Any] | None:
        return self.kube.get("apps/v1", "StatefulSet", self.place.namespace, name)

    def pods(self) -> dict[str, dict[str, Any]]:
        """Return the pods by name."""
        label = f"odradek.io/cluster={self.cluster},app.kubernetes.io/component=broker"
        found = self.kube.select("v1", "Pod", self.place.namespace, label)
        return {one["metadata"]["name"]: one for one in found}

    def play(self) -> None:
        wanted: set[str] = set()
        there = self.pods()
        for name, first in self.sets.items():
            found = self.stateful_set(name)
            if found is None:
                continue
            assert found["spec"].get("ordinals", {}).get("start", 0) == first
            template = found["spec"]["template"]
            text = json.dumps(template, sort_keys=True)
            revision = hashlib.sha256(text.encode()).hexdigest()[:10]
            count = found["spec"]["replicas"]
            status = {
                "replicas": count,
                "observedGeneration": found["metadata"]["generation"],
                "updateRevision": revision,
            }
            if any(found["status"].get(key) != value for key, value in status.items()):
                self.kube.apply_status(found, status)
            for number in range(count):
                pod = f"{name}-{first + number}"
                wanted.add(pod)
                if pod in there and "deletionTimestamp" in there[pod]["metadata"]:
                    self._end(there.pop(pod))
                if pod not in there:
                    self._run(pod, first + number, template, revision)
        for name in there.keys() - wanted:
            self._end(there[name])
            self.unregister(int(name.rpartition("-")[2]))

    def _end(self, pod: dict[str, Any]) -> None:
        self.kube.delete({**pod, "apiVersion": "v1", "kind": "Pod"}, 0)

    def _run(self, name: str, broker_id: int, template: dict[str, Any], revision: str) -> None:
        self.unregister(broker_id)
        node = f"n{broker_id % 100}"
        where = {} if node in self.lost else {"nodeName": node}
        labels = {**template["metadata"]["labels"], "controller-revision-hash": revision}
        (broker,) = template["spec"]["containers"]
        container = {key: broker[key] for key in ("name", "image", "env")}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.place.namespace, "labels": labels},
            "spec": {"containers": [container], **where},
        }
        made = self.kube.create(pod)
        self.made[name] = self.made.get(name, 0) + 1
        if where:
            pod = {**pod, "metadata": made["metadata"]}
            self.kube.apply_status(pod, self._start(broker_id, node, broker["image"]))

    def _start(self, broker_id: int, node: str, image: str) -> dict[str, Any]:
        """Return the status of a pod on a node."""
        if image in self.missing:
            why = {"reason": "ErrImagePull", "message": f"{image}: not found"}
            state = {"state": {"waiting": why}, "imageID": "", "ready": False, "restartCount": 0}
            container = {"name": "broker", "image": image, **state}
            return {"phase": "Pending", "containerStatuses": [container]}
        self.register(broker_id, node)
        return {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}

    def register(self, broker_id: int, node: str) -> None:
        endpoint = znodes.BrokerEndpoint("PLAINTEXT", node, 9092 + broker_id // 100)
        data = znodes.encode_broker(znodes.BrokerRegistration(BrokerId(broker_id), (endpoint,)))
        with suppress(NodeExistsError):
            self.place.client.create(self._path(broker_id), data, ephemeral=True)

    def unregister(self, broker_id: int) -> None:
        with suppress(NoNodeError):
            self.place.client.delete(self._path(broker_id))

    def _path(self, broker_id: int) -> str:
        return self.root + znodes.broker_path(BrokerId(broker_id))

    def wait(self, reason: str, words: str = "") -> dict[str, Any]:
        """Play until Ready has this reason, and these words in its message."""

        def probe() -> dict[str, Any]:
            self.play()
            found = self.place.kubectl.condition("kafkacluster", self.cluster)
            assert (found.get("reason"), words in found.get("message", "")) == (reason, True), found
            return found

        return eventually(probe, f"{reason} {words}", pause_s=0.3) or {}
