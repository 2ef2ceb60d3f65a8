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
from odradek_operator.shared.spec import parse_time


def read_report(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a status can have of a driver's report, which may come from another version."""
    kept: dict[str, Any] = {
        name: raw[name]
        for name, bits in _NUMBERS.items()
        if isinstance(raw.get(name), int) and _fits(raw[name], bits)
    }
    seconds = raw.get("maxLagSeconds")
    if _fits(seconds):
        kept["maxLagSeconds"] = int(seconds)
    if isinstance(raw.get("keepsState"), bool):
        kept["keepsState"] = raw["keepsState"]
    # It becomes the reason of a condition.
    if isinstance(raw.get("state"), str) and _REASON.fullmatch(raw["state"]):
        kept["state"] = raw["state"]
    if isinstance(raw.get("waitsFor"), str):
        kept["waitsFor"] = raw["waitsFor"][:512]
    if _is_time(raw.get("lastCommitTime")):
        kept["lastCommitTime"] = raw["lastCommitTime"]
    if isinstance(raw.get("worstPartitions"), list):
        worst = raw["worstPartitions"][: rule.WORST_PARTITIONS]
        kept["worstPartitions"] = [one for one in worst if _is_placed(one)]
    return kept


# Integers, and of how many bits they are in the schema of the status.
_NUMBERS: Final = {
    "checkpointEpoch": 64,
    "lastBatchId": 64,
    "totalLag": 64,
    "executors": 32,
    "executorsWanted": 32,
    "members": 32,
    "batchRunningSeconds": 64,
    "tableRows": 64,
}
_REASON: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}", re.ASCII)
_LONGEST_TOPIC: Final = 249
_STAMP: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
_PLACED: Final[Mapping[str, type | tuple[type, ...]]] = {
    "topic": str,
    "partition": int,
    "lag": int,
    "lagSeconds": (int, float),
}


def _fits(value: object, bits: int = 64) -> TypeGuard[float]:
    """Return whether this is a number of so many bits; NaN is none."""
    limit: int = 2 ** (bits - 1)
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and -limit <= value < limit
    )


def _is_time(text: object) -> bool:
    """Return whether this is a time as the API server writes it: 31 April is none."""
    if not isinstance(text, str) or not _STAMP.fullmatch(text):
        return False
    try:
        parse_time(text)
    except ValueError:
        return False
    return True


def _is_placed(one: object) -> bool:
    """Return whether this is a partition with its lag, and nothing else."""
    return (
        isinstance(one, dict)
        and one.keys() | {"lagSeconds"} == _PLACED.keys()
        and all(_is_field(name, value) for name, value in one.items())
    )


def _is_field(name: str, value: object) -> bool:
    if not isinstance(value, _PLACED[name]):
        return False
    if isinstance(value, str):
        return len(value) <= _LONGEST_TOPIC
    return _fits(value, 32 if name == "partition" else 64)


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
