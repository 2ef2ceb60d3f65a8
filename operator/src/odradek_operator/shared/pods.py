"""What is read of a pod. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

# Name of the container in a broker's pod.
BROKER: Final = "broker"


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod's Ready condition is true."""
    conditions = pod.get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def image_of(pod: Mapping[str, Any]) -> str | None:
    """Return the image of a broker's pod, or of the template, beside what others have added."""
    containers = pod["spec"].get("containers", ())
    return next((one["image"] for one in containers if one["name"] == BROKER), None)


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


def claims(pod: Mapping[str, Any]) -> list[str]:
    """Return the volume claims without which a pod gets no node."""
    volumes = pod["spec"].get("volumes", ())
    found = [one["persistentVolumeClaim"] for one in volumes if "persistentVolumeClaim" in one]
    return [one["claimName"] for one in found]


def mounted_secrets(pod: Mapping[str, Any]) -> list[str]:
    """Return the Secrets without which a pod's containers do not start, as Kubernetes mounts them.

    Of those that are missing only Events tell, not the status of the pod.
    """
    sources = [one["secret"] for one in pod["spec"].get("volumes", ()) if "secret" in one]
    return [one["secretName"] for one in sources if not one.get("optional")]
