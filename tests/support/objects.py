"""Reads and applies Kubernetes objects over one kept connection: tests do so more often than users.

A kubectl process costs a tenth of a second of a processor before it asks anything.
"""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

import urllib3
import yaml

TIMEOUT_S = 60
_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


class ApiError(Exception):
    """The API server did not answer, or refused."""


class ObjectClient:
    """Objects of one API server, as the user of a kubeconfig. Threads may share it."""

    def __init__(self, kubeconfig: Path) -> None:
        document = yaml.safe_load(kubeconfig.read_text())
        (cluster,), (user,) = document["clusters"], document["users"]
        place, who = cluster["cluster"], user["user"]
        authority = base64.b64decode(place.get("certificate-authority-data", "")).decode()
        context = ssl.create_default_context(
            cafile=place.get("certificate-authority"), cadata=authority or None
        )
        if "client-certificate-data" in who:
            with tempfile.NamedTemporaryFile() as pair:
                for part in ("client-certificate-data", "client-key-data"):
                    pair.write(base64.b64decode(who[part]))
                pair.flush()
                context.load_cert_chain(pair.name)
        self._headers = {"Authorization": f"Bearer {who['token']}"} if "token" in who else {}
        self._pool = urllib3.PoolManager(
            ssl_context=context, retries=False, timeout=TIMEOUT_S, maxsize=4
        )
        self._server = place["server"]
        self._kinds: dict[str, tuple[str, str, bool]] = {}

    def read(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        """Return one object, or with an empty name the list of a kind. Raises ApiError."""
        kind_name = self._kind(kind)[1]
        inside = self._path(kind, namespace)
        found = self._ask(f"{inside}/{name}" if name else inside)
        for one in found.get("items", []):
            # The API leaves out of a list's items what kubectl puts in.
            one["kind"] = kind_name
        return found

    def apply(self, namespace: str, manifest: dict[str, Any]) -> None:
        """Apply one object on the server's side, in its own namespace or else in this one. Raises
        ApiError.
        """
        metadata = manifest["metadata"]
        place = self._path(manifest["kind"].lower(), metadata.get("namespace", namespace))
        options = "fieldManager=tests&force=true&fieldValidation=Strict"
        self._ask(f"{place}/{metadata['name']}?{options}", method="PATCH", body=manifest)

    def create(self, namespace: str, manifest: dict[str, Any]) -> None:
        """Create one object in this namespace. Raises ApiError."""
        place = self._path(manifest["kind"].lower(), namespace)
        self._ask(f"{place}?fieldValidation=Strict", method="POST", body=manifest)

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete one object. Raises ApiError."""
        self._ask(f"{self._path(kind, namespace)}/{name}", method="DELETE")

    def delete_all(self, kind: str, namespace: str, selector: str) -> None:
        """Delete what has these labels in one request. Raises ApiError."""
        self._ask(f"{self._path(kind, namespace)}?labelSelector={quote(selector)}", method="DELETE")

    def token(
        self, namespace: str, account: str, seconds: int, pod: dict[str, Any] | None = None
    ) -> str:
        """Return a token of a service account, as the kubelet mounts it in `pod` if that is given.
        Raises ApiError.
        """
        place = self._path("serviceaccount", namespace)
        body: dict[str, Any] = {"spec": {"expirationSeconds": seconds}}
        if pod is not None:
            meta = pod["metadata"]
            bound = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
            body["spec"]["boundObjectRef"] = bound
        found = self._ask(f"{place}/{account}/token", method="POST", body=body)
        return str(found["status"]["token"])

    def _path(self, kind: str, namespace: str) -> str:
        """Return where the objects of a kind are."""
        root, _, namespaced = self._kind(kind)
        collection, _, plural = root.rpartition("/")
        return f"{collection}/namespaces/{namespace}/{plural}" if namespaced else root

    def _kind(self, kind: str) -> tuple[str, str, bool]:
        """Return where objects of a kind are, the kind's own name, and whether in a namespace."""
        if kind not in self._kinds:
            self._discover()
        if kind not in self._kinds:
            raise ApiError(f"the server doesn't have a resource type {kind}")
        return self._kinds[kind]

    def _discover(self) -> None:
        for root in ("api", "apis"):
            for group in self._ask(f"/{root}", _DISCOVERY)["items"]:
                # The first version is the preferred one.
                version = group["versions"][0]
                name = group["metadata"].get("name")
                prefix = "/".join(filter(None, (root, name, version["version"])))
                # An API that another server is registered for, such as KEDA's, may list nothing.
                for one in version.get("resources", ()):
                    path = f"/{prefix}/{one['resource']}"
                    names = (one["resource"], one["singularResource"], *one.get("shortNames", []))
                    place = (path, one["responseKind"]["kind"], one["scope"] == "Namespaced")
                    for known in names:
                        self._kinds.setdefault(known, place)

    def _ask(
        self,
        path: str,
        accept: str = "application/json",
        method: str = "GET",
        body: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        kind = "application/apply-patch+yaml" if method == "PATCH" else "application/json"
        headers = {**self._headers, "Accept": accept, "Content-Type": kind}
        sent = None if body is None else json.dumps(body)
        try:
            answer = self._pool.request(method, self._server + path, body=sent, headers=headers)
        except urllib3.exceptions.HTTPError as error:
            raise ApiError(str(error)) from error
        found: dict[str, Any] = json.loads(answer.data)
        if answer.status not in (200, 201):
            raise ApiError(f"Error from server ({found.get('reason')}): {found.get('message')}")
        return found


_clients: dict[Path, ObjectClient] = {}
_lock = threading.Lock()


def client(kubeconfig: Path) -> ObjectClient:
    """Return the client of a kubeconfig, one per process."""
    with _lock:
        if kubeconfig not in _clients:
            _clients[kubeconfig] = ObjectClient(kubeconfig)
        return _clients[kubeconfig]
