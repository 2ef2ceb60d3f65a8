"""The Services of exposed listeners: one per broker, and one for `bootstrap.servers`. Pure.

They select ready pods only: a broker that cannot serve yet is no end of a load balancer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from odradek_operator.cluster import objects as cluster_objects
from odradek_operator.shared import expose_spec
from odradek_operator.shared.broker_sets import BrokerSets
from odradek_operator.shared.expose_spec import LOAD_BALANCER, ExposeSpec
from odradek_operator.shared.objects import CLUSTER_LABEL, Object, digest, metadata
from odradek_operator.shared.spec import ResourceMeta

LISTENER_LABEL: Final = "odradek.io/listener"
# What was applied: a field that is gone from the spec shows by it.
HASH: Final = "odradek.io/service-hash"
_POD_LABEL: Final = "statefulset.kubernetes.io/pod-name"


def broker_service(cluster: str, listener: str, broker_id: int) -> str:
    """Name of the Service of one broker on one listener."""
    return f"{cluster}-{listener}-{broker_id}"


def bootstrap_service(cluster: str, listener: str) -> str:
    """Name of the Service by which clients find the brokers of a listener."""
    return f"{cluster}-{listener}-bootstrap"


def selector_text(cluster: str) -> str:
    """Select the Services of all exposed listeners of a cluster, for lists."""
    return f"{CLUSTER_LABEL}={cluster},{LISTENER_LABEL}"


def desired(meta: ResourceMeta, one: ExposeSpec, brokers: BrokerSets) -> list[Object]:
    """Return the Services of a listener: that for bootstrap, and those of the brokers."""
    name = bootstrap_service(meta.name, one.listener)
    selector = cluster_objects.selector(meta)
    notes = one.bootstrap_annotations
    # Brokers that share a node have different ports, by the same name.
    target = one.listener if brokers.share_nodes else one.port
    found = [_service(meta, one, name, selector, notes, one.bootstrap_node_port, target)]
    for broker_id in brokers:
        name = broker_service(meta.name, one.listener, broker_id)
        selector = {_POD_LABEL: brokers.pod(meta.name, broker_id)}
        notes = {key: expose_spec.filled(text, broker_id) for key, text in one.annotations.items()}
        node_port = one.node_ports.get(broker_id)
        found.append(_service(meta, one, name, selector, notes, node_port, target))
    return found


def _service(
    meta: ResourceMeta,
    one: ExposeSpec,
    name: str,
    selector: Mapping[str, str],
    annotations: Mapping[str, str],
    node_port: int | None,
    target: int | str,
) -> Object:
    port: dict[str, Any] = {
        "name": one.listener,
        "port": one.port,
        "targetPort": target,
        "protocol": "TCP",
    }
    if node_port is not None:
        port["nodePort"] = node_port
    spec: dict[str, Any] = {
        "type": one.type,
        "externalTrafficPolicy": one.traffic_policy,
        "selector": dict(selector),
        "ports": [port],
    }
    if one.type == LOAD_BALANCER and one.source_ranges:
        spec["loadBalancerSourceRanges"] = list(one.source_ranges)
    labels = {**cluster_objects.labels(meta), LISTENER_LABEL: one.listener}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            **metadata(meta, name, labels),
            "annotations": {**annotations, HASH: digest([spec, dict(annotations)])},
        },
        "spec": spec,
    }
