"""The records of `__transaction_state`: one for each change of a transactional id.

A key is i16 version 0 and the id. A value of version 0 has the layout of `TransactionValue`. A
record without a value is a tombstone. Version 1 of the value (Kafka 4.0) has fields that must not
be lost, so it is not read: the partition cannot be served then.
"""

from __future__ import annotations

from odradek.transaction.transaction import Transaction


class UnknownTransactionRecordError(ValueError):
    """A record has a version or a state that this broker does not know."""


def encode_key(transactional_id: str) -> bytes:
    """Return the key of an id's records, also of its tombstone."""
    raise NotImplementedError


def encode(transaction: Transaction) -> tuple[bytes, bytes | None]:
    """Return key and value of a transaction's record; in Dead, of its tombstone."""
    raise NotImplementedError


def decode_key(data: bytes) -> str:
    """Return the transactional id. Raise UnknownTransactionRecordError."""
    raise NotImplementedError


def decode(transactional_id: str, data: bytes) -> Transaction:
    """Return the transaction of a value. Raise UnknownTransactionRecordError."""
    raise NotImplementedError
