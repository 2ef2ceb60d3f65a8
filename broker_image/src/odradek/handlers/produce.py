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


async def produce(broker: Broker, request: ProduceRequest, call: Call) -> ProduceResponse | None:
    """Append and answer per partition; with acks=0 there is no answer, and an error closes the
    connection.
    """
    refusal = _refusal(request)
    entries: list[tuple[TopicPartition, Buffer]] = []
    counted = broker.metrics.bytes_in
    for topic in request.topic_data:
        for part in topic.partition_data:
            records = part.records if part.records is not None else b""
            entries.append((TopicPartition(topic.name, part.index), records))
    if refusal is not ErrorCode.NONE:
        outcomes = [AppendOutcome(key, refusal) for key, _ in entries]
    else:
        outcomes = await broker.replicas.append(
            entries, request.acks, request.timeout_ms, Origin.CLIENT
        )
        for (key, records), outcome in zip(entries, outcomes, strict=True):
            if outcome.error is ErrorCode.NONE:
                counted(key.topic, len(records), outcome.record_count)
    if request.acks == 0:
        failed = [one for one in outcomes if one.error is not ErrorCode.NONE]
        if failed:
            # The only way to tell a producer that expects no answer
            # (KafkaApis.handleProduceRequest).
            raise ProtocolViolation(f"acks=0 to {failed[0].key}: {failed[0].error.name}")
        return None
    return _response(request, outcomes)


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
