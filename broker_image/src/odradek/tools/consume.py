"""`odradek consume`: the records of a topic as lines or JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import click

from odradek import standard_output
from odradek.log.records import batch, contents
from odradek.log.records.batch import NO_EPOCH, CorruptBatchError
from odradek.log.records.records import Record
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import FetchablePartitionResponse
from odradek.terminal_text import plain_json
from odradek.tools import added_partitions
from odradek.tools.client import (
    EARLIEST,
    FETCH_VERSION,
    LATEST,
    ToolClient,
    fetch_request,
    fetched,
)
from odradek.tools.command_line import (
    bootstrap_option,
    check_stdout,
    command_config_option,
    connected,
    run,
    write_stdout,
)
from odradek.tools.errors import ToolError, is_number, refused, shown
from odradek.tools.group_stores import Coordinators
from odradek.tools.reader_epochs import ReaderEpochs, why_gone
from odradek.tools.retries import Retries, by_leader, no_leader
from odradek.values import TopicPartition

_MAX_WAIT_MS: Final = 500
_MAX_BYTES: Final = 8 * 1024 * 1024
_PARTITION_BYTES: Final = 1024 * 1024
_COMMIT_RECORDS: Final = 1000
_MOVED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
_NAMED: Final = {"earliest": EARLIEST, "latest": LATEST}


@click.command("consume")
@click.argument("topic")
@bootstrap_option
@command_config_option
@click.option("--from-beginning", is_flag=True, help="Default: what comes from now on.")
@click.option("--partition", type=click.IntRange(0), help="Only this one.")
@click.option("--offset", metavar="NUMBER|earliest|latest", help="Where to begin in --partition.")
@click.option("--max-messages", type=click.IntRange(1), help="Default: until Ctrl-C.")
@click.option("--group", metavar="GROUP", help="Begin where it has committed, and commit.")
@click.option(
    "--output",
    "-o",
    type=click.Choice(["value", "json"]),
    default="value",
    show_default=True,
    help="Values alone, or a JSON object per record.",
)
def command(
    topic: str,
    bootstrap_server: str,
    command_config: Path | None,
    from_beginning: bool,
    partition: int | None,
    offset: str | None,
    max_messages: int | None,
    group: str | None,
    output: str,
) -> None:
    """Print the records of a topic, one per line, until Ctrl-C or --max-messages.

    With --group it is a consumer of its own, without members: a group that has some is refused.
    """

    async def work() -> None:
        check_stdout()
        if offset is not None and partition is None:
            raise ToolError("--offset goes with --partition")
        if offset is not None and (from_beginning or group is not None):
            raise ToolError("give --offset, or --from-beginning and --group")
        start = _start(offset, from_beginning)
        async with connected(bootstrap_server, command_config) as brokers:
            chosen = _chosen(brokers, topic, partition)
            reader = RecordReader(brokers, chosen, takes_added=partition is None)
            await reader.seek(start, None if group is None else await _committed(brokers, group))
            try:
                await _print(reader, output, max_messages, brokers, group)
            finally:
                if group is not None and reader.printed:
                    await Coordinators(brokers).commit(group, reader.printed)

    try:
        run(work())
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        # Nobody reads any more.
        pass


def _start(offset: str | None, from_beginning: bool) -> int:
    if offset is None:
        return EARLIEST if from_beginning else LATEST
    if offset in _NAMED:
        return _NAMED[offset]
    if not is_number(offset, 2**63 - 1):
        raise ToolError(f"--offset {offset} is neither a number, nor earliest, nor latest")
    return int(offset)


def _chosen(brokers: ToolClient, topic: str, partition: int | None) -> list[TopicPartition]:
    found = sorted(one for one in brokers.leaders if one.topic == topic)
    if not found:
        raise ToolError(f"topic {shown(topic)} does not exist")
    if partition is None:
        return found
    if TopicPartition(topic, partition) not in found:
        raise ToolError(f"topic {topic} has no partition {partition}, but 0 to {len(found) - 1}")
    return [TopicPartition(topic, partition)]


async def _committed(brokers: ToolClient, group: str) -> dict[TopicPartition, int]:
    described = await Coordinators(brokers).describe(group)
    if described.members:
        raise ToolError(
            f"group {group} has members ({len(described.members)}), whose offsets it would change"
        )
    return dict(described.committed)


async def _print(
    reader: RecordReader,
    output: str,
    most: int | None,
    brokers: ToolClient,
    group: str | None,
) -> None:
    shown = 0
    async for found in reader.records():
        standard_output.check_reader(sys.stdout)
        chosen = found if most is None else found[: most - shown]
        write_stdout(b"".join(_line(output, partition, record) for partition, record in chosen))
        reader.printed.update((partition, record.offset + 1) for partition, record in chosen)
        shown += len(chosen)
        if shown == most:
            return
        if chosen and group is not None and shown % _COMMIT_RECORDS < len(found):
            await Coordinators(brokers).commit(group, reader.printed)


def _line(output: str, partition: TopicPartition, record: Record) -> bytes:
    if output == "value":
        return (record.value or b"") + b"\n"
    document = {
        "topic": partition.topic,
        "partition": partition.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _text(record.key),
        "value": _text(record.value),
    }
    if record.headers:
        document["headers"] = [[name, _text(value)] for name, value in record.headers]
    return plain_json(json.dumps(document, ensure_ascii=False)).encode() + b"\n"


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode(errors="backslashreplace")


Found = list[tuple[TopicPartition, Record]]


class OffsetGoneError(ToolError):
    """The log that was read has no such offset any more, or is gone; another try finds no other."""


class RecordReader:
    """Reads partitions; `printed` are the offsets behind the last record that was shown.

    With `takes_added` it also reads those that are added to the topic, from their start.
    """

    def __init__(
        self, brokers: ToolClient, partitions: list[TopicPartition], *, takes_added: bool = False
    ) -> None:
        self._brokers = brokers
        self._partitions = list(partitions)
        self._takes_added = takes_added
        self._refresh_at = time.monotonic() + added_partitions.REFRESH_INTERVAL_S
        self._positions: dict[TopicPartition, int] = {}
        # The partitions that had their position once: nobody made it up.
        self._was_there: set[TopicPartition] = set()
        self._epochs = ReaderEpochs()
        self._retries = Retries(brokers)
        self.printed: dict[TopicPartition, int] = {}

    async def seek(self, start: int, committed: dict[TopicPartition, int] | None) -> None:
        """Begin at an offset, `EARLIEST` or `LATEST`; at committed offsets where there are some.

        Waits for partitions without a leader, as `records` does. Raises ToolError.
        """
        if start >= 0:
            self._positions = dict.fromkeys(self._partitions, start)
            return
        self._positions = await self._retries.every_offset(self._partitions, start)
        for partition in self._partitions:
            if committed and partition in committed:
                self._positions[partition] = committed[partition]
            else:
                self._note_there(partition)

    def _note_there(self, partition: TopicPartition) -> None:
        """Note that a partition has its position, which its leader has just told."""
        self._was_there.add(partition)
        self._epochs.note(partition, self._brokers.offset_epochs.get(partition, NO_EPOCH))

    async def records(self) -> AsyncIterator[Found]:
        """Yield records in their order per partition, or none after a while. Raises ToolError."""
        while True:
            led = by_leader(self._brokers, self._partitions)
            known = [one for one in led if one in self._brokers.nodes]
            answers = await asyncio.gather(
                *(self._fetch(leader, led[leader]) for leader in known),
                return_exceptions=True,
            )
            found: Found = []
            left = [one for leader, some in led.items() if leader not in known for one in some]
            failures: list[ToolError] = [no_leader(left)] if left else []
            for answer in answers:
                if isinstance(answer, ToolError):
                    failures.append(answer)
                elif isinstance(answer, BaseException):
                    raise answer
                else:
                    found += answer[0]
                    failures += answer[1]
            began = time.monotonic()
            yield found
            # How long a reader of stdout takes is no part of a wait.
            self._retries.leave_out(time.monotonic() - began)
            for gone in failures:
                if isinstance(gone, OffsetGoneError):
                    raise gone
            failure = failures[-1] if failures else None
            await self._retries.wait(failure, [self._partitions[0].topic])
            if self._takes_added and failure is None and time.monotonic() >= self._refresh_at:
                await self._take_added()

    async def _take_added(self) -> None:
        starts = await added_partitions.starts(self._brokers, self._partitions)
        for partition, start in starts.items():
            self._partitions.append(partition)
            self._positions[partition] = start
            self._note_there(partition)
        self._refresh_at = time.monotonic() + added_partitions.REFRESH_INTERVAL_S

    async def _fetch(
        self, leader: int, partitions: list[TopicPartition]
    ) -> tuple[Found, list[ToolError]]:
        """Return records, and the errors of partitions, which do not hold back the others."""
        request = fetch_request(
            {one: self._positions[one] for one in partitions},
            _MAX_WAIT_MS,
            _MAX_BYTES,
            _PARTITION_BYTES,
        )
        answer = await self._brokers.call(leader, request, FETCH_VERSION)
        answered = fetched(answer)
        others = await self._epochs.other_logs(
            self._brokers, leader, [(one, data) for one, _, data in answered], self._positions
        )
        found: Found = []
        failures: list[ToolError] = []
        for partition, part, data in answered:
            if partition in others:
                failures.append(self._gone(partition))
                continue
            try:
                for record in self._taken(partition, part, data):
                    found.append((partition, record))
            except ToolError as failure:
                failures.append(failure)
        return found, failures

    def _taken(
        self, partition: TopicPartition, part: FetchablePartitionResponse, data: bytes
    ) -> Iterator[Record]:
        if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise self._out_of_range(partition)
        if part.error_code in _MOVED:
            raise no_leader([partition])
        if part.error_code != ErrorCode.NONE:
            raise refused(str(partition), part.error_code, None)
        try:
            for position, header in batch.scan(data):
                wanted: list[Record] = []
                if not header.is_control:
                    for record in contents.decode(data, position, with_headers=True):
                        if record.offset >= self._positions[partition]:
                            wanted.append(record)
                # All or nothing of a batch: what is yielded is not fetched again.
                self._positions[partition] = max(self._positions[partition], header.last_offset + 1)
                self._was_there.add(partition)
                self._epochs.note(partition, header.leader_epoch)
                yield from wanted
        except CorruptBatchError as error:
            raise ToolError(f"{partition}: {error}", 1) from error

    def _out_of_range(self, partition: TopicPartition) -> ToolError:
        if partition not in self._was_there:
            return ToolError(f"{partition} has no offset {self._positions[partition]}")
        return self._gone(partition)

    def _gone(self, partition: TopicPartition) -> OffsetGoneError:
        return OffsetGoneError(why_gone(partition, self._positions[partition]), 1)
