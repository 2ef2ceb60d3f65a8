"""Translates a job into Spark properties and the pod template of executors; pure.

The driver pod is Spark's driver in client mode. Spark's Kubernetes backend launches executor pods
from the same image, with the job's volume claim at the same path, because executors write the
checkpoint's state files and the sink's files and the driver reads them. Where only one node can
have the claim, they run on the driver's node. The driver pod owns the executor pods
(spark.kubernetes.driver.pod.name makes Spark set the owner), so Kubernetes deletes them with it.

The job's account may create nothing else than these pods, and admission refuses those that are not
made of what `JobPod.limits` names. Driver and executors know each other by a key in a file of both
(spark.authenticate), and encrypt what they send.
"""

import json
from collections.abc import Mapping
from typing import Any

from odradek_spark.config import MEMORY_BESIDE_HEAP, MIB, Environment, Job, JobConfigError
from odradek_spark.storage_conf import storage_conf

EXECUTOR_CONTAINER = "executor"
LIMITS = "odradek.io/executor-limits"
# The entry point of the image reads the executor's key here.
AUTH_MOUNT = "/etc/odradek/auth"
AUTH_FILE = f"{AUTH_MOUNT}/secret"
# The file of `clientConfig` is here: executors read it themselves (see broker_access).
BROKERS_MOUNT = "/etc/odradek/brokers"

# Avro takes the memory for as many bytes or items as a record says that it has, before it looks
# whether they are there: a record of ten bytes could end a JVM. One that says more is corrupt.
_MOST_AVRO_BYTES = 32 * MIB
_MOST_AVRO_ITEMS = 8 * 1024 * 1024
_AVRO_LIMITS = " ".join(
    f"-Dorg.apache.avro.limits.{name}.maxLength={most}"
    for name, most in (
        ("bytes", _MOST_AVRO_BYTES),
        ("string", _MOST_AVRO_BYTES),
        ("collectionItems", _MOST_AVRO_ITEMS),
    )
)
# Spark puts these before the extraJavaOptions that sparkConf may set.
JAVA_OPTIONS = {
    "spark.driver.defaultJavaOptions": _AVRO_LIMITS,
    "spark.executor.defaultJavaOptions": _AVRO_LIMITS,
}

# Properties that the job depends on; sparkConf may not set them.
_RESERVED = (
    "spark.master",
    "spark.submit.",
    "spark.driver.host",
    "spark.driver.bindAddress",
    "spark.kubernetes.namespace",
    "spark.kubernetes.driver.pod.name",
    "spark.kubernetes.driver.ownPersistentVolumeClaim",
    "spark.kubernetes.driver.service.",
    "spark.kubernetes.authenticate",
    "spark.kubernetes.container.image",
    "spark.kubernetes.allocation.pods.allocator",
    "spark.kubernetes.executor.annotation.",
    "spark.kubernetes.executor.container.image",
    "spark.kubernetes.executor.deleteOnTermination",
    "spark.kubernetes.executor.disableConfigMap",
    "spark.kubernetes.executor.label.",
    "spark.kubernetes.executor.podNamePrefix",
    "spark.kubernetes.executor.podTemplate",
    "spark.kubernetes.executor.secretKeyRef.",
    "spark.kubernetes.executor.secrets.",
    "spark.kubernetes.executor.volumes.",
    "spark.authenticate",
    "spark.eventLog.dir",
    "spark.ui.killEnabled",
    "spark.ui.port",
    "spark.sql.streaming.checkpointLocation",
    "spark.sql.streaming.checkpointFileManagerClass",
    "spark.sql.session.timeZone",
    "spark.hadoop.fs.s3a.audit.",
)


