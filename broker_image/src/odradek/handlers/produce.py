"""Produce: appends records to logs. It reads only batch headers; see `odradek.replica.appends`.

Versions before 3 carry the message formats before 0.11, which are first converted to a batch; see
`odradek.log.partition.conversion`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Generator, Iterable, Mapping, Sequence
from functools import partial

from odradek import slices
from odradek.clock import wall_ms
from odradek.handlers.authorization import allowed
from odradek.handlers.context import Broker, RequestContext
from odradek.log.partition import conversion
from odradek.log.records import batch, compression
from odradek.log.records.batch import CLIENT, TRANSACTIONAL_CLIENT
from odradek.net.frame import ProtocolViolation
from odradek.net.owed_answers import Later
from odradek.protocol.errors import NO_ERROR, ErrorCode, KafkaError
from odradek.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from odradek.protocol.regions import Buffer
from odradek.replica.appends import ACKS_ALL, Appended, AppendOutcome
from odradek.security.acls import AclOperation, ResourceType
from odradek.values import INTERNAL_TOPICS, TopicPartition

VALID_ACKS = (ACKS_ALL, 0, 1)
FIRST_WITH_MAGIC_2 = 3
FIRST_WITH_STORAGE_ERROR = 4
FIRST_WITH_ZSTD = 7
FIRST_WITH_INVALID_RECORD = 8
ADMIN_CLIENT = "__admin_client"
"""The client id of Kafka's tools that write to internal topics, where there is no authorizer."""
MOST_RECORD_ERRORS = 1000
"""Records that an answer names (KIP-467); once it names so many, further partitions have only their
code and message.
"""

PARTITIONS_AT_ONCE = 500
"""Partitions of one request that are appended to before others run."""

_SHORTEST_MESSAGE = 26
_CODEC_AT = 22

