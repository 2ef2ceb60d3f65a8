"""One node of the built-in cluster: containerd, kubelet and kube-proxy in a network namespace.

All nodes share the host's file system; each has its state below its own directory. Runtime state
(sockets, the pods' network namespaces) is below the run directory, where `down` finds it.
"""

import json
from pathlib import Path
from typing import Any

import yaml

from tests.cluster import cgroups, components, network, settings, store
from tests.cluster.layout import Node
from tests.cluster.settings import Paths
from tests.cluster.shell import wait_until

PAUSE_IMAGE = "localhost/pause:1"
PLUGINS = "/usr/lib/cni"


def _pod_network(node: Node, home: Path) -> dict[str, Any]:
    ipam = {
        "type": "host-local",
        "dataDir": str(home / "ipam"),
        "ranges": [[{"subnet": node.pod_cidr}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": True}
    return {
        "cniVersion": "0.4.0",
        "name": "pod",
        "plugins": [
            {**bridge, "hairpinMode": True, "ipam": ipam},
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


def _containerd(node: Node, home: Path, paths: Paths) -> str:
    state = paths.run / node.name
    return f"""\
version = 2
root = "{home}/containerd"
state = "{state}"
[grpc]
  address = "{paths.socket(node.name)}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # Without CAP_SYS_RESOURCE nobody may lower a score, and every sandbox would fail for trying.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{PLUGINS}"
    conf_dir = "{home}/cni"
  # A folder HOST:PORT with ca.crt, or hosts.toml, says how to trust that registry.
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{home}/certs.d"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      Root = "{state}/runc"
[plugins."io.containerd.internal.v1.opt"]
  path = "{home}/opt"
"""


def _kubelet(node: Node, home: Path, paths: Paths) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{paths.pki}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "clusterDNS": [settings.DNS_SERVICE],
        "clusterDomain": "cluster.local",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroups.ROOT_NAME}/{node.name}",
        "cgroupsPerQOS": True,
        "enforceNodeAllocatable": [],
        "containerRuntimeEndpoint": f"unix://{paths.socket(node.name)}",
        "tlsCertFile": f"{paths.pki}/{node.name}.crt",
        "tlsPrivateKeyFile": f"{paths.pki}/{node.name}.key",
        "resolvConf": f"{home}/resolv.conf",
        "podLogsDir": f"{home}/pods",
        "volumePluginDir": f"{home}/volume-plugins",
        "failSwapOn": False,
        "nodeStatusUpdateFrequency": "4s",
        # Images cannot be pulled again; 100 disables their garbage collection.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
        },
    }


def write_files(node: Node, paths: Paths) -> None:
    """Write the configuration of the node's three components."""
    home = paths.node(node.name)
    (home / "cni").mkdir(parents=True, exist_ok=True)
    (paths.run / node.name).mkdir(parents=True, exist_ok=True)
    network_file = home / "cni" / "10-pod.conflist"
    network_file.write_text(json.dumps(_pod_network(node, home), indent=1))
    (home / "containerd.toml").write_text(_containerd(node, home, paths))
    # For pods with dnsPolicy Default. Nothing answers there, because the nodes have no DNS.
    (home / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    (home / "kubelet.yaml").write_text(yaml.safe_dump(_kubelet(node, home, paths)))


def start_runtime(node: Node, paths: Paths) -> None:
    """Start containerd; nodes start faster if it runs on all of them first."""
    config = paths.node(node.name) / "containerd.toml"
    name, group = f"containerd-{node.name}", f"{node.name}/system"
    argv = ["containerd", "-c", str(config)]
    components.start(paths, name, argv, group=group, netns=node.netns)


def ctr(node: Node, paths: Paths, *words: str | Path) -> str:
    """Run containerd's command line on this node."""
    return store.ctr(paths.socket(node.name), *words)


def start_agents(node: Node, paths: Paths) -> None:
    """Start kubelet and kube-proxy; needs containerd."""
    runtime = f"containerd-{node.name}"

    def runtime_answers() -> bool:
        components.require(paths, runtime)
        return components.listens(paths.socket(node.name))

    wait_until(runtime_answers, runtime, timeout_s=120, interval_s=0.1)
    home = paths.node(node.name)
    labels = ",".join(f"{key}={value}" for key, value in sorted(node.labels.items()))
    kubelet: list[str | Path] = [
        paths.bin / "kubebox",
        "kubelet",
        f"--config={home}/kubelet.yaml",
        f"--kubeconfig={paths.state}/{node.name}.conf",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
        f"--root-dir={home}/kubelet",
        f"--node-labels={labels}",
    ]
    proxy: list[str | Path] = [
        paths.bin / "kubebox",
        "kube-proxy",
        f"--kubeconfig={paths.state}/proxy.conf",
        "--proxy-mode=iptables",
        f"--cluster-cidr={settings.POD_CIDR}",
        f"--hostname-override={node.name}",
        # The size of the connection table is a setting of the host, not of a namespace.
        "--conntrack-max-per-core=0",
    ]
    group = f"{node.name}/system"
    components.start(paths, f"kubelet-{node.name}", kubelet, group=group, netns=node.netns)
    components.start(paths, f"kube-proxy-{node.name}", proxy, group=group, netns=node.netns)


def fail(node: Node) -> None:
    """Fail the node as in a power cut: disconnect it and kill all of its processes."""
    network.connect(node, up=False)
    cgroups.kill(node.name)


def names(node: Node) -> tuple[str, ...]:
    """Return the names of the node's components."""
    return tuple(f"{kind}-{node.name}" for kind in ("containerd", "kubelet", "kube-proxy"))
