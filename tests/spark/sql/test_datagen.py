"""`odradek datagen`: what it writes, and how it is asked to (row S2)."""

from __future__ import annotations

from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from odradek_spark import commands
from odradek_spark.broker_access import BrokerAccess
from odradek_spark.datagen import command, producer
from odradek_spark.datagen.quickstarts import QUICKSTARTS
from tests.support import preloaded

FIELDS = {
    "users": ["registertime", "userid", "regionid", "gender"],
    "pageviews": ["viewtime", "userid", "pageid"],
    "orders": ["ordertime", "orderid", "itemid", "orderunits", "address"],
    "ratings": [
        *("rating_id", "user_id", "stars", "route_id", "rating_time", "channel", "message"),
    ],
    "clickstream": [
        *("ip", "userid", "remote_user", "time", "_time", "request", "status", "bytes"),
        *("referrer", "agent"),
    ],
}


@pytest.mark.parametrize("name", QUICKSTARTS)
def test_seed_repeats_records_with_the_fields_of_the_quickstart(name: str) -> None:
    kind = QUICKSTARTS[name]
    found = list(islice(kind.records(7), 200))
    assert found == list(islice(kind.records(7), 200))
    assert found != list(islice(kind.records(8), 200))
    assert all(list(record) == FIELDS[name] for record in found)
    assert kind.key in FIELDS[name]


def test_arguments_of_ksql_datagen_are_options() -> None:
    arguments = ["quickstart=users", "topic=a=b", "maxInterval=5", "--seed", "1", "other=1"]
    assert command._as_options(arguments) == [
        *("--quickstart", "users", "--topic", "a=b", "--max-interval", "5", "--seed", "1"),
        "other=1",
    ]
    # What follows an option is its value.
    assert command._as_options(["--topic", "topic=x"]) == ["--topic", "topic=x"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["quickstart=nothing"],
        ["quickstart=users", "--rate", "0"],
        ["quickstart=users", "--rate", "nan"],
        ["quickstart=users", "--iterations", "0"],
        ["quickstart=users", "--iterations", "9223372036854775808"],
        ["quickstart=users", "maxInterval=2147483648"],
        ["quickstart=users", "--rate", "5/s", "maxInterval=1"],
        ["quickstart=users", "color=red"],
        ["quickstart=users", "topic=" + "x" * 513],
        ["quickstart=users", "topic=" + "\u6f22" * 200],
    ],
)
def test_bad_usage_is_2(arguments: list[str]) -> None:
    ended = preloaded.run("odradek", "datagen", *arguments)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr


class KnowingProducer:
    """A client that knows by now that there is no such topic, and refuses records itself."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.taken = 0

    def list_topics(self, topic: str, timeout: float) -> Any:
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None)})

    def produce(self, topic: str, value: str, key: str, on_delivery: Any) -> None:
        if self.taken == 3:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_TOPIC))
        self.taken += 1
        on_delivery(None, None)

    def poll(self, timeout: float) -> int:
        return 0


def test_a_topic_that_is_deleted_meanwhile_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer, "Producer", KnowingProducer)
    writer = producer.RecordWriter(BrokerAccess("localhost:1"), "t", "userid")
    said = "^topic t does not exist any more: 3 records were written before$"
    with pytest.raises(producer.DatagenError, match=said):
        writer.write(QUICKSTARTS["users"].records(7), None)


class LackingProducer(KnowingProducer):
    """A client of brokers that have no such topic, and create none."""

    def list_topics(self, topic: str, timeout: float) -> Any:
        error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return SimpleNamespace(topics={topic: SimpleNamespace(error=error)})


def test_a_topic_that_nobody_creates_is_said_with_the_command_that_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer, "Producer", LackingProducer)
    monkeypatch.setattr(producer, "_CREATION_PATIENCE_S", -1.0)
    with pytest.raises(producer.DatagenError) as refused:
        producer.RecordWriter(BrokerAccess("localhost:1"), "users", "userid")
    assert str(refused.value) == (
        "topic users does not exist, and the brokers do not create it by themselves; "
        "create it with: odradek topics create users --bootstrap-server localhost:1"
    )


def test_a_text_that_is_not_utf8_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        commands.check_utf8("--topic", "\udcff")
    assert ended.value.code == 2
    assert capsys.readouterr().err == "odradek: --topic '\\udcff' is not UTF-8\n"
