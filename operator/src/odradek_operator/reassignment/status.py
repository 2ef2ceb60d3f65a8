"""What the status of a Reassignment remembers and reports. Pure.

All that must outlive the operator is here or in the plan's ConfigMap: the phase, that a throttle
was set and what it replaced, since when a destination or a leader is missing, and the reason of a
rollback.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

from odradek.values import TopicPartition
from odradek.zk import znodes
from odradek_operator.reassignment.decide import MoveState, ReassignmentDecision, ReassignmentPlan
from odradek_operator.shared import status
from odradek_operator.shared.objects import MANAGED_BY, Object, beginning, digest, metadata
from odradek_operator.shared.spec import Body, ResourceMeta, parse_time
from odradek_operator.shared.status import Condition

PLAN_KEY: Final = "plan.json"
ROLLBACK_KEY: Final = "rollback.json"
DETAILS_KEY: Final = "details.json"
LONGEST_HISTORY: Final = 16
THROTTLE_APPLIED: Final = "ThrottleApplied"
# The only reason with which ZooKeeper holds nothing of the throttle.
_NOT_APPLIED: Final = "NotApplied"


class ThrottleProgress(Enum):
    """How far the throttle is. PRESENT is said once everything was written, or found there."""

    ABSENT = "absent"
    APPLYING = "applying"
    PRESENT = "present"
    REMOVING = "removing"


@dataclass(frozen=True, slots=True)
class ReassignmentState:
    """What the status says so far; `phase` is empty before the first reconciliation.

    `throttled`: ZooKeeper may hold some of the throttle. `throttle_applied`: it held all of it when
    it was last looked at. `rates` are the throttles that brokers had before this one.
    """

    phase: str
    plan_hash: str | None
    plan_name: str | None
    started: datetime | None
    finished: datetime | None
    missing_since: datetime | None
    offline_since: datetime | None
    rolling_back: str | None
    throttled: bool
    throttle_applied: bool
    rates: Mapping[int, Mapping[str, str]]


def remember(body: Body) -> ReassignmentState:
    """Read the state from a Reassignment's status."""
    found = body.get("status", {})
    missing = _holding(found, "DestinationMissing")
    offline = _holding(found, "PartitionsOffline")
    back = _holding(found, "RollingBack")
    throttle = status.condition_of(found, THROTTLE_APPLIED)
    return ReassignmentState(
        phase=found.get("phase", ""),
        plan_hash=found.get("planHash"),
        plan_name=found.get("planRef", {}).get("name"),
        started=_time(found.get("startedAt")),
        finished=_time(found.get("finishedAt")),
        missing_since=_time(missing["lastTransitionTime"]) if missing else None,
        offline_since=_time(offline["lastTransitionTime"]) if offline else None,
        rolling_back=back["reason"] if back else None,
        throttled=throttle is not None and throttle["reason"] != _NOT_APPLIED,
        throttle_applied=throttle is not None and throttle["status"] == "True",
        rates={int(one): rates for one, rates in found.get("ratesBefore", {}).items()},
    )


