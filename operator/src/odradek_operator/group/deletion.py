"""Deletion of a group: of its driver, its offsets if the policy says so, and its job's user."""

from __future__ import annotations

import logging
from typing import Final

from odradek.zk import consumers
from odradek_operator.group import coordinator, driver_effects, job_user
from odradek_operator.group import observe as group_observe
from odradek_operator.group.coordinator import GroupBusyError
from odradek_operator.group.group_spec import GroupSpec
from odradek_operator.group.job import remembered
from odradek_operator.group.observe import OBSERVE_SECONDS, WAIT_SECONDS, GroupContext
from odradek_operator.shared import apply, cluster_access, status, status_update
from odradek_operator.shared.apply import ReconcileContext, namespace_terminating
from odradek_operator.shared.broker_client import BrokerError, OperatorClient
from odradek_operator.shared.client_users import ClientUserError
from odradek_operator.shared.spec import TERMINATING_TIMEOUT, Body, ResourceMeta
from odradek_operator.shared.status import Condition, Event
from odradek_operator.shared.views import ClusterState, Owner
from odradek_operator.shared.zookeeper import RefusedError, UnreachableError

log = logging.getLogger(__name__)


def delete(
    context: ReconcileContext,
    around: GroupContext,
    body: Body,
    meta: ResourceMeta,
    wanted: GroupSpec,
    rival: str | None,
) -> float:
    """Delete what the group has, and let the resource go; return the seconds until the next look.

    Its offsets stay where `rival` has the same group, and where nobody can delete them: an Event
    says so. With spec.deletionPolicy Retain, which may still be set, nothing is waited for that
    ZooKeeper does not answer or refuses.
    """
    cluster, zookeeper = around.cluster, around.zookeeper
    if not meta.has_finalizer:
        return OBSERVE_SECONDS
    assert meta.deleted is not None
    ending = namespace_terminating(context, meta.namespace)
    too_late = ending and context.now() - meta.deleted > TERMINATING_TIMEOUT
    abandoned = cluster.owner is not Owner.PRESENT or too_late or rival is not None
    if abandoned or wanted.deletion_policy != "Delete":
        if cluster.owner is Owner.PRESENT and not too_late:
            waits = remove_user(context, around, body, meta)
            if waits:
                return waits
        elif cluster.owner is Owner.NOT_PERMITTED:
            if not withdraw_user(context, around, meta):
                _leave_user(context, body, meta, _why(cluster, None))
        elif job_user.may_have_user(context, meta, around):
            _leave_user(context, body, meta, _why(cluster, None))
        if wanted.deletion_policy == "Delete":
            # Once, and not each time that the user keeps waiting.
            text = f"offsets of group {wanted.group} were not deleted: {_why(cluster, rival)}"
            context.kube.post_event(body, Event("GroupAbandoned", text, warning=True))
        apply.set_finalizer(context, body, False)
        return OBSERVE_SECONDS
    if cluster.paused:
        waiting = status.stalled("Paused", "the KafkaCluster is paused; deletion is pending")
        status_update.write_status(context, body, (*waiting, status.paused(True)), remembered(body))
        return OBSERVE_SECONDS
    if driver_effects.remove(context, meta):
        return _waits(context, body, "Deleting", driver_effects.how_it_ends(meta))
    if zookeeper is None:
        return _waits(context, body, "ZooKeeperUnreachable", cluster.away)
    in_zookeeper = wanted.offset_store != "Kafka"
    # A driver with offsets at a coordinator records there which topics they belong to.
    stored = consumers.group_path if in_zookeeper else consumers.incarnations_path
    try:
        with OperatorClient(around.endpoints, around.security) as brokers:
            view = group_observe.view_group(zookeeper, brokers, wanted)
            if view.members:
                raise GroupBusyError(f"waiting for {view.members} members to leave")
            if wanted.offset_store != "ZooKeeper":
                coordinator.delete(brokers, wanted.group)
        zookeeper.delete_tree(stored(wanted.group))
    except (GroupBusyError, BrokerError) as error:
        return _waits(context, body, "Deleting", str(error))
    except RefusedError as error:
        refused = status.stalled("ZooKeeperRefuses", f"{error}; {_OR_RETAIN}")
        status_update.write_status(context, body, refused, remembered(body))
        return WAIT_SECONDS
    except UnreachableError as error:
        return _waits(context, body, "ZooKeeperUnreachable", str(error))
    if waits := remove_user(context, around, body, meta):
        return waits
    context.kube.post_event(
        body, Event("GroupDeleted", f"deleted the offsets of group {wanted.group}")
    )
    apply.set_finalizer(context, body, False)
    return OBSERVE_SECONDS


def _why(cluster: ClusterState, rival: str | None) -> str:
    """Return why what a group has stays that was to be removed."""
    if rival is not None:
        return f"{rival} has the same group"
    if cluster.owner is not Owner.PRESENT:
        return f"its cluster is {cluster.owner.value}"
    return "its namespace is being deleted"


_OR_RETAIN: Final = (
    "to let the resource go without waiting for that, set spec.deletionPolicy to Retain"
)
# Why a user of a job that is to be removed may stay.
_LEFT: Final = frozenset({"ZooKeeperUnreachable", "ZooKeeperRefuses"})


def _waits(context: ReconcileContext, body: Body, reason: str, text: str) -> float:
    """Report what a deletion waits for; return the seconds until the next look."""
    waiting = status.progressing(reason, f"{text}; {_OR_RETAIN}")
    status_update.write_status(context, body, waiting, remembered(body))
    return WAIT_SECONDS


def remove_user(
    context: ReconcileContext, around: GroupContext, body: Body, meta: ResourceMeta
) -> float:
    """Remove the user of a job; return 0, or the seconds until the next try.

    It is left where it is if the resource is deleted, and says Retain, but ZooKeeper is not there.
    """
    if not job_user.may_have_user(context, meta, around):
        return 0.0
    may_stay = meta.deleting and body["spec"].get("deletionPolicy") == "Retain"
    told: tuple[Condition, ...] = (status.paused(True),)
    if around.cluster.paused and not (may_stay and around.zookeeper is None):
        text = "the KafkaCluster is paused; the job's user is still there"
        waiting = status.stalled("Paused", text)
    else:
        try:
            job_user.remove(meta, around)
        except ClientUserError as error:
            text = str(error)
            if may_stay and error.reason in _LEFT:
                _leave_user(context, body, meta, text)
                return 0.0
            if meta.deleting and error.reason in _LEFT:
                text = f"{text}; {_OR_RETAIN}"
            judge = status.progressing if error.waits else status.stalled
            waiting, told = judge(error.reason, text), ()
        else:
            return 0.0
    status_update.write_status(context, body, (*waiting, *told), remembered(body))
    return WAIT_SECONDS


def _leave_user(context: ReconcileContext, body: Body, meta: ResourceMeta, why: str) -> None:
    user = cluster_access.job_user(meta.namespace, meta.name)
    text = f"what user {user} has in ZooKeeper was not removed: {why}"
    context.kube.post_event(body, Event("UserAbandoned", text, warning=True))


def withdraw_user(context: ReconcileContext, around: GroupContext, meta: ResourceMeta) -> bool:
    """Remove the user of a job whose namespace is not allowed any more; False: not now."""
    if not job_user.may_have_user(context, meta, around):
        return True
    try:
        job_user.remove(meta, around)
    except ClientUserError as error:
        log.info("%s: %s; retrying", meta.name, error)
        return False
    return True
