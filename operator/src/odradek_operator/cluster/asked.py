"""What users ask of a cluster's broker pods, and a digest that stands for it. Pure.

A template of pods also changes with the operator: with its image of brokers, and with how it makes
pods. Where the digest has not changed, the operator alone has (`upgrades`). So the same wishes must
give the same digest in each later version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from odradek_operator.cluster.listener_objects import ListenerSetup
from odradek_operator.cluster.zookeeper_objects import ZooKeeperSetup
from odradek_operator.shared.cluster_spec import ClusterSpec
from odradek_operator.shared.objects import digest

# Annotation of StatefulSets.
SPEC_HASH: Final = "odradek.io/spec-hash"
# Annotation of StatefulSets: the image that their pods were given, whatever somebody has edited.
IMAGE: Final = "odradek.io/broker-image"
# Annotation of pods: the spec.rollout.requestId that they were last restarted for.
REQUEST: Final = "odradek.io/rollout-request"


def request_of(live: Mapping[str, Any] | None) -> str | None:
    """Return the requestId that a StatefulSet's pods were last restarted for."""
    if live is None:
        return None
    found: str | None = live["spec"]["template"]["metadata"].get("annotations", {}).get(REQUEST)
    return found


def request_for(spec: ClusterSpec, live: Mapping[str, Any] | None) -> str | None:
    """Return the requestId that pods get now: without one in the spec, that which they have."""
    return spec.rollout.request_id or request_of(live)


def spec_hash(
    spec: ClusterSpec,
    image: str,
    request: str | None,
    setup: ListenerSetup | None,
    zookeeper: ZooKeeperSetup | None,
    *,
    shares: bool,
) -> str:
    """Return what stands for all that a StatefulSet's pods have from users, and not the operator.

    `image` is the one that brokers get now: to name it changes nothing, nor to take it out where
    it stays. Certificates, addresses and logins that demand a restart are among it, too.
    """
    config = {name: text for name, text in spec.config.items() if name not in spec.dynamic}
    wishes: dict[str, object] = {
        "image": image,
        "request": request,
        "shareNodes": shares,
        "zookeeper": spec.zookeeper,
        "config": config,
        "hostNetwork": spec.host_network,
        "port": spec.port if setup is None else None,
        "metricsPort": spec.metrics_port,
        "resources": spec.resources,
        "nodeSelector": spec.node_selector,
        "affinity": spec.affinity,
        "tolerations": spec.tolerations,
        "priorityClassName": spec.priority_class,
        "podLabels": spec.pod_labels,
        "podAnnotations": spec.pod_annotations,
        "topologySpreadConstraints": spec.spread,
        "env": spec.env,
        "listeners": None if setup is None else setup.annotations(),
        "zookeeperLogin": (
            None if zookeeper is None else [zookeeper.annotations(), zookeeper.files]
        ),
    }
    # What nobody asks for is left out: a later version has more to ask for.
    return digest({name: one for name, one in wishes.items() if one not in (None, {}, ())})