def _holding(found: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    condition = status.condition_of(found, kind)
    return condition if condition is not None and condition["status"] == "True" else None


def _time(text: str | None) -> datetime | None:
    return parse_time(text) if text else None


def stamp(moment: datetime | None) -> str | None:
    """Return a time as the API server writes it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if moment else None


@dataclass(frozen=True, slots=True)
class Flags:
    """Conditions besides those of every resource, with the reason or message of each.

    `unseen` is why nobody looked at what ZooKeeper holds: reason and message. `unknown` are brokers
    to be removed that are not there and hold nothing. One that is `stalled` waits for somebody.
    """

    planned: bool = False
    approved: bool = False
    throttle: ThrottleProgress = ThrottleProgress.ABSENT
    blocked: str | None = None
    missing: str | None = None
    offline: str | None = None
    rolling_back: str | None = None
    paused: bool = False
    unseen: tuple[str, str] | None = None
    unknown: tuple[int, ...] = ()
    stalled: bool = False


def conditions(phase: str, reason: str, message: str, flags: Flags) -> tuple[Condition, ...]:
    """Return all conditions of a Reassignment in this phase."""
    match phase:
        case "Completed" | "Cancelled":
            health = status.ready(reason, message)
        case "RolledBack" | "Failed" | "Refused":
            health = status.stalled(reason, message)
        case _ if flags.stalled:
            health = status.stalled(reason, message)
        case _:
            health = status.progressing(reason, message)
    back = flags.rolling_back
    return (
        *health,
        Condition("Planned", flags.planned, "Planned" if flags.planned else "NotPlanned"),
        Condition("Approved", flags.approved, "Approved" if flags.approved else "NotApproved"),
        Condition("InProgress", phase == "Running", phase),
        _throttle(flags),
        Condition("Completed", phase == "Completed", phase),
        Condition("Cancelled", phase == "Cancelled", phase),
        _problem("Blocked", flags.blocked, flags.unseen),
        _problem("DestinationMissing", flags.missing, flags.unseen),
        _problem("PartitionsOffline", flags.offline, flags.unseen),
        Condition("RollingBack", back is not None, back or "NotRollingBack"),
        status.paused(flags.paused),
        *_warnings(flags),
    )


def nothing_to_move(unknown: Sequence[int]) -> str:
    """Return what a Reassignment that moves nothing says of it, and of brokers nobody knows."""
    if not unknown:
        return "all replicas are in place"
    return (
        f"nothing is to be moved away from brokers {list(unknown)}, which are not registered and "
        "not in spec.brokers of the KafkaCluster: they have gone, or never were; look at the ids"
    )


def _warnings(flags: Flags) -> tuple[Condition, ...]:
    if not flags.unknown:
        return ()
    return (Condition("ConfigWarning", True, "UnknownBroker", nothing_to_move(flags.unknown)),)


def _throttle(flags: Flags) -> Condition:
    throttle = flags.throttle
    if flags.unseen is not None and throttle is not ThrottleProgress.ABSENT:
        return Condition(THROTTLE_APPLIED, None, *flags.unseen)
    match throttle:
        case ThrottleProgress.PRESENT:
            return Condition(THROTTLE_APPLIED, True, "Applied")
        case ThrottleProgress.APPLYING:
            text = "the throttle is being written to ZooKeeper"
            return Condition(THROTTLE_APPLIED, False, "Applying", text)
        case ThrottleProgress.REMOVING:
            text = "the throttle is being removed from ZooKeeper"
            return Condition(THROTTLE_APPLIED, False, "Removing", text)
        case ThrottleProgress.ABSENT:
            return Condition(THROTTLE_APPLIED, False, _NOT_APPLIED)


def _problem(kind: str, text: str | None, unseen: tuple[str, str] | None) -> Condition:
    if unseen is not None:
        return Condition(kind, None, *unseen)
    return Condition(kind, text is not None, kind if text else f"Not{kind}", text or "")


def history(body: Body, phase: str, now: datetime) -> list[dict[str, Any]]:
    """Return the phases so far with their start times, the current one last."""
    before: list[dict[str, Any]] = list(body.get("status", {}).get("history", ()))
    if before and before[-1]["phase"] == phase:
        return before
    return [*before, {"phase": phase, "time": stamp(now)}][-LONGEST_HISTORY:]


def summary(decision: ReassignmentDecision) -> str:
    """Return the progress as a sentence."""
    total, done = len(decision.states), decision.count(MoveState.DONE)
    moving, failed = decision.count(MoveState.MOVING), decision.count(MoveState.FAILED)
    text = f"{done} of {total} partitions done, {moving} moving"
    if failed:
        shown = "; ".join(decision.failures[:3]) + ("; ..." if len(decision.failures) > 3 else "")
        text = f"{text}, {failed} failed: {shown}"
    return text


def counts(decision: ReassignmentDecision) -> dict[str, int]:
    """Return status.partitions."""
    return {
        "total": len(decision.states),
        "done": decision.count(MoveState.DONE),
        "failed": decision.count(MoveState.FAILED),
    }


def plan_object(meta: ResourceMeta, plan: ReassignmentPlan) -> Object:
    """Return the ConfigMap of a plan. Two keys are in the form that Kafka's own tool reads.

    It cannot be changed, so it is named by all that it holds: a topic that was made anew with the
    same replicas has a plan of the same hash and of another incarnation. Another resource of the
    same name has another one, too.
    """
    details = {
        "incarnations": dict(plan.incarnations),
        "bytes": {str(one): size for one, size in sorted(plan.sizes.items())},
        "leaderless": sorted(map(str, plan.leaderless)),
    }
    name = f"{beginning(meta.name)}-{meta.uid[:8]}-{plan.hash}-{digest(details)[:8]}"
    labels = {"app.kubernetes.io/managed-by": MANAGED_BY}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(meta, name, labels),
        "immutable": True,
        "data": {
            PLAN_KEY: znodes.encode_reassignment(plan.targets).decode(),
            ROLLBACK_KEY: znodes.encode_reassignment(plan.originals).decode(),
            DETAILS_KEY: json.dumps(details, separators=(",", ":"), sort_keys=True),
        },
    }


def read_plan(found: Mapping[str, Any] | None, plan_hash: str | None) -> ReassignmentPlan | None:
    """Read a plan back; None where it is gone or is not the one with this hash."""
    data = (found or {}).get("data", {})
    try:
        details = json.loads(data[DETAILS_KEY])
        targets = znodes.decode_reassignment(PLAN_KEY, data[PLAN_KEY].encode())
        originals = znodes.decode_reassignment(ROLLBACK_KEY, data[ROLLBACK_KEY].encode())
        sizes, leaderless = _sizes(targets, details["bytes"]), set(details.get("leaderless", ()))
        offline = frozenset(one for one in targets if str(one) in leaderless)
        plan = ReassignmentPlan(targets, originals, details["incarnations"], sizes, offline)
    except (KeyError, ValueError, TypeError):
        return None
    return plan if plan.hash == plan_hash else None


def _sizes(
    targets: Mapping[TopicPartition, Any], by_name: Mapping[str, int]
) -> dict[TopicPartition, int]:
    return {one: by_name[str(one)] for one in targets if str(one) in by_name}
