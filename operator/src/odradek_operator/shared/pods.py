"""What a pod's status says. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod's Ready condition is true."""
    conditions = pod.get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def pending_reason(pod: Mapping[str, Any]) -> str | None:
    """Return why a pod cannot run: not scheduled, or no image; None if nothing is wrong."""
    status = pod.get("status", {})
    for container in status.get("containerStatuses", ()):
        waiting = container.get("state", {}).get("waiting")
        if waiting and waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return f"{waiting['reason']}: {waiting.get('message', '')}".strip(": ")
    for condition in status.get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message", "not scheduled"))
    return None