def spark_conf(job: Job, environment: Environment, pod_template: str | None) -> dict[str, str]:
    """Return all Spark properties of the job; `pod_template` is the file of `executor_pod`.

    Raises JobConfigError if sparkConf sets a property that the job depends on.
    """
    reserved = [key for key in job.spark_conf if key.startswith(_RESERVED)]
    if reserved:
        raise JobConfigError(f"job.sparkConf may not set {', '.join(sorted(reserved))}")
    conf = _common(job) | storage_conf(job, _tasks(job))
    if environment.on_kubernetes:
        conf |= _kubernetes(job, environment)
        if pod_template is not None:
            conf["spark.kubernetes.executor.podTemplateFile"] = pod_template
            conf["spark.kubernetes.executor.podTemplateContainerName"] = EXECUTOR_CONTAINER
    else:
        conf["spark.master"] = str(environment.master)
    return conf | dict(job.spark_conf)


def _common(job: Job) -> dict[str, str]:
    return {
        "spark.app.name": f"odradek-{job.group}",
        "spark.ui.enabled": str(job.ui_port is not None).lower(),
        "spark.ui.port": str(job.ui_port or 0),
        # Nobody has to log in.
        "spark.ui.killEnabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": f"{job.driver.heap_mib}m",
        "spark.executor.memory": f"{job.executors.heap_mib}m",
        # Timestamps in topics have zones; a job must not depend on the node's time zone.
        "spark.sql.session.timeZone": "UTC",
        # A checkpoint keeps the first value forever, and Spark's 200 would mean 200 state files per
        # batch.
        "spark.sql.shuffle.partitions": str(_tasks(job)),
        "spark.sql.streaming.stopTimeout": "60s",
        # A record that Spark cannot read again is lost; fail the query instead of skipping it
        # (row 31).
        "spark.sql.files.ignoreMissingFiles": "false",
        **JAVA_OPTIONS,
    }


def _tasks(job: Job) -> int:
    return max(2, _most_executors(job) * job.executors.cores)


def _kubernetes(job: Job, environment: Environment) -> dict[str, str]:
    assert job.pod is not None
    claim = "spark.kubernetes.executor.volumes.persistentVolumeClaim.data"
    conf = {
        "spark.master": environment.master or "k8s://https://kubernetes.default.svc",
        "spark.submit.deployMode": "client",
        "spark.driver.host": environment.pod_ip,
        "spark.driver.bindAddress": "0.0.0.0",  # noqa: S104 - a pod has one address and a network of its own
        "spark.kubernetes.namespace": environment.pod_namespace,
        "spark.kubernetes.driver.pod.name": environment.pod_name,
        "spark.kubernetes.container.image": str(job.image),
        "spark.kubernetes.container.image.pullPolicy": "IfNotPresent",
        "spark.kubernetes.executor.deleteOnTermination": "true",
        # Executors of a former driver may still have their names.
        "spark.kubernetes.executor.podNamePrefix": f"{job.pod.name}-{environment.pod_uid[:6]}",
        # The account of the job may touch pods only. Executors need no file of Spark's: they ask
        # the driver for its properties.
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
        # Spark would first wait up to 30 s for executors, deaf to signals, and only then say that a
        # query has a mistake. The first batch waits for them.
        "spark.scheduler.minRegisteredResourcesRatio": "0",
        # A file, because a variable in an executor's pod could be read by whoever may see pods.
        "spark.authenticate": "true",
        "spark.authenticate.secret.file": AUTH_FILE,
        "spark.network.crypto.enabled": "true",
        **_allocation(job),
        "spark.executor.cores": str(job.executors.cores),
        "spark.executor.memoryOverhead": f"{MEMORY_BESIDE_HEAP // MIB}m",
        # Spark replaces a lost executor. Only many losses within ten minutes end the driver.
        "spark.executor.maxNumFailures": str(20 * _most_executors(job)),
        "spark.executor.failuresValidityInterval": "10m",
        "spark.task.maxFailures": "8",
    }
    if job.claim_name is not None:
        conf |= {
            f"{claim}.mount.path": environment.data,
            f"{claim}.mount.readOnly": "false",
            f"{claim}.options.claimName": job.claim_name,
        }
    if job.service_account is not None:
        conf["spark.kubernetes.authenticate.executor.serviceAccountName"] = job.service_account
    for key, value in job.node_selector.items():
        conf[f"spark.kubernetes.node.selector.{key}"] = value
    for key, value in executor_labels(job.pod.name).items():
        conf[f"spark.kubernetes.executor.label.{key}"] = value
    return conf


