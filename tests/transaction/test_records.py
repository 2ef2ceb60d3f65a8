"""Records of `__transaction_state` have Kafka's bytes; unknown ones are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from odradek.protocol.primitives import MalformedError
from odradek.transaction import records
from odradek.transaction.records import UnknownTransactionRecordError
from odradek.transaction.states import TransactionState
from odradek.transaction.transaction import ProducerIdAndEpoch, Transaction
from odradek.values import TopicPartition

# Written by tests/support/TransactionVectors.java with Kafka 2.8.2 on its class path; its input
# are the first eight columns.
LINES = Path(__file__).with_name("kafka_records.txt").read_text().splitlines()


def read(line: str) -> tuple[Transaction, bytes, bytes]:
    """Return what Kafka was told to write, and the key and the value that it wrote."""
    name, producer_id, epoch, timeout_ms, state, partitions, start_ms, updated_ms, *written = (
        line.split(" ")
    )
    pairs = [each.split(":") for each in partitions.split(",") if partitions != "none"]
    transaction = Transaction(
        name,
        int(producer_id),
        int(epoch),
        int(timeout_ms),
        TransactionState(int(state)),
        frozenset(TopicPartition(topic, int(number)) for topic, number in pairs),
        int(start_ms),
        int(updated_ms),
    )
    key, value = map(bytes.fromhex, written)
    return transaction, key, value


ONGOING = next(
    transaction
    for transaction, _, _ in map(read, LINES)
    if transaction.state is TransactionState.ONGOING
)


def test_vectors_have_every_state_that_is_written() -> None:
    states = {read(line)[0].state for line in LINES}
    assert states == set(TransactionState) - {
        TransactionState.DEAD,
        TransactionState.PREPARE_EPOCH_FENCE,
    }


@pytest.mark.parametrize("line", LINES)
def test_record_of_kafka_is_read(line: str) -> None:
    transaction, key, value = read(line)
    assert records.decode_key(key) == transaction.transactional_id
    assert records.decode(transaction.transactional_id, value) == transaction


@pytest.mark.parametrize("line", LINES)
def test_record_has_the_bytes_of_kafka(line: str) -> None:
    transaction, key, value = read(line)
    written = records.encode(transaction)
    if len({topic for topic, _ in transaction.partitions}) < 2:
        assert written == (key, value)
    else:
        # Kafka writes topics in the order of a hash table; here they are sorted.
        assert (written[0], sorted(written[1] or b"")) == (key, sorted(value))
        assert records.decode(transaction.transactional_id, written[1] or b"") == transaction


def test_dead_id_is_written_as_tombstone() -> None:
    dead = replace(ONGOING, state=TransactionState.DEAD, partitions=frozenset())
    assert records.encode(dead) == (records.encode_key(ONGOING.transactional_id), None)


def test_fence_is_never_written() -> None:
    with pytest.raises(AssertionError):
        records.encode(replace(ONGOING, state=TransactionState.PREPARE_EPOCH_FENCE))


def test_last_producer_is_not_written() -> None:
    named = replace(ONGOING, last=ProducerIdAndEpoch(5, 6))
    assert records.encode(named) == records.encode(ONGOING)


@pytest.mark.parametrize("version", [-1, 1, 2])
def test_unknown_version_of_a_value_is_refused(version: int) -> None:
    _, value = records.encode(ONGOING)
    assert value is not None
    with pytest.raises(UnknownTransactionRecordError, match=f"value of version {version}"):
        records.decode("id", version.to_bytes(2, signed=True) + value[2:])


def test_unknown_version_of_a_key_is_refused() -> None:
    with pytest.raises(UnknownTransactionRecordError, match="key of version 1"):
        records.decode_key(b"\x00\x01\x00\x01a")


def test_bytes_without_a_version_are_refused() -> None:
    with pytest.raises(UnknownTransactionRecordError, match="shorter"):
        records.decode_key(b"\x00")
    with pytest.raises(UnknownTransactionRecordError, match="shorter"):
        records.decode("id", b"")


@pytest.mark.parametrize("state", [6, 7, 8, -1])
def test_state_that_is_never_written_is_refused(state: int) -> None:
    value = _with_state(ONGOING, state)
    with pytest.raises(UnknownTransactionRecordError, match=f"state {state}"):
        records.decode("id", value)


def test_null_partitions_are_refused_outside_of_empty() -> None:
    empty = replace(ONGOING, state=TransactionState.EMPTY, partitions=frozenset())
    with pytest.raises(UnknownTransactionRecordError, match="PrepareAbort without partitions"):
        records.decode("id", _with_state(empty, 3))


def test_partitions_in_empty_are_left_out_as_kafka_does() -> None:
    assert records.decode("id", _with_state(ONGOING, 0)).partitions == frozenset()


def test_torn_value_is_refused() -> None:
    _, value = records.encode(ONGOING)
    assert value is not None
    for length in range(2, len(value)):
        with pytest.raises(MalformedError):
            records.decode("id", value[:length])


def _with_state(transaction: Transaction, state: int) -> bytes:
    """Return the value with the number of another state, 16 bytes from its start."""
    _, value = records.encode(transaction)
    assert value is not None
    return value[:16] + state.to_bytes(1, signed=True) + value[17:]
