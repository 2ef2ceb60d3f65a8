"""Kubernetes as the operator uses it: read, apply, delete and tell, all blocking, in threads.

Children are written by server-side apply with one field manager, so that what others set on the
same objects stays. Every write first asks the guard for how long this process may still act (see
`lease`), takes no longer, and is counted.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode

import kubernetes
import urllib3

from odradek_operator.shared import metrics
from odradek_operator.shared.objects import beginning
from odradek_operator.shared.spec import API_VERSION, Body
from odradek_operator.shared.status import Event

FIELD_MANAGER: Final = "odradek-operator"
TIMEOUT_SECONDS: Final = 15.0
# Of the time of a write, until the API server has it.
CONNECT_SECONDS: Final = 2.0
_LIST_PAGE: Final = 500
# A DNS subdomain of RFC 1123.
_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAME: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*", re.ASCII)

PLURALS: Final[Mapping[str, str]] = {
    "KafkaCluster": "kafkaclusters",
    "User": "users",
    "Topic": "topics",
    "Reassignment": "reassignments",
    "ConsumerGroup": "consumergroups",
    "Pod": "pods",
    "Service": "services",
    "ConfigMap": "configmaps",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "StatefulSet": "statefulsets",
    "Deployment": "deployments",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "Lease": "leases",
    "Event": "events",
    "Node": "nodes",
    "Namespace": "namespaces",
    "ServiceAccount": "serviceaccounts",
    "Secret": "secrets",
    "Certificate": "certificates",
    "Role": "roles",
    "RoleBinding": "rolebindings",
}

log = logging.getLogger(__name__)


class KubeError(Exception):
    """The API server rejected the request (`code` is the HTTP status) or did not answer (0)."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}" if code else message)
        self.code = code


def connect() -> Kube:
    """Return a client with the pod's service account, or with the user's kubeconfig outside."""
    config: Any = kubernetes.config
    settings = kubernetes.client.Configuration()
    try:
        config.load_incluster_config(settings)
    except kubernetes.config.ConfigException:
        config.load_kube_config(client_configuration=settings)
    # Callers retry at their own pace; a retry here would only hide a dead API server.
    settings.retries = False
    return Kube(kubernetes.client.ApiClient(settings))


