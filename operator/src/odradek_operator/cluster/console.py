"""Makes, changes and removes the console of a cluster, and says why there is none.

It goes in the order user, rights, Deployment: the Deployment is what tells a later pass that there
is something to remove.
"""

from __future__ import annotations

import logging
from typing import Final

from odradek_operator.cluster import console_objects
from odradek_operator.shared import apply, client_users, cluster_access, kube, zookeeper_login
from odradek_operator.shared.apply import ReconcileContext
from odradek_operator.shared.client_users import ClientUserError
from odradek_operator.shared.cluster_secrets import CONSOLE_USER
from odradek_operator.shared.cluster_spec import ClusterSpec
from odradek_operator.shared.console_spec import ConsoleSpec
from odradek_operator.shared.objects import Object, belongs_to
from odradek_operator.shared.spec import Body, ResourceMeta
from odradek_operator.shared.status import Condition

CONDITION: Final = "Console"

log = logging.getLogger(__name__)


def reconcile(
    context: ReconcileContext, body: Body, meta: ResourceMeta, wanted: ClusterSpec
) -> tuple[Condition, ...]:
    """Bring the console to the spec. What is in its way is reported, and holds up no broker."""
    spec = wanted.console

    def work() -> None:
        if spec is None:
            _remove(context, body, meta, wanted)
        else:
            _make(context, body, meta, wanted, spec)

    return client_users.reported(CONDITION, work)


def _make(
    context: ReconcileContext,
    body: Body,
    meta: ResourceMeta,
    wanted: ClusterSpec,
    console: ConsoleSpec,
) -> None:
    settings = context.platform.console
    if settings is None:
        raise ClientUserError(
            "NoConsoleImage", "the operator's installation names no image of consoles"
        )
    access = cluster_access.of_cluster(meta.name, wanted)
    read = [] if console.certificate is None else [console.certificate]
    if access is not None and access.is_secured:
        read.append(access.console_secret)
        if not apply.still_wanted(context, body):
            return
        rights = cluster_access.console_rights(records=console.records)
        user = client_users.of_cluster(
            meta, access.console_secret, CONSOLE_USER, rights, changes=True
        )
        zookeeper = zookeeper_login.connected(context, body, wanted)
        client_users.ensure(context, zookeeper, access, meta.namespace, user)
    versions = ",".join(_version(context, meta, one) for one in read)
    found = console_objects.objects(meta, wanted, console, context.platform, settings, versions)
    changed = [one for one in found if _differs(context, meta, one)]
    if console.users is None:
        _delete_service(context, meta)
    if changed and apply.still_wanted(context, body):
        for one in changed:
            context.kube.apply(one)
            log.info("%s: applied %s %s", meta.name, one["kind"], one["metadata"]["name"])
    # A pod whose Secret is not there waits for it, and says so nowhere else.
    if console.users is not None:
        _require(context, meta, console.users, (console_objects.USERS_KEY,))
    if console.certificate is not None:
        _require(context, meta, console.certificate, console_objects.TLS_KEYS)


def _differs(context: ReconcileContext, meta: ResourceMeta, wanted: Object) -> bool:
    """Return whether an object must be applied. Raises ClientUserError for somebody else's."""
    about = wanted["metadata"]
    live = context.kube.get(wanted["apiVersion"], wanted["kind"], about["namespace"], about["name"])
    if live is not None and not belongs_to(meta.uid, live):
        text = f"{wanted['kind']} {about['name']} exists and does not belong to {meta.name}"
        raise ClientUserError("ResourceConflict", text)
    return live is None or kube.differs(wanted, live)


def _delete_service(context: ReconcileContext, meta: ResourceMeta) -> None:
    """Delete the Service of a console that listens for it no more."""
    name = console_objects.console_name(meta.name)
    live = context.kube.get("v1", "Service", meta.namespace, name)
    if live is not None and belongs_to(meta.uid, live):
        context.kube.delete(live)
        log.info("%s: deleted Service %s", meta.name, name)


def _version(context: ReconcileContext, meta: ResourceMeta, name: str) -> str:
    found = context.kube.get("v1", "Secret", meta.namespace, name)
    return "" if found is None else str(found["metadata"].get("resourceVersion", ""))


def _require(
    context: ReconcileContext, meta: ResourceMeta, name: str, keys: tuple[str, ...]
) -> None:
    found = context.kube.get("v1", "Secret", meta.namespace, name)
    if found is None:
        raise ClientUserError("SecretMissing", f"Secret {name} is not there", waits=True)
    missing = [key for key in keys if not cluster_access.field(found, key)]
    if missing:
        text = f"Secret {name} has no {' and no '.join(missing)}"
        raise ClientUserError("SecretIncomplete", text, waits=True)


def _remove(context: ReconcileContext, body: Body, meta: ResourceMeta, wanted: ClusterSpec) -> None:
    """Take away what the console could do, and then the console."""
    name = console_objects.console_name(meta.name)
    live = context.kube.get("apps/v1", "Deployment", meta.namespace, name)
    if live is None or not belongs_to(meta.uid, live):
        return
    if not apply.still_wanted(context, body):
        return
    # Whatever brokers ask for now: the console may have had a user before.
    client_users.remove(zookeeper_login.connected(context, body, wanted), CONSOLE_USER)
    _delete_service(context, meta)
    context.kube.apply(console_objects.role(meta, None))
    context.kube.delete(live)
    log.info("%s: deleted Deployment %s", meta.name, name)
