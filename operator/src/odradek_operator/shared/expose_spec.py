"""`expose` of the listeners of a KafkaCluster, read into frozen values.

An exposed listener has a Service per broker, which the broker advertises, and one for
`bootstrap.servers`. Names of fields are Strimzi's where it has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

NODE_PORT: Final = "NodePort"
LOAD_BALANCER: Final = "LoadBalancer"
# What a broker's id replaces in templates.
NODE_ID: Final = "{nodeId}"
MAX_PORT: Final = 65535


@dataclass(frozen=True, slots=True)
class ExposeSpec:
    """How one listener is exposed.

    `port` is the listener's. `node_ports` are those that are asked for, by broker id; others are
    allocated by the API server. Without `address_type` the first kind of address that a node has
    counts (`exposed_addresses`).
    """

    listener: str
    port: int
    type: str
    host_template: str | None = None
    port_template: str | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    traffic_policy: str = "Cluster"
    source_ranges: tuple[str, ...] = ()
    address_type: str | None = None
    node_ports: Mapping[int, int] = field(default_factory=dict)
    bootstrap_node_port: int | None = None
    bootstrap_annotations: Mapping[str, str] = field(default_factory=dict)
    alternative_names: tuple[str, ...] = ()

    @property
    def kafka_name(self) -> str:
        """The name of the listener in `advertised.listeners`."""
        return self.listener.upper()

    @property
    def by_node(self) -> bool:
        """Return whether a broker's address is that of its node."""
        return self.type == NODE_PORT and self.host_template is None

    @property
    def asked(self) -> tuple[int, ...]:
        """The node ports that are asked for."""
        of_bootstrap = () if self.bootstrap_node_port is None else (self.bootstrap_node_port,)
        return (*self.node_ports.values(), *of_bootstrap)

    def host(self, broker_id: int) -> str | None:
        """Return the host that the template says; None without one."""
        return None if self.host_template is None else filled(self.host_template, broker_id)

    def port_of(self, broker_id: int) -> int | None:
        """Return the port that the template says; None without one."""
        return None if self.port_template is None else int(filled(self.port_template, broker_id))


def filled(template: str, broker_id: int) -> str:
    """Return a template with a broker's id in it."""
    return template.replace(NODE_ID, str(broker_id))


def parse(spec: Mapping[str, Any]) -> tuple[ExposeSpec, ...]:
    """Read what spec.listeners of a KafkaCluster expose."""
    return tuple(_expose(one) for one in spec.get("listeners", ()) if "expose" in one)


def _expose(listener: Mapping[str, Any]) -> ExposeSpec:
    raw = listener["expose"]
    bootstrap = raw.get("bootstrap", {})
    return ExposeSpec(
        listener=listener["name"],
        port=listener["port"],
        type=raw["type"],
        host_template=raw.get("advertisedHostTemplate"),
        port_template=raw.get("advertisedPortTemplate"),
        annotations=raw.get("annotations", {}),
        traffic_policy=raw.get("externalTrafficPolicy", "Cluster"),
        source_ranges=tuple(raw.get("loadBalancerSourceRanges", ())),
        address_type=raw.get("preferredNodePortAddressType"),
        node_ports={
            one["broker"]: one["nodePort"] for one in raw.get("brokers", ()) if "nodePort" in one
        },
        bootstrap_node_port=bootstrap.get("nodePort"),
        bootstrap_annotations=bootstrap.get("annotations", {}),
        alternative_names=tuple(bootstrap.get("alternativeNames", ())),
    )


def why_impossible(exposed: Sequence[ExposeSpec], replicas: int) -> str | None:
    """Return why so many brokers cannot be exposed so; None: they can."""
    for one in exposed:
        for broker_id in (0, replicas - 1):
            port = one.port_of(broker_id)
            if port is not None and not 1 <= port <= MAX_PORT:
                return (
                    f"listener {one.listener}: advertisedPortTemplate gives broker {broker_id} "
                    f"port {port}, which is not between 1 and {MAX_PORT}"
                )
    used: dict[int, str] = {}
    for one in exposed:
        for port in one.asked:
            if port in used:
                return f"nodePort {port} is asked for twice: {used[port]} and {one.listener}"
            used[port] = f"by listener {one.listener}"
    return None


def why_cut_off(
    exposed: Sequence[ExposeSpec], ports: Mapping[str, int], per_node: int
) -> str | None:
    """Return which port of brokers a node port would take; None: none.

    On the network of their nodes, brokers have as many as `per_node` of each of these ports, and
    Kubernetes leads whoever connects to a node port elsewhere.
    """
    for one in exposed:
        for port in one.asked:
            for name, first in ports.items():
                if first <= port < first + per_node:
                    return (
                        f"nodePort {port} of listener {one.listener} is a port of brokers on their "
                        f"nodes, for {name}, and nobody would reach them there: choose another"
                    )
    return None