class Kube:
    """Calls to one API server. Methods raise KubeError; objects are plain dictionaries."""

    def __init__(self, api: Any, guard: Callable[[], float] = lambda: TIMEOUT_SECONDS) -> None:
        self._api = api
        # Returns how many seconds a write may take that begins now, or raises.
        self.guard = guard

    def get(self, api_version: str, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        """Return an object, or None where there is none.

        Names and namespaces may come from a spec. One that no object can have is not asked for: as
        a part of the path it could mean another object, in another namespace, too.
        """
        if not (_NAME.fullmatch(name) and (not namespace or _NAME.fullmatch(namespace))):
            return None
        try:
            return self._call("GET", _path(api_version, kind, namespace, name))
        except KubeError as error:
            if error.code == 404:
                return None
            raise

    def select(
        self, api_version: str, kind: str, namespace: str, selector: str = ""
    ) -> list[dict[str, Any]]:
        """Return all objects with these labels, read in pages."""
        found: list[dict[str, Any]] = []
        query = {"limit": str(_LIST_PAGE)}
        if selector:
            query["labelSelector"] = selector
        while True:
            page = self._call("GET", _path(api_version, kind, namespace), query)
            found += page["items"]
            more = page["metadata"].get("continue")
            if not more:
                return found
            query["continue"] = more

    def count(self, api_version: str, kind: str, namespace: str) -> int:
        """Return how many objects of a kind there are; fewer where the API server does not say."""
        page = self._call("GET", _path(api_version, kind, namespace), {"limit": "1"})
        return len(page["items"]) + int(page["metadata"].get("remainingItemCount", 0))

    def apply(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Apply an object, creating it if it does not exist."""
        meta = wanted["metadata"]
        path = _path(wanted["apiVersion"], wanted["kind"], meta["namespace"], meta["name"])
        return self._write("PATCH", path, wanted, _APPLY)

    def apply_over(self, read: Body, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Apply an object over the one that was read; KubeError 409 if that changed or was deleted.

        For what is made from the content of the object itself, which a user may change.
        """
        # Without its uid, one that was deleted would be made again.
        this = {name: read["metadata"][name] for name in ("uid", "resourceVersion")}
        return self.apply({**wanted, "metadata": {**wanted["metadata"], **this}})

    def create(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object; KubeError 409 where one has this name."""
        path = _path(wanted["apiVersion"], wanted["kind"], wanted["metadata"]["namespace"])
        return self._write("POST", path, wanted, "application/json")

    def apply_status(self, body: Body, status: Mapping[str, Any]) -> dict[str, Any]:
        """Write the status of a custom resource, which must still be the one that was read."""
        meta = body["metadata"]
        wanted = {
            "apiVersion": body["apiVersion"],
            "kind": body["kind"],
            "metadata": {
                "name": meta["name"],
                "namespace": meta["namespace"],
                # Another uid is another resource, though it has the same name.
                "uid": meta["uid"],
            },
            "status": status,
        }
        path = _path(body["apiVersion"], body["kind"], meta["namespace"], meta["name"])
        return self._write("PATCH", f"{path}/status", wanted, _APPLY)

    def set_finalizers(self, body: Body, finalizers: list[str]) -> dict[str, Any]:
        """Replace the finalizers of an object that has not changed since it was read."""
        meta = body["metadata"]
        path = _path(body["apiVersion"], body["kind"], meta["namespace"], meta["name"])
        change = {
            "metadata": {"finalizers": finalizers, "resourceVersion": meta["resourceVersion"]}
        }
        return self._write("PATCH", path, change, "application/merge-patch+json")

    def change_spec(self, body: Body, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Change fields of an object's spec, whatever else has changed; the object is this one."""
        meta = body["metadata"]
        path = _path(body["apiVersion"], body["kind"], meta["namespace"], meta["name"])
        change = {"metadata": {"uid": meta["uid"]}, "spec": spec}
        return self._write("PATCH", path, change, "application/merge-patch+json")

    def delete(self, body: Body, grace_seconds: int | None = None) -> None:
        """Delete this very object; one that is gone, or was replaced, is no error."""
        meta = body["metadata"]
        path = _path(body["apiVersion"], body["kind"], meta["namespace"], meta["name"])
        options: dict[str, Any] = {"preconditions": {"uid": meta["uid"]}}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        try:
            self._write("DELETE", path, options, "application/json")
        except KubeError as error:
            if error.code not in (404, 409):
                raise

    def post_event(self, body: Body, event: Event) -> None:
        """Post an Event; a failure is logged and ignored."""
        meta = body["metadata"]
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        posted = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{beginning(meta['name'])}.{uuid.uuid4().hex[:16]}",
                "namespace": meta["namespace"],
            },
            "type": "Warning" if event.warning else "Normal",
            "reason": event.reason,
            "message": event.message[:1024],
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
            "source": {"component": FIELD_MANAGER},
            "involvedObject": {
                "apiVersion": body["apiVersion"],
                "kind": body["kind"],
                "name": meta["name"],
                "namespace": meta["namespace"],
                "uid": meta["uid"],
            },
        }
        try:
            self._write("POST", _path("v1", "Event", meta["namespace"]), posted, "application/json")
        except KubeError as error:
            log.info("failed to post Event %s for %s: %s", event.reason, meta["name"], error)

    def replace(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Replace an object of this resourceVersion; not guarded, since the Lease is written so."""
        meta = wanted["metadata"]
        path = _path(wanted["apiVersion"], wanted["kind"], meta["namespace"], meta["name"])
        return self._call("PUT", path, body=wanted, content_type="application/json")

    def create_lease(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Create the Lease, before which nothing else may be written."""
        path = _path(wanted["apiVersion"], wanted["kind"], wanted["metadata"]["namespace"])
        return self._call("POST", path, body=wanted, content_type="application/json")

    def _write(
        self, method: str, path: str, body: Mapping[str, Any], content_type: str
    ) -> dict[str, Any]:
        seconds = min(self.guard(), TIMEOUT_SECONDS) - CONNECT_SECONDS
        metrics.WRITES.labels(target="kubernetes").inc()
        # The API server drops what it has not done by then, whoever waits for it.
        query = {"timeout": f"{seconds:.1f}s"}
        if content_type == _APPLY:
            query |= {"fieldManager": FIELD_MANAGER, "force": "true"}
        return self._call(method, path, query, body, content_type, (CONNECT_SECONDS, seconds))

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str | None = None,
        timeout: float | tuple[float, float] = TIMEOUT_SECONDS,
    ) -> dict[str, Any]:
        """Make a request. `timeout` is of all of it, or of connection and answer, in seconds."""
        headers = {"Accept": "application/json"}
        if content_type:
            headers["Content-Type"] = content_type
        resource = f"{path}?{urlencode(query)}" if query else path
        try:
            # This reads the token, too.
            request = self._api.param_serialize(
                method, resource, header_params=headers, body=body, auth_settings=["BearerToken"]
            )
            response = self._api.call_api(*request, _request_timeout=timeout)
            data = response.read()
        except _NO_ANSWER as error:
            raise KubeError(0, f"{method} {path}: {error}") from error
        if response.status >= 300:
            raise KubeError(response.status, _refusal(data, f"{method} {path}"))
        try:
            loaded: dict[str, Any] = json.loads(data)
        except ValueError:
            # What stands before the API server may answer for it. Not shown: it may be a Secret.
            raise KubeError(0, f"{method} {path}: the answer is no JSON") from None
        return loaded


_NO_ANSWER: Final = (
    urllib3.exceptions.HTTPError,
    OSError,
    kubernetes.client.ApiException,
    kubernetes.config.ConfigException,
)
_APPLY: Final = "application/apply-patch+yaml"


def _path(api_version: str, kind: str, namespace: str, name: str = "") -> str:
    root = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{scope}/{PLURALS[kind]}" + (f"/{name}" if name else "")


def _refusal(data: bytes, call: str) -> str:
    try:
        return f"{json.loads(data)['message']} ({call})"
    except (ValueError, KeyError, TypeError):
        return f"{data[:200]!r} ({call})"


def custom(kube: Kube, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
    """Return a resource of this operator's own group."""
    return kube.get(API_VERSION, kind, namespace, name)


def differs(wanted: Any, live: Any, *, quantities: bool = False) -> bool:
    """Return whether a live object differs from what is wanted; additional fields are ignored.

    Lists are compared by place. `quantities` says that these are amounts of resources, which the
    API server writes in its own way: 1000m comes back as 1, 1024Mi as 1Gi.
    """
    if isinstance(wanted, Mapping):
        if not isinstance(live, Mapping):
            # The API server drops empty maps.
            return bool(wanted) or live is not None
        return any(
            differs(value, live.get(key), quantities=quantities or key in _HOLD_QUANTITIES)
            for key, value in wanted.items()
            if value != live.get(key)
        )
    if isinstance(wanted, list):
        if not isinstance(live, list) or len(wanted) != len(live):
            return bool(wanted) or bool(live)
        return any(differs(one, other) for one, other in zip(wanted, live, strict=True))
    if quantities:
        return not same_quantity(wanted, live)
    return bool(wanted != live)


_HOLD_QUANTITIES: Final = frozenset({"requests", "limits"})


def same_quantity(one: Any, other: Any) -> bool:
    """Return whether two amounts of a resource are the same, however they are written."""
    utils: Any = kubernetes.utils
    try:
        return bool(utils.parse_quantity(one) == utils.parse_quantity(other))
    except ValueError:
        return bool(one == other)


def is_less(one: str, other: str) -> bool:
    """Return whether an amount of a resource is the smaller one; False for what is no amount."""
    utils: Any = kubernetes.utils
    try:
        return bool(utils.parse_quantity(one) < utils.parse_quantity(other))
    except ValueError:
        return False