def _most_executors(job: Job) -> int:
    return job.dynamic_allocation[1] if job.dynamic_allocation else job.executor_instances


def _allocation(job: Job) -> dict[str, str]:
    if job.dynamic_allocation is None:
        return {"spark.executor.instances": str(job.executor_instances)}
    least, largest = job.dynamic_allocation
    first = min(max(job.executor_instances, least), largest)
    return {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.minExecutors": str(least),
        "spark.dynamicAllocation.maxExecutors": str(largest),
        "spark.dynamicAllocation.initialExecutors": str(first),
        # Executors keep their shuffle files; there is no service on the nodes that would.
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    }


def executor_labels(name: str) -> dict[str, str]:
    """Return the labels of the executors of a ConsumerGroup."""
    return {
        "app.kubernetes.io/name": "odradek",
        "app.kubernetes.io/component": "spark-executor",
        "app.kubernetes.io/managed-by": "odradek-operator",
        "odradek.io/group": name,
    }


def executor_pod(job: Job, environment: Environment) -> Mapping[str, object]:
    """Return the pod template of executors, for what Spark has no properties for.

    The executor runs as the driver's user, and the driver's group may write to the claim, so that
    each can replace files of the other. The pod meets the restricted Pod Security Standard.
    """
    assert job.pod is not None
    added = job.pod.additions
    container = dict(added.get("container", {}))
    if job.storage_secret is not None:
        secret = {"secretRef": {"name": job.storage_secret}}
        container["envFrom"] = [*container.get("envFrom", ()), secret]
    secrets = {"auth": (AUTH_MOUNT, job.pod.auth_secret)}
    if job.pod.brokers_secret is not None:
        secrets["brokers"] = (BROKERS_MOUNT, job.pod.brokers_secret)
    mounts = [
        {"name": name, "mountPath": path, "readOnly": True} for name, (path, _) in secrets.items()
    ]
    spec: dict[str, object] = {
        **added.get("spec", {}),
        "securityContext": {
            "runAsNonRoot": environment.uid != 0,
            "runAsUser": environment.uid,
            "runAsGroup": environment.gid,
            "fsGroup": environment.gid,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [
            {
                **container,
                "name": EXECUTOR_CONTAINER,
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": [*container.get("volumeMounts", ()), *mounts],
            }
        ],
        "volumes": [
            *added.get("volumes", ()),
            *({"name": name, "secret": {"secretName": one}} for name, (_, one) in secrets.items()),
        ],
    }
    if job.same_node_as:
        place = {
            "labelSelector": {"matchLabels": dict(job.same_node_as)},
            "topologyKey": "kubernetes.io/hostname",
        }
        spec["affinity"] = _with_place(added.get("spec", {}).get("affinity", {}), place)
    if job.tolerations:
        spec["tolerations"] = list(job.tolerations)
    if job.priority_class is not None:
        spec["priorityClassName"] = job.priority_class
    metadata = {
        "labels": added.get("labels", {}),
        "annotations": {**added.get("annotations", {}), LIMITS: job.pod.limits},
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _with_place(affinity: Mapping[str, Any], place: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod's affinity with one more term that it must meet."""
    pods, name = affinity.get("podAffinity", {}), "requiredDuringSchedulingIgnoredDuringExecution"
    return {**affinity, "podAffinity": {**pods, name: [*pods.get(name, ()), place]}}


def executor_pod_text(job: Job, environment: Environment) -> str:
    """Return the pod template as text for Spark (JSON is YAML)."""
    return json.dumps(executor_pod(job, environment), indent=2)
