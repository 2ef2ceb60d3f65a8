"""What PRINT tells of a topic that goes or changes behind it; it follows one that grows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

from odradek_spark.sql import topics
from odradek_spark.sql.errors import SqlError


def nothing() -> None:
    """In place of a look at stdout."""


class Consumer:
    """Returns a record, then nothing, then an error, and then it is asked no more.

    The topic has got more partitions by the time it is asked for them. Leaders of those in `unled`
    do not know their role yet when they are asked first.
    """

    def __init__(self, code: int) -> None:
        record = SimpleNamespace(error=lambda: None)
        failure = SimpleNamespace(error=lambda: KafkaError(code), partition=lambda: 3)
        self.left: list[Any] = [record, None, failure]
        self.counts: list[int | None] = []
        self.unled: list[int] = []
        self.added: list[tuple[str, int, int]] = []

    def poll(self, timeout: float) -> Any:
        return self.left.pop(0)

    def list_topics(self, topic: str, timeout: float) -> Any:
        count = self.counts.pop(0)
        if count is None:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        found = SimpleNamespace(error=None, partitions=dict.fromkeys(range(count)))
        return SimpleNamespace(topics={topic: found})

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        if place.partition in self.unled:
            self.unled.remove(place.partition)
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        return 0, 0

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self.added += [(one.topic, one.partition, one.offset) for one in partitions]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, "^topic t was deleted$"),
        (KafkaError._UNKNOWN_TOPIC, "^topic t was deleted$"),
        (KafkaError._UNKNOWN_PARTITION, "^topic t was deleted$"),
        (KafkaError._AUTO_OFFSET_RESET, "^partition 3 of topic t .* the topic was made anew$"),
    ],
)
def test_a_topic_that_is_gone_or_another_ends_it_in_one_line(code: int, said: str) -> None:
    records = topics._poll(Consumer(code), "t", 4, nothing)  # type: ignore[arg-type]
    next(records)
    with pytest.raises(SqlError, match=said):
        next(records)


def test_a_right_that_is_taken_away_ends_it() -> None:
    consumer = Consumer(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    records = topics._poll(consumer, "t", 4, nothing)  # type: ignore[arg-type]
    next(records)
    with pytest.raises(KafkaException):
        next(records)


def test_partitions_that_are_added_are_read_from_their_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topics, "_REFRESH_INTERVAL_S", 0.0)
    consumer = Consumer(KafkaError.UNKNOWN_TOPIC_OR_PART)
    # It is asked before each poll; once nobody answers.
    consumer.counts = [2, None, 4]
    records = topics._poll(consumer, "t", 2, nothing)  # type: ignore[arg-type]
    next(records)
    assert consumer.added == []
    with pytest.raises(SqlError):
        next(records)
    assert consumer.added == [("t", 2, OFFSET_BEGINNING), ("t", 3, OFFSET_BEGINNING)]
    assert consumer.counts == []


def test_an_added_partition_waits_until_its_leader_knows_its_role(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its leader would say that there is no such partition, and PRINT that the topic is deleted."""
    monkeypatch.setattr(topics, "_REFRESH_INTERVAL_S", 0.0)
    consumer = Consumer(KafkaError.UNKNOWN_TOPIC_OR_PART)
    consumer.counts = [4, 4, 4]
    consumer.unled = [3]
    records = topics._poll(consumer, "t", 2, nothing)  # type: ignore[arg-type]
    next(records)
    assert consumer.added == [("t", 2, OFFSET_BEGINNING)]
    with pytest.raises(SqlError):
        next(records)
    assert consumer.added == [("t", 2, OFFSET_BEGINNING), ("t", 3, OFFSET_BEGINNING)]
