"""The records of `__transaction_state`: one for each change of a transactional id.

A key is i16 version 0 and the id. A value is i16 version 0 and `TransactionValue`. A record
without a value is a tombstone. Version 1 of values (Kafka 4.0) has fields that must not be lost,
so it is not read: the partition cannot be served then.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from odradek.protocol import codec, schema
from odradek.protocol.primitives import Kind
from odradek.protocol.schema import array, int8, int16, int32, int64, message, string
from odradek.transaction.states import TransactionState
from odradek.transaction.transaction import NO_PARTITIONS, Transaction, by_topic
from odradek.values import TopicPartition

_VERSION = struct.Struct(">h")

_IN_MEMORY_ONLY = frozenset({TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE})
_STORED = {int(state): state for state in TransactionState if state not in _IN_MEMORY_ONLY}


class UnknownTransactionRecordError(ValueError):
    """A record has a version, a state or a layout that this broker does not know."""


@message(versions=(0, 0))
class TransactionKey:
    """Key of a transactional id."""

    transactional_id: str = string()


@schema.struct
class TransactionPartitions:
    """The partitions of one topic in a transaction."""

    topic: str = string()
    partitions: list[int] = array(Kind.INT32)


@message(versions=(0, 0))
class TransactionValue:
    """A transactional id's state; times in ms. `partitions` is null in Empty, and only there."""

    producer_id: int = int64()
    epoch: int = int16()
    timeout_ms: int = int32()
    state: int = int8()
    partitions: list[TransactionPartitions] | None = array(TransactionPartitions, nullable_since=0)
    updated_ms: int = int64()
    start_ms: int = int64()


def encode_key(transactional_id: str) -> bytes:
    """Return the key of an id's records, also of its tombstone."""
    key = TransactionKey(transactional_id=transactional_id)
    return _VERSION.pack(0) + codec.encode(key, 0)


def encode(transaction: Transaction) -> tuple[bytes, bytes | None]:
    """Return key and value of a transaction's record; in Dead, of its tombstone."""
    key = encode_key(transaction.transactional_id)
    if transaction.state is TransactionState.DEAD:
        return key, None
    assert transaction.state in _STORED
    is_empty = transaction.state is TransactionState.EMPTY
    value = TransactionValue(
        producer_id=transaction.producer_id,
        epoch=transaction.epoch,
        timeout_ms=transaction.timeout_ms,
        state=transaction.state,
        partitions=None if is_empty else _by_topic(transaction.partitions),
        updated_ms=transaction.updated_ms,
        start_ms=transaction.start_ms,
    )
    return key, _VERSION.pack(0) + codec.encode(value, 0)


def decode_key(data: bytes) -> str:
    """Return the transactional id. Raise UnknownTransactionRecordError, or MalformedError."""
    _check_version(data, "key")
    return codec.decode(TransactionKey, 0, data, _VERSION.size)[0].transactional_id


def decode(transactional_id: str, data: bytes) -> Transaction:
    """Return the transaction of a value. Raise UnknownTransactionRecordError, or MalformedError."""
    _check_version(data, "value")
    value, _ = codec.decode(TransactionValue, 0, data, _VERSION.size)
    state = _STORED.get(value.state)
    if state is None:
        raise UnknownTransactionRecordError(f"transaction in state {value.state}")
    partitions = NO_PARTITIONS
    if state is not TransactionState.EMPTY:
        if value.partitions is None:
            raise UnknownTransactionRecordError(f"transaction in {state} without partitions")
        partitions = frozenset(
            TopicPartition(each.topic, partition)
            for each in value.partitions
            for partition in each.partitions
        )
    return Transaction(
        transactional_id,
        value.producer_id,
        value.epoch,
        value.timeout_ms,
        state,
        partitions,
        value.start_ms,
        value.updated_ms,
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> list[TransactionPartitions]:
    return [
        TransactionPartitions(topic=topic, partitions=indexes)
        for topic, indexes in by_topic(partitions).items()
    ]


def _check_version(data: bytes, part: str) -> None:
    if len(data) < _VERSION.size:
        raise UnknownTransactionRecordError(f"a {part} shorter than its version")
    (version,) = _VERSION.unpack_from(data)
    if version != 0:
        raise UnknownTransactionRecordError(f"__transaction_state {part} of version {version}")
