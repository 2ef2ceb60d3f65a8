"""Conditions and status of a resource, and when to write them.

Every resource has Ready, Reconciling and Stalled (kstatus: the last two are abnormal when true).
`lastTransitionTime` moves only when a condition's status changes, and `needs_write` compares what
means something, so that a reconciliation which found nothing new writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Reason of a resource that is made right now.
CREATING = "Creating"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition; `status` None is Unknown."""

    type: str
    status: bool | None
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes Event, shown by `kubectl describe`."""

    reason: str
    message: str
    warning: bool = False


def ready(reason: str, message: str = "") -> tuple[Condition, Condition, Condition]:
    """Return the conditions of a resource that matches its spec."""
    return (
        Condition("Ready", True, reason, message),
        Condition("Reconciling", False, reason),
        Condition("Stalled", False, reason),
    )


def progressing(reason: str, message: str) -> tuple[Condition, Condition, Condition]:
    """Return the conditions of a resource that will become ready without help."""
    return (
        Condition("Ready", False, reason, message),
        Condition("Reconciling", True, reason, message),
        Condition("Stalled", False, reason),
    )


def stalled(reason: str, message: str) -> tuple[Condition, Condition, Condition]:
    """Return the conditions of a resource that needs a change by the user."""
    return (
        Condition("Ready", False, reason, message),
        Condition("Reconciling", False, reason),
        Condition("Stalled", True, reason, message),
    )


def paused(is_paused: bool) -> Condition:
    """Return the condition that says whether changes wait until somebody lifts a pause."""
    return Condition("Paused", is_paused, "Paused" if is_paused else "NotPaused")


def condition_of(status: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    """Return the condition of this type, or None."""
    return next((one for one in status.get("conditions", ()) if one["type"] == kind), None)