# Codes with the version that brought them, and what clients of earlier ones know instead: producers
# do not try again upon a code that they do not know.
_LATER_CODES = (
    (FIRST_WITH_STORAGE_ERROR, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    (FIRST_WITH_INVALID_RECORD, ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE),
)

Entries = dict[TopicPartition, Buffer]
_Answers = dict[str, TopicProduceResponse]

_new = object.__new__
_tuple = tuple.__new__


async def produce(
    broker: Broker, request: ProduceRequest, context: RequestContext
) -> ProduceResponse | Later[ProduceResponse] | None:
    """Append records and return one outcome per partition.

    With acks=0 there is no answer; an error then closes the connection.
    """
    entries: Entries = {}
    count = 0
    unrestricted = context.version >= FIRST_WITH_INVALID_RECORD
    for number, topic in enumerate(request.topic_data, 1):
        name = topic.name
        if name in INTERNAL_TOPICS:
            unrestricted = False
        for part in topic.partition_data:
            # As in Kafka, of a partition that is named twice the last records count.
            entries[_tuple(TopicPartition, (name, part.index))] = part.records or b""
            count += 1
            if count % PARTITIONS_AT_ONCE == 0:
                await slices.pause()
        if number % PARTITIONS_AT_ONCE == 0:
            await slices.pause()
    if len(entries) > PARTITIONS_AT_ONCE:
        return await _produce_in_slices(broker, request, context, entries)
    refusal = _refusal(request)
    if refusal is not NO_ERROR:
        outcomes = [AppendOutcome(key, refusal) for key in entries]
    else:
        if unrestricted:
            appended = await _begin(broker, request, entries.items())
            outcomes = appended.outcomes
        else:
            outcomes, appended = await _append_where_allowed(
                broker, request, context, entries.items()
            )
        if request.acks == ACKS_ALL:
            if context.takes_later and not appended.is_settled:
                sizes = [len(records) for records in entries.values()]
                return Later(
                    partial(_acknowledged, broker, context.version, sizes, outcomes, appended)
                )
            await appended.acknowledged()
    _count(broker, map(len, entries.values()), outcomes)
    if request.acks == 0:
        _raise_if_failed(outcomes)
        return None
    return _response(outcomes, context.version)


async def _produce_in_slices(
    broker: Broker, request: ProduceRequest, context: RequestContext, entries: Entries
) -> ProduceResponse | None:
    """As `produce`, of many partitions. The timeout is for each slice of them."""
    refusal = _refusal(request)
    outcomes: list[AppendOutcome] = []
    for few in slices.cut(entries.items(), PARTITIONS_AT_ONCE):
        if refusal is not NO_ERROR:
            some = [AppendOutcome(key, refusal) for key, _ in few]
        else:
            some, appended = await _append_where_allowed(broker, request, context, few)
            if request.acks == ACKS_ALL:
                await appended.acknowledged()
        _count(broker, (len(records) for _, records in few), some)
        outcomes += some
        await slices.pause()
    slices.discard(entries)
    if request.acks == 0:
        _raise_if_failed(outcomes)
        return None
    return await slices.run(_response_in_slices(outcomes, context.version))


def _count(broker: Broker, sizes: Iterable[int], outcomes: Iterable[AppendOutcome]) -> None:
    """Count the bytes and records that were appended; there is a size for each outcome."""
    count = broker.metrics.bytes_in
    for size, outcome in zip(sizes, outcomes, strict=True):
        if outcome.error is NO_ERROR:
            count(outcome.key.topic, size, outcome.record_count)


def _raise_if_failed(outcomes: Iterable[AppendOutcome]) -> None:
    """Raise ProtocolViolation for the first error, as in Kafka: with acks=0 the producer expects no
    answer, so nothing else can report it.
    """
    for one in outcomes:
        if one.error is not NO_ERROR:
            raise ProtocolViolation(f"acks=0 to {one.key}: {one.error.name}")


async def _acknowledged(
    broker: Broker,
    version: int,
    sizes: Sequence[int],
    outcomes: Sequence[AppendOutcome],
    appended: Appended,
) -> ProduceResponse:
    """Return the answer once other replicas have the records; keeps nothing of the request."""
    await appended.acknowledged()
    _count(broker, sizes, outcomes)
    return _response(outcomes, version)


async def _append_where_allowed(
    broker: Broker,
    request: ProduceRequest,
    context: RequestContext,
    entries: Collection[tuple[TopicPartition, Buffer]],
) -> tuple[list[AppendOutcome], Appended]:
    """Append, but refuse records of clients for internal topics.

    Return one outcome per entry, which hold once what was appended is acknowledged.
    """
    refused: dict[int, AppendOutcome] = {}
    for number, (key, _) in enumerate(entries):
        if key.topic in INTERNAL_TOPICS and not _may_write_to_internal(broker, context, key):
            refused[number] = AppendOutcome(key, ErrorCode.INVALID_TOPIC_EXCEPTION)
    if refused:
        entries = [entry for number, entry in enumerate(entries) if number not in refused]
    if context.version < FIRST_WITH_INVALID_RECORD:
        outcomes, appended = await _append_for_old_client(broker, request, context.version, entries)
    else:
        appended = await _begin(broker, request, entries)
        outcomes = appended.outcomes
    return (_in_order(refused, outcomes) if refused else outcomes), appended


def _may_write_to_internal(broker: Broker, context: RequestContext, key: TopicPartition) -> bool:
    """Return whether the append may proceed, if only to fail with an unknown partition."""
    # A client id is what the client says it is.
    if (
        context.client_id == ADMIN_CLIENT
        if broker.authorizer is None
        else allowed(broker, context, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER)
    ):
        return True
    _, error = broker.replicas.leader_or_error(key)
    return error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _in_order(
    refused: Mapping[int, AppendOutcome], appended: Sequence[AppendOutcome]
) -> list[AppendOutcome]:
    """Return all outcomes in the order of the entries; `refused` are by entry number."""
    remaining = iter(appended)
    count = len(refused) + len(appended)
    return [refused.get(number) or next(remaining) for number in range(count)]


async def _append_for_old_client(
    broker: Broker,
    request: ProduceRequest,
    version: int,
    entries: Iterable[tuple[TopicPartition, Buffer]],
) -> tuple[list[AppendOutcome], Appended]:
    """Append the records of an old request."""
    refused: dict[int, AppendOutcome] = {}
    sound: list[tuple[TopicPartition, Buffer]] = []
    for number, (key, records) in enumerate(entries):
        try:
            sound.append((key, await _as_batch(broker, key, records, version)))
        except KafkaError as refusal:
            refused[number] = AppendOutcome(key, refusal.code)
    appended = await _begin(broker, request, sound)
    return _in_order(refused, appended.outcomes), appended


async def _as_batch(broker: Broker, key: TopicPartition, records: Buffer, version: int) -> Buffer:
    """Return the records of an old request as the batch to append. Raises KafkaError."""
    if len(records) < _SHORTEST_MESSAGE:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{len(records)} bytes are no message")
    if records[batch.MAGIC_POSITION] >= 2:
        if version < FIRST_WITH_ZSTD and records[_CODEC_AT] & batch.CODEC_MASK == compression.ZSTD:
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd before version 7")
        return records
    if version >= FIRST_WITH_MAGIC_2:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "an old message format since version 3")
    partition, error = broker.replicas.leader_or_error(key)
    if partition is None:
        raise KafkaError(error)
    broker.metrics.produce_converted(key.topic)
    # It takes microseconds per record, and a small wrapper may contain very many.
    return await broker.replicas.in_thread(
        conversion.to_batch, records, partition.log.config, wall_ms()
    )


