"""The Service, ConfigMaps, StatefulSets and budget of one cluster, applied where they differ."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from odradek_operator.cluster import objects as cluster_objects
from odradek_operator.cluster import upgrades
from odradek_operator.cluster.broker_steps import LiveSets
from odradek_operator.cluster.listener_objects import ListenerSetup
from odradek_operator.cluster.objects import Budget
from odradek_operator.cluster.upgrades import WaitingUpgrade
from odradek_operator.cluster.zookeeper_objects import ZooKeeperSetup
from odradek_operator.shared import apply
from odradek_operator.shared.apply import ReconcileContext
from odradek_operator.shared.broker_sets import BrokerSets
from odradek_operator.shared.cluster_spec import ClusterSpec
from odradek_operator.shared.spec import Body, ResourceMeta

log = logging.getLogger(__name__)


def apply_objects(
    context: ReconcileContext,
    body: Body,
    meta: ResourceMeta,
    wanted: ClusterSpec,
    live_sets: LiveSets,
    allowed: BrokerSets,
    budget: Budget,
    racks: Mapping[str, str],
    setup: ListenerSetup | None,
    zookeeper: ZooKeeperSetup | None,
) -> WaitingUpgrade | None:
    """Apply the owned objects, and return what waits for users.

    None if the cluster changed meanwhile, and nothing was written. Raises KubeError.
    """
    image = upgrades.image_for(wanted, context.broker_image, live_sets)
    objects = cluster_objects.desired_objects(
        meta,
        wanted,
        image,
        context.platform.pull_policy,
        context.platform.pull_secrets,
        racks,
        live_sets,
        allowed,
        budget,
        setup,
        zookeeper,
    )
    held = upgrades.held_sets(wanted, objects, live_sets)
    files = {name: context.kube.get("v1", "ConfigMap", meta.namespace, name) for name in held}
    objects = upgrades.hold(objects, held, files)
    changed = [one for one in objects if apply.differs(context, one)]
    if changed and not apply.still_wanted(context, body):
        return None
    for one in changed:
        context.kube.apply(one)
        log.info("%s: applied %s %s", meta.name, one["kind"], one["metadata"]["name"])
    return upgrades.waiting(wanted, context.broker_image, image, held)
