"""The Kubernetes objects of a ConsumerGroup's job: claim, job file and driver pod. Pure.

Its account and rights are in `job_account`.

The driver makes its executors itself and owns them, so they end with it. Its configuration is one
file, `/etc/odradek/job.json`; a hash of the file and of the pod's own settings stands on the pod,
and a pod with another hash is replaced.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from odradek_operator.group import job_account
from odradek_operator.group.driver import DRIVER_SUFFIX, SPEC_HASH
from odradek_operator.group.group_spec import GroupSpec
from odradek_operator.shared import cluster_access, zookeeper_credentials
from odradek_operator.shared.apply import Platform
from odradek_operator.shared.job_spec import BATCH_SECONDS, JobSpec
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
from odradek_operator.shared.spec import ResourceMeta

METRICS_PORT: Final = 9405
UI_PORT: Final = 4040
JOB_FILE: Final = "/etc/odradek/job.json"
# A folder of the job's ConfigMap as it is now, which the kubelet renews. Its file `executors` has
# the number that a running driver follows.
LIVE_FOLDER: Final = "/etc/odradek/live"
_EXECUTORS_KEY: Final = "executors"
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
    return f"{group}{DRIVER_SUFFIX}"


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
    # One node at a time can have such a claim.
    on_one_node = job.volume_size is not None and job.access_mode == "ReadWriteOnce"
    value = {
        "name": meta.name,
        "group": spec.group,
        "bootstrap": addresses.bootstrap,
        "zookeeper": addresses.zookeeper,
        "offsetStore": spec.offset_store,
        "topics": list(spec.topics),
        "topicPattern": spec.topic_pattern,
        "metricsPort": METRICS_PORT,
        "uiPort": UI_PORT if job.ui else None,
        "image": job.image or platform.image,
        "claimName": claim_name(meta.name) if job.volume_size else None,
        "serviceAccount": job_account.account_name(meta.name),
        "authSecret": job_account.secret_name(meta),
        "limits": executor_limits(meta, job, platform),
        "pod": job.additions.document(),
        "storageSecret": job.storage_secret,
        "sameNodeAs": _driver_labels(meta) if on_one_node else {},
        "job": dict(job.raw),
    }
    if job.brokers_secret is not None:
        value["brokersSecret"] = job.brokers_secret
        value["clientConfig"] = f"{cluster_access.MOUNT}/{cluster_access.PROPERTIES}"
    if job.authority:
        # The next driver trusts the CA that will sign certificates of brokers.
        value["authorityGeneration"] = job.authority
    if job.zookeeper_secret is not None:
        value["zookeeperFiles"] = zookeeper_credentials.MOUNT
    if job.checkpoint_url is not None:
        base = job.checkpoint_url.rstrip("/")
        value["checkpointUrl"] = f"{base}/{meta.namespace}/{meta.name}"
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def executor_limits(meta: ResourceMeta, job: JobSpec, platform: Platform) -> str:
    """Return what the job's executors may consist of (`job_account.limits`).

    They have the driver's claim, Secrets and additions (odradek_spark.cluster_conf).
    """
    added = job.additions
    container = {
        **added.container,
        "image": job.image or platform.image,
        "envFrom": _env_from(job),
    }
    volumes = [*added.volumes, *_shared_volumes(meta, job)]
    return job_account.limits(
        {
            "metadata": {"labels": added.labels, "annotations": added.annotations},
            "spec": {"volumes": volumes, "containers": [container]},
        }
    )


def _shared_volumes(meta: ResourceMeta, job: JobSpec) -> list[Object]:
    """Return the operator's volumes that driver and executors have."""
    found: list[Object] = [
        {"name": "auth", "secret": {"secretName": job_account.secret_name(meta)}}
    ]
    if job.brokers_secret is not None:
        found.append({"name": "brokers", "secret": {"secretName": job.brokers_secret}})
    if job.volume_size is not None:
        claim = {"claimName": claim_name(meta.name)}
        found.append({"name": "data", "persistentVolumeClaim": claim})
    return found


