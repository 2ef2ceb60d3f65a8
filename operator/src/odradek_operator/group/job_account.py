"""What the pods of a job may do and know: its service account, its rights, and Spark's key. Pure.

Each job has an account of its own. Its Role lets the driver start, watch and end pods, and names
what its executors may consist of: it may `use` an `executors` of that name, which no API serves.
RBAC cannot look into a pod. The chart's admission policy `limit-jobs` can: it asks for these
rights, and refuses all other pods of such accounts.

The text with the images, claims, Secrets, ConfigMaps, labels and annotations that an executor may
have stands in the Role, and in an annotation of each executor. So one question to the authorizer
answers for all of them, which is what the policy's budget allows.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Final

from odradek_operator.shared.objects import Object, metadata
from odradek_operator.shared.spec import GROUP, ResourceMeta

# The policy knows the accounts of jobs by this prefix.
ACCOUNT_PREFIX: Final = "odradek-job-"
AUTH_KEY: Final = "secret"
AUTH_MOUNT: Final = "/etc/odradek/auth"
_SECRET_BYTES: Final = 32
_RBAC: Final = "rbac.authorization.k8s.io"


def account_name(resource: str) -> str:
    """Name of the service account, Role and RoleBinding of a ConsumerGroup resource."""
    return f"{ACCOUNT_PREFIX}{resource}"


def secret_name(meta: ResourceMeta) -> str:
    """Name of the Secret; a resource that is made anew under the same name has another one."""
    return f"{meta.name}-auth-{meta.uid[:8]}"


def brokers_secret(meta: ResourceMeta) -> str:
    """Name of the Secret with the job's user, where brokers ask for one."""
    return f"{meta.name}-brokers-{meta.uid[:8]}"


def zookeeper_secret(meta: ResourceMeta) -> str:
    """Name of the Secret with which the driver connects to ZooKeeper."""
    return f"{meta.name}-zookeeper-{meta.uid[:8]}"


def limits(pod: Mapping[str, Any]) -> str:
    """Return in one line what a pod of this template consists of, other than the usual.

    `pod` is a pod, of which labels and annotations are those beyond an executor's own.
    """
    meta, wanted = pod.get("metadata", {}), pod["spec"]
    found = [f"label/{key}={value}" for key, value in meta.get("labels", {}).items()]
    found += [f"annotation/{key}" for key in meta.get("annotations", ())]
    for volume in wanted.get("volumes", ()):
        found += _source(volume)
    for container in wanted["containers"]:
        found.append(f"image/{container['image']}")
        for one in container.get("env", ()):
            found += _source(one.get("valueFrom", {}))
        for one in container.get("envFrom", ()):
            found += _source(one)
    return " ".join(sorted(set(found)))


# The key of a source in a volume or a variable, with the field that has its name.
_SOURCES: Final = (
    ("persistentVolumeClaim", "claimName", "claim"),
    ("secret", "secretName", "secret"),
    ("secretKeyRef", "name", "secret"),
    ("secretRef", "name", "secret"),
    ("configMap", "name", "configmap"),
    ("configMapKeyRef", "name", "configmap"),
    ("configMapRef", "name", "configmap"),
)


def _source(holder: Mapping[str, Any]) -> Iterable[str]:
    return [f"{word}/{holder[key][field]}" for key, field, word in _SOURCES if key in holder]


def service_account(
    meta: ResourceMeta,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    pull_secrets: Iterable[str],
) -> Object:
    """Return the account of driver and executors; pods that do not ask for its token have none."""
    account: Object = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(meta, account_name(meta.name), labels),
        "imagePullSecrets": [{"name": name} for name in pull_secrets],
        "automountServiceAccountToken": False,
    }
    if annotations:
        account["metadata"]["annotations"] = dict(annotations)
    return account


def role(
    meta: ResourceMeta, labels: Mapping[str, str], text: str, priority_class: str | None
) -> Object:
    """Return the Role: pods, and what may be in them (`text` of `limits`).

    Spark withdraws executors that are not needed any more by `deletecollection`; the policy sees
    each pod of these.
    """
    names = [text, *([f"priority/{priority_class}"] if priority_class else [])]
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "Role",
        "metadata": metadata(meta, account_name(meta.name), labels),
        "rules": [
            {
                "apiGroups": [""],
                "resources": ["pods"],
                "verbs": ["get", "list", "watch", "create", "delete", "deletecollection"],
            },
            {
                "apiGroups": [GROUP],
                "resources": ["executors"],
                "resourceNames": names,
                "verbs": ["use"],
            },
        ],
    }


def role_binding(meta: ResourceMeta, labels: Mapping[str, str]) -> Object:
    """Return what gives the account its Role."""
    name = account_name(meta.name)
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": metadata(meta, name, labels),
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": meta.namespace}],
    }


def auth_secret(meta: ResourceMeta, labels: Mapping[str, str]) -> Object:
    """Return a Secret with a new random key, by which driver and executors know each other."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(meta, secret_name(meta), labels),
        "type": "Opaque",
        "immutable": True,
        "stringData": {AUTH_KEY: secrets.token_hex(_SECRET_BYTES)},
    }
