"""What a running driver reports about itself."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import threading
from collections.abc import Mapping
from typing import Any, Final, TypeGuard

from odradek import lag as rule
from odradek_operator.group import driver_objects


def read_report(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the well-typed fields of a driver's report, which may come from another version."""
    numbers = (
        "checkpointEpoch",
        "lastBatchId",
        "totalLag",
        "executors",
        "executorsWanted",
        "members",
        "batchRunningSeconds",
        "tableRows",
    )
    kept: dict[str, Any] = {
        name: raw[name] for name in numbers if isinstance(raw.get(name), int) and _fits(raw[name])
    }
    seconds = raw.get("maxLagSeconds")
    if _fits(seconds):
        kept["maxLagSeconds"] = int(seconds)
    if isinstance(raw.get("keepsState"), bool):
        kept["keepsState"] = raw["keepsState"]
    if isinstance(raw.get("state"), str):
        kept["state"] = raw["state"][:64]
    if isinstance(raw.get("waitsFor"), str):
        kept["waitsFor"] = raw["waitsFor"][:512]
    if isinstance(raw.get("lastCommitTime"), str) and _STAMP.fullmatch(raw["lastCommitTime"]):
        kept["lastCommitTime"] = raw["lastCommitTime"]
    if isinstance(raw.get("worstPartitions"), list):
        worst = raw["worstPartitions"][: rule.WORST_PARTITIONS]
        kept["worstPartitions"] = [one for one in worst if _is_placed(one)]
    return kept


_STAMP: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
_PLACED: Final[Mapping[str, type | tuple[type, ...]]] = {
    "topic": str,
    "partition": int,
    "lag": int,
    "lagSeconds": (int, float),
}


def _fits(value: object) -> TypeGuard[float]:
    """Return whether this is a number that a status can have: NaN is none, nor one of more than 64
    bits.
    """
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    )


def _is_placed(one: object) -> bool:
    """Return whether this is a partition with its lag, and nothing else."""
    return (
        isinstance(one, dict)
        and one.keys() | {"lagSeconds"} == _PLACED.keys()
        and all(
            isinstance(value, _PLACED[name]) and (isinstance(value, str) or _fits(value))
            for name, value in one.items()
        )
    )


# A driver that waits for a processor is not unreachable yet.
_REPORT_SECONDS: Final = 5.0


def fetch_report(pod: Mapping[str, Any]) -> dict[str, Any] | None:
    """Fetch the report of a running driver; None if it does not answer in time."""
    address = pod.get("status", {}).get("podIP")
    if not address or pod["status"].get("phase") != "Running":
        return None
    connection = http.client.HTTPConnection(
        address, driver_objects.METRICS_PORT, timeout=_REPORT_SECONDS
    )
    hang_up: threading.Timer | None = None
    try:
        connection.connect()
        # The time-out of a socket begins anew with each byte.
        hang_up = threading.Timer(_REPORT_SECONDS, _shut_down, (connection.sock,))
        hang_up.daemon = True
        hang_up.start()
        connection.request("GET", "/status")
        answer = connection.getresponse()
        loaded = json.loads(answer.read(65536)) if answer.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError, RecursionError):
        return None
    finally:
        if hang_up is not None:
            hang_up.cancel()
        connection.close()
    return read_report(loaded) if isinstance(loaded, dict) else None


def _shut_down(peer: socket.socket) -> None:
    """End what another thread waits for on a connection, unless that is closed already."""
    with contextlib.suppress(OSError):
        peer.shutdown(socket.SHUT_RDWR)
