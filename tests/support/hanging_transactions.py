"""Transactions that hang: open in a partition that their coordinator does not know of."""

from __future__ import annotations

from odradek.protocol.messages import groups, produce
from tests.support.asking import Connection
from tests.support.logs import batch
from tests.support.transaction_edges import SETTINGS, Producer

# Leaders take batches for partitions that are not in the transaction.
UNVERIFIED = {**SETTINGS, "transaction.partition.verification.enable": "false"}


def write(producer: Producer, topic: str, partition: int, sequence: int = 0) -> None:
    """Write a record of the producer's transaction. Its timestamp is years ago."""
    records = batch(
        b"v",
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        transactional=True,
    )
    data = produce.PartitionProduceData(index=partition, records=records)
    request = produce.ProduceRequest(
        transactional_id=producer.transactional_id,
        acks=-1,
        timeout_ms=60_000,
        topic_data=[produce.TopicProduceData(name=topic, partition_data=[data])],
    )
    answer = producer.connection.ask(request, 8)
    assert answer.responses[0].partition_responses[0].error_code == 0, answer


def find_coordinator(connection: Connection, transactional_id: str) -> None:
    """Wait until the id has a coordinator."""
    request = groups.FindCoordinatorRequest(key=transactional_id, key_type=1)
    while connection.ask(request, 3).error_code:
        pass


def begun(connection: Connection, transactional_id: str) -> Producer:
    """Return a producer that has its id; the broker coordinates it, and leads its topics."""
    find_coordinator(connection, transactional_id)
    producer = Producer(connection, transactional_id)
    producer.begin()
    return producer


def leave_hanging(
    connection: Connection, transactional_id: str, topic: str, partition: int
) -> Producer:
    """Leave a transaction hanging in a partition of a broker with the settings `UNVERIFIED`."""
    producer = begun(connection, transactional_id)
    write(producer, topic, partition)
    return producer
