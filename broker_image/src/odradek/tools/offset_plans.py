"""Plans of offset resets: from the options of a command to one offset per partition. Pure.

The options are those of kafka-consumer-groups. Offsets outside a log are moved to its nearest end.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from odradek.tools.errors import ToolError, is_number, shown
from odradek.values import TopicPartition

_MOST_PARTITION, _MOST_OFFSET = 2**31 - 1, 2**63 - 1
_DURATION = re.compile(
    r"P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Log start and log end of a partition."""

    start: int
    end: int

    def clamp(self, offset: int) -> int:
        """Return the nearest offset within the log."""
        return max(self.start, min(offset, self.end))


def parse_topics(
    texts: Collection[str], existing: Collection[TopicPartition]
) -> list[TopicPartition]:
    """Read `topic` and `topic:0,1`; a topic alone means all its partitions. Raises ToolError."""
    found: set[TopicPartition] = set()
    for text in texts:
        topic, colon, numbers = text.partition(":")
        known = {partition for partition in existing if partition.topic == topic}
        if not known:
            raise ToolError(f"topic {shown(topic)} does not exist")
        if not colon:
            found |= known
            continue
        for number in numbers.split(","):
            if not is_number(number, _MOST_PARTITION):
                raise ToolError(f"{text!r} is not TOPIC or TOPIC:0,1")
            partition = TopicPartition(topic, int(number))
            if partition not in known:
                raise ToolError(f"partition {partition} does not exist")
            found.add(partition)
    return sorted(found)


def parse_datetime_ms(text: str) -> int:
    """Read YYYY-MM-DDTHH:mm:SS.sss, in UTC unless it names a zone. Raises ToolError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ToolError(f"{text!r} is not a time such as 2026-11-21T08:00:00.000") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def parse_duration_ms(text: str) -> int:
    """Read an ISO 8601 duration such as P1DT2H. Raises ToolError."""
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        raise ToolError(f"{text!r} is not a duration such as P1DT2H30M")
    weeks, days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    try:
        length = timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError as error:
        raise ToolError(f"{text!r} is longer than all time") from error
    return int(length.total_seconds() * 1000)


def parse_csv(text: str, group: str) -> dict[TopicPartition, int]:
    """Read lines `topic,partition,offset`, with the group before them if there are several.

    Raises ToolError.
    """
    found: dict[TopicPartition, int] = {}
    for number, row in enumerate(_rows(text), 1):
        fields = [field.strip() for field in row]
        if not any(fields):
            continue
        if len(fields) == 4:
            owner, *fields = fields
            if owner != group:
                continue
        if not (
            len(fields) == 3
            and is_number(fields[1], _MOST_PARTITION)
            and is_number(fields[2], _MOST_OFFSET)
        ):
            raise ToolError(f"line {number} is not TOPIC,PARTITION,OFFSET")
        partition = TopicPartition(fields[0], int(fields[1]))
        if partition in found:
            raise ToolError(f"line {number}: {partition} is there twice")
        found[partition] = int(fields[2])
    return found


def existing(
    plan: dict[TopicPartition, int], known: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the plan. Raises ToolError for a partition that does not exist."""
    for partition in sorted(plan):
        if partition not in known:
            raise ToolError(f"partition {partition} does not exist")
    return plan


def _rows(text: str) -> Iterator[list[str]]:
    try:
        yield from csv.reader(io.StringIO(text))
    except csv.Error as error:
        raise ToolError(f"it is not CSV: {error}") from error


def render_csv(group: str | None, plan: Mapping[TopicPartition, int]) -> str:
    """Return lines that `parse_csv` reads; `group` is their first field unless None."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for partition, offset in sorted(plan.items()):
        row = [partition.topic, partition.partition, offset]
        writer.writerow(row if group is None else [group, *row])
    return text.getvalue()


def shifted(
    partitions: Collection[TopicPartition], committed: Mapping[TopicPartition, int], by: int
) -> dict[TopicPartition, int]:
    """Return committed offsets shifted by `by`. Raises ToolError if one is missing."""
    missing = sorted(set(partitions) - committed.keys())
    if missing:
        raise ToolError(f"partition {missing[0]} has no committed offset to shift")
    return {partition: committed[partition] + by for partition in partitions}


def within(
    wanted: Mapping[TopicPartition, int], bounds: Mapping[TopicPartition, Bounds]
) -> tuple[dict[TopicPartition, int], list[str]]:
    """Return the wanted offsets, moved into their logs, and one warning per moved offset.

    Raises ToolError for a partition with unknown bounds.
    """
    plan, moved = {}, []
    for partition, offset in sorted(wanted.items()):
        if partition not in bounds:
            raise ToolError(
                f"failed to read the log bounds of partition {partition}: no leader answered", 1
            )
        plan[partition] = bounds[partition].clamp(offset)
        if plan[partition] != offset:
            moved.append(f"offset {offset} of {partition} is moved to {plan[partition]}")
    return plan, moved


def copyable(
    source: Mapping[TopicPartition, int],
    target: Mapping[TopicPartition, int],
    existing: Collection[TopicPartition],
) -> tuple[dict[TopicPartition, int], list[str]]:
    """Return the offsets to copy to another store, and one warning per omitted offset.

    An offset that is higher in the target is never moved back.
    """
    plan, left = {}, []
    for partition, offset in sorted(source.items()):
        there = target.get(partition, -1)
        if partition not in existing:
            left.append(f"{partition} does not exist, its offset {offset} is left out")
        elif there > offset:
            left.append(f"{partition} is at {there} already, its offset {offset} is left out")
        else:
            plan[partition] = offset
    return plan, left
