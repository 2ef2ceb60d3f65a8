"""One KafkaCluster: its owned objects, its rolling restart, its status."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from odradek.zk.payload import ZnodeError
from odradek_operator.cluster import exporter_objects, rollout, settings
from odradek_operator.cluster import objects as cluster_objects
from odradek_operator.cluster.rollout import ClusterView
from odradek_operator.shared import (
    apply,
    client_users,
    cluster_access,
    kube,
    observe,
    spec,
    status,
    status_update,
)
from odradek_operator.shared.apply import ExporterSettings, ReconcileContext
from odradek_operator.shared.client_users import AccessError, ClientUser
from odradek_operator.shared.cluster_secrets import EXPORTER_USER, OPERATOR_USER
from odradek_operator.shared.kube import KubeError
from odradek_operator.shared.objects import CLUSTER_LABEL, MANAGED_BY
from odradek_operator.shared.spec import Body, ClusterSpec, ResourceMeta
from odradek_operator.shared.status import Condition, Event
from odradek_operator.shared.views import Partitions
from odradek_operator.shared.zookeeper import UnreachableError

STEADY_SECONDS: Final = 20.0
BUSY_SECONDS: Final = 2.0
# Fields that stay in the status of a refused cluster; autoscalers read the first two.
_SHOWN: Final = ("replicas", "selector", "brokers", "controllerId", settings.REMEMBERED)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Znodes:
    """What ZooKeeper holds; empty if it did not answer."""

    addresses: Mapping[int, str]
    controller_id: int | None
    partitions: Partitions | None


def reconcile(context: ReconcileContext, body: Body, conflict: str | None) -> float:
    """Bring one cluster nearer to its spec. `conflict` names an older one on the same znodes."""
    try:
        return _reconcile(context, body, conflict)
    except ZnodeError as error:
        unreadable = status.stalled("ZnodeUnreadable", str(error))
        status_update.write_status(
            context, body, unreadable, status_update.remembered(body, _SHOWN)
        )
        return STEADY_SECONDS


def _reconcile(context: ReconcileContext, body: Body, conflict: str | None) -> float:
    meta = spec.parse_meta(body)
    if meta.deleting:
        # Children go by their owner references, claims by the StatefulSet's retention policy.
        return STEADY_SECONDS
    try:
        wanted = spec.parse_cluster(body)
    except spec.InvalidSpec as error:
        return status_update.refuse(context, body, error, _SHOWN)
    if conflict is not None:
        text = f"KafkaCluster {conflict} is older and uses the same znodes"
        conflicted = status.stalled("ResourceConflict", text)
        status_update.write_status(
            context, body, conflicted, status_update.remembered(body, _SHOWN)
        )
        return STEADY_SECONDS
    live_set = _live_set(context, meta)
    current = live_set["spec"]["replicas"] if live_set else None
    # Read again, without the cache, whether brokers are empty before they are removed.
    fewer = current is not None and wanted.replicas < current
    znodes = _read_znodes(context, wanted, fresh=fewer)
    allowed = rollout.safe_replicas(wanted.replicas, current, znodes.partitions)
    if allowed == wanted.replicas:
        # As long as a scale-down is blocked, users must see that first.
        own = max(wanted.replicas, current or 0)
        try:
            spec.check_fits(wanted, sum(one >= own for one in znodes.addresses))
        except spec.InvalidSpec as error:
            return status_update.refuse(context, body, error, _SHOWN)
    events: list[Event] = []
    told: tuple[Condition, ...] = ()
    if not wanted.paused:
        configured = settings.reconcile(context, body, wanted)
        if configured is None:
            return 0.0
        body, changed = configured
        events += changed
        try:
            evictable = rollout.may_lose_one(znodes.partitions)
            if not _apply_objects(context, body, meta, wanted, live_set, allowed, evictable):
                return 0.0
        except KubeError as error:
            if error.code not in apply.REFUSALS:
                raise
            refused = status.stalled("ApplyRejected", str(error))
            status_update.write_status(
                context, body, refused, status_update.remembered(body, _SHOWN), events
            )
            return STEADY_SECONDS
        live_set = _live_set(context, meta)
        told = (
            *_grow_claims(context, meta, wanted, allowed),
            *_reconcile_users(context, body, meta, wanted),
            *_reconcile_exporter(context, body, meta, wanted),
        )
    view = _view(context, meta, znodes, live_set, allowed)
    if not wanted.paused:
        events += _roll(context, body, meta, wanted, view)
    if wanted.paused:
        told = (Condition("Paused", True, "Paused", "spec.paused is true"),)
    conditions = (*rollout.judge(wanted, view, allowed), *told)
    status_update.write_status(
        context,
        body,
        conditions,
        {**rollout.status_fields(meta, wanted, view, allowed), **_settings(body, wanted)},
        events,
    )
    steady = conditions[0].status and not conditions[1].status
    return STEADY_SECONDS if steady else BUSY_SECONDS


def _read_znodes(context: ReconcileContext, wanted: ClusterSpec, *, fresh: bool) -> _Znodes:
    """Read the znodes, through the cache unless `fresh`."""
    try:
        zookeeper = context.zookeepers.get(wanted.zookeeper)
        reader = zookeeper if fresh else zookeeper.cached
        registered = observe.brokers(reader)
        return _Znodes(
            observe.addresses(registered),
            observe.controller(reader),
            observe.partitions(reader),
        )
    except UnreachableError as error:
        log.info("%s", error)
        return _Znodes({}, None, None)


def _settings(body: Body, wanted: ClusterSpec) -> dict[str, Any]:
    name = settings.REMEMBERED
    if wanted.paused:
        return {name: body.get("status", {}).get(name)}
    return {name: settings.names(body, wanted) or None}


def _live_set(context: ReconcileContext, meta: ResourceMeta) -> dict[str, Any] | None:
    name = cluster_objects.workload_name(meta.name)
    return context.kube.get("apps/v1", "StatefulSet", meta.namespace, name)


def _apply_objects(
    context: ReconcileContext,
    body: Body,
    meta: ResourceMeta,
    wanted: ClusterSpec,
    live_set: Mapping[str, Any] | None,
    allowed: int,
    evictable: bool,
) -> bool:
    """Apply the owned objects; False if the cluster changed meanwhile and nothing was written."""
    racks = _racks(context, meta, wanted)
    objects = cluster_objects.desired_objects(
        meta,
        wanted,
        context.broker_image,
        context.platform.pull_policy,
        context.platform.pull_secrets,
        racks,
        live_set,
        allowed,
        evictable,
    )
    changed = [one for one in objects if _needs_apply(context, one)]
    if changed and not apply.still_wanted(context, body):
        return False
    for one in changed:
        context.kube.apply(one)
        log.info("%s: applied %s %s", meta.name, one["kind"], one["metadata"]["name"])
    return True


def _reconcile_users(
    context: ReconcileContext, body: Body, meta: ResourceMeta, wanted: ClusterSpec
) -> tuple[Condition, ...]:
    """Make the users of the operator and the lag exporter; why that is not possible is reported."""
    access = cluster_access.of_cluster(meta.name, wanted)
    if access is None or not access.is_secured or not apply.still_wanted(context, body):
        return ()
    labels = {"app.kubernetes.io/managed-by": MANAGED_BY, CLUSTER_LABEL: meta.name}
    users = [ClientUser(meta, labels, access.operator_secret, OPERATOR_USER)]
    if context.platform.exporter is not None:
        rights = cluster_access.exporter_rights()
        users.append(ClientUser(meta, labels, access.exporter_secret, EXPORTER_USER, rights))
    try:
        zookeeper = context.zookeepers.get(wanted.zookeeper)
        for user in users:
            client_users.ensure(context, zookeeper, access, meta.namespace, user)
    except UnreachableError as error:
        return (Condition("Clients", False, "ZooKeeperUnreachable", str(error)),)
    except AccessError as error:
        return (Condition("Clients", False, error.reason, str(error)),)
    except KubeError as error:
        if error.code not in apply.REFUSALS:
            raise
        return (Condition("Clients", False, "ApplyRejected", str(error)),)
    return ()


def _reconcile_exporter(
    context: ReconcileContext, body: Body, meta: ResourceMeta, wanted: ClusterSpec
) -> tuple[Condition, ...]:
    """Apply or delete the lag exporter; a refusal is reported, and does not hold up the brokers."""
    try:
        if context.platform.exporter is None:
            _delete_exporter(context, meta)
        else:
            _apply_exporter(context, body, meta, wanted, context.platform.exporter)
    except KubeError as error:
        if error.code not in apply.REFUSALS:
            raise
        return (Condition("LagExporter", False, "ApplyRejected", str(error)),)
    return ()


def _apply_exporter(
    context: ReconcileContext,
    body: Body,
    meta: ResourceMeta,
    wanted: ClusterSpec,
    installed: ExporterSettings,
) -> None:
    deployment = exporter_objects.deployment(meta, wanted, context.platform, installed)
    if _needs_apply(context, deployment) and apply.still_wanted(context, body):
        context.kube.apply(deployment)
        log.info("%s: applied Deployment %s", meta.name, deployment["metadata"]["name"])


def _delete_exporter(context: ReconcileContext, meta: ResourceMeta) -> None:
    """Delete the exporter that was made while the installation had them."""
    name = exporter_objects.exporter_name(meta.name)
    live = context.kube.get("apps/v1", "Deployment", meta.namespace, name)
    owners = live["metadata"].get("ownerReferences", ()) if live else ()
    if live is not None and any(one["uid"] == meta.uid for one in owners):
        context.kube.delete(live)
        log.info("%s: deleted Deployment %s", meta.name, name)


def _needs_apply(context: ReconcileContext, wanted: Mapping[str, Any]) -> bool:
    meta = wanted["metadata"]
    live = context.kube.get(wanted["apiVersion"], wanted["kind"], meta["namespace"], meta["name"])
    return live is None or kube.differs(wanted, live)


def _racks(context: ReconcileContext, meta: ResourceMeta, wanted: ClusterSpec) -> dict[str, str]:
    """Return node to rack. Where nodes cannot be read the racks of before stay."""
    if wanted.rack_key is None:
        return {}
    try:
        nodes = context.kube.select("v1", "Node", "")
    except KubeError as error:
        name = cluster_objects.workload_name(meta.name)
        before = context.kube.get("v1", "ConfigMap", meta.namespace, name)
        if before is None or error.code != 403:
            raise
        log.warning("failed to read nodes: %s; keeping the racks", error)
        return cluster_objects.read_racks(before.get("data", {}).get("racks", ""))
    found = {
        node["metadata"]["name"]: node["metadata"].get("labels", {}).get(wanted.rack_key)
        for node in nodes
    }
    return {node: rack for node, rack in found.items() if rack}


def _grow_claims(
    context: ReconcileContext, meta: ResourceMeta, wanted: ClusterSpec, count: int
) -> tuple[Condition, ...]:
    name = cluster_objects.workload_name(meta.name)
    for ordinal in range(count):
        claim = f"data-{name}-{ordinal}"
        refused = apply.grow_claim(context, meta.namespace, claim, wanted.storage.size)
        if refused is not None:
            return (Condition("StorageGrown", False, "ResizeRejected", refused),)
    return ()


def _view(
    context: ReconcileContext,
    meta: ResourceMeta,
    znodes: _Znodes,
    live_set: Mapping[str, Any] | None,
    allowed: int,
) -> ClusterView:
    pods = context.kube.select("v1", "Pod", meta.namespace, cluster_objects.selector_text(meta))
    revision = live_set.get("status", {}).get("updateRevision") if live_set else None
    return ClusterView(
        brokers=rollout.view_brokers(meta, pods, znodes.addresses, allowed),
        controller_id=znodes.controller_id,
        partitions=znodes.partitions,
        update_revision=revision if live_set and _observed(live_set) else None,
    )


def _observed(live_set: Mapping[str, Any]) -> bool:
    """Return whether the StatefulSet's status is about its current template."""
    seen = live_set.get("status", {}).get("observedGeneration", 0)
    return bool(seen >= live_set["metadata"]["generation"])


def _roll(
    context: ReconcileContext,
    body: Body,
    meta: ResourceMeta,
    wanted: ClusterSpec,
    view: ClusterView,
) -> list[Event]:
    if rollout.next_to_roll(view) is None:
        return []
    # Read again without the cache, since a replica may just have left the in-sync set.
    znodes = _read_znodes(context, wanted, fresh=True)
    now = replace(view, controller_id=znodes.controller_id, partitions=znodes.partitions)
    broker = rollout.next_to_roll(now)
    if broker is None or broker.pod is None:
        return []
    pod = context.kube.get("v1", "Pod", meta.namespace, broker.pod)
    if pod is None or "deletionTimestamp" in pod["metadata"]:
        return []
    if not apply.still_wanted(context, body):
        return []
    context.kube.delete(pod)
    text = f"broker {broker.broker_id} ({broker.pod}) is restarted with the new pod template"
    return [Event("BrokerRolled", text)]
