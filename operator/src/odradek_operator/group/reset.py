"""Offsets of a group reset once per request: which offsets, and the progress. Pure.

The target offsets are written to the status before any is committed, so an interrupted reset
resumes with the same ones: a Shift is never applied twice. Those of a topic that was made anew in
between are computed again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from odradek.values import TopicPartition
from odradek_operator.shared.spec import Body, InvalidSpec

DRY_RUN: Final = "DryRun"
APPLYING: Final = "Applying"
DONE: Final = "Done"
# Pseudo-timestamps of the beginning and the end of a log.
EARLIEST: Final = -2
LATEST: Final = -1
LARGEST: Final = 1024
LARGEST_INT64: Final = 2**63 - 1
_NUMBER: Final = re.compile(r"[+-]?[0-9]+")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Reset:
    """A request. `number` is the offset or the distance, `timestamp_ms` the time of Timestamp."""

    request_id: str
    strategy: str
    dry_run: bool
    number: int = 0
    timestamp_ms: int = LATEST

    @property
    def question(self) -> int:
        """The timestamp to look up at the leaders."""
        match self.strategy:
            case "Earliest":
                return EARLIEST
            case "Timestamp":
                return self.timestamp_ms
            case _:
                return LATEST


def parse(raw: Mapping[str, Any]) -> Reset:
    """Read spec.reset. Raises InvalidSpec for a value that the strategy cannot use."""
    strategy, text = raw["strategy"], raw.get("value", "")
    request = Reset(raw["requestId"], strategy, raw.get("dryRun", False))
    if strategy in ("Shift", "Offset"):
        # Python reads more than that: 1_0, and digits of other scripts.
        number = int(text) if _NUMBER.fullmatch(text) else None
        if number is None or (strategy == "Offset" and number < 0):
            kind = "an offset" if strategy == "Offset" else "a number of records"
            raise InvalidSpec("InvalidReset", f"reset.value {text!r} is not {kind}")
        return Reset(request.request_id, strategy, request.dry_run, number=number)
    if strategy == "Timestamp":
        moment = _parse_moment(text)
        return Reset(request.request_id, strategy, request.dry_run, timestamp_ms=moment)
    return request


def _parse_moment(text: str) -> int:
    """Return milliseconds since 1970; negative ones would mean the end, or the beginning."""
    try:
        moment = int(text) if text.isascii() and text.isdigit() else _milliseconds(text)
    except ValueError:
        raise InvalidSpec(
            "InvalidReset",
            f"reset.value {text!r} is neither a time in RFC 3339 nor milliseconds since 1970",
        ) from None
    if not 0 <= moment <= LARGEST_INT64:
        raise InvalidSpec("InvalidReset", f"reset.value {text!r} is out of range")
    return moment


def _milliseconds(text: str) -> int:
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def compute(
    request: Reset, committed: Offsets, begins: Offsets, ends: Offsets, found: Offsets
) -> dict[TopicPartition, int]:
    """Return the offset of each partition whose log is known, never outside of the log.

    `found` is what the leaders answered to `request.question`, for each of these. A Shift leaves a
    partition without a commit alone: there is nothing to be shifted.
    """
    wanted: dict[TopicPartition, int] = {}
    for partition, end in ends.items():
        if partition not in begins:
            continue
        match request.strategy:
            case "Shift":
                if partition not in committed:
                    continue
                target = committed[partition] + request.number
            case "Offset":
                target = request.number
            case _:
                # No record is that late: continue at the end.
                target = found[partition] if found[partition] >= 0 else end
        wanted[partition] = min(max(target, begins[partition]), end)
    return wanted


def done(request: Reset, body: Body) -> bool:
    """Return whether this request is complete; a dry run is once its offsets are shown.

    A dry run of what is done already shows nothing new: it would forget that it is done.
    """
    last = body.get("status", {}).get("lastReset", {})
    phases = (DRY_RUN, DONE) if request.dry_run else (DONE,)
    return last.get("requestId") == request.request_id and last.get("phase") in phases


def begun(request: Reset, body: Body) -> dict[TopicPartition, int] | None:
    """Return the target offsets of a request in progress; none is that shall be a dry run now."""
    last = body.get("status", {}).get("lastReset", {})
    is_same = last.get("requestId") == request.request_id and last.get("phase") == APPLYING
    if request.dry_run or not is_same:
        return None
    return {_partition(name): int(text) for name, text in last.get("after", {}).items()}


def of_same_topics(
    targets: Offsets, body: Body, incarnations: Mapping[str, int]
) -> dict[TopicPartition, int]:
    """Return the targets of topics that are still those for which they were computed.

    `incarnations` are the transactions that created the present topics (czxid).
    """
    recorded = body.get("status", {}).get("lastReset", {}).get("topics", {})
    same = {
        topic
        for topic, incarnation in incarnations.items()
        if recorded.get(topic, str(incarnation)) == str(incarnation)
    }
    return {one: offset for one, offset in targets.items() if one.topic in same}


def _partition(name: str) -> TopicPartition:
    topic, _, number = name.rpartition("-")
    return TopicPartition(topic, int(number))


def fields(
    request: Reset,
    phase: str,
    committed: Offsets,
    wanted: Offsets,
    incarnations: Mapping[str, int],
    now: datetime,
) -> dict[str, Any]:
    """Return status.lastReset."""
    return {
        "requestId": request.request_id,
        "dryRun": request.dry_run,
        "phase": phase,
        "time": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "before": {str(one): str(committed[one]) for one in wanted if one in committed},
        "after": {str(one): str(offset) for one, offset in wanted.items()},
        "topics": {topic: str(incarnation) for topic, incarnation in incarnations.items()},
    }
