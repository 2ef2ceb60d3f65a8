"""Fetched records in a format that an old client knows; converted in threads, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence

from odradek import slices
from odradek.handlers.context import Broker
from odradek.log.partition import conversion
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.regions import FileRegion, Records, part_length
from odradek.replica import reads
from odradek.replica.fetch_specs import FetchResult, FetchSpec

# How many bytes larger than the region that was read a result may be: old formats take more per
# record. What does not fit is for the next fetch.
MOST_GROWTH_BYTES = 64 * 1024


async def to_old_format(
    broker: Broker,
    specs: Sequence[FetchSpec],
    results: Sequence[FetchResult],
    replica_id: int,
    magic: int,
    most_bytes: int,
) -> list[Records]:
    """Return the records of each result in a format that `magic` knows.

    That is the region itself where it needs no conversion. The answer has at most about
    `most_bytes`. A result that cannot be converted becomes an error without records.
    """
    rooms: dict[int, int] = {}
    found: list[Records] = []
    left = most_bytes
    least = 0
    for number, (spec, result) in enumerate(zip(specs, results, strict=True)):
        region = result.region
        if region is not None and await _needs_conversion(
            broker, result, region, replica_id, magic
        ):
            rooms[number] = _most_bytes(spec, region)
            least += region.length
        elif result.region is not None:
            left -= result.region.length
        found.append(b"" if result.region is None else result.region)
        if len(found) % slices.KEYS_AT_ONCE == 0:
            await slices.pause()
    if not rooms:
        return found
    memory = broker.conversions if replica_id < 0 else broker.follower_conversions
    async with memory.reserved(min(sum(rooms.values()), max(least, left))):
        if replica_id < 0:
            await broker.answers.wait_for_room()
        for number, room in rooms.items():
            spec, result = specs[number], results[number]
            found[number] = await _converted(
                broker, spec, result, replica_id, magic, max(0, min(room, left))
            )
            left -= part_length(found[number])
    return found


def _most_bytes(spec: FetchSpec, region: FileRegion) -> int:
    return max(region.length, min(spec.max_bytes, region.length + MOST_GROWTH_BYTES))


async def _needs_conversion(
    broker: Broker, result: FetchResult, region: FileRegion, replica_id: int, magic: int
) -> bool:
    """Return whether a result must be converted; refuse one that must not be."""
    partition = broker.replicas.partitions.get(result.key)
    try:
        if partition is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if not await broker.replicas.in_thread(conversion.needs_conversion, region, magic):
            return False
        if replica_id < 0 and not partition.log.config.message_downconversion_enable:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "message.downconversion.enable=false")
    except KafkaError as refusal:
        refuse(result, refusal.code)
        return False
    return True


async def _converted(
    broker: Broker,
    spec: FetchSpec,
    result: FetchResult,
    replica_id: int,
    magic: int,
    room: int,
) -> Records:
    region, partition = result.region, broker.replicas.partitions.get(result.key)
    assert region is not None, "what needs conversion has records"
    try:
        if partition is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        converted = await broker.replicas.in_thread(
            conversion.read_as_message_set,
            partition.log.reader,
            region,
            spec.offset,
            None if replica_id >= 0 else result.high_watermark,
            magic,
            room,
        )
    except KafkaError as refusal:
        refuse(result, refusal.code)
        return b""
    reads.release([result])
    broker.metrics.fetch_converted(result.key.topic)
    return converted


def refuse(result: FetchResult, error: ErrorCode) -> None:
    """Make a result an error without records."""
    reads.release([result])
    result.error = error
