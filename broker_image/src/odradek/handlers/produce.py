"""Produce: records into logs. Only batch headers are looked at; see `odradek.replica.appends`."""

from __future__ import annotations

from odradek.handlers.context import Broker, Call
from odradek.log.batch import Origin
from odradek.net.frame import ProtocolViolation
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from odradek.protocol.regions import Buffer
from odradek.replica.appends import AppendOutcome
from odradek.replica.partition import TopicPartition

VALID_ACKS = (-1, 0, 1)
FIRST_WITH_MAGIC_2 = 3
FIRST_WITH_ZSTD = 7
FIRST_WITH_INVALID_RECORD = 8
_MAGIC_AT = 16
_CODEC_AT = 22
_CODEC_MASK = 0x07
_ZSTD = 4


async def produce(broker: Broker, request: ProduceRequest, call: Call) -> ProduceResponse | None:
    """Append and answer per partition; with acks=0 there is no answer, and an error closes the
    connection.
    """
    entries: list[tuple[TopicPartition, Buffer]] = []
    for topic in request.topic_data:
        for part in topic.partition_data:
            records = part.records if part.records is not None else b""
            entries.append((TopicPartition(topic.name, part.index), records))
    refusal = _refusal(request)
    if refusal is not ErrorCode.NONE:
        outcomes = [AppendOutcome(key, refusal) for key, _ in entries]
    elif call.version < FIRST_WITH_INVALID_RECORD:
        outcomes = await _append_for_old_client(broker, request, call.version, entries)
    else:
        outcomes = await broker.replicas.append(
            entries, request.acks, request.timeout_ms, Origin.CLIENT
        )
    count = broker.metrics.bytes_in
    for (key, records), outcome in zip(entries, outcomes, strict=True):
        if outcome.error is ErrorCode.NONE:
            count(key.topic, len(records), outcome.record_count)
    if request.acks == 0:
        failed = [one for one in outcomes if one.error is not ErrorCode.NONE]
        if failed:
            # The only way to tell a producer that expects no answer, and Kafka's.
            raise ProtocolViolation(f"acks=0 to {failed[0].key}: {failed[0].error.name}")
        return None
    return _response(request, outcomes)


async def _append_for_old_client(
    broker: Broker,
    request: ProduceRequest,
    version: int,
    entries: list[tuple[TopicPartition, Buffer]],
) -> list[AppendOutcome]:
    """Append what an old request may hold, and speak in the codes that its sender knows."""
    refused: dict[int, AppendOutcome] = {}
    for number, (key, records) in enumerate(entries):
        error = _refusal_of_records(records, version)
        if error is not ErrorCode.NONE:
            refused[number] = AppendOutcome(key, error)
    sound = [entry for number, entry in enumerate(entries) if number not in refused]
    appended = iter(
        await broker.replicas.append(sound, request.acks, request.timeout_ms, Origin.CLIENT)
    )
    outcomes = [refused.get(number) or next(appended) for number in range(len(entries))]
    for outcome in outcomes:
        if outcome.error is ErrorCode.INVALID_RECORD:
            # Code 87 came with Kafka 2.4 and version 8.
            outcome.error = ErrorCode.CORRUPT_MESSAGE
    return outcomes


def _refusal_of_records(records: Buffer, version: int) -> ErrorCode:
    if len(records) <= _CODEC_AT:
        return ErrorCode.CORRUPT_MESSAGE
    if records[_MAGIC_AT] < 2:
        # Final for the client, which would send a corrupt message again and again.
        return (
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
            if version < FIRST_WITH_MAGIC_2
            else ErrorCode.CORRUPT_MESSAGE
        )
    if version < FIRST_WITH_ZSTD and records[_CODEC_AT] & _CODEC_MASK == _ZSTD:
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    return ErrorCode.NONE


def _refusal(request: ProduceRequest) -> ErrorCode:
    if request.acks not in VALID_ACKS:
        return ErrorCode.INVALID_REQUIRED_ACKS
    if request.transactional_id is not None:
        # Transactions are not served: a code that clients take as final.
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return ErrorCode.NONE


def _response(request: ProduceRequest, outcomes: list[AppendOutcome]) -> ProduceResponse:
    remaining = iter(outcomes)
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                partition_responses=[
                    _partition_response(next(remaining)) for _ in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def _partition_response(outcome: AppendOutcome) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=outcome.key.partition,
        error_code=outcome.error,
        base_offset=outcome.base_offset,
        log_append_time_ms=outcome.log_append_time_ms,
        log_start_offset=outcome.log_start_offset,
        error_message=outcome.message,
    )
