"""Where clients reach the brokers of exposed listeners, and what brokers advertise there. Pure.

`find` reads it from the Services and the nodes. A broker learns it from a line of its ConfigMap:

    BROKER NODE NAME://HOST:PORT[,...] HOST [HOST...]

NODE is * where the address does not depend on it. A broker without a line waits, and one on
another node, too. A line stays as it was while there is nothing better: a load balancer that has
lost its address for a while keeps no broker from its restart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from odradek_operator.cluster import exposed_services
from odradek_operator.shared.expose_spec import LOAD_BALANCER, ExposeSpec

# Of a node's addresses the first kind that it has counts, after the preferred one: as in Strimzi.
_KINDS: Final = ("ExternalDNS", "ExternalIP", "InternalDNS", "InternalIP", "Hostname")
ANY_NODE: Final = "*"
_SHOWN: Final = 3


class Endpoint(NamedTuple):
    """Where clients connect."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Reachable:
    """Where clients reach a cluster.

    `brokers` has what is known, by listener and broker id, `nodes` the node of each broker that
    has one, and `pending` says what has no address yet.
    """

    brokers: Mapping[tuple[str, int], Endpoint] = field(default_factory=dict)
    bootstrap: Mapping[str, tuple[Endpoint, ...]] = field(default_factory=dict)
    nodes: Mapping[int, str] = field(default_factory=dict)
    pending: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """What one broker advertises on exposed listeners, by Kafka's names of these."""

    node: str
    endpoints: Mapping[str, Endpoint]

    @property
    def hosts(self) -> frozenset[str]:
        """What certificates must prove for it."""
        return frozenset(one.host for one in self.endpoints.values())

    def is_for(self, node: str | None) -> bool:
        """Return whether a broker on this node advertises it; None: on any."""
        return node is None or self.node in (ANY_NODE, node)


# --- Services and nodes ---------------------------------------------------------------------------


def find(
    cluster: str,
    exposed: Sequence[ExposeSpec],
    services: Mapping[str, Mapping[str, Any]],
    placed: Mapping[int, str],
    nodes: Mapping[str, Mapping[str, Any]] | None,
    brokers: Collection[int],
    former: Mapping[int, Line] = MappingProxyType({}),
) -> Reachable:
    """Return where clients reach the brokers.

    Of several addresses of a load balancer, the one that the broker has so far (`former`) counts
    while it is listed: the order of others must restart nobody.

    `services` and `nodes` are the live objects by name, `placed` are the nodes of brokers. Without
    `nodes` they cannot be read.
    """
    known: dict[tuple[str, int], Endpoint] = {}
    bootstrap: dict[str, tuple[Endpoint, ...]] = {}
    pending: list[str] = []
    for one in exposed:
        name = exposed_services.bootstrap_service(cluster, one.listener)
        missing = [] if _is_there(one, services.get(name)) else [name]
        lost: set[str] = set()
        for broker_id in brokers:
            own = exposed_services.broker_service(cluster, one.listener, broker_id)
            service = services.get(own)
            if not _is_there(one, service):
                missing.append(own)
            before = (
                former[broker_id].endpoints.get(one.kafka_name) if broker_id in former else None
            )
            host = _host(one, broker_id, service, placed.get(broker_id), nodes, before)
            port = one.port_of(broker_id) or _port(one, service)
            if host is not None and port is not None:
                known[one.listener, broker_id] = Endpoint(host, port)
            elif one.by_node and nodes is not None and broker_id in placed and port is not None:
                lost.add(placed[broker_id])
        pending += _why_pending(one, missing, lost, placed, nodes)
        bootstrap[one.listener] = _bootstrap(one, services.get(name), known, brokers)
    return Reachable(known, bootstrap, dict(placed), tuple(pending))


def _why_pending(
    one: ExposeSpec,
    missing: Sequence[str],
    lost: Collection[str],
    placed: Mapping[int, str],
    nodes: Mapping[str, object] | None,
) -> Iterable[str]:
    if missing:
        noun, verb = ("Service", "has") if len(missing) == 1 else ("Services", "have")
        yield f"{noun} {_listed(missing)} {verb} no address yet"
    if lost:
        yield f"no address is known of {_listed(sorted(lost))}, which brokers run on"
    if one.by_node and nodes is None and placed:
        yield (
            f"the operator may not list nodes, whose addresses brokers advertise on listener "
            f"{one.listener}: give it that right, or set advertisedHostTemplate"
        )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _is_there(one: ExposeSpec, service: Mapping[str, Any] | None) -> bool:
    """Return whether a Service has what clients connect to."""
    if service is None or "deletionTimestamp" in service["metadata"]:
        return False
    return bool(_ingress(service)) if one.type == LOAD_BALANCER else bool(_node_port(service))


def _ingress(service: Mapping[str, Any]) -> list[str]:
    """Return the addresses of a load balancer; its name before its IP address, as in Strimzi."""
    listed = service.get("status", {}).get("loadBalancer", {}).get("ingress") or ()
    return [host for one in listed if (host := one.get("hostname") or one.get("ip"))]


