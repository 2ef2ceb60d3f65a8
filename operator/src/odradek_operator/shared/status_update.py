"""The status of a resource, built from conditions and fields, and written if it is news.

`lastTransitionTime` moves only when a condition's status changes, and `needs_write` compares what
means something, so that a reconciliation which found nothing new writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from odradek_operator.shared import spec, status
from odradek_operator.shared.apply import ReconcileContext, still_wanted
from odradek_operator.shared.kube import KubeError
from odradek_operator.shared.spec import Body
from odradek_operator.shared.status import CREATING, Condition, Event, condition_of

MESSAGE_LIMIT: Final = 1024


def write_status(
    context: ReconcileContext,
    body: Body,
    conditions: Sequence[Condition],
    fields: Mapping[str, Any],
    events: Sequence[Event] = (),
) -> Body:
    """Write the status if it changed, post Events, and return the current resource."""
    wanted, changed, transitions = update(body, conditions, fields, context.now())
    if changed:
        try:
            body = context.kube.apply_status(body, wanted)
        except KubeError as error:
            if error.code not in (404, 409):
                raise
            # It has gone, is another one, or was written by others each time: only the first two
            # are no reason to look at it again.
            still_wanted(context, body)
            return body
        context.remember(body)
    for event in (*events, *transitions):
        context.kube.post_event(body, event)
    return body


def refuse(
    context: ReconcileContext,
    body: Body,
    error: spec.InvalidSpec,
    kept: Sequence[str] = (),
    seen: Mapping[str, Any] = MappingProxyType({}),
) -> float:
    """Report in the status why the spec is invalid.

    `kept` names what the status remembers, and must once the spec is mended; `seen` is what is
    known in spite of it.
    """
    told = status.stalled(error.reason, error.message)
    write_status(context, body, told, {**remembered(body, kept), **seen})
    return 300.0


def remembered(body: Body, names: Sequence[str]) -> dict[str, Any]:
    """Return the fields of the status that are kept."""
    return {name: body.get("status", {}).get(name) for name in names}


def merge_conditions(
    previous: Iterable[Mapping[str, Any]],
    wanted: Iterable[Condition],
    generation: int,
    now: datetime,
) -> list[dict[str, Any]]:
    """Return conditions in the API's form, keeping transition times of those that did not turn."""
    before = {one["type"]: one for one in previous}
    stamp = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    merged = []
    for condition in wanted:
        status = "Unknown" if condition.status is None else str(condition.status)
        old = before.get(condition.type)
        same = old is not None and old.get("status") == status
        merged.append(
            {
                "type": condition.type,
                "status": status,
                "reason": condition.reason,
                "message": condition.message[:MESSAGE_LIMIT],
                "observedGeneration": generation,
                "lastTransitionTime": old["lastTransitionTime"] if old and same else stamp,
            }
        )
    return merged


def build(
    body: Body, conditions: Iterable[Condition], fields: Mapping[str, Any], now: datetime
) -> dict[str, Any]:
    """Return the whole status of a resource."""
    generation = body["metadata"].get("generation", 0)
    previous = body.get("status", {}).get("conditions", ())
    return {
        "observedGeneration": generation,
        "conditions": merge_conditions(previous, conditions, generation, now),
        **{name: value for name, value in fields.items() if value is not None},
    }


def update(
    body: Body, conditions: Sequence[Condition], fields: Mapping[str, Any], now: datetime
) -> tuple[dict[str, Any], bool, tuple[Event, ...]]:
    """Return the status to be, whether it must be written, and the Events of its transitions.

    Without conditions those that the resource has are kept.
    """
    if conditions:
        wanted = build(body, conditions, fields, now)
        events = transitions(body, wanted)
    else:
        kept = {name: value for name, value in fields.items() if value is not None}
        wanted, events = {**body.get("status", {}), **kept}, ()
    return wanted, needs_write(body.get("status", {}), wanted), events


def needs_write(current: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether the two differ in more than the order of their conditions."""
    return _comparable(current) != _comparable(wanted)


def _comparable(status: Mapping[str, Any]) -> dict[str, Any]:
    conditions = {one["type"]: one for one in status.get("conditions", ())}
    return {**status, "conditions": conditions}


def transitions(body: Body, wanted: Mapping[str, Any]) -> tuple[Event, ...]:
    """Return the Event of a transition of Ready: one per new status and reason.

    The steps on the way to the first Ready are told by the conditions alone, and so is the first
    Ready of what was created just before: the Event of its creation has been posted.
    """
    old = condition_of(body.get("status", {}), "Ready")
    new = condition_of(wanted, "Ready")
    if new is None or (old and (old["status"], old["reason"]) == (new["status"], new["reason"])):
        return ()
    if old and old["reason"] == CREATING and new["status"] == "True":
        return ()
    blocked = condition_of(wanted, "Stalled")
    waits = new["status"] == "False" and (blocked is None or blocked["status"] == "False")
    if waits and not _has_turned(body):
        return ()
    warning = blocked is not None and blocked["status"] == "True"
    message = new["message"] or f"Ready is {new['status']}"
    return (Event(new["reason"], message, warning=warning),)


def _has_turned(body: Body) -> bool:
    """Return whether the resource was ready, or blocked, until now."""
    status = body.get("status", {})
    return any(
        (found := condition_of(status, name)) is not None and found["status"] == "True"
        for name in ("Ready", "Stalled")
    )
