"""The Deployment of a cluster's lag exporter (`odradek_operator.exporter`). Pure."""

from __future__ import annotations

from typing import Final

from odradek_operator.cluster import deployments
from odradek_operator.shared import cluster_access, zookeeper_credentials
from odradek_operator.shared.apply import Platform, WorkloadSettings
from odradek_operator.shared.cluster_spec import ClusterSpec
from odradek_operator.shared.objects import Object, scrape_annotations
from odradek_operator.shared.spec import ResourceMeta

METRICS_PORT: Final = 9308
COMPONENT: Final = "lag-exporter"


def exporter_name(cluster: str) -> str:
    """Name of the Deployment."""
    return f"{cluster}-lag-exporter"


def deployment(
    meta: ResourceMeta,
    spec: ClusterSpec,
    platform: Platform,
    settings: WorkloadSettings,
    zookeeper_secret: str | None = None,
) -> Object:
    """Return the Deployment: one pod, without rights in Kubernetes.

    `zookeeper_secret` has the files with which it connects to ZooKeeper; None: it needs none.
    """
    access = cluster_access.of_cluster(meta.name, spec)
    arguments = [f"--zookeeper={spec.zookeeper}", f"--port={METRICS_PORT}", *settings.arguments]
    if access is not None:
        arguments.append(f"--listener={access.listener}")
    container: Object = {
        "name": COMPONENT,
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
    }
    pod = deployments.pod_of(container, platform, settings)
    if access is not None:
        deployments.use_client_user(pod, access, access.exporter_secret, "--client-config")
    if zookeeper_secret is not None:
        path = zookeeper_credentials.MOUNT
        arguments.append(f"--zookeeper-files={path}")
        deployments.mount_secret(pod, "zookeeper", zookeeper_secret, path)
    annotations = scrape_annotations(METRICS_PORT)
    return deployments.deployment(meta, exporter_name(meta.name), COMPONENT, pod, annotations)
