"""`odradek produce`: the lines of stdin as records of a topic, acknowledged by all replicas."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import click

from odradek.clock import wall_ms
from odradek.log.records import records
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from odradek.terminal_text import plain
from odradek.tools import key_partitions
from odradek.tools.client import TIMEOUT_MS, ToolClient
from odradek.tools.command_line import (
    bootstrap_option,
    command_config_option,
    connected,
    run,
)
from odradek.tools.errors import NothingDoneError, ToolError, error_text, refused, shown
from odradek.tools.retries import Retries, no_leader
from odradek.values import TopicPartition

KeyAndValue = tuple[bytes | None, bytes]

_VERSION: Final = 3
_ALL_REPLICAS: Final = -1
# Below message.max.bytes, whose default is 1 MiB. A line that is larger is a batch of its own.
_BATCH_BYTES: Final = 256 * 1024
_STDIN: Final = 0
_READ_BYTES: Final = 1024 * 1024
# Kafka's default of socket.request.max.bytes: no broker takes a larger request.
_LONGEST_LINE: Final = 100 * 1024 * 1024
# The leader has moved, does not know yet, or does not take records now: it has appended nothing.
_NOT_APPENDED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    }
)


@click.command("produce")
@click.argument("topic")
@bootstrap_option
@command_config_option
@click.option(
    "--key-separator",
    metavar="TEXT",
    help="Each line is KEY, this text, VALUE.  [default: lines are values without keys]",
)
@click.option(
    "--partition", type=click.IntRange(0), help="Default: that of the key; else by turns."
)
def command(
    topic: str,
    bootstrap_server: str,
    command_config: Path | None,
    key_separator: str | None,
    partition: int | None,
) -> None:
    """Write the lines of stdin to a topic, a record per line, and wait for all replicas.

    It ends with status 1 at the first record that is not acknowledged, and says how many are.
    """

    async def work() -> None:
        if key_separator == "":
            raise ToolError("--key-separator is empty")
        async with connected(bootstrap_server, command_config) as brokers:
            writer = LineWriter(brokers, topic, partition)
            number = 0
            try:
                async for lines in _stdin():
                    await writer.write(
                        _split(line, key_separator, number + place)
                        for place, line in enumerate(lines, 1)
                    )
                    number += len(lines)
            finally:
                click.echo(
                    f"{writer.acknowledged} records written to topic {plain(topic)}", err=True
                )

    run(work())


async def _stdin() -> AsyncIterator[list[bytes]]:
    """Yield the lines that are there, as they come, without their ends. Raises ToolError."""
    waiting: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    taken = threading.Semaphore()
    loop = asyncio.get_running_loop()

    def read() -> None:
        data: bytes | OSError = b"-"
        with suppress(RuntimeError):  # the loop is closed
            while isinstance(data, bytes) and data:
                taken.acquire()
                try:
                    data = os.read(_STDIN, _READ_BYTES)
                except OSError as error:
                    data = error
                loop.call_soon_threadsafe(waiting.put_nowait, data)

    if sys.stdin is None:
        # Another file has its number by now.
        raise ToolError("stdin is closed")
    # Not the loop's own threads, for which Ctrl-C would wait until another line comes.
    threading.Thread(target=read, name="stdin", daemon=True).start()
    rest = bytearray()
    while data := await waiting.get():
        taken.release()
        if isinstance(data, OSError):
            raise ToolError(f"cannot read stdin: {data.strerror}")
        end, newline, begun = data.rpartition(b"\n")
        if newline:
            rest += end
            yield [line.removesuffix(b"\r") for line in bytes(rest).split(b"\n")]
            rest.clear()
        rest += begun
        if len(rest) > _LONGEST_LINE:
            raise ToolError(f"a line is larger than {_LONGEST_LINE} bytes", 1)
    if rest:
        yield [bytes(rest)]


def _split(line: bytes, separator: str | None, number: int) -> KeyAndValue:
    if separator is None:
        return None, line
    key, found, value = line.partition(separator.encode())
    if not found:
        raise ToolError(f"line {number} has no key separator {separator!r}", 1)
    return key, value


class LineWriter:
    """Writes to one topic; `acknowledged` counts what all in-sync replicas have."""

    def __init__(self, brokers: ToolClient, topic: str, partition: int | None) -> None:
        """Raise ToolError for a topic or partition that does not exist."""
        self._brokers = brokers
        self._topic = topic
        self._partition = partition
        self._count = sum(one.topic == topic for one in brokers.leaders)
        self._turn = 0
        self._retries = Retries(brokers)
        self.acknowledged = 0
        if not self._count:
            raise ToolError(f"topic {shown(topic)} does not exist")
        if partition is not None and partition >= self._count:
            raise ToolError(
                f"topic {topic} has no partition {partition}, but 0 to {self._count - 1}"
            )

    async def write(self, lines: Iterable[KeyAndValue]) -> None:
        """Write lines in their order per partition. Raises ToolError."""
        waiting: dict[int, list[KeyAndValue]] = {}
        size = 0
        for key, value in lines:
            waiting.setdefault(self._partition_of(key), []).append((key, value))
            size += len(key or b"") + len(value)
            if size >= _BATCH_BYTES:
                await self._flush(waiting)
                waiting, size = {}, 0
        await self._flush(waiting)

    def _partition_of(self, key: bytes | None) -> int:
        if self._partition is not None:
            return self._partition
        return self._turn if key is None else key_partitions.partition_of(key, self._count)

    async def _flush(self, waiting: dict[int, list[KeyAndValue]]) -> None:
        # Lines without keys go to another partition with each batch, not with each line.
        self._turn = (self._turn + 1) % self._count
        while waiting:
            outcomes = await asyncio.gather(
                *(self._send(number, lines) for number, lines in waiting.items()),
                return_exceptions=True,
            )
            left: dict[int, list[KeyAndValue]] = {}
            failure: NothingDoneError | None = None
            for number, outcome in zip(waiting, outcomes, strict=True):
                if isinstance(outcome, BaseException):
                    raise outcome
                if outcome is not None:
                    left[number], failure = outcome
            await self._retries.wait(failure, [self._topic])
            waiting = left

    async def _send(
        self, number: int, lines: list[KeyAndValue]
    ) -> tuple[list[KeyAndValue], NothingDoneError] | None:
        """Write lines; return those that may be sent again, and why, None if all are acknowledged.

        Raises ToolError.
        """
        partition = TopicPartition(self._topic, number)
        try:
            code = await self._appended(partition, lines)
        except NothingDoneError as failure:
            return lines, failure
        if code == ErrorCode.NONE:
            self.acknowledged += len(lines)
            return None
        if code == ErrorCode.MESSAGE_TOO_LARGE and len(lines) > 1:
            # The topic may take the records that it does not take together.
            middle = len(lines) // 2
            left = await self._send(number, lines[:middle])
            if left is not None:
                return left[0] + lines[middle:], left[1]
            return await self._send(number, lines[middle:])
        # The command was right; what it was given to write is refused.
        raise ToolError(str(refused(str(partition), code, None)), 1)

    async def _appended(self, partition: TopicPartition, lines: list[KeyAndValue]) -> int:
        """Return the error code of a batch, when its leader has answered.

        Raises NothingDoneError if it is not appended, and ToolError.
        """
        index = partition.partition
        data = PartitionProduceData(index=index, records=records.make(lines, wall_ms()))
        request = ProduceRequest(
            acks=_ALL_REPLICAS,
            timeout_ms=TIMEOUT_MS,
            topic_data=[TopicProduceData(name=self._topic, partition_data=[data])],
        )
        leader = self._brokers.leaders.get(partition, -1)
        if leader not in self._brokers.nodes:
            raise no_leader([partition])
        response = await self._brokers.call(leader, request, _VERSION)
        answer = response.responses[0].partition_responses[0]
        if answer.error_code in _NOT_APPENDED:
            raise NothingDoneError(f"{partition}: {error_text(answer.error_code, None)}")
        return answer.error_code
