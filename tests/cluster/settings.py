"""Directories and addresses of the cluster.

There are two directories: the state of the running cluster, which `down` removes, and a cache of
built programs and images, which stays. Environment variables set both.
"""

import os
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
KIND_CONFIG = REPO / "kind-config.yaml"

BRIDGE = "odradek0"
GATEWAY = "172.30.0.1"
NODE_PREFIX = "172.30.0"
POD_CIDR = "10.244.0.0/16"
SERVICE_CIDR = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
DNS_SERVICE = "10.96.0.10"
VOLUMES_PER_NODE = 6
VOLUME_SIZE = "10Gi"


@dataclass(frozen=True, slots=True)
class Paths:
    """The directories of one cluster; `state` and `run` belong to it alone."""

    state: Path
    cache: Path
    run: Path
    # Releases are built in a storage of their own, beside that of the cluster's images.
    storage_name: str = "images"

    @property
    def storage(self) -> Path:
        """Where buildah keeps images."""
        return self.cache / self.storage_name

    @property
    def storage_run(self) -> Path:
        """Where buildah keeps what it knows of containers; a reboot may remove it."""
        return Path(f"/run/odradek-{self.storage_name}")

    @property
    def bin(self) -> Path:
        """Programs built from Go modules."""
        return self.cache / "bin"

    @property
    def logs(self) -> Path:
        """One file per component, named NAME.log or NAME-NODE.log."""
        return self.state / "log"

    @property
    def build_logs(self) -> Path:
        """Logs of builds, which `down` keeps."""
        return self.cache / "log"

    @property
    def pids(self) -> Path:
        """One file per component with its process id."""
        return self.state / "pid"

    @property
    def pki(self) -> Path:
        """Keys and certificates."""
        return self.state / "pki"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.state / "admin.conf"

    def node(self, name: str) -> Path:
        """The directory of one node."""
        return self.state / name

    def containerd(self, name: str) -> Path:
        """The directory of one node's containerd."""
        return self.state / name / "containerd"

    def loaded(self, name: str) -> Path:
        """The file with the ids of the images that one node has."""
        return self.state / name / "images.json"

    def socket(self, name: str) -> Path:
        """The containerd socket of one node."""
        return self.run / name / "containerd.sock"


def paths() -> Paths:
    """Return the directories that the environment sets."""
    home_cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Paths(
        # Empty would be the folder of the call, which `down` would delete.
        state=Path(os.environ.get("ODRADEK_CLUSTER_DIR") or "/var/lib/odradek-cluster"),
        cache=Path(os.environ.get("ODRADEK_CACHE") or f"{home_cache}/odradek"),
        run=Path("/run/odradek-cluster"),
    )
