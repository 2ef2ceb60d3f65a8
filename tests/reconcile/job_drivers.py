"""Jobs whose drivers the operator started, and what their code could do with their accounts."""

from __future__ import annotations

import copy
import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from odradek_spark import cluster_conf, config, config_loading
from tests.reconcile.conftest import Place
from tests.support import helm, objects
from tests.support.apiserver import ApiServer

Pod = dict[str, Any]
SECONDS = 3600
# Spark itself counts from 1.
_numbers = itertools.count(1_000_000)


def group(name: str, **job: Any) -> dict[str, Any]:
    """A ConsumerGroup with a job that runs somebody's function."""
    return {
        "apiVersion": "odradek.io/v1alpha1",
        "kind": "ConsumerGroup",
        "metadata": {"name": name},
        "spec": {
            "clusterRef": {"name": "main"},
            "topics": ["t"],
            "job": {
                "python": "module:function",
                "image": "registry.test/theirs:1",
                "sink": {"console": {}},
                "volume": {"size": "1Gi"},
                **job,
            },
        },
    }


def limit_jobs(api: ApiServer) -> None:
    """Install the chart's policy, where accounts have an identity elsewhere."""
    annotations = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/jobs"}
    values = {"sparkJob": {"serviceAccount": {"annotations": annotations}}}
    # Releases of other tests on the same API server have policies of their own.
    for one in helm.template(values, namespace="limited"):
        if one["metadata"]["name"].endswith("-limit-jobs"):
            objects.client(api.kubeconfig).apply("", one)


@dataclass(frozen=True)
class Job:
    """A driver that the operator started, and what its process could do."""

    place: Place
    admin: objects.ObjectClient
    client: objects.ObjectClient
    driver: Pod
    job: config.Job
    environment: config.Environment
    kubeconfig: Path

    def executor(self) -> Pod:
        """Return an executor as Spark makes it of the template and its own properties."""
        pod: Pod = copy.deepcopy(dict(cluster_conf.executor_pod(self.job, self.environment)))
        conf = cluster_conf.spark_conf(self.job, self.environment, None)
        prefix = conf["spark.kubernetes.executor.podNamePrefix"]
        meta, driver = pod["metadata"], self.driver["metadata"]
        meta["name"] = f"{prefix}-exec-{next(_numbers)}"
        label = "spark.kubernetes.executor.label."
        marks = {key.removeprefix(label): conf[key] for key in conf if key.startswith(label)}
        meta["labels"] = {**meta["labels"], **marks, "spark-role": "executor"}
        owner = {"apiVersion": "v1", "kind": "Pod", "name": driver["name"], "uid": driver["uid"]}
        meta["ownerReferences"] = [{**owner, "controller": True}]
        (container,) = pod["spec"]["containers"]
        container["image"] = conf["spark.kubernetes.container.image"]
        pod["spec"]["serviceAccountName"] = self.job.service_account
        claim = {"claimName": self.job.claim_name}
        pod["spec"]["volumes"].append({"name": "data", "persistentVolumeClaim": claim})
        pod["spec"]["volumes"].append({"name": "spark-local-dir-1", "emptyDir": {}})
        return pod

    def create(self, pod: Pod) -> str:
        """Create a pod as the job, and return why that is refused."""
        return self._refusal(lambda: self.client.create(self.place.namespace, pod))

    def delete(self, name: str) -> str:
        """Delete a pod as the job, and return why that is refused."""
        return self._refusal(lambda: self.client.delete("pod", self.place.namespace, name))

    def delete_all(self, selector: str) -> str:
        """Delete pods as the job, and return why that is refused."""
        return self._refusal(lambda: self.client.delete_all("pod", self.place.namespace, selector))

    def exists(self, name: str) -> bool:
        pods = self.admin.read("pod", self.place.namespace, "")["items"]
        # Nobody ends the containers here: what was deleted is gone, as it was never scheduled.
        return name in [one["metadata"]["name"] for one in pods]

    @staticmethod
    def _refusal(act: Any) -> str:
        try:
            act()
        except objects.ApiError as refused:
            return str(refused)
        return ""


def driver_of(place: Place, api: ApiServer, name: str, folder: Path) -> Job:
    """Wait for the driver that the operator starts, and take its token."""
    place.wait_for("consumergroup", name, "Pending")
    pod = place.kubectl.get("pod", f"{name}-driver")
    admin = objects.client(api.kubeconfig)
    account = pod["spec"]["serviceAccountName"]
    document = yaml.safe_load(api.kubeconfig.read_text())
    token = admin.token(place.namespace, account, SECONDS, pod)
    document["users"][0]["user"] = {"token": token}
    kubeconfig = folder / f"{name}.kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(document))
    environment = config.Environment(
        pod_name=pod["metadata"]["name"],
        pod_namespace=place.namespace,
        pod_ip="127.0.0.1",
        pod_uid=pod["metadata"]["uid"],
        uid=10001,
        gid=10001,
    )
    text = place.kubectl.get("configmap", f"{name}-job")["data"]["job.json"]
    job = config_loading.parse_job(text, environment)
    return Job(place, admin, objects.client(kubeconfig), pod, job, environment, kubeconfig)


def run_at(place: Place, name: str, address: str) -> None:
    """Say that a driver runs, as its kubelet would."""
    image = {"image": "i", "imageID": "", "restartCount": 0}
    status = {
        "phase": "Running",
        "podIP": address,
        "containerStatuses": [{"name": "driver", "ready": True, **image}],
    }
    patch = json.dumps({"status": status})
    words = ("--subresource=status", "--type=merge", f"-p={patch}")
    place.kubectl("patch", "pod", f"{name}-driver", *words)