def _refusal(request: ProduceRequest) -> ErrorCode:
    if request.acks not in VALID_ACKS:
        return ErrorCode.INVALID_REQUIRED_ACKS
    return NO_ERROR


def _begin(
    broker: Broker, request: ProduceRequest, entries: Iterable[tuple[TopicPartition, Buffer]]
) -> Awaitable[Appended]:
    """Begin to append. Until the coordinator has said that a transaction is ongoing, the next
    requests on the connection wait: they stay in order.
    """
    acks, timeout_ms, transactional_id = request.acks, request.timeout_ms, request.transactional_id
    if transactional_id is None:
        return broker.replicas.begin_append(entries, acks, timeout_ms, CLIENT)
    verify = partial(broker.verifier.verify, transactional_id)
    return broker.replicas.begin_verified_append(
        entries, acks, timeout_ms, TRANSACTIONAL_CLIENT, verify
    )


def _with_known_codes(outcomes: Sequence[AppendOutcome], version: int) -> Sequence[AppendOutcome]:
    """Return the outcomes with error codes that a client of this version knows."""
    for first, code, former in _LATER_CODES:
        if version < first:
            for one in outcomes:
                if one.error is code:
                    one.error = former
    return outcomes


def _response(outcomes: Sequence[AppendOutcome], version: int) -> ProduceResponse:
    topics: _Answers = {}
    _add_answers(topics, _with_known_codes(outcomes, version), 0)
    return ProduceResponse(responses=list(topics.values()))


def _response_in_slices(
    outcomes: list[AppendOutcome], version: int
) -> Generator[None, None, ProduceResponse]:
    topics: _Answers = {}
    record_errors = 0
    for few in slices.cut(outcomes, PARTITIONS_AT_ONCE):
        record_errors = _add_answers(topics, _with_known_codes(few, version), record_errors)
        yield
    slices.discard(outcomes)
    return ProduceResponse(responses=list(topics.values()))


def _add_answers(topics: _Answers, outcomes: Iterable[AppendOutcome], record_errors: int) -> int:
    """Add the answers of partitions; return how many records the answer names then.

    They are made as a decoder makes them: a constructor with keywords takes five times as long.
    """
    for outcome in outcomes:
        name, index = outcome.key
        answer = _new(PartitionProduceResponse)
        answer.index = index
        answer.error_code = outcome.error
        answer.base_offset = outcome.base_offset
        answer.log_append_time_ms = outcome.log_append_time_ms
        answer.log_start_offset = outcome.log_start_offset
        answer.error_message = outcome.message
        answer.record_errors = []
        if outcome.record_errors and record_errors < MOST_RECORD_ERRORS:
            answer.record_errors = [
                BatchIndexAndErrorMessage(
                    batch_index=one.batch_index, batch_index_error_message=one.message
                )
                for one in outcome.record_errors
            ]
            record_errors += len(outcome.record_errors)
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = _new(TopicProduceResponse)
            topic.name = name
            topic.partition_responses = []
        topic.partition_responses.append(answer)
    return record_errors
