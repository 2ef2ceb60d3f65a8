"""Reads Kubernetes objects over one kept connection: tests ask much more often than users do.

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

import urllib3
import yaml

TIMEOUT_S = 60
_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


class ReadError(Exception):
    """The API server did not answer, or not with the object."""


class ObjectReader:
    """Objects of one API server, read as the user of a kubeconfig. Threads may share it."""

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
        """Return one object, or with an empty name the list of a kind. Raises ReadError."""
        root, kind_name, namespaced = self._kind(kind)
        collection, _, plural = root.rpartition("/")
        inside = f"{collection}/namespaces/{namespace}/{plural}" if namespaced else root
        found = self._ask(f"{inside}/{name}" if name else inside, "application/json")
        for one in found.get("items", []):
            # The API leaves out of a list's items what kubectl puts in.
            one["kind"] = kind_name
        return found

    def _kind(self, kind: str) -> tuple[str, str, bool]:
        """Return where objects of a kind are, the kind's own name, and whether in a namespace."""
        if kind not in self._kinds:
            self._discover()
        if kind not in self._kinds:
            raise ReadError(f"the server doesn't have a resource type {kind}")
        return self._kinds[kind]

    def _discover(self) -> None:
        for root in ("api", "apis"):
            for group in self._ask(f"/{root}", _DISCOVERY)["items"]:
                # The first version is the preferred one.
                version = group["versions"][0]
                name = group["metadata"].get("name")
                prefix = "/".join(filter(None, (root, name, version["version"])))
                for one in version["resources"]:
                    path = f"/{prefix}/{one['resource']}"
                    names = (one["resource"], one["singularResource"], *one.get("shortNames", []))
                    place = (path, one["responseKind"]["kind"], one["scope"] == "Namespaced")
                    for known in names:
                        self._kinds.setdefault(known, place)

    def _ask(self, path: str, accept: str) -> dict[str, Any]:
        headers = {**self._headers, "Accept": accept}
        try:
            answer = self._pool.request("GET", self._server + path, headers=headers)
        except urllib3.exceptions.HTTPError as error:
            raise ReadError(str(error)) from error
        found: dict[str, Any] = json.loads(answer.data)
        if answer.status != 200:
            raise ReadError(f"Error from server ({found.get('reason')}): {found.get('message')}")
        return found


_readers: dict[Path, ObjectReader] = {}
_lock = threading.Lock()


def reader(kubeconfig: Path) -> ObjectReader:
    """Return the reader of a kubeconfig, one per process."""
    with _lock:
        if kubeconfig not in _readers:
            _readers[kubeconfig] = ObjectReader(kubeconfig)
        return _readers[kubeconfig]