def _node_port(service: Mapping[str, Any]) -> int | None:
    found: int | None = service["spec"]["ports"][0].get("nodePort")
    return found


def _host(
    one: ExposeSpec,
    broker_id: int,
    service: Mapping[str, Any] | None,
    node: str | None,
    nodes: Mapping[str, Mapping[str, Any]] | None,
    former: Endpoint | None,
) -> str | None:
    if one.host_template is not None:
        return one.host(broker_id)
    if one.type == LOAD_BALANCER:
        listed = _ingress(service) if service is not None and _is_there(one, service) else []
        if former is not None and former.host in listed:
            return former.host
        return listed[0] if listed else None
    return None if node is None else _node_address(one, (nodes or {}).get(node))


def _port(one: ExposeSpec, service: Mapping[str, Any] | None) -> int | None:
    if one.type == LOAD_BALANCER:
        return one.port
    return None if service is None else _node_port(service)


def _node_address(one: ExposeSpec, node: Mapping[str, Any] | None) -> str | None:
    listed = (node or {}).get("status", {}).get("addresses", ())
    by_kind = {entry["type"]: entry["address"] for entry in reversed(listed)}
    for kind in (one.address_type, *_KINDS):
        if found := by_kind.get(kind):
            return str(found)
    return None


def _bootstrap(
    one: ExposeSpec,
    service: Mapping[str, Any] | None,
    known: Mapping[tuple[str, int], Endpoint],
    brokers: Collection[int],
) -> tuple[Endpoint, ...]:
    if service is None or not _is_there(one, service):
        return ()
    if one.type == LOAD_BALANCER:
        return tuple(Endpoint(host, one.port) for host in _ingress(service))
    port = _node_port(service)
    assert port is not None
    # Every node has this port; those with brokers are there as long as the cluster is.
    found = (known.get((one.listener, broker_id)) for broker_id in brokers)
    return tuple(dict.fromkeys(Endpoint(each.host, port) for each in found if each is not None))


def hosts_of(one: ExposeSpec, reachable: Reachable) -> frozenset[str]:
    """Return what the certificate of a listener must prove to clients."""
    of_brokers = (
        each.host for (name, _), each in reachable.brokers.items() if name == one.listener
    )
    of_bootstrap = (each.host for each in reachable.bootstrap.get(one.listener, ()))
    return frozenset({*of_brokers, *of_bootstrap, *one.alternative_names})


# --- lines ----------------------------------------------------------------------------------------


def lines(
    exposed: Sequence[ExposeSpec],
    reachable: Reachable,
    former: Mapping[int, Line],
    brokers: Collection[int],
    proven: Collection[str],
) -> dict[int, Line]:
    """Return the line of each broker that can have one: only `proven` hosts are advertised."""
    found: dict[int, Line] = {}
    for broker_id in brokers:
        before = former.get(broker_id)
        new = _line(exposed, reachable, before, broker_id)
        if new is not None and new.hosts <= set(proven):
            found[broker_id] = new
        elif before is not None:
            found[broker_id] = before
    return found


def _line(
    exposed: Sequence[ExposeSpec], reachable: Reachable, former: Line | None, broker_id: int
) -> Line | None:
    """Return the line of a broker, with former addresses where there are no present ones."""
    node = reachable.nodes.get(broker_id)
    by_node = any(one.by_node for one in exposed)
    usable = former.endpoints if former is not None and former.is_for(node) else {}
    found = {}
    for one in exposed:
        endpoint = reachable.brokers.get((one.listener, broker_id)) or usable.get(one.kafka_name)
        if endpoint is None:
            return None
        found[one.kafka_name] = endpoint
    if not by_node:
        return Line(ANY_NODE, found)
    return Line(node or (former.node if former is not None else ANY_NODE), found)


def encode(written: Mapping[int, Line]) -> str:
    """Return lines as a broker's start reads them."""
    return "".join(
        f"{broker_id} {one.node} "
        f"{','.join(f'{name}://{each}' for name, each in sorted(one.endpoints.items()))} "
        f"{' '.join(sorted(one.hosts))}\n"
        for broker_id, one in sorted(written.items())
    )


def decode(text: str) -> dict[int, Line]:
    """Read what `encode` wrote; other lines are skipped."""
    found = {}
    for row in text.splitlines():
        words = row.split()
        if len(words) < 3 or not words[0].isdecimal():
            continue
        parts = [one.partition("://") for one in words[2].split(",")]
        endpoints = {name: _endpoint(address) for name, _, address in parts}
        known = {name: one for name, one in endpoints.items() if one is not None}
        if len(known) == len(parts):
            found[int(words[0])] = Line(words[1], known)
    return found


def _endpoint(address: str) -> Endpoint | None:
    host, _, port = address.rpartition(":")
    return Endpoint(host.strip("[]"), int(port)) if host and port.isdecimal() else None
