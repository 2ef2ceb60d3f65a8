"""Makes, changes and removes the lag exporter of a cluster, as the installation says."""

from __future__ import annotations

import logging
from typing import Final

from odradek_operator.cluster import exporter_objects
from odradek_operator.cluster import objects as cluster_objects
from odradek_operator.shared import (
    apply,
    client_users,
    cluster_access,
    cluster_secrets,
    zookeeper_login,
)
from odradek_operator.shared.apply import ReconcileContext, WorkloadSettings
from odradek_operator.shared.client_users import ClientUserError
from odradek_operator.shared.cluster_secrets import EXPORTER_USER
from odradek_operator.shared.cluster_spec import ClusterSpec
from odradek_operator.shared.objects import belongs_to
from odradek_operator.shared.spec import Body, ResourceMeta
from odradek_operator.shared.status import Condition

CONDITION: Final = "LagExporter"

log = logging.getLogger(__name__)


def reconcile(
    context: ReconcileContext, body: Body, meta: ResourceMeta, wanted: ClusterSpec
) -> tuple[Condition, ...]:
    """Apply or delete the exporter. What is in its way is reported, and holds up no broker."""
    installed = context.platform.exporter

    def work() -> None:
        if installed is None:
            _delete(context, meta)
        else:
            _apply(context, body, meta, wanted, installed)

    return client_users.reported(CONDITION, work)


def _apply(
    context: ReconcileContext,
    body: Body,
    meta: ResourceMeta,
    wanted: ClusterSpec,
    installed: WorkloadSettings,
) -> None:
    access = cluster_access.of_cluster(meta.name, wanted)
    if access is not None and access.is_secured:
        if not apply.still_wanted(context, body):
            return
        rights = cluster_access.exporter_rights()
        user = client_users.of_cluster(meta, access.exporter_secret, EXPORTER_USER, rights)
        zookeeper = zookeeper_login.connected(context, body, wanted)
        client_users.ensure(context, zookeeper, access, meta.namespace, user)
    secret = _write_files(context, meta, wanted)
    deployment = exporter_objects.deployment(meta, wanted, context.platform, installed, secret)
    if apply.differs(context, deployment) and apply.still_wanted(context, body):
        context.kube.apply(deployment)
        log.info("%s: applied Deployment %s", meta.name, deployment["metadata"]["name"])


def _write_files(context: ReconcileContext, meta: ResourceMeta, wanted: ClusterSpec) -> str | None:
    """Write with what the exporter connects to ZooKeeper; return the Secret, None: nothing."""
    files = zookeeper_login.client_files(context, meta.namespace, wanted)
    if files.problem is not None:
        raise ClientUserError(files.problem.reason, str(files.problem))
    if not files.needed:
        return None
    name = cluster_secrets.exporter_zookeeper(meta.name)
    client_users.write_files(context, meta, cluster_objects.labels(meta), name, files.texts)
    return name


def _delete(context: ReconcileContext, meta: ResourceMeta) -> None:
    """Delete the exporter that was made while the installation had them."""
    name = exporter_objects.exporter_name(meta.name)
    live = context.kube.get("apps/v1", "Deployment", meta.namespace, name)
    if live is not None and belongs_to(meta.uid, live):
        context.kube.delete(live)
        log.info("%s: deleted Deployment %s", meta.name, name)
