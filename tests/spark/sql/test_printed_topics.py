"""What PRINT tells of a topic that goes, or changes behind it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from odradek_spark.sql import topics
from odradek_spark.sql.errors import SqlError


class Consumer:
    """Returns a record, then nothing, then an error, and then it is asked no more."""

    def __init__(self, code: int) -> None:
        record = SimpleNamespace(error=lambda: None)
        failure = SimpleNamespace(error=lambda: KafkaError(code), partition=lambda: 3)
        self.left: list[Any] = [record, None, failure]

    def poll(self, timeout: float) -> Any:
        return self.left.pop(0)


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
    records = topics._poll(Consumer(code), "t")  # type: ignore[arg-type]
    next(records)
    with pytest.raises(SqlError, match=said):
        next(records)


def test_a_right_that_is_taken_away_ends_it() -> None:
    records = topics._poll(Consumer(KafkaError.TOPIC_AUTHORIZATION_FAILED), "t")  # type: ignore[arg-type]
    next(records)
    with pytest.raises(KafkaException):
        next(records)
