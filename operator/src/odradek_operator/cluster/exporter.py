"""The lag exporter of a cluster: its user, its Secrets and its Deployment.

What stands in its way is a condition, and does not hold up the brokers.
"""

from __future__ import annotations

import logging

from odradek_operator.cluster import exporter_objects
from odradek_operator.cluster.own_secrets import ChangedError, NotPreparedError, OwnSecrets
from odradek_operator.shared import (
    apply,
    client_users,
    cluster_access,
    cluster_secrets,
    zookeeper_login,
)
from odradek_operator.shared.apply import ExporterSettings, ReconcileContext
from odradek_operator.shared.client_users import ClientUser, ClientUserError
from odradek_operator.shared.cluster_secrets import EXPORTER_USER
from odradek_operator.shared.kube import KubeError
from odradek_operator.shared.objects import CLUSTER_LABEL, MANAGED_BY
from odradek_operator.shared.spec import Body, ClusterSpec, ResourceMeta
from odradek_operator.shared.status import Condition
from odradek_operator.shared.zookeeper import UnreachableError
from odradek_operator.shared.zookeeper_login import ClientFiles

log = logging.getLogger(__name__)


def reconcile(
    context: ReconcileContext, body: Body, meta: ResourceMeta, wanted: ClusterSpec
) -> tuple[Condition, ...]:
    """Make the exporter, or delete it. Raises KubeError."""
    return _reconcile_user(context, body, meta, wanted) or _reconcile_deployment(
        context, body, meta, wanted
    )


def _reconcile_user(
    context: ReconcileContext, body: Body, meta: ResourceMeta, wanted: ClusterSpec
) -> tuple[Condition, ...]:
    """Make the user of the lag exporter; why that is not possible is reported."""
    access = cluster_access.of_cluster(meta.name, wanted)
    if context.platform.exporter is None or access is None or not access.is_secured:
        return ()
    if not apply.still_wanted(context, body):
        return ()
    labels = {"app.kubernetes.io/managed-by": MANAGED_BY, CLUSTER_LABEL: meta.name}
    rights = cluster_access.exporter_rights()
    user = ClientUser(meta, labels, access.exporter_secret, EXPORTER_USER, rights)
    try:
        zookeeper = zookeeper_login.connected(context, body, wanted)
        client_users.ensure(context, zookeeper, access, meta.namespace, user)
    except UnreachableError as error:
        return (Condition("LagExporter", False, "ZooKeeperUnreachable", str(error)),)
    except ClientUserError as error:
        return (Condition("LagExporter", False, error.reason, str(error)),)
    except KubeError as error:
        if error.code not in apply.REFUSALS:
            raise
        return (Condition("LagExporter", False, "ApplyRejected", str(error)),)
    return ()


def _reconcile_deployment(
    context: ReconcileContext, body: Body, meta: ResourceMeta, wanted: ClusterSpec
) -> tuple[Condition, ...]:
    try:
        if context.platform.exporter is None:
            _delete_deployment(context, meta)
        else:
            files = zookeeper_login.client_files(context, meta.namespace, wanted)
            if files.problem is not None:
                return (Condition("LagExporter", False, files.problem.reason, str(files.problem)),)
            _write_files(context, body, meta, files)
            _apply_deployment(context, body, meta, wanted, context.platform.exporter, files)
    except ChangedError:
        return ()
    except NotPreparedError as error:
        return (Condition("LagExporter", False, error.reason, str(error)),)
    except KubeError as error:
        if error.code not in apply.REFUSALS:
            raise
        return (Condition("LagExporter", False, "ApplyRejected", str(error)),)
    return ()


def _write_files(
    context: ReconcileContext, body: Body, meta: ResourceMeta, files: ClientFiles
) -> None:
    """Write the Secret with which the exporter connects to ZooKeeper."""
    if files.needed:
        name = cluster_secrets.exporter_zookeeper(meta.name)
        OwnSecrets(context, body, meta).write_exactly(name, files.texts)


def _apply_deployment(
    context: ReconcileContext,
    body: Body,
    meta: ResourceMeta,
    wanted: ClusterSpec,
    installed: ExporterSettings,
    files: ClientFiles,
) -> None:
    secret = cluster_secrets.exporter_zookeeper(meta.name) if files.needed else None
    deployment = exporter_objects.deployment(meta, wanted, context.platform, installed, secret)
    if apply.differs(context, deployment) and apply.still_wanted(context, body):
        context.kube.apply(deployment)
        log.info("%s: applied Deployment %s", meta.name, deployment["metadata"]["name"])


def _delete_deployment(context: ReconcileContext, meta: ResourceMeta) -> None:
    """Delete the exporter that was made while the installation had them."""
    name = exporter_objects.exporter_name(meta.name)
    live = context.kube.get("apps/v1", "Deployment", meta.namespace, name)
    owners = live["metadata"].get("ownerReferences", ()) if live else ()
    if live is not None and any(one["uid"] == meta.uid for one in owners):
        context.kube.delete(live)
        log.info("%s: deleted Deployment %s", meta.name, name)
