"""The Deployment of a cluster's lag exporter (`odradek_operator.exporter`). Pure."""

from __future__ import annotations

from typing import Final

from odradek_operator.cluster import zookeeper_objects
from odradek_operator.cluster.objects import TEMPLATE_HASH
from odradek_operator.shared import cluster_access, zookeeper_credentials
from odradek_operator.shared.apply import ExporterSettings, Platform
from odradek_operator.shared.cluster_access import PROPERTIES, ClusterAccess
from odradek_operator.shared.objects import (
    MANAGED_BY,
    Object,
    container_security,
    digest,
    metadata,
    pod_security,
    scrape_annotations,
)
from odradek_operator.shared.spec import ClusterSpec, ResourceMeta

METRICS_PORT: Final = 9308
COMPONENT: Final = "lag-exporter"


def exporter_name(cluster: str) -> str:
    """Name of the Deployment."""
    return f"{cluster}-lag-exporter"


def deployment(
    meta: ResourceMeta,
    spec: ClusterSpec,
    platform: Platform,
    settings: ExporterSettings,
    zookeeper_secret: str | None = None,
) -> Object:
    """Return the Deployment: one pod, without rights in Kubernetes.

    `zookeeper_secret` has the files with which it connects to ZooKeeper; None: it needs none.
    """
    # Not the label of the cluster: affinities of brokers select by it.
    selector = {
        "app.kubernetes.io/name": "odradek",
        "app.kubernetes.io/instance": meta.name,
        "app.kubernetes.io/component": COMPONENT,
    }
    labels = {**selector, "app.kubernetes.io/managed-by": MANAGED_BY}
    pod = _pod(spec, platform, settings, cluster_access.of_cluster(meta.name, spec))
    if zookeeper_secret is not None:
        (container,) = pod["containers"]
        container["args"].append(f"--zookeeper-files={zookeeper_credentials.MOUNT}")
        container["volumeMounts"].append(zookeeper_objects.mount())
        pod["volumes"] = [*pod["volumes"], zookeeper_objects.volume(zookeeper_secret)]
    # As with brokers, templates are compared by the hash of what was last applied.
    hashed = {TEMPLATE_HASH: digest(pod)}
    about = {**metadata(meta, exporter_name(meta.name), labels), "annotations": hashed}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": about,
        "spec": {
            "replicas": 1,
            # Two at a time would double every series.
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": selector},
            "template": {
                "metadata": {"labels": labels, "annotations": scrape_annotations(METRICS_PORT)},
                "spec": pod,
            },
        },
    }


def _pod(
    spec: ClusterSpec,
    platform: Platform,
    settings: ExporterSettings,
    access: ClusterAccess | None,
) -> Object:
    arguments = [f"--zookeeper={spec.zookeeper}", f"--port={METRICS_PORT}", *settings.arguments]
    if access is not None:
        arguments.append(f"--listener={access.listener}")
    pod: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "containers": [
            {
                "name": COMPONENT,
                "image": settings.image,
                "imagePullPolicy": platform.pull_policy,
                "command": ["python3", "-m", "odradek_operator.exporter"],
                "args": arguments,
                "ports": [
                    {"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"},
                ],
                # Not ready: ZooKeeper or all brokers are away. A restart would not bring them back,
                # but lose what seconds and verdicts are made of.
                "readinessProbe": {
                    "httpGet": {"path": "/healthz", "port": "metrics"},
                    "periodSeconds": 10,
                    "timeoutSeconds": 5,
                },
                "livenessProbe": {
                    "tcpSocket": {"port": "metrics"},
                    "initialDelaySeconds": 30,
                    "periodSeconds": 10,
                    "timeoutSeconds": 5,
                    "failureThreshold": 6,
                },
                "resources": dict(settings.resources),
                "securityContext": container_security(),
                "volumeMounts": [
                    {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 (inside the container)
                ],
            }
        ],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
        **settings.pod,
    }
    if access is not None and access.is_secured:
        (container,) = pod["containers"]
        container["args"].append(f"--client-config={cluster_access.MOUNT}/{PROPERTIES}")
        mount = {"name": "brokers", "mountPath": cluster_access.MOUNT, "readOnly": True}
        container["volumeMounts"].append(mount)
        volume = {"name": "brokers", "secret": {"secretName": access.exporter_secret}}
        pod["volumes"] = [*pod["volumes"], volume]
    if platform.pull_secrets:
        pod["imagePullSecrets"] = [{"name": one} for one in platform.pull_secrets]
    return pod
