"""How brokers of one cluster connect to ZooKeeper: what is there, and what pods get next."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from odradek.zk import acls
from odradek_operator.cluster import rollout, zookeeper_objects, zookeeper_plan
from odradek_operator.cluster.objects import CONFIG_PATH
from odradek_operator.cluster.own_secrets import NotPreparedError, OwnSecrets
from odradek_operator.cluster.rollout import ClusterView
from odradek_operator.cluster.zookeeper_objects import ZooKeeperSetup
from odradek_operator.cluster.zookeeper_plan import ZooKeeperPlan, ZooKeeperStep
from odradek_operator.shared import cluster_secrets, zookeeper_credentials, zookeeper_login
from odradek_operator.shared.apply import ReconcileContext
from odradek_operator.shared.cluster_spec import ClusterSpec
from odradek_operator.shared.spec import Body, ResourceMeta
from odradek_operator.shared.status import Condition
from odradek_operator.shared.zookeeper import UnreachableError
from odradek_operator.shared.zookeeper_credentials import ZooKeeperCredentials

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ZooKeeperState:
    """How brokers get to ZooKeeper now. `secured` are the roots of znodes, None if not known."""

    step: ZooKeeperStep = field(default_factory=lambda: ZooKeeperStep(ZooKeeperPlan()))
    wanted: ZooKeeperPlan = field(default_factory=ZooKeeperPlan)
    credentials: ZooKeeperCredentials | None = None
    secured: Mapping[str, bool] | None = None

    def condition(
        self, view: ClusterView, meta: ResourceMeta, zookeeper: str
    ) -> tuple[Condition, ...]:
        """Return what the status says of it; nothing where nobody asked for it.

        `zookeeper` is the connect string with the chroot.
        """
        if self.credentials is None:
            return ()
        marks = [one.zookeeper for one in view.own]
        tls = self.credentials.tls
        pod = next(
            (one.pod for one in view.own if one.healthy and one.pod), f"{meta.name}-broker-0"
        )
        command = secure_command(meta.namespace, pod, zookeeper, tls=tls)
        return (
            zookeeper_plan.judge(
                self.wanted, self.step, marks, self.secured, tls=tls, command=command
            ),
        )

    def remembered(self) -> dict[str, Any]:
        """Return the field of the status by which the operator itself sets ACLs."""
        found = {"setAcl": self.step.plan.set_acl} if self.credentials is not None else None
        return {zookeeper_login.REMEMBERED: found}

    def is_remembered(self, body: Body) -> bool:
        """Return whether the status has it, or nothing is to be remembered.

        A login that the spec had before may still be there: it has no effect, and goes with the
        next whole status.
        """
        if self.credentials is None:
            return True
        found = body.get("status", {}).get(zookeeper_login.REMEMBERED)
        return {zookeeper_login.REMEMBERED: found} == self.remembered()


def look(
    context: ReconcileContext,
    body: Body,
    wanted: ClusterSpec,
    live_set: Mapping[str, Any] | None,
    view: Callable[[], ClusterView],
) -> ZooKeeperState:
    """Return how brokers connect now, and what they get next.

    Raises CredentialsError, or KubeError. `view` is asked only where it matters.
    """
    authentication = wanted.zookeeper_authentication
    credentials, target = None, ZooKeeperPlan()
    if authentication is not None:
        namespace = body["metadata"]["namespace"]
        credentials = zookeeper_login.credentials(context, namespace, authentication.secret)
        ids = credentials.ids
        target = ZooKeeperPlan(ids, authentication.set_acl and bool(ids))
    applied = zookeeper_plan.applied_plan(live_set)
    if credentials is None and applied in (None, target):
        return ZooKeeperState()
    secured, away = _secured(context, body, wanted)
    if applied in (None, target):
        return ZooKeeperState(ZooKeeperStep(target), target, credentials, secured)
    seen = view()
    step = zookeeper_plan.next_step(
        applied,
        target,
        settled=rollout.is_settled(seen),
        alive=seen.partitions is None
        or bool(seen.unreadable)
        or any(one.registered for one in seen.brokers),
        secured=secured,
    )
    if step.refused and away:
        step = replace(step, refused=f"{step.refused} ({away})")
    return ZooKeeperState(step, target, credentials, secured)


def _secured(
    context: ReconcileContext, body: Body, wanted: ClusterSpec
) -> tuple[Mapping[str, bool] | None, str]:
    """Return which roots of znodes have ACLs, or why that is not known."""
    roots = (acls.ROOT, *acls.SECURE_ROOTS)
    try:
        return zookeeper_login.connected(context, body, wanted).secured(roots), ""
    except UnreachableError as error:
        log.info("%s", error)
        return None, str(error)


def secure_command(namespace: str, pod: str, zookeeper: str, *, tls: bool) -> str:
    """Return the command that secures what is in ZooKeeper, in a pod that has the login.

    The settings of TLS are those of its broker.
    """
    inside = f"odradek zookeeper secure --zookeeper {zookeeper}"
    if tls:
        file = "/tmp/zookeeper.properties"  # noqa: S108 (inside the container)
        settings = f"grep ^zookeeper.ssl {CONFIG_PATH}/server.properties >{file}"
        inside = f"sh -c '{settings}; {inside} --zk-tls-config-file {file}'"
    return f"kubectl exec -n {namespace} {pod} -- {inside}"


def prepare(
    context: ReconcileContext, body: Body, meta: ResourceMeta, state: ZooKeeperState
) -> ZooKeeperSetup | None:
    """Write the Secret that pods mount; None: they connect as nobody, in plain text.

    Raises NotPreparedError, ChangedError, or KubeError.
    """
    if state.step.refused:
        raise NotPreparedError("UnsafeZooKeeperChange", state.step.refused)
    if state.credentials is None:
        return None
    name = cluster_secrets.zookeeper(meta.name)
    texts = zookeeper_credentials.files(state.credentials)
    OwnSecrets(context, body, meta).write_exactly(name, texts)
    return zookeeper_objects.setup(state.step.plan, state.credentials, name)