def account_objects(
    meta: ResourceMeta, job: JobSpec, platform: Platform, priority_class: str | None
) -> list[Object]:
    """Return the job's service account and its rights, in the order in which they are made.

    `priority_class` is the driver's, which may be the cluster's default.
    """
    named, text = labels(meta), executor_limits(meta, job, platform)
    annotations, pulling = platform.account_annotations, platform.pull_secrets
    return [
        job_account.service_account(meta, named, annotations, pulling),
        job_account.role(meta, named, text, priority_class),
        job_account.role_binding(meta, named),
    ]


def _driver_labels(meta: ResourceMeta) -> dict[str, str]:
    """Return labels that the group's driver has and no other pod."""
    return {"app.kubernetes.io/component": "spark-driver", GROUP_LABEL: meta.name}


def spec_hash(text: str, pod: Object) -> str:
    """Return the hash by which an outdated driver is recognised.

    The broker addresses are left out: they are where a client starts, and a running driver follows
    the cluster by its metadata. `suspend` has no meaning for a running driver either.
    """
    value = json.loads(text)
    del value["bootstrap"]
    if value["uiPort"] is None:
        # A job without it is what it was before there was one.
        del value["uiPort"]
    value["job"].pop("suspend", None)
    # Nor has the time of its next run.
    value["job"].pop("schedule", None)
    # A volume that grows needs no restart, and the driver follows the number of executors.
    value["job"].pop("volume", None)
    value["job"].get("executors", {}).pop("instances", None)
    value["job"].get("checkpoint", {}).pop("claim", None)
    # Nor does the operator's own time-out, or a default that a new CRD fills in.
    limit = value["job"].pop("timeouts", {}).get("batchSeconds", BATCH_SECONDS)
    if limit != BATCH_SECONDS:
        value["job"]["batchSeconds"] = limit
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
            "accessModes": [job.access_mode],
            "resources": {"requests": {"storage": job.volume_size}},
        },
    }
    if job.volume_class:
        wanted["spec"]["storageClassName"] = job.volume_class
    return wanted


def config_map(meta: ResourceMeta, job: JobSpec, text: str) -> Object:
    """Return the ConfigMap with the job file, and the number of executors that the job follows."""
    data = {"job.json": text}
    if job.instances is not None:
        data[_EXECUTORS_KEY] = f"{job.instances}\n"
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(meta, config_name(meta.name), labels(meta)),
        "data": data,
    }


def driver_pod(meta: ResourceMeta, job: JobSpec, platform: Platform, text: str) -> Object:
    """Return the driver pod, with the hash of the job file `text` on it."""
    named = {**job.additions.labels, **labels(meta)}
    pod: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata(meta, driver_name(meta.name), named),
        "spec": _pod_spec(meta, job, platform),
    }
    pod["metadata"]["annotations"] = {
        **job.additions.annotations,
        SPEC_HASH: spec_hash(text, pod),
        **scrape_annotations(METRICS_PORT),
    }
    return pod


