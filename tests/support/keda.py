"""KEDA's operator and metrics adapter, as processes beside the built-in cluster.

    with keda.running(kubectl, folder):
        kubectl.apply(scaled_object)

They have the rights that KEDA's own manifests give them, and no others, and find Services by the
cluster's DNS. `python -m tests.cluster tools --keda` builds them.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.cluster import settings, tools
from tests.support import certificates
from tests.support.apiserver import require_programs
from tests.support.kubectl import Kubectl, KubectlError, eventually
from tests.support.ports import free_port

NAMESPACE = "keda"
SERVICE = "keda-metrics-apiserver"
API = "v1beta1.external.metrics.k8s.io"
# Service accounts and roles of both programs, without their Deployments.
MANIFESTS = (
    "general/namespace.yaml",
    "service_account/service_account.yaml",
    "rbac/role.yaml",
    "rbac/role_binding.yaml",
    "metrics-server/role.yaml",
    "metrics-server/role_binding.yaml",
)
ACCOUNT = "keda-operator"
PATIENCE_S = 300
# A process with a name server of its own, for which it needs a mount namespace.
WITH_DNS = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'


@contextlib.contextmanager
def running(kubectl: Kubectl, folder: Path) -> Iterator[None]:
    """Run KEDA until the context ends; then nothing of it is left in the cluster."""
    binaries = require_programs("keda-operator", "keda-adapter", "kubectl")
    module = settings.paths().cache / f"go/modules/{tools.KEDA}@{tools.KEDA_VERSION}/config"
    port, service = free_port(), free_port()
    # Its manifests name their namespaces, which are several.
    kubectl = dataclasses.replace(kubectl, namespace="")
    with contextlib.ExitStack() as stack:
        stack.callback(_remove, kubectl, module)
        _install(kubectl, module, port, _certificates(folder))
        kubeconfig = _kubeconfig(kubectl, folder)
        certs = f"--cert-dir={folder}"
        operator = [
            binaries / "keda-operator",
            certs,
            f"--metrics-service-bind-address=127.0.0.1:{service}",
            "--enable-prometheus-metrics=false",
            "--health-probe-bind-address=0",
        ]
        kubeconfigs = ("lister", "authentication", "authorization")
        adapter = [
            binaries / "keda-adapter",
            certs,
            f"--bind-address={settings.GATEWAY}",
            f"--secure-port={port}",
            f"--tls-cert-file={folder}/tls.crt",
            f"--tls-private-key-file={folder}/tls.key",
            f"--metrics-service-address=localhost:{service}",
            f"--port={free_port()}",
            *(f"--{name}-kubeconfig={kubeconfig}" for name in kubeconfigs),
        ]
        for command in (operator, adapter):
            stack.enter_context(_process([*map(str, command)], folder, kubeconfig))
        eventually(lambda: _serves(kubectl), "the API of external metrics", PATIENCE_S)
        yield


def _install(kubectl: Kubectl, module: Path, port: int, authority: bytes) -> None:
    kubectl("apply", "--server-side", "--force-conflicts", "-k", str(module / "crd"))
    files = [word for name in MANIFESTS for word in ("-f", str(module / name))]
    kubectl("apply", "--server-side", *files)
    kubectl.apply(*_registration(port, authority))


def _registration(port: int, authority: bytes) -> list[dict[str, Any]]:
    """Return what makes the API server ask the adapter, which is no pod."""
    ports = [{"name": "https", "port": port, "protocol": "TCP"}]
    metadata = {"name": SERVICE, "namespace": NAMESPACE}
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"ports": [{"name": "https", "port": 443, "targetPort": port}]},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {**metadata, "labels": {"kubernetes.io/service-name": SERVICE}},
            "addressType": "IPv4",
            "ports": ports,
            "endpoints": [{"addresses": [settings.GATEWAY], "conditions": {"ready": True}}],
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": API},
            "spec": {
                "service": {"name": SERVICE, "namespace": NAMESPACE},
                "group": "external.metrics.k8s.io",
                "version": "v1beta1",
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "caBundle": base64.b64encode(authority).decode(),
            },
        },
    ]


def _certificates(folder: Path) -> bytes:
    """Write the files that KEDA's programs know each other by, and return the authority."""
    issued = certificates.Authority(folder).issue(
        "keda", hosts=["localhost", f"{SERVICE}.{NAMESPACE}.svc"]
    )
    shutil.copy(issued.key_path, folder / "tls.key")
    shutil.copy(issued.certificate_path, folder / "tls.crt")
    shutil.copy(issued.authority_path, folder / "ca.crt")
    return issued.authority_path.read_bytes()


def _kubeconfig(kubectl: Kubectl, folder: Path) -> Path:
    """Write a kubeconfig of KEDA's own service account."""
    where = f"--namespace={NAMESPACE}"
    token = kubectl("create", "token", ACCOUNT, where, "--duration=2h").strip()
    document = yaml.safe_load(kubectl.kubeconfig.read_text())
    document["users"][0]["user"] = {"token": token}
    path = folder / "kubeconfig"
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(document))
    return path


@contextlib.contextmanager
def _process(command: list[str], folder: Path, kubeconfig: Path) -> Iterator[None]:
    resolver = folder / "resolv.conf"
    search = "search svc.cluster.local\noptions ndots:5\n"
    resolver.write_text(f"nameserver {settings.GATEWAY}\n{search}")
    environment: Mapping[str, str] = {
        **os.environ,
        "KUBECONFIG": str(kubeconfig),
        "POD_NAMESPACE": NAMESPACE,
        "WATCH_NAMESPACE": "",
        "KEDA_CLUSTER_OBJECT_NAMESPACE": NAMESPACE,
    }
    name = Path(command[0]).name
    with (folder / f"{name}.log").open("wb") as log:
        words = ["unshare", "--map-root-user", "--mount", "sh", "-c", WITH_DNS, str(resolver)]
        process = subprocess.Popen([*words, *command], env=environment, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _serves(kubectl: Kubectl) -> bool:
    kubectl("get", "--raw", "/apis/external.metrics.k8s.io/v1beta1")
    return True


def _remove(kubectl: Kubectl, module: Path) -> None:
    """Delete what `_install` made; an API without a server would keep namespaces from ending."""
    kubectl("delete", "apiservice", API, "--ignore-not-found")
    for name in reversed(MANIFESTS):
        with contextlib.suppress(KubectlError):
            kubectl("delete", "--ignore-not-found", "--timeout=120s", "-f", str(module / name))
    kubectl("delete", "--ignore-not-found", "--timeout=120s", "-k", str(module / "crd"))
