"""Plans carried out: what the `reconcile_*` modules write with.

Each of those takes one resource through one pass: observe, plan, write, tell. It may stop after any
write; the next pass begins from what is then there. A write for a resource is preceded by a fresh
read of it, since a watch may lag or have missed a deletion.
"""

from __future__ import annotations

import http.client
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any, Final

from odradek.zk import admin
from odradek.zk.operations import Check, Operation, TransactionFailedError
from odradek.zk.znodes import topic_path
from odradek_operator import driver_objects, kube, spec, status, topic_moves
from odradek_operator.driver_objects import Platform
from odradek_operator.kube import Kube, KubeError
from odradek_operator.spec import FINALIZER, Body
from odradek_operator.status import Condition, Event
from odradek_operator.topic_state import (
    CreateTopic,
    GrowTopic,
    RequestDeletion,
    SetConfig,
    SetFinalizer,
    StartMove,
    Step,
)
from odradek_operator.zookeeper import Pool, ZooKeeper

SOON_SECONDS: Final = 0.2
_REPORT_SECONDS: Final = 2.0
# The API server understood and said no: users must learn why, and asking again at once is no use.
REFUSALS: Final = frozenset({400, 403, 422})

log = logging.getLogger(__name__)


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Context:
    """What reconciling needs from outside. `remember` keeps a body that was written, `forget` drops
    one that is gone.
    """

    kube: Kube
    zookeepers: Pool
    broker_image: str
    platform: Platform
    remember: Callable[[Body], object]
    forget: Callable[[Body], None]
    now: Callable[[], datetime] = _utc_now
    random: Random = field(default_factory=Random)


def still_wanted(context: Context, body: Body) -> bool:
    """Whether the resource is still as it was read; if not, its new form is remembered."""
    meta = body["metadata"]
    fresh = kube.custom(context.kube, body["kind"], meta["namespace"], meta["name"])
    if fresh is None or fresh["metadata"]["uid"] != meta["uid"]:
        context.forget(body)
        if fresh is not None:
            context.remember(fresh)
        return False
    same = is_same(fresh, body)
    if not same:
        context.remember(fresh)
    return same


def is_same(one: Body, other: Body) -> bool:
    """Whether two bodies of a resource want the same."""
    return all(
        one["metadata"].get(name) == other["metadata"].get(name)
        for name in ("generation", "deletionTimestamp")
    )


def write_status(
    context: Context,
    body: Body,
    conditions: Sequence[Condition],
    fields: Mapping[str, Any],
    events: Sequence[Event] = (),
) -> Body:
    """Write the status if it says something new, post Events, return the resource as it is now."""
    if conditions:
        wanted = status.build(body, conditions, fields, context.now())
    else:
        kept = {name: value for name, value in fields.items() if value is not None}
        wanted = {**body.get("status", {}), **kept}
    told = (*events, *(status.transitions(body, wanted) if conditions else ()))
    if status.needs_write(body.get("status", {}), wanted):
        try:
            body = context.kube.apply_status(body, wanted)
        except KubeError as error:
            if error.code not in (404, 409):
                raise
            context.forget(body)
            return body
        context.remember(body)
    for event in told:
        context.kube.tell(body, event)
    return body


def set_finalizer(context: Context, body: Body, present: bool) -> None:
    """Add or take away the operator's finalizer; a race is lost without harm."""
    meta = body["metadata"]
    fresh = kube.custom(context.kube, body["kind"], meta["namespace"], meta["name"])
    if fresh is None or fresh["metadata"]["uid"] != meta["uid"]:
        context.forget(body)
        return
    others = [one for one in fresh["metadata"].get("finalizers", ()) if one != FINALIZER]
    if present and "deletionTimestamp" in fresh["metadata"]:
        return
    changed = context.kube.set_finalizers(fresh, [*others, FINALIZER] if present else others)
    if "deletionTimestamp" in changed["metadata"] and not changed["metadata"].get("finalizers"):
        context.forget(body)
    else:
        context.remember(changed)


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
    context: Context,
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


def _start_move(context: Context, body: Body, step: StartMove) -> bool:
    """Create a Topic's Reassignment; what is known of others by watches may be old, so look."""
    meta = body["metadata"]
    selector = f"{topic_moves.TOPIC_LABEL}={meta['uid']}"
    kind = str(step.wanted["kind"])
    found = context.kube.select(spec.API_VERSION, kind, meta["namespace"], selector)
    if topic_moves.running(topic_moves.owned_by(meta["uid"], found)) is not None:
        return False
    try:
        # Not remembered: the event that brings it would then be no news, and nobody would plan it.
        context.kube.create(step.wanted)
    except KubeError as error:
        if error.code != 409:
            raise
        return False
    return True


def apply_object(context: Context, wanted: Mapping[str, Any]) -> bool:
    """Make a child so if it is not; True if something was written."""
    meta = wanted["metadata"]
    live = context.kube.get(wanted["apiVersion"], wanted["kind"], meta["namespace"], meta["name"])
    if live is not None and not kube.differs(wanted, live):
        return False
    context.kube.apply(wanted)
    return True


def grow_claim(context: Context, namespace: str, name: str, size: str) -> str | None:
    """Ask for a larger claim; return why that is refused, as it is where the class cannot grow."""
    live = context.kube.get("v1", "PersistentVolumeClaim", namespace, name)
    if live is None or kube.same_quantity(live["spec"]["resources"]["requests"]["storage"], size):
        return None
    try:
        context.kube.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"resources": {"requests": {"storage": size}}},
            }
        )
    except KubeError as error:
        if error.code not in REFUSALS:
            raise
        return str(error)
    return None


def fetch_report(pod: Mapping[str, Any]) -> dict[str, Any] | None:
    """Ask a running driver how it goes; None when it does not say."""
    address = pod.get("status", {}).get("podIP")
    if not address or pod["status"].get("phase") != "Running":
        return None
    connection = http.client.HTTPConnection(
        address, driver_objects.METRICS_PORT, timeout=_REPORT_SECONDS
    )
    try:
        connection.request("GET", "/status")
        answer = connection.getresponse()
        loaded = json.loads(answer.read(65536)) if answer.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    return driver_objects.read_report(loaded) if isinstance(loaded, dict) else None


def refuse(
    context: Context, body: Body, error: spec.InvalidSpec, kept: Sequence[str] = ()
) -> float:
    """Say in the status that the spec cannot be carried out, and why.

    `kept` names what the status remembers, and must once the spec is mended.
    """
    told = status.stalled(error.reason, error.message)
    write_status(context, body, told, remembered(body, kept))
    return 300.0


def remembered(body: Body, names: Sequence[str]) -> dict[str, Any]:
    """Return the part of the status that goes on to be told."""
    return {name: body.get("status", {}).get(name) for name in names}