def _pod_spec(meta: ResourceMeta, job: JobSpec, platform: Platform) -> Object:
    volumes: list[Object] = [
        {"name": "job", "configMap": {"name": config_name(meta.name)}},
        {"name": "tmp", "emptyDir": {}},
        *_shared_volumes(meta, job),
        *(dict(one) for one in job.additions.volumes),
    ]
    mounts: list[Object] = [
        # One file and not the folder: a second mount below a read-only volume would have no place.
        {"name": "job", "mountPath": JOB_FILE, "subPath": "job.json", "readOnly": True},
        {"name": "job", "mountPath": LIVE_FOLDER, "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 (inside the container)
        {"name": "auth", "mountPath": job_account.AUTH_MOUNT, "readOnly": True},
    ]
    if job.volume_size is not None:
        mounts.append({"name": "data", "mountPath": "/data"})
    if job.brokers_secret is not None:
        path = cluster_access.MOUNT
        mounts.append({"name": "brokers", "mountPath": path, "readOnly": True})
    if job.zookeeper_secret is not None:
        volumes.append({"name": "zookeeper", "secret": {"secretName": job.zookeeper_secret}})
        path = zookeeper_credentials.MOUNT
        mounts.append({"name": "zookeeper", "mountPath": path, "readOnly": True})
    if job.credentials_secret is not None:
        volumes.append({"name": "credentials", "secret": {"secretName": job.credentials_secret}})
        path = "/etc/odradek/credentials"
        mounts.append({"name": "credentials", "mountPath": path, "readOnly": True})
    spec: Object = {
        **job.additions.spec,
        "serviceAccountName": job_account.account_name(meta.name),
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


def _ports(job: JobSpec) -> list[Object]:
    ports = {"metrics": METRICS_PORT, **({"ui": UI_PORT} if job.ui else {})}
    return [
        {"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports.items()
    ]


def ui_service(meta: ResourceMeta, driver: Object) -> Object:
    """Return the Service of Spark's UI. It is the driver pod's, and goes with it."""
    owner = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": driver["metadata"]["name"],
        "uid": driver["metadata"]["uid"],
    }
    body = metadata(meta, f"{driver_name(meta.name)}-ui", labels(meta))
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {**body, "ownerReferences": [owner]},
        "spec": {
            "type": "ClusterIP",
            "selector": _driver_labels(meta),
            "ports": [{"name": "ui", "port": UI_PORT, "protocol": "TCP", "targetPort": "ui"}],
        },
    }


def _env_from(job: JobSpec) -> list[Object]:
    """Return what driver and executors have their environment from (odradek_spark.cluster_conf)."""
    found = [dict(one) for one in job.additions.container.get("envFrom", ())]
    if job.storage_secret is not None:
        found.append({"secretRef": {"name": job.storage_secret}})
    return found


def _container(job: JobSpec, platform: Platform, mounts: list[Object]) -> Object:
    added = job.additions.container
    resources = added.get("resources", {})
    container: Object = {
        "name": "driver",
        "image": job.image or platform.image,
        "imagePullPolicy": platform.pull_policy,
        "command": ["python3", "-m", "odradek_spark"],
        "env": [
            *added.get("env", ()),
            field_env("POD_NAME", "metadata.name"),
            field_env("POD_NAMESPACE", "metadata.namespace"),
            field_env("POD_IP", "status.podIP"),
            field_env("POD_UID", "metadata.uid"),
            {"name": "ODRADEK_JOB", "value": JOB_FILE},
            {"name": "ODRADEK_EXECUTORS", "value": f"{LIVE_FOLDER}/{_EXECUTORS_KEY}"},
        ],
        "ports": _ports(job),
        "readinessProbe": {
            "httpGet": {"path": "/metrics", "port": METRICS_PORT},
            "periodSeconds": 3,
            "failureThreshold": 3,
            "timeoutSeconds": 2,
        },
        # The driver knows when its batch loop hangs (odradek_spark.pulse). This must outlast its
        # start, when nobody answers yet, and pauses of a busy machine.
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": METRICS_PORT},
            "periodSeconds": 30,
            "failureThreshold": 6,
            "timeoutSeconds": 10,
        },
        "resources": {
            "requests": {
                **resources.get("requests", {}),
                "cpu": str(job.cores),
                "memory": f"{job.memory_mib}Mi",
            },
            "limits": {**resources.get("limits", {}), "memory": f"{job.memory_mib}Mi"},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": container_security(),
        "volumeMounts": [*mounts, *added.get("volumeMounts", ())],
    }
    if sources := _env_from(job):
        container["envFrom"] = sources
    return container
