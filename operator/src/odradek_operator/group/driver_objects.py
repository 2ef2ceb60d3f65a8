"""The Kubernetes objects of a ConsumerGroup's job: claim, job file and driver pod. Pure.

The driver makes its executors itself and owns them, so they end with it. Its configuration is one
file, `/etc/odradek/job.json`; a hash of the file and of the pod's own settings stands on the pod,
and a pod with another hash is replaced.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from odradek_operator.group.driver import SPEC_HASH
from odradek_operator.shared.apply import Platform
from odradek_operator.shared.objects import (
    GROUP_LABEL,
    MANAGED_BY,
    Object,
    container_security,
    digest,
    field_env,
    metadata,
    pod_security,
    scrape_annotations,
)
from odradek_operator.shared.spec import GroupSpec, JobSpec, ResourceMeta

METRICS_PORT: Final = 9405
JOB_FILE: Final = "/etc/odradek/job.json"
# A driver on a lost node is evicted after this, not after the default of five minutes.
_LOST_NODE: Final = tuple(
    {
        "key": f"node.kubernetes.io/{trouble}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 30,
    }
    for trouble in ("not-ready", "unreachable")
)


@dataclass(frozen=True, slots=True)
class Addresses:
    """How a job reaches its cluster."""

    bootstrap: str
    zookeeper: str


def driver_name(group: str) -> str:
    """Name of the driver pod of a ConsumerGroup resource."""
    return f"{group}-driver"


def config_name(group: str) -> str:
    """Name of the ConfigMap with the job file."""
    return f"{group}-job"


def claim_name(group: str) -> str:
    """Name of the claim for checkpoint and data."""
    return f"{group}-data"


def labels(meta: ResourceMeta) -> dict[str, str]:
    """Labels of everything that belongs to a job."""
    return {
        "app.kubernetes.io/name": "odradek",
        "app.kubernetes.io/instance": meta.name,
        "app.kubernetes.io/component": "spark-driver",
        "app.kubernetes.io/managed-by": MANAGED_BY,
        GROUP_LABEL: meta.name,
    }


def job_file(
    meta: ResourceMeta, spec: GroupSpec, job: JobSpec, platform: Platform, addresses: Addresses
) -> str:
    """Return job.json (ARCHITECTURE.md, "Spark job")."""
    value = {
        "group": spec.group,
        "bootstrap": addresses.bootstrap,
        "zookeeper": addresses.zookeeper,
        "offsetStore": spec.offset_store,
        "topics": list(spec.topics),
        "topicPattern": spec.topic_pattern,
        "metricsPort": METRICS_PORT,
        "image": job.image or platform.image,
        "claimName": claim_name(meta.name) if job.volume_size else None,
        "serviceAccount": platform.service_account,
        "job": dict(job.raw),
    }
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def spec_hash(text: str, pod: Object) -> str:
    """Return the hash by which an outdated driver is recognised.

    The broker addresses are left out: they are where a client starts, and a running driver follows
    the cluster by its metadata. `suspend` has no meaning for a running driver either.
    """
    value = json.loads(text)
    del value["bootstrap"]
    value["job"].pop("suspend", None)
    # A volume that grows needs no restart.
    value["job"].pop("volume", None)
    return digest([value, pod["spec"]])


def claim(meta: ResourceMeta, job: JobSpec) -> Object | None:
    """Return the volume claim; it has no owner, so data outlives the ConsumerGroup."""
    if job.volume_size is None:
        return None
    body = metadata(meta, claim_name(meta.name), labels(meta))
    del body["ownerReferences"]
    wanted: Object = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": body,
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": job.volume_size}},
        },
    }
    if job.volume_class:
        wanted["spec"]["storageClassName"] = job.volume_class
    return wanted


def config_map(meta: ResourceMeta, text: str) -> Object:
    """Return the ConfigMap with the job file."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(meta, config_name(meta.name), labels(meta)),
        "data": {"job.json": text},
    }


def driver_pod(meta: ResourceMeta, job: JobSpec, platform: Platform, text: str) -> Object:
    """Return the driver pod, with the hash of the job file `text` on it."""
    pod: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata(meta, driver_name(meta.name), labels(meta)),
        "spec": _pod_spec(meta, job, platform),
    }
    pod["metadata"]["annotations"] = {
        SPEC_HASH: spec_hash(text, pod),
        **scrape_annotations(METRICS_PORT),
    }
    return pod


def _pod_spec(meta: ResourceMeta, job: JobSpec, platform: Platform) -> Object:
    volumes: list[Object] = [
        {"name": "job", "configMap": {"name": config_name(meta.name)}},
        {"name": "tmp", "emptyDir": {}},
    ]
    mounts: list[Object] = [
        # One file and not the folder: a second mount below a read-only volume would have no place.
        {"name": "job", "mountPath": JOB_FILE, "subPath": "job.json", "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 (inside the container)
    ]
    if job.volume_size is not None:
        volume = {"persistentVolumeClaim": {"claimName": claim_name(meta.name)}}
        volumes.append({"name": "data", **volume})
        mounts.append({"name": "data", "mountPath": "/data"})
    if job.credentials_secret is not None:
        volumes.append({"name": "credentials", "secret": {"secretName": job.credentials_secret}})
        path = "/etc/odradek/credentials"
        mounts.append({"name": "credentials", "mountPath": path, "readOnly": True})
    spec: Object = {
        "serviceAccountName": platform.service_account,
        # The account withholds its token from pods that do not ask; the driver makes executors.
        "automountServiceAccountToken": True,
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        "securityContext": pod_security(),
        # The first toleration that matches a taint counts.
        "tolerations": [*_LOST_NODE, *(dict(one) for one in job.tolerations)],
        "containers": [_container(job, platform, mounts)],
        "volumes": volumes,
    }
    if job.node_selector:
        spec["nodeSelector"] = dict(job.node_selector)
    if job.priority_class:
        spec["priorityClassName"] = job.priority_class
    return spec


def _container(job: JobSpec, platform: Platform, mounts: list[Object]) -> Object:
    return {
        "name": "driver",
        "image": job.image or platform.image,
        "imagePullPolicy": platform.pull_policy,
        "command": ["python3", "-m", "odradek_spark"],
        "env": [
            field_env("POD_NAME", "metadata.name"),
            field_env("POD_NAMESPACE", "metadata.namespace"),
            field_env("POD_IP", "status.podIP"),
            field_env("POD_UID", "metadata.uid"),
            {"name": "ODRADEK_JOB", "value": JOB_FILE},
        ],
        "ports": [{"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"}],
        "readinessProbe": {
            "httpGet": {"path": "/metrics", "port": METRICS_PORT},
            "periodSeconds": 3,
            "failureThreshold": 3,
            "timeoutSeconds": 2,
        },
        "resources": {
            "requests": {"cpu": str(job.cores), "memory": f"{job.memory_mib}Mi"},
            "limits": {"memory": f"{job.memory_mib}Mi"},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": container_security(),
        "volumeMounts": mounts,
    }
