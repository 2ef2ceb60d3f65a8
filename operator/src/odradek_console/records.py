"""Reading of records for people: bounded in records, bytes and time, and honest about what is left.

A read ends at the ends that the logs had when it began. Batches are unpacked in threads, one after
the other, so that a large one keeps nobody else waiting.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from odradek.log.records import batch, contents
from odradek.log.records.batch import NO_EPOCH, CorruptBatchError
from odradek.log.records.records import Record
from odradek.protocol.errors import ErrorCode, name_of
from odradek.tools.client import FETCH_VERSION, Fetched, ToolClient, fetch_request, fetched
from odradek.tools.errors import ToolError
from odradek.tools.reader_epochs import ReaderEpochs, why_gone
from odradek.values import TopicPartition

MOST_RECORDS: Final = 100_000
"""How many records one page looks at."""
MOST_BYTES: Final = 64 * 1024 * 1024
MOST_SECONDS: Final = 10.0
_PARTITION_BYTES: Final = 256 * 1024
_ROUND_BYTES: Final = 4 * 1024 * 1024
PARTITIONS_AT_ONCE: Final = 256
"""How many partitions a leader is asked for in one round."""
# Several readers must not unpack at the same time: what is unpacked may be large.
_unpacking = asyncio.Semaphore(2)

Found = tuple[TopicPartition, Record]
Wanted = Callable[[Record], bool]


@dataclass(slots=True)
class Positions:
    """The next offset of each partition, and why some could not be read."""

    next: dict[TopicPartition, int]
    failures: dict[TopicPartition, str] = field(default_factory=dict)
    gone: set[TopicPartition] = field(default_factory=set)
    """Those of the failures whose log does not have the next offset any more."""
    epochs: ReaderEpochs = field(default_factory=ReaderEpochs)

    def lose(self, partition: TopicPartition) -> None:
        """Note that the log that was read does not have the next offset any more, or is gone."""
        self.gone.add(partition)
        self.failures[partition] = why_gone(partition, self.next[partition])


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What one round of fetches brought: records, and how many and how large all of them were."""

    found: Sequence[Found]
    records: int
    bytes: int


async def fetch_round(
    client: ToolClient,
    positions: Positions,
    partitions: Iterable[TopicPartition],
    wanted: Wanted,
    most: int,
    wait_ms: int,
    until: Mapping[TopicPartition, int] | None = None,
) -> RoundResult:
    """Fetch once from every leader; keep at most `most` records of each partition.

    Moves the positions on, and notes failures in them. `until` are offsets at which to stop. Of
    one leader, those that come first are asked for, up to `PARTITIONS_AT_ONCE`.
    """
    by_leader: dict[int, list[TopicPartition]] = {}
    for partition in partitions:
        leader = client.leaders.get(partition, -1)
        if leader in client.nodes:
            by_leader.setdefault(leader, []).append(partition)
        else:
            is_known = partition in client.leaders
            why = "has no leader" if is_known else "does not exist"
            positions.failures[partition] = f"{partition} {why}"

    async def ask(leader: int, parts: list[TopicPartition]) -> list[Fetched]:
        # The first of them may fill the answer: next time others are first.
        request = fetch_request(
            {one: positions.next[one] for one in parts[:PARTITIONS_AT_ONCE]},
            wait_ms,
            _ROUND_BYTES,
            _PARTITION_BYTES,
        )
        try:
            answer = await client.call(leader, request, FETCH_VERSION)
            answered = fetched(answer)
            others = await positions.epochs.other_logs(
                client, leader, [(one, data) for one, _, data in answered], positions.next
            )
        except ToolError as error:
            for partition in parts:
                positions.failures[partition] = str(error)
            return []
        for partition in others:
            positions.lose(partition)
        return [one for one in answered if one[0] not in others]

    found: list[Found] = []
    records = size = 0
    for answers in await asyncio.gather(*(ask(*each) for each in by_leader.items())):
        for partition, part, data in answers:
            if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                positions.lose(partition)
                continue
            if part.error_code != ErrorCode.NONE:
                positions.failures[partition] = f"{partition}: {name_of(part.error_code)}"
                continue
            size += len(data)
            last = None if until is None else until[partition]
            try:
                async with _unpacking:
                    kept, count, following, epoch = await asyncio.to_thread(
                        _unpacked, data, positions.next[partition], last, wanted, most
                    )
            except CorruptBatchError as error:
                positions.failures[partition] = f"{partition}: {error}"
                continue
            positions.failures.pop(partition, None)
            positions.next[partition] = following
            if epoch != NO_EPOCH:
                positions.epochs.note(partition, epoch)
            found += [(partition, record) for record in kept]
            records += count
    return RoundResult(found, records, size)


def _unpacked(
    data: bytes, position: int, last: int | None, wanted: Wanted, most: int
) -> tuple[list[Record], int, int, int]:
    """Return wanted records from an offset on, how many were looked at, the next offset, and the
    leader epoch of the last batch that was looked at.
    """
    kept: list[Record] = []
    count = 0
    epoch = NO_EPOCH
    for place, header in batch.scan(data):
        if last is not None and position >= last:
            break
        epoch = header.leader_epoch
        if not header.is_control:
            for record in contents.decode(data, place, with_headers=True):
                if record.offset < position or (last is not None and record.offset >= last):
                    continue
                if len(kept) == most:
                    return kept, count, record.offset, epoch
                count += 1
                if wanted(record):
                    kept.append(record)
        position = max(position, header.last_offset + 1)
    return kept, count, position, epoch


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Records, and what was looked at. `stopped` says why not all was read, empty if all was."""

    found: Sequence[Found]
    records: int
    bytes: int
    stopped: str
    failures: Mapping[TopicPartition, str]
    next: Mapping[TopicPartition, int]


async def read(
    client: ToolClient,
    start: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    wanted: Wanted,
    limit: int,
) -> ReadResult:
    """Read from `start` until `ends`, at most `limit` wanted records of each partition."""
    until = time.monotonic() + MOST_SECONDS
    positions = Positions(dict(start))
    found: list[Found] = []
    counts: dict[TopicPartition, int] = {}
    records = size = empty = 0
    stopped = ""
    while True:
        left = [
            one
            for one, position in positions.next.items()
            if position < ends[one] and counts.get(one, 0) < limit and one not in positions.failures
        ]
        if not left:
            break
        if records >= MOST_RECORDS:
            stopped = f"after {MOST_RECORDS} records"
        elif size >= MOST_BYTES:
            stopped = f"after {MOST_BYTES >> 20} MiB"
        elif time.monotonic() > until:
            stopped = f"after {MOST_SECONDS:.0f} s"
        elif empty == 3:
            stopped = "because the brokers sent nothing more"
        if stopped:
            break
        # Who has had its turn goes behind.
        left.sort(key=lambda one: (counts.get(one, 0), positions.next[one] - start[one]))
        got = await fetch_round(client, positions, left, wanted, limit, 200, ends)
        for partition, record in got.found:
            if counts.get(partition, 0) < limit:
                counts[partition] = counts.get(partition, 0) + 1
                found.append((partition, record))
                if counts[partition] == limit:
                    positions.next[partition] = record.offset + 1
        records += got.records
        size += got.bytes
        empty = 0 if got.bytes else empty + 1
    return ReadResult(found, records, size, stopped, positions.failures, positions.next)
