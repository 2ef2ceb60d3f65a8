"""Does for a KafkaCluster what Kubernetes would: pods of a StatefulSet, and their brokers."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from odradek_operator.cluster import listener_plan
from odradek_operator.cluster.listener_plan import ListenerPlan
from odradek_operator.shared.kube import Kube
from tests.support.broker import wait_until

_PATHS = re.compile(
    "/etc/odradek-secrets|/etc/odradek-zookeeper|/etc/odradek|/var/lib/odradek|/tmp(?=/)"
)


def texts(kube: Kube, namespace: str, name: str) -> dict[str, str]:
    """Return the texts of a Secret; empty where there is none."""
    secret = kube.get("v1", "Secret", namespace, name) or {}
    return {key: base64.b64decode(one).decode() for key, one in secret.get("data", {}).items()}


class Pods:
    """The pods of a cluster's brokers, on nodes with the addresses `hosts`; all are ready.

    `nodes` are the names of these nodes, where they matter.
    """

    nodes: Mapping[int, str] = {}

    def __init__(self, kube: Kube, namespace: str, cluster: str, hosts: Mapping[int, str]) -> None:
        self.kube = kube
        self.namespace = namespace
        self.cluster = cluster
        self.hosts = hosts

    def stateful_set(self) -> dict[str, Any] | None:
        return self.kube.get("apps/v1", "StatefulSet", self.namespace, f"{self.cluster}-broker")

    def plan(self) -> ListenerPlan | None:
        """Return the listeners that pods get now."""
        return listener_plan.applied_plan(self.stateful_set())

    def play(self) -> None:
        """Make the pods that are missing, from the template of now."""
        found = self.stateful_set()
        if found is None:
            return
        template = found["spec"]["template"]
        revision = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]
        generation = found["metadata"]["generation"]
        count = found["spec"]["replicas"]
        status = {"replicas": count, "observedGeneration": generation, "updateRevision": revision}
        if status.items() > found.get("status", {}).items() or any(
            found.get("status", {}).get(name) != value for name, value in status.items()
        ):
            self.kube.apply_status(found, status)
        for number in range(count):
            name = f"{self.cluster}-broker-{number}"
            if self.kube.get("v1", "Pod", self.namespace, name) is None:
                node = {"nodeName": self.nodes[number]} if number in self.nodes else {}
                self._make(name, template["metadata"], revision, self.hosts[number], node)

    def _make(
        self,
        name: str,
        meta: Mapping[str, Any],
        revision: str,
        host: str,
        node: Mapping[str, str],
    ) -> None:
        labels = {**meta["labels"], "controller-revision-hash": revision}
        about = {"name": name, "namespace": self.namespace, "labels": labels}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**about, "annotations": meta["annotations"]},
            "spec": {"containers": [{"name": "c", "image": "i"}], **node},
        }
        made = self.kube.create(pod)
        ready = [{"type": "Ready", "status": "True"}]
        status = {"phase": "Running", "hostIP": host, "conditions": ready}
        self.kube.apply_status({**pod, "metadata": made["metadata"]}, status)


class PodBroker:
    """A broker as its pod runs it: the container's own command, with the files of its volumes.

    Two things differ: where the volumes are, and that it binds its node's address only, for all
    nodes are this machine.
    """

    def __init__(self, pods: Pods, number: int, folder: Path, metrics_port: int) -> None:
        self._pods = pods
        self._number = number
        self._folder = folder
        self._metrics_port = metrics_port
        self._process: subprocess.Popen[bytes] | None = None
        self.log = folder / "log"
        for name in ("config", "secrets", "zookeeper", "data", "tmp"):
            (folder / name).mkdir(parents=True)

    def mount(self) -> None:
        """Write the files of ConfigMap and Secret, as a kubelet does now and then."""
        pods, host = self._pods, self._pods.hosts[self._number]
        name = f"{pods.cluster}-broker"
        found = pods.kube.get("v1", "ConfigMap", pods.namespace, name)
        assert found is not None
        config = dict(found["data"])
        moved = self._moved(config["server.properties"]).replace("://:", f"://{host}:")
        config["server.properties"] = re.sub(
            "(?m)^odradek.metrics.port=.*$", f"odradek.metrics.port={self._metrics_port}", moved
        )
        secret = texts(pods.kube, pods.namespace, f"{pods.cluster}-brokers")
        login = texts(pods.kube, pods.namespace, f"{pods.cluster}-zookeeper")
        for place, files in (("config", config), ("secrets", secret), ("zookeeper", login)):
            for file, text in files.items():
                path = self._folder / place / file
                if not path.exists() or path.read_text() != text:
                    new = self._folder / place / f".{file}"
                    new.write_text(text)
                    new.replace(path)

    def start(self) -> None:
        """Run the container's command until it is ended; wait until the broker is up."""
        found = self._pods.stateful_set()
        assert found is not None
        (container,) = found["spec"]["template"]["spec"]["containers"]
        *words, script = container["command"]
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "POD_NAME": f"{self._pods.cluster}-broker-{self._number}",
            "NODE_NAME": "node",
            "ADVERTISED_HOST": self._pods.hosts[self._number],
            **{
                one["name"]: self._moved(one["value"])
                for one in container["env"]
                if one["name"] == "KAFKA_OPTS"
            },
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*words, self._moved(script)], stdout=log, stderr=log, env=environment
            )

    def wait_until_up(self) -> None:
        """Wait until the broker serves."""

        def is_up() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, self.text()[-3000:]
            return " is up\n" in self.text()

        wait_until(is_up, f"broker {self._number} is up")

    def text(self) -> str:
        return self.log.read_text()

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """End the process as a kubelet does: it hands its leaderships over first."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(timeout=60)

    def _moved(self, text: str) -> str:
        places = {
            "/etc/odradek-secrets": "secrets",
            "/etc/odradek-zookeeper": "zookeeper",
            "/etc/odradek": "config",
            "/var/lib/odradek": "data",
            "/tmp": "tmp",
        }
        return _PATHS.sub(lambda found: str(self._folder / places[found[0]]), text)
