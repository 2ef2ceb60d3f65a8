"""Applies the chart's CRDs to the cluster, before a release is installed or upgraded.

Helm creates missing CRDs of a chart's folder crds/ at installation, and never updates them. So a
new operator would run with old schemas after an upgrade, or after an installation over an older
release. This script runs as a Job before both, in the operator's image, with Python's standard
library only. It applies each file NAME.yaml of the given folder as the CustomResourceDefinition
NAME (server-side apply), and waits until the API server has established all of them. It never
deletes a CRD, because that deletes every resource of its kind.
"""

# ruff: noqa: T201 - the script prints its result

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
    """The API server rejected a request; the message has its status and text."""


class CrdClient:
    """A client of the API server with a pod's service account.

    Reads the token for each request, because the kubelet renews the file.
    """

    def __init__(self, host: str, port: int, service_account: pathlib.Path) -> None:
        self.host = host
        self.port = port
        self.service_account = service_account
        self.tls = ssl.create_default_context(cafile=str(service_account / "ca.crt"))

    def call(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        """Send one request and return the response's JSON object; raise ApiError if rejected."""
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
    """Return whether the API server serves the CRD."""
    conditions = crd.get("status", {}).get("conditions", [])
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def apply(api: CrdClient, folder: pathlib.Path) -> list[str]:
    """Apply every NAME.yaml of the folder and return the names.

    `force` takes over the fields that Helm owns since the first installation.
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
    """Poll until every CRD is established; raise ApiError after ESTABLISH_TIMEOUT_S."""
    deadline = time.monotonic() + ESTABLISH_TIMEOUT_S
    for name in names:
        while not is_established(api.call("GET", crd_path(name))):
            if time.monotonic() > deadline:
                raise ApiError(f"{name} is not established after {ESTABLISH_TIMEOUT_S:.0f} s")
            time.sleep(0.5)


def main(folder: str, service_account: str = str(SERVICE_ACCOUNT)) -> int:
    """Apply the CRDs of a folder, wait for them, and return the exit status."""
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
