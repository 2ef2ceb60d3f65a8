"""The racks of brokers: the value of a label of their nodes, which they read when they start.

Replicas are spread over racks only if all brokers have one, and Kafka refuses the topics of clients
while only some have. So whatever brokers lack is told.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from odradek.values import BrokerId
from odradek.zk.znodes import BrokerRegistration
from odradek_operator.cluster import objects as cluster_objects
from odradek_operator.cluster.rollout import ClusterView
from odradek_operator.shared.apply import ReconcileContext
from odradek_operator.shared.cluster_spec import ClusterSpec
from odradek_operator.shared.kube import KubeError
from odradek_operator.shared.spec import ResourceMeta
from odradek_operator.shared.status import Condition

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeRacks:
    """The racks of the nodes that have one. Unless they are `readable`, those of before."""

    by_node: Mapping[str, str]
    readable: bool = True


def read(context: ReconcileContext, meta: ResourceMeta, wanted: ClusterSpec) -> NodeRacks:
    """Return the racks of nodes. Raises KubeError."""
    if wanted.rack_key is None:
        return NodeRacks({})
    try:
        listed = context.kube.select("v1", "Node", "")
    except KubeError as error:
        name = cluster_objects.workload_name(meta.name)
        before = context.kube.get("v1", "ConfigMap", meta.namespace, name)
        if before is None or error.code != 403:
            raise
        log.warning("failed to read nodes: %s; keeping the racks", error)
        text = before.get("data", {}).get(cluster_objects.RACKS, "")
        return NodeRacks(cluster_objects.read_racks(text), readable=False)
    found = {
        node["metadata"]["name"]: node["metadata"].get("labels", {}).get(wanted.rack_key)
        for node in listed
    }
    return NodeRacks({node: rack for node, rack in found.items() if rack})


def warnings(
    key: str | None,
    found: NodeRacks,
    view: ClusterView,
    registered: Mapping[BrokerId, BrokerRegistration],
) -> tuple[Condition, ...]:
    """Return what is wrong with the racks of brokers, whose nodes' label is `key`."""
    racks = {
        one.broker_id: registered[BrokerId(one.broker_id)].rack
        for one in view.own
        if one.healthy and one.broker_id in registered
    }
    told = []
    places = {one.node for one in view.own if one.node}
    if key is not None and (without := sorted(places - found.by_node.keys())):
        text = f"nodes {_shown(without)} have no label {key}, and brokers that start there no rack"
        if not found.readable:
            text = (
                f"the operator may not read nodes, and knows no racks of {_shown(without)}: "
                "brokers that start there have none"
            )
        told.append(Condition("ConfigWarning", True, "RackUnknown", text))
    outdated = [
        one
        for one in view.own
        if one.broker_id in racks
        and racks[one.broker_id] != found.by_node.get(one.node or "")
        # A roll restarts it anyway.
        and not view.is_outdated(one)
    ]
    if outdated:
        text = (
            f"brokers {_shown([str(one.broker_id) for one in outdated])} have not the racks of "
            "their nodes, which they read when they start: set spec.rollout.requestId to another "
            "value to restart all brokers, in turn"
        )
        told.append(Condition("ConfigWarning", True, "RackOutdated", text))
    if told and len({rack is None for rack in racks.values()}) > 1:
        text = "while only some brokers have a rack, clients cannot create topics"
        told[-1] = replace(told[-1], message=f"{told[-1].message}; {text}")
    return tuple(told)


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if names[3:] else "")
