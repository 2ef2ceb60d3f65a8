"""What a running driver reports about itself."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any, Final

from odradek_operator.group import driver_objects


def read_report(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the well-typed fields of a driver's report, which may come from another version."""
    numbers = ("lastBatchId", "totalLag", "executors", "members")
    kept: dict[str, Any] = {
        name: raw[name]
        for name in numbers
        if isinstance(raw.get(name), int) and not isinstance(raw.get(name), bool)
    }
    seconds = raw.get("maxLagSeconds")
    if isinstance(seconds, (int, float)) and not isinstance(seconds, bool):
        kept["maxLagSeconds"] = int(seconds)
    if isinstance(raw.get("state"), str):
        kept["state"] = raw["state"][:64]
    return kept


_REPORT_SECONDS: Final = 2.0


def fetch_report(pod: Mapping[str, Any]) -> dict[str, Any] | None:
    """Fetch the report of a running driver; None if it does not answer."""
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
    return read_report(loaded) if isinstance(loaded, dict) else None
