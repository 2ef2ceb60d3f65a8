"""Batches of transactions as a follower gets them from Kafka: this broker takes none itself."""

from __future__ import annotations

from odradek.log.partition import reading
from odradek.log.partition.log import Log
from odradek.log.records import records
from odradek.log.records.records import BatchOptions
from odradek.log.segment.transaction_index import AbortedTxn
from tests.support.logs import START_MS


def write(log: Log, producer_id: int, value: bytes = b"value", key: bytes | None = None) -> int:
    """Copy a record of the producer's transaction from a leader; return its offset."""
    known = log.producers.get(producer_id)
    options = BatchOptions(
        leader_epoch=max(log.latest_epoch, 0),
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0 if known is None else known.last_sequence + 1,
        transactional=True,
    )
    return _copy(log, [(key, value)], options)


def write_plain(log: Log, key: bytes = b"k", value: bytes = b"plain") -> int:
    """Copy a record outside of transactions; return its offset."""
    return _copy(log, [(key, value)], BatchOptions(leader_epoch=max(log.latest_epoch, 0)))


def end(log: Log, producer_id: int, *, commit: bool) -> int:
    """Copy the marker that ends the producer's transaction; return its offset."""
    options = BatchOptions(
        leader_epoch=max(log.latest_epoch, 0),
        producer_id=producer_id,
        producer_epoch=0,
        transactional=True,
        control=True,
    )
    kind = b"\0\0\0\1" if commit else b"\0\0\0\0"
    return _copy(log, [(kind, b"\0\0\0\0\0\5")], options)


def aborted_in(log: Log) -> list[AbortedTxn]:
    """Return all aborted transactions that the log knows."""
    return reading.aborted_between(log.segments, log.log_start_offset, log.log_end_offset)


def _copy(log: Log, pairs: list[tuple[bytes | None, bytes]], options: BatchOptions) -> int:
    data = records.make(pairs, START_MS, options, log.log_end_offset)
    return log.append_as_follower(data).base_offset
