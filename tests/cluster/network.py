"""The cluster's network: a bridge, and per node a namespace with a veth pair to it.

Nodes reach each other on the bridge and each other's pods by static routes. The host reaches pods
the same way, and service addresses through the first node, whose kube-proxy translates them.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from tests.cluster import settings
from tests.cluster.layout import Node
from tests.cluster.shell import run

FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
# If another program (such as Docker) closed the FORWARD chain, this lets bridged packets pass.
FORWARD_RULE = ("FORWARD", "-i", settings.BRIDGE, "-j", "ACCEPT")


def _links() -> set[str]:
    return {link["ifname"] for link in json.loads(run(["ip", "-json", "link", "show"]))}


def namespaces() -> set[str]:
    """Return the names of the host's network namespaces."""
    return {line.split()[0] for line in run(["ip", "netns", "list"]).splitlines() if line.strip()}


def forward_is_closed() -> bool:
    """Return whether the host drops packets to forward."""
    return "-P FORWARD ACCEPT" not in run(["iptables", "-S", "FORWARD"], check=False)


def _open_forwarding() -> None:
    FORWARDING.write_text("1\n")
    if forward_is_closed() and run(["iptables", "-S", "FORWARD"]).find(settings.BRIDGE) < 0:
        run(["iptables", "-I", *FORWARD_RULE])


def create(nodes: Sequence[Node]) -> None:
    """Create the bridge, namespaces, addresses and routes, as far as they are missing."""
    if settings.BRIDGE not in _links():
        run(["ip", "link", "add", settings.BRIDGE, "type", "bridge"])
        run(["ip", "addr", "add", f"{settings.GATEWAY}/24", "dev", settings.BRIDGE])
    run(["ip", "link", "set", settings.BRIDGE, "up"])
    _open_forwarding()
    existing = namespaces()
    for node in nodes:
        if node.netns not in existing:
            _create_node(node)
    for node in nodes:
        run(["ip", "route", "replace", node.pod_cidr, "via", node.address])
        for peer in nodes:
            if peer != node:
                route = ["route", "replace", peer.pod_cidr, "via", peer.address]
                run(["ip", "-n", node.netns, *route])
    run(["ip", "route", "replace", settings.SERVICE_CIDR, "via", nodes[0].address])


def _create_node(node: Node) -> None:
    run(["ip", "netns", "add", node.netns])
    inside = ["ip", "-n", node.netns]
    cable = ["type", "veth", "peer", "name", "eth0", "netns", node.netns]
    run(["ip", "link", "add", node.veth, *cable])
    run(["ip", "link", "set", node.veth, "master", settings.BRIDGE, "up"])
    run([*inside, "addr", "add", f"{node.address}/24", "dev", "eth0"])
    run([*inside, "link", "set", "lo", "up"])
    run([*inside, "link", "set", "eth0", "up"])
    run([*inside, "route", "add", "default", "via", settings.GATEWAY])
    # The setting is per namespace, so write it from inside.
    run(["ip", "netns", "exec", node.netns, "sysctl", "-qw", "net.ipv4.ip_forward=1"])


def connect(node: Node, *, up: bool) -> None:
    """Connect or disconnect a node."""
    run(["ip", "link", "set", node.veth, "up" if up else "down"])


def remove(nodes: Sequence[Node]) -> None:
    """Remove namespaces, bridge and rule, and with them veth pairs and routes."""
    for name in sorted(namespaces() & {node.netns for node in nodes}):
        run(["ip", "netns", "delete", name])
    if settings.BRIDGE in _links():
        run(["ip", "link", "delete", settings.BRIDGE])
    run(["iptables", "-D", *FORWARD_RULE], check=False)
