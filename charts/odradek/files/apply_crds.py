"""Applies the chart's CRDs to the cluster, before a release is installed or upgraded.

Helm makes what is missing of a chart's folder crds/ when it installs, and never changes what is
there. So a release that is upgraded, or installed where an older one has been, would run a new
operator against old schemas. This script runs as a Job before both, in the operator's image, with
Python's standard library only: each file NAME.yaml of the given folder goes to the API server as a
server-side apply of the CustomResourceDefinition NAME, and the script ends when the API server has
established every one. It never deletes: deleting a CRD deletes every resource of its kind.
"""

# ruff: noqa: T201 - what a script prints is its result

import http.client
import json
import os
import pathlib
import ssl
import sys
import time
from typing import Any

FIELD_MANAGER = "odradek-chart"
ESTABLISH_TIMEOUT_S = 60.0
SERVICE_ACCOUNT = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")


class ApiError(Exception):
    """The API server refused a request; the text is its status and message."""


class CrdClient:
    """The API server as a pod's service account sees it.

    The token is read for each request, because the kubelet renews the file.
    """

    def __init__(self, host: str, port: int, service_account: pathlib.Path) -> None:
        self.host = host
        self.port = port
        self.service_account = service_account
        self.tls = ssl.create_default_context(cafile=str(service_account / "ca.crt"))

    def call(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        """Send one request and return the answer's JSON object; raise ApiError on a refusal."""
        connection = http.client.HTTPSConnection(self.host, self.port, timeout=30, context=self.tls)
        headers = {
            "Authorization": f"Bearer {(self.service_account / 'token').read_text().strip()}",
            "Accept": "application/json",
            "Content-Type": "application/apply-patch+yaml",
        }
        try:
            connection.request(method, path, body=body, headers=headers)
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        if response.status >= 300:
            raise ApiError(f"{method} {path}: {response.status} {text}")
        answer: dict[str, Any] = json.loads(text)
        return answer


def is_established(crd: dict[str, Any]) -> bool:
    """Tell whether the API server serves the CRD."""
    conditions = crd.get("status", {}).get("conditions", [])
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def apply(api: CrdClient, folder: pathlib.Path) -> list[str]:
    """Apply every NAME.yaml of the folder and return the names.

    force takes over the fields that Helm's first installation owns.
    """
    names = sorted(path.stem for path in folder.glob("*.yaml"))
    if not names:
        raise ApiError(f"no CRD in {folder}")
    for name in names:
        api.call(
            "PATCH",
            f"{crd_path(name)}?fieldManager={FIELD_MANAGER}&force=true",
            (folder / f"{name}.yaml").read_bytes(),
        )
    return names


def crd_path(name: str) -> str:
    """Return the API path of a CRD."""
    return f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"


def wait_until_established(api: CrdClient, names: list[str]) -> None:
    """Poll until every CRD is served; raise ApiError after ESTABLISH_TIMEOUT_S."""
    deadline = time.monotonic() + ESTABLISH_TIMEOUT_S
    for name in names:
        while not is_established(api.call("GET", crd_path(name))):
            if time.monotonic() > deadline:
                raise ApiError(f"{name} is not established after {ESTABLISH_TIMEOUT_S:.0f} s")
            time.sleep(0.5)


def main(folder: str, service_account: str = str(SERVICE_ACCOUNT)) -> int:
    """Apply the CRDs of a folder and wait; return the exit status."""
    api = CrdClient(
        os.environ["KUBERNETES_SERVICE_HOST"],
        int(os.environ["KUBERNETES_SERVICE_PORT"]),
        pathlib.Path(service_account),
    )
    try:
        names = apply(api, pathlib.Path(folder))
        wait_until_established(api, names)
    except (ApiError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    for name in names:
        print(f"{name} applied")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
