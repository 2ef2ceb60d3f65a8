"""Translates a job into Spark properties and the pod template of executors; pure.

The driver pod is Spark's driver in client mode. Spark's Kubernetes backend launches executor pods
from the same image, with the job's volume claim at the same path, because executors write the
checkpoint's state files and the sink's files and the driver reads them. The driver pod owns the
executor pods (spark.kubernetes.driver.pod.name makes Spark set the owner), so Kubernetes deletes
them with it.
"""

import json
from collections.abc import Mapping

from odradek_spark.config import MEMORY_BESIDE_HEAP, MIB, Environment, Job, JobConfigError

EXECUTOR_CONTAINER = "executor"

# Properties that the job depends on; sparkConf may not set them.
_RESERVED = (
    "spark.master",
    "spark.submit.",
    "spark.driver.host",
    "spark.driver.bindAddress",
    "spark.kubernetes.namespace",
    "spark.kubernetes.driver.pod.name",
    "spark.kubernetes.driver.ownPersistentVolumeClaim",
    "spark.kubernetes.executor.volumes.",
    "spark.kubernetes.executor.podTemplate",
    "spark.sql.streaming.checkpointLocation",
    "spark.sql.session.timeZone",
)


def spark_conf(job: Job, environment: Environment, pod_template: str | None) -> dict[str, str]:
    """Return all Spark properties of the job; `pod_template` is the file of `executor_pod`.

    Raises JobConfigError if sparkConf sets a property that the job depends on.
    """
    reserved = [key for key in job.spark_conf if key.startswith(_RESERVED)]
    if reserved:
        raise JobConfigError(f"job.sparkConf may not set {', '.join(sorted(reserved))}")
    conf = _common(job)
    if environment.on_kubernetes:
        conf |= _kubernetes(job, environment)
        if pod_template is not None:
            conf["spark.kubernetes.executor.podTemplateFile"] = pod_template
            conf["spark.kubernetes.executor.podTemplateContainerName"] = EXECUTOR_CONTAINER
    else:
        conf["spark.master"] = str(environment.master)
    return conf | dict(job.spark_conf)


def _common(job: Job) -> dict[str, str]:
    cores = job.executor_instances * job.executors.cores
    return {
        "spark.app.name": f"odradek-{job.group}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": f"{job.driver.heap_mib}m",
        "spark.executor.memory": f"{job.executors.heap_mib}m",
        # Timestamps in topics have zones; a job must not depend on the node's time zone.
        "spark.sql.session.timeZone": "UTC",
        # A checkpoint keeps the first value forever, and Spark's 200 would mean 200 state files per
        # batch.
        "spark.sql.shuffle.partitions": str(max(2, cores)),
        "spark.sql.streaming.stopTimeout": "60s",
        # A record that Spark cannot read again is lost; fail the query instead of skipping it
        # (row 31).
        "spark.sql.files.ignoreMissingFiles": "false",
    }


def _kubernetes(job: Job, environment: Environment) -> dict[str, str]:
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
        # Spark would look for claims of its own, to reuse and delete them. It has none, and its
        # service account may not list any.
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
        "spark.executor.instances": str(job.executor_instances),
        "spark.executor.cores": str(job.executors.cores),
        "spark.executor.memoryOverhead": f"{MEMORY_BESIDE_HEAP // MIB}m",
        # Spark replaces a lost executor. Only many losses within ten minutes end the driver.
        "spark.executor.maxNumFailures": str(20 * job.executor_instances),
        "spark.executor.failuresValidityInterval": "10m",
        "spark.task.maxFailures": "8",
        f"{claim}.mount.path": environment.data,
        f"{claim}.mount.readOnly": "false",
        f"{claim}.options.claimName": str(job.claim_name),
    }
    if job.service_account is not None:
        conf["spark.kubernetes.authenticate.executor.serviceAccountName"] = job.service_account
    for key, value in job.node_selector.items():
        conf[f"spark.kubernetes.node.selector.{key}"] = value
    for key, value in executor_labels(job).items():
        conf[f"spark.kubernetes.executor.label.{key}"] = value
    return conf


def executor_labels(job: Job) -> dict[str, str]:
    """Return the labels of executor pods, without the group if its name is no label value."""
    labels = {
        "app.kubernetes.io/name": "odradek",
        "app.kubernetes.io/component": "spark-executor",
        "app.kubernetes.io/managed-by": "odradek-operator",
    }
    if len(job.group) <= 63 and job.group[0].isalnum() and job.group[-1].isalnum():
        labels["odradek.io/group"] = job.group
    return labels


def executor_pod(job: Job, environment: Environment) -> Mapping[str, object]:
    """Return the pod template of executors, for what Spark has no properties for.

    The executor runs as the driver's user, and the driver's group may write to the claim, so that
    each can replace files of the other. The pod meets the restricted Pod Security Standard.
    """
    spec: dict[str, object] = {
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
                "name": EXECUTOR_CONTAINER,
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
    }
    if job.tolerations:
        spec["tolerations"] = list(job.tolerations)
    if job.priority_class is not None:
        spec["priorityClassName"] = job.priority_class
    return {"apiVersion": "v1", "kind": "Pod", "spec": spec}


def executor_pod_text(job: Job, environment: Environment) -> str:
    """Return the pod template as text for Spark (JSON is YAML)."""
    return json.dumps(executor_pod(job, environment), indent=2)
