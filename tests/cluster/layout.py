"""The nodes of kind-config.yaml, and what the built-in cluster derives from their order.

Worker number i (from 1) is `node<i>` with address 172.30.0.<10+i> and pods in 10.244.<i>.0/24.
The control-plane entry is no node here: its components run beside the nodes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.cluster import settings


class LayoutError(ValueError):
    """kind-config.yaml has something that the built-in cluster does not support."""


@dataclass(frozen=True, slots=True)
class Node:
    """One worker; `index` counts from 1."""

    index: int
    labels: Mapping[str, str]

    @property
    def name(self) -> str:
        """The Kubernetes node name."""
        return f"node{self.index}"

    @property
    def address(self) -> str:
        """IPv4 address on the bridge; brokers with host network advertise it."""
        return f"{settings.NODE_PREFIX}.{10 + self.index}"

    @property
    def pod_cidr(self) -> str:
        """Addresses of the pods on this node."""
        return f"10.244.{self.index}.0/24"

    @property
    def netns(self) -> str:
        """Name of the node's network namespace."""
        return f"odradek-{self.name}"

    @property
    def veth(self) -> str:
        """The host's end of the node's veth pair."""
        return f"odr-{self.name}"


def parse(document: Any) -> tuple[Node, ...]:
    """Return the workers of a kind `Cluster` document, in order. Raises LayoutError."""
    if not isinstance(document, Mapping) or document.get("kind") != "Cluster":
        raise LayoutError("not a kind Cluster document")
    entries = document.get("nodes") or [{"role": "control-plane"}]
    roles = [entry.get("role", "control-plane") for entry in entries]
    unknown = set(roles) - {"control-plane", "worker"}
    if unknown:
        raise LayoutError(f"unknown role {sorted(unknown)[0]}")
    workers = [entry for entry, role in zip(entries, roles, strict=True) if role == "worker"]
    if not workers:
        raise LayoutError("no worker among the nodes")
    if len(workers) > 200:
        raise LayoutError(f"{len(workers)} workers, but one bridge holds 200")
    return tuple(
        Node(index, {str(key): str(value) for key, value in (entry.get("labels") or {}).items()})
        for index, entry in enumerate(workers, 1)
    )


def load(path: Path = settings.KIND_CONFIG) -> tuple[Node, ...]:
    """Return the workers in the file. Raises LayoutError, OSError."""
    try:
        return parse(yaml.safe_load(path.read_text()))
    except yaml.YAMLError as error:
        raise LayoutError(f"{path.name}: {error}") from error
