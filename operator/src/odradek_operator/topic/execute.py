"""A Topic's plan carried out: its status, its transactions, its Reassignment."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from odradek.zk import admin
from odradek.zk.operations import Check, Operation, TransactionFailedError
from odradek.zk.znodes import topic_path
from odradek_operator.shared import spec
from odradek_operator.shared.apply import ReconcileContext, set_finalizer, still_wanted
from odradek_operator.shared.kube import KubeError
from odradek_operator.shared.spec import Body
from odradek_operator.shared.zookeeper import ZooKeeper
from odradek_operator.topic import reassign
from odradek_operator.topic.state import (
    CreateTopic,
    GrowTopic,
    RequestDeletion,
    SetConfig,
    SetFinalizer,
    StartMove,
    Step,
)

log = logging.getLogger(__name__)


def topic_operations(step: Step) -> list[Operation]:
    """Return the transaction that a step on a topic is."""
    match step:
        case CreateTopic(topic, assignment, config, config_version):
            return admin.create_topic(
                topic, assignment, config, config_exists=config_version is not None
            )
        case GrowTopic(topic, assignment, version):
            return admin.grow_topic(topic, assignment, version)
        case SetConfig(topic, config, version):
            return admin.change_config("topics", topic, config, version)
        case RequestDeletion(topic, version):
            # The version ties the request to the topic that was seen, not to one made since.
            return [Check(topic_path(topic), version), *admin.request_deletion(topic)]
    raise AssertionError(f"{step} is no step on ZooKeeper")


def carry_out(
    context: ReconcileContext,
    zookeeper: ZooKeeper | None,
    body: Body,
    steps: Sequence[Step],
    *,
    just_read: bool = False,
) -> bool:
    """Do the steps in order; False if one lost a race, after which everything is planned anew.

    `just_read`: the body is the API server's own, of this moment.
    """
    if not steps:
        return True
    if not just_read and not still_wanted(context, body):
        return False
    for step in steps:
        if isinstance(step, SetFinalizer):
            set_finalizer(context, body, step.present)
            continue
        if isinstance(step, StartMove):
            if not _start_move(context, body, step):
                return False
            continue
        assert zookeeper is not None
        try:
            zookeeper.commit(topic_operations(step))
        except TransactionFailedError as error:
            log.info("%s: planned anew, since %s", body["metadata"]["name"], error)
            return False
        log.info("%s: %s", body["metadata"]["name"], step)
    return True


def _start_move(context: ReconcileContext, body: Body, step: StartMove) -> bool:
    """Create a Topic's Reassignment; what is known of others by watches may be old, so look."""
    meta = body["metadata"]
    selector = f"{reassign.TOPIC_LABEL}={meta['uid']}"
    kind = str(step.wanted["kind"])
    found = context.kube.select(spec.API_VERSION, kind, meta["namespace"], selector)
    if reassign.running(reassign.owned_by(meta["uid"], found)) is not None:
        return False
    try:
        # Not remembered: the event that brings it would then be no news, and nobody would plan it.
        context.kube.create(step.wanted)
    except KubeError as error:
        if error.code != 409:
            raise
        return False
    return True
