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
from odradek_operator.shared import apply, status, status_update
from odradek_operator.shared.apply import ReconcileContext, namespace_terminating
from odradek_operator.shared.broker_client import BrokerError, OperatorClient
from odradek_operator.shared.client_users import ClientUserError
from odradek_operator.shared.spec import FINALIZER, TERMINATING_TIMEOUT, Body, ResourceMeta
from odradek_operator.shared.status import Condition, Event
from odradek_operator.shared.views import Owner
from odradek_operator.shared.zookeeper import RefusedError

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
    says so.
    """
    cluster, zookeeper = around.cluster, around.zookeeper
    if not meta.has_finalizer:
        return OBSERVE_SECONDS
    assert meta.deleted is not None
    ending = namespace_terminating(context, meta.namespace)
    too_late = ending and context.now() - meta.deleted > TERMINATING_TIMEOUT
    abandoned = cluster.owner is not Owner.PRESENT or too_late or rival is not None
    if abandoned or wanted.deletion_policy != "Delete":
        if wanted.deletion_policy == "Delete":
            why = f": {rival} has the same group" if rival is not None else ""
            text = f"offsets of group {wanted.group} were not deleted{why}"
            context.kube.post_event(body, Event("GroupAbandoned", text, warning=True))
        if cluster.owner is Owner.PRESENT and not too_late:
            waits = remove_user(context, around, body, meta)
            if waits:
                return waits
        elif cluster.owner is Owner.NOT_PERMITTED:
            withdraw_user(context, around, meta)
        apply.set_finalizer(context, body, False)
        return OBSERVE_SECONDS
    if cluster.paused:
        waiting = status.stalled("Paused", "the KafkaCluster is paused; deletion is pending")
        status_update.write_status(context, body, (*waiting, status.paused(True)), remembered(body))
        return OBSERVE_SECONDS
    if driver_effects.remove(context, meta):
        return _waits(context, body, "Deleting", driver_effects.how_it_ends(meta))
    if zookeeper is None:
        way_out = _OR_RETAIN
        if job_user.may_have_user(context, meta, around):
            way_out = _OR_UNFINISHED
        return _waits(context, body, "ZooKeeperUnreachable", cluster.away, way_out)
    try:
        with OperatorClient(around.endpoints, around.security) as brokers:
            view = group_observe.view_group(zookeeper, brokers, wanted)
            if view.members:
                raise GroupBusyError(f"waiting for {view.members} members to leave")
            if wanted.offset_store != "ZooKeeper":
                coordinator.delete(brokers, wanted.group)
    except (GroupBusyError, BrokerError) as error:
        return _waits(context, body, "Deleting", str(error))
    in_zookeeper = wanted.offset_store != "Kafka"
    # A driver with offsets at a coordinator records there which topics they belong to.
    stored = consumers.group_path if in_zookeeper else consumers.incarnations_path
    try:
        zookeeper.delete_tree(stored(wanted.group))
    except RefusedError as error:
        text = str(error)
        if not job_user.may_have_user(context, meta, around):
            text = f"{text}; {_OR_RETAIN}"
        refused = status.stalled("ZooKeeperRefuses", text)
        status_update.write_status(context, body, refused, {})
        return WAIT_SECONDS
    if waits := remove_user(context, around, body, meta):
        return waits
    context.kube.post_event(
        body, Event("GroupDeleted", f"deleted the offsets of group {wanted.group}")
    )
    apply.set_finalizer(context, body, False)
    return OBSERVE_SECONDS


_OR_RETAIN: Final = "to let the resource go without its offsets, set spec.deletionPolicy to Retain"
_OR_UNFINISHED: Final = (
    "the user that its job may have is removed from there first, whatever spec.deletionPolicy "
    f"says: if ZooKeeper does not come back, take the finalizer {FINALIZER} away"
)


def _waits(
    context: ReconcileContext, body: Body, reason: str, text: str, way_out: str = _OR_RETAIN
) -> float:
    """Report what a deletion waits for; return the seconds until the next look."""
    waiting = status.progressing(reason, f"{text}; {way_out}")
    status_update.write_status(context, body, waiting, remembered(body))
    return WAIT_SECONDS


def remove_user(
    context: ReconcileContext, around: GroupContext, body: Body, meta: ResourceMeta
) -> float:
    """Remove the user of a job; return 0, or the seconds until the next try."""
    if not job_user.may_have_user(context, meta, around):
        return 0.0
    told: tuple[Condition, ...] = (status.paused(True),)
    if around.cluster.paused:
        text = "the KafkaCluster is paused; the job's user is still there"
        waiting = status.stalled("Paused", text)
    else:
        try:
            job_user.remove(meta, around)
        except ClientUserError as error:
            text = str(error)
            if meta.deleting and around.zookeeper is None:
                text = f"{text}; {_OR_UNFINISHED}"
            judge = status.progressing if error.waits else status.stalled
            waiting, told = judge(error.reason, text), ()
        else:
            return 0.0
    status_update.write_status(context, body, (*waiting, *told), remembered(body))
    return WAIT_SECONDS


def withdraw_user(context: ReconcileContext, around: GroupContext, meta: ResourceMeta) -> bool:
    """Remove the user of a job whose namespace is not allowed any more; False: not now."""
    if around.zookeeper is None or not job_user.may_have_user(context, meta, around):
        return True
    try:
        job_user.remove(meta, around)
    except ClientUserError as error:
        log.info("%s: %s; retrying", meta.name, error)
        return False
    return True
