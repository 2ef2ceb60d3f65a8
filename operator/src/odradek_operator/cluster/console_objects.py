"""The objects of a cluster's console (`odradek_console`): its pod, its rights, its Service. Pure.

Without users it listens on the pod's own loopback, where only `kubectl port-forward` comes. Probes
ask another port, which tells nothing.
"""

from __future__ import annotations

from typing import Final

from odradek_operator.cluster import deployments
from odradek_operator.cluster.objects import service_name
from odradek_operator.shared import cluster_access, listener_spec
from odradek_operator.shared.apply import Platform, WorkloadSettings
from odradek_operator.shared.cluster_spec import ClusterSpec
from odradek_operator.shared.console_spec import ConsoleSpec
from odradek_operator.shared.objects import Object, metadata
from odradek_operator.shared.spec import GROUP, ResourceMeta

PORT: Final = 9480
HEALTH_PORT: Final = 9481
COMPONENT: Final = "console"
SECRETS: Final = "odradek.io/secrets"
USERS_KEY: Final = "users"
TLS_KEYS: Final = ("tls.crt", "tls.key")
_USERS_MOUNT: Final = "/etc/odradek/users"
_TLS_MOUNT: Final = "/etc/odradek/tls"
_RBAC: Final = "rbac.authorization.k8s.io"


def console_name(cluster: str) -> str:
    """Name of Deployment, Service, service account, Role and RoleBinding."""
    return f"{cluster}-console"


def objects(
    meta: ResourceMeta,
    spec: ClusterSpec,
    console: ConsoleSpec,
    platform: Platform,
    settings: WorkloadSettings,
    versions: str,
) -> list[Object]:
    """Return every object, in the order in which they are applied.

    `versions` are those of the Secrets that the pod reads when it starts: others make it start.
    """
    name, labels = console_name(meta.name), deployments.labels(meta, COMPONENT)
    account: Object = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(meta, name, labels),
        "automountServiceAccountToken": False,
    }
    binding: Object = {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": metadata(meta, name, labels),
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": meta.namespace}],
    }
    found = [account, role(meta, console), binding]
    if console.users is not None:
        found.append(_service(meta))
    return [*found, _deployment(meta, spec, console, platform, settings, versions)]


def role(meta: ResourceMeta, console: ConsoleSpec | None) -> Object:
    """Return what the console may do in its namespace; nothing where it is not wanted any more."""
    changes = ["patch"] if console is not None and console.writable else []
    rules: list[Object] = [
        {"apiGroups": [GROUP], "resources": ["consumergroups"], "verbs": ["get", "list"]},
        {
            "apiGroups": [GROUP],
            "resources": ["reassignments"],
            "verbs": ["get", "list", *changes],
        },
        # The plans of Reassignments; by name alone.
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]},
    ]
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "Role",
        "metadata": metadata(meta, console_name(meta.name), deployments.labels(meta, COMPONENT)),
        "rules": [] if console is None else rules,
    }


def _service(meta: ResourceMeta) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(meta, console_name(meta.name), deployments.labels(meta, COMPONENT)),
        "spec": {
            "selector": deployments.selector(meta, COMPONENT),
            "ports": [{"name": "http", "port": PORT, "targetPort": "http"}],
        },
    }


def _deployment(
    meta: ResourceMeta,
    spec: ClusterSpec,
    console: ConsoleSpec,
    platform: Platform,
    settings: WorkloadSettings,
    versions: str,
) -> Object:
    access = cluster_access.of_cluster(meta.name, spec)
    container: Object = {
        "name": COMPONENT,
        "command": ["python3", "-m", "odradek_console"],
        "args": [*_arguments(meta, spec, console), *settings.arguments],
        "ports": [
            {"name": "http", "containerPort": PORT, "protocol": "TCP"},
            {"name": "health", "containerPort": HEALTH_PORT, "protocol": "TCP"},
        ],
        # Ready: it makes pages. They say so themselves where brokers do not answer.
        "readinessProbe": {
            "httpGet": {"path": "/healthz", "port": "health"},
            "periodSeconds": 10,
            "timeoutSeconds": 5,
        },
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": "health"},
            "initialDelaySeconds": 30,
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
    }
    pod = deployments.pod_of(container, platform, settings)
    pod |= {
        "serviceAccountName": console_name(meta.name),
        "automountServiceAccountToken": True,
    }
    if access is not None:
        deployments.use_client_user(pod, access, access.console_secret, "--command-config")
    if console.users is not None:
        deployments.mount_secret(pod, "users", console.users, _USERS_MOUNT)
    if console.certificate is not None:
        deployments.mount_secret(pod, "tls", console.certificate, _TLS_MOUNT)
    annotations = {SECRETS: versions}
    return deployments.deployment(meta, console_name(meta.name), COMPONENT, pod, annotations)


def _arguments(meta: ResourceMeta, spec: ClusterSpec, console: ConsoleSpec) -> list[str]:
    port = listener_spec.broker_listener(spec.listeners).port if spec.listeners else spec.port
    found = [
        f"--bootstrap-server={service_name(meta.name)}.{meta.namespace}.svc:{port}",
        f"--port={PORT}",
        f"--health-port={HEALTH_PORT}",
        "--kubernetes",
        f"--namespace={meta.namespace}",
        f"--cluster={meta.name}",
    ]
    if console.users is None:
        found.append("--host=localhost")
    else:
        found += ["--host=", f"--users={_USERS_MOUNT}/{USERS_KEY}"]
        found += [f"--allowed-host={one}" for one in (*_service_hosts(meta), *console.hosts)]
    if console.certificate is not None:
        certificate, key = TLS_KEYS
        found += [
            f"--tls-certificate={_TLS_MOUNT}/{certificate}",
            f"--tls-key={_TLS_MOUNT}/{key}",
        ]
    if not console.records:
        found.append("--no-records")
    if console.writable:
        found.append("--writable")
    if console.schema_registry is not None:
        found.append(f"--schema-registry={console.schema_registry}")
    return found


def _service_hosts(meta: ResourceMeta) -> list[str]:
    name = console_name(meta.name)
    inside = f"{name}.{meta.namespace}"
    return [name, inside, f"{inside}.svc", f"{inside}.svc.cluster.local"]
