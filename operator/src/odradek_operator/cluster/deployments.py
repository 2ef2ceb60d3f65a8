"""What the Deployments beside a cluster's brokers share: lag exporter and console. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from odradek_operator.cluster.objects import TEMPLATE_HASH
from odradek_operator.shared import cluster_access
from odradek_operator.shared.apply import Platform, WorkloadSettings
from odradek_operator.shared.cluster_access import PROPERTIES, ClusterAccess
from odradek_operator.shared.objects import (
    MANAGED_BY,
    Object,
    container_security,
    digest,
    metadata,
    pod_security,
)
from odradek_operator.shared.spec import ResourceMeta


def selector(meta: ResourceMeta, component: str) -> dict[str, str]:
    """Return the labels that select the pod of a component."""
    # Not the label of the cluster: affinities of brokers select by it.
    return {
        "app.kubernetes.io/name": "odradek",
        "app.kubernetes.io/instance": meta.name,
        "app.kubernetes.io/component": component,
    }


def labels(meta: ResourceMeta, component: str) -> dict[str, str]:
    """Return the labels of the objects of a component."""
    return {**selector(meta, component), "app.kubernetes.io/managed-by": MANAGED_BY}


def deployment(
    meta: ResourceMeta,
    name: str,
    component: str,
    pod: Object,
    annotations: Mapping[str, str] | None = None,
) -> Object:
    """Return a Deployment of one pod; `annotations` are those of the pod."""
    template: Object = {"metadata": {"labels": labels(meta, component)}, "spec": pod}
    if annotations:
        template["metadata"]["annotations"] = dict(annotations)
    # As with brokers, templates are compared by the hash of what was last applied.
    hashed = {TEMPLATE_HASH: digest(pod)}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {**metadata(meta, name, labels(meta, component)), "annotations": hashed},
        "spec": {
            "replicas": 1,
            # Two at a time would double every series, and know other sessions.
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": selector(meta, component)},
            "template": template,
        },
    }


def pod_of(container: Object, platform: Platform, settings: WorkloadSettings) -> Object:
    """Return the pod of one container, without a token for Kubernetes."""
    pod: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "containers": [
            {
                "image": settings.image,
                "imagePullPolicy": platform.pull_policy,
                "resources": dict(settings.resources),
                "securityContext": container_security(),
                **container,
                "volumeMounts": [
                    {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 (inside the container)
                ],
            }
        ],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
        **settings.pod,
    }
    if platform.pull_secrets:
        pod["imagePullSecrets"] = [{"name": one} for one in platform.pull_secrets]
    return pod


def mount_secret(pod: Object, name: str, secret: str, path: str) -> None:
    """Let the container read a Secret as files."""
    (container,) = pod["containers"]
    mount = {"name": name, "mountPath": path, "readOnly": True}
    container["volumeMounts"] = [*container["volumeMounts"], mount]
    pod["volumes"] = [*pod["volumes"], {"name": name, "secret": {"secretName": secret}}]


def use_client_user(pod: Object, access: ClusterAccess | None, secret: str, option: str) -> None:
    """Give the container the settings of its user, where brokers ask for one."""
    if access is None or not access.is_secured:
        return
    (container,) = pod["containers"]
    container["args"].append(f"{option}={cluster_access.MOUNT}/{PROPERTIES}")
    mount_secret(pod, "brokers", secret, cluster_access.MOUNT)
