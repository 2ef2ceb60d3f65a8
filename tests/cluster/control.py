"""The control plane of the built-in cluster: etcd, API server, controllers, scheduler, DNS.

They run beside the nodes, in the host's network, on the bridge's address. DNS is CoreDNS behind
the usual service address; an EndpointSlice points to it, because it is no pod.
"""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.cluster import certs, components, settings
from tests.cluster.layout import Node
from tests.cluster.settings import Paths
from tests.cluster.shell import ClusterError, run, wait_until

ETCD = "http://127.0.0.1:2379"
AGGREGATOR = "front-proxy"
COREFILE = f"""\
.:53 {{
  bind {settings.GATEWAY}
  errors
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig KUBECONFIG
    pods insecure
  }}
  cache 5
}}
"""


def kubectl(paths: Paths, *words: str | Path, stdin: str | None = None, check: bool = True) -> str:
    """Run kubectl as administrator and return stdout. Raises ClusterError."""
    argv = [paths.bin / "kubectl", f"--kubeconfig={paths.kubeconfig}", *words]
    return run(argv, stdin=stdin, check=check)


def apply(paths: Paths, objects: Sequence[dict[str, Any]]) -> None:
    """Apply objects (server-side apply)."""
    document = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
    manager = "--field-manager=odradek-cluster"
    kubectl(paths, "apply", "--server-side", manager, "-f", "-", stdin=document)


def create_identities(paths: Paths, nodes: Sequence[Node]) -> None:
    """Create the certificates and kubeconfigs of all components."""
    pki = paths.pki
    certs.create_authority(pki)
    names = ["", ".default", ".default.svc", ".default.svc.cluster.local"]
    hosts = ",".join(f"DNS:kubernetes{name}" for name in names)
    addresses = f"IP:{settings.API_SERVICE},IP:127.0.0.1,IP:{settings.GATEWAY}"
    certs.issue(pki, "apiserver", "/CN=kube-apiserver", f"{hosts},DNS:localhost,{addresses}")
    clients = {
        "admin": "/O=system:masters/CN=admin",
        "controllers": "/CN=system:kube-controller-manager",
        "scheduler": "/CN=system:kube-scheduler",
        "proxy": "/CN=system:kube-proxy",
    }
    for name, subject in clients.items():
        certs.issue(pki, name, subject, f"DNS:{name}")
        certs.write_kubeconfig(pki, name, paths.state / f"{name}.conf")
    for node in nodes:
        subject = f"/O=system:nodes/CN=system:node:{node.name}"
        certs.issue(pki, node.name, subject, f"DNS:{node.name},IP:{node.address}")
        certs.write_kubeconfig(pki, node.name, paths.state / f"{node.name}.conf")
    certs.issue(pki, AGGREGATOR, f"/CN={AGGREGATOR}", f"DNS:{AGGREGATOR}")


def _apiserver(paths: Paths) -> list[str | Path]:
    pki = paths.pki
    return [
        paths.bin / "kubebox",
        "kube-apiserver",
        f"--etcd-servers={ETCD}",
        f"--bind-address={settings.GATEWAY}",
        f"--advertise-address={settings.GATEWAY}",
        f"--service-cluster-ip-range={settings.SERVICE_CIDR}",
        f"--cert-dir={pki}",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--client-ca-file={pki}/ca.crt",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-signing-key-file={pki}/sa.key",
        f"--service-account-key-file={pki}/sa.pub",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--kubelet-client-certificate={pki}/admin.crt",
        f"--kubelet-client-key={pki}/admin.key",
        "--kubelet-preferred-address-types=InternalIP",
        # API servers that are registered with an APIService, such as the one of external metrics,
        # learn from headers who asks. There is no kube-proxy here, so they are called directly.
        f"--requestheader-client-ca-file={pki}/ca.crt",
        f"--requestheader-allowed-names={AGGREGATOR}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={pki}/{AGGREGATOR}.crt",
        f"--proxy-client-key-file={pki}/{AGGREGATOR}.key",
        "--enable-aggregator-routing=true",
    ]


def _controllers(paths: Paths) -> list[str | Path]:
    pki = paths.pki
    return [
        paths.bin / "kubebox",
        "kube-controller-manager",
        f"--kubeconfig={paths.state}/controllers.conf",
        "--bind-address=127.0.0.1",
        f"--cert-dir={pki}",
        f"--service-account-private-key-file={pki}/sa.key",
        f"--root-ca-file={pki}/ca.crt",
        "--use-service-account-credentials=true",
        f"--cluster-signing-cert-file={pki}/ca.crt",
        f"--cluster-signing-key-file={pki}/ca.key",
        "--leader-elect=false",
        "--node-monitor-grace-period=20s",
    ]


def start(paths: Paths) -> None:
    """Start the components that do not run, and wait for the API server. Raises ClusterError."""
    etcd = [f"{paths.bin}/etcd", "--data-dir", f"{paths.state}/etcd"]
    # A development cluster need not survive a crash of the host, so etcd need not wait for disks.
    clients = ["--listen-client-urls", ETCD, "--advertise-client-urls", ETCD]
    components.start(paths, "etcd", [*etcd, *clients, "--unsafe-no-fsync=true"])
    components.start(paths, "apiserver", _apiserver(paths))
    wait_until(lambda: _ready(paths), "the API server", timeout_s=300)
    components.start(paths, "controller-manager", _controllers(paths))
    scheduler = ["kube-scheduler", f"--kubeconfig={paths.state}/scheduler.conf"]
    local = ["--bind-address=127.0.0.1", f"--cert-dir={paths.pki}", "--leader-elect=false"]
    components.start(paths, "scheduler", [paths.bin / "kubebox", *scheduler, *local])
    corefile = paths.state / "Corefile"
    corefile.write_text(COREFILE.replace("KUBECONFIG", str(paths.kubeconfig)))
    components.start(paths, "coredns", [paths.bin / "coredns", "-conf", corefile])
    apply(paths, _dns_service())


def _ready(paths: Paths) -> bool:
    components.require(paths, "etcd")
    components.require(paths, "apiserver")
    return answers(paths)


def answers(paths: Paths) -> bool:
    """Return whether the API server serves."""
    kubeconfig = f"--kubeconfig={paths.kubeconfig}"
    argv = [str(paths.bin / "kubectl"), kubeconfig, "get", "--raw", "/readyz"]
    try:
        done = subprocess.run([*argv, "--request-timeout=10s"], capture_output=True, check=False)
    except OSError as error:
        raise ClusterError(f"kubectl: {error}") from error
    return done.returncode == 0


def _dns_service() -> list[dict[str, Any]]:
    ports: list[dict[str, Any]] = [
        {"name": "dns", "port": 53, "protocol": "UDP"},
        {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
    ]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system"},
        "spec": {"clusterIP": settings.DNS_SERVICE, "ports": ports},
    }
    labels = {"kubernetes.io/service-name": "kube-dns"}
    slice_ = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "kube-dns-host", "namespace": "kube-system", "labels": labels},
        "addressType": "IPv4",
        "ports": ports,
        "endpoints": [{"addresses": [settings.GATEWAY]}],
    }
    return [service, slice_]
