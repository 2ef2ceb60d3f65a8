"""What tests of Users share: resources, Secrets, and what ZooKeeper holds of a user."""

from __future__ import annotations

import base64
from typing import Any

from odradek.zk import znodes
from odradek_operator.shared import user_znodes
from tests.reconcile.conftest import Place
from tests.support import objects
from tests.support.kubectl import eventually

MECHANISM = "SCRAM-SHA-512"
# As branches of a KafkaCluster that asks who clients are.
SECURED: dict[str, Any] = {
    "listeners": [
        {"name": "internal", "port": 9092, "authentication": {"type": "scram-sha-512"}},
        {"name": "certified", "port": 9094, "tls": True, "authentication": {"type": "tls"}},
    ],
    "authorization": {"type": "simple", "superUsers": ["User:admin"]},
}


def user(name: str, type_: str = "scram-sha-512", **spec: Any) -> dict[str, Any]:
    authentication = {"type": type_, **spec.pop("authentication", {})}
    return {
        "apiVersion": "odradek.io/v1alpha1",
        "kind": "User",
        "metadata": {"name": name},
        "spec": {"clusterRef": {"name": "main"}, "authentication": authentication, **spec},
    }


def acl(type_: str, name: str, *operations: str, **fields: Any) -> dict[str, Any]:
    return {"resource": {"type": type_, "name": name}, "operations": list(operations), **fields}


def by_secret(name: str, key: str = "password") -> dict[str, Any]:
    return {"password": {"valueFrom": {"secretKeyRef": {"name": name, "key": key}}}}


def make_secret(place: Place, name: str, **data: str) -> None:
    """Write a Secret as a person would."""
    manifest = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}}
    place.kubectl.apply({**manifest, "stringData": data})


def secret(place: Place, name: str) -> dict[str, str]:
    """Return what a Secret holds that is text; {} where there is none."""
    try:
        data = place.kubectl.get("secret", name).get("data", {})
    except Exception:
        return {}
    texts = {key: base64.b64decode(text) for key, text in data.items() if key != "user.p12"}
    return {key: text.decode() for key, text in texts.items()}


def delete(place: Place, kind: str, name: str) -> None:
    objects.client(place.kubectl.kubeconfig).delete(kind, place.namespace, name)


def entries(place: Place, name: str) -> dict[str, str]:
    """Return what /config/users holds of a user."""
    path = user_znodes.user_path(name)
    found = place.client.exists(path)
    return znodes.decode_config(path, place.client.get(path)[0]) if found else {}


def has_password(place: Place, name: str, password: str, mechanism: str = MECHANISM) -> bool:
    return user_znodes.is_of_password(entries(place, name).get(mechanism), mechanism, password)


def agreed(place: Place, name: str, mechanism: str = MECHANISM, other_than: str = "") -> str:
    """Wait until Secret and znode have the same password, and return it."""

    def same() -> str:
        password = secret(place, name).get("password", "")
        assert password != other_than
        assert has_password(place, name, password, mechanism)
        return password

    return eventually(same, f"password of {name}", pause_s=0.2)


def acls(place: Place, path: str) -> str:
    """Return the ACLs of a pattern as they stand in ZooKeeper, "" for none."""
    return place.client.get(path)[0].decode() if place.client.exists(path) else ""
