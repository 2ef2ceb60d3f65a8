from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    KafkaError,
    KafkaException,
)
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import ListOffsetsResultInfo
from confluent_kafka.admin._listoffsets import OffsetSpec

from odradek import http_server
from odradek.values import TopicPartition
from odradek_spark import endpoint, lag
from odradek_spark.broker_access import BrokerAccess
from odradek_spark.broker_client import DriverClient

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
NOW_MS = 1_000_000


Offsets = dict[TopicPartition, int]


def measure(
    committed: Offsets, ends: dict[TopicPartition, int | None], **more: Any
) -> lag.Measurement:
    """Measure logs that begin at 0, if not told otherwise, where the start is asked for."""
    former = more.get("former", ())
    starts = dict.fromkeys(lag.without_start(committed, ends, former), 0)
    starts |= {one: start for one, start in more.get("starts", {}).items() if one in starts}
    return lag.measure(committed, ends, starts, more.get("oldest_ms", {}), 1, NOW_MS, former)


def test_lag_is_what_lies_between_commit_and_end() -> None:
    measured = measure({T0: 5, T1: 7}, {T0: 8, T1: 7}, oldest_ms={T0: NOW_MS - 2500})
    assert [(part.lag, part.seconds) for part in measured.partitions] == [(3, 2.5), (0, 0.0)]
    assert (measured.total, measured.max_seconds) == (3, 2.5)


def test_commit_of_a_former_topic_leaves_the_whole_topic_to_be_read() -> None:
    ends: dict[TopicPartition, int | None] = {T0: 50, T1: 50}
    assert measure({T0: 50, T1: 5}, ends, starts={T1: 9}, former={T0, T1}).total == 50 + 41
    assert lag.unread({T0: 50, T1: 5}, {T0: 0, T1: 9}, ends, {T0, T1}) == {T0: 0, T1: 9}
    # Its leader does not say where the log begins.
    assert measure({T0: 90, T1: 50}, ends, starts={T0: None}).total is None


def test_total_without_every_commit_is_not_known() -> None:
    measured = measure({T0: 1, U0: 2}, {T0: 1, T1: 9, U0: 5}, oldest_ms={U0: 1})
    assert [part.lag for part in measured.partitions] == [0, None, 3]
    assert (measured.total, measured.max_seconds) == (None, None)
    assert measured.by_topic() == {"u": 3}


@pytest.mark.parametrize(("start", "end"), [(None, 0), (9, 9), (12, 9)])
def test_empty_partition_needs_no_commit_to_have_no_lag(start: int | None, end: int) -> None:
    measured = measure({T0: 1}, {T0: 1, T1: end}, starts={T1: start})
    assert (measured.partitions[1].lag, measured.partitions[1].seconds) == (0, 0.0)
    assert (measured.total, measured.max_seconds) == (0, 0.0)


def test_starts_are_asked_for_where_they_decide() -> None:
    assert lag.without_start({T0: 5, U0: 3}, {T0: 8, T1: 7, U0: 3}) == [T0, T1]
    assert lag.without_start({}, {T0: None, T1: 0}) == []
    assert lag.without_start({T0: 9, T1: 7}, {T0: 8, T1: 7}) == [T0]
    assert lag.without_start({T0: 8, T1: 7}, {T0: 8, T1: 7}, {T1}) == [T1]


def test_partition_without_a_leader_makes_the_total_unknown() -> None:
    measured = measure({T0: 5, T1: 1}, {T0: 5, T1: None})
    assert [part.lag for part in measured.partitions] == [0, None]
    assert (measured.total, measured.max_seconds, measured.by_topic()) == (None, None, {})
    assert lag.unread({T1: 1}, {}, {T1: None}) == {}


def test_record_that_could_not_be_read_leaves_the_age_open_and_not_zero() -> None:
    measured = measure({T0: 1, T1: 1}, {T0: 2, T1: 2}, oldest_ms={T1: NOW_MS})
    assert [part.seconds for part in measured.partitions] == [None, 0.0]
    assert (measured.total, measured.max_seconds) == (2, None)


def test_clock_behind_the_producers_gives_no_age_below_zero() -> None:
    assert measure({T0: 1}, {T0: 2}, oldest_ms={T0: NOW_MS + 9}).max_seconds == 0


def test_oldest_record_is_the_first_unread_one_that_is_there() -> None:
    starts: dict[TopicPartition, int | None] = {T0: 0, U0: 0}
    assert lag.unread({T0: 5, T1: 7}, starts, {T0: 8, T1: 7, U0: 3}) == {T0: 5}
    assert lag.unread({T0: 5}, {T0: 6}, {T0: 8}) == {T0: 6}


@pytest.fixture
def served() -> Iterator[tuple[list[endpoint.Status], str]]:
    """Yield a list of statuses, of which the last one is served, and the server's address."""
    statuses = [endpoint.Status()]

    def healthy() -> bool:
        return statuses[-1].state != endpoint.FAILED

    server = endpoint.MetricsEndpoint("g", 0, lambda: statuses[-1], healthy, lambda: NOW_MS)
    server.start()
    yield statuses, f"http://127.0.0.1:{server.port}"
    server.stop()


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


def test_client_that_does_not_wait_for_its_answer_leaves_no_trace(
    capfd: pytest.CaptureFixture[str],
) -> None:
    asked, gone = threading.Event(), threading.Event()
    answering: list[threading.Thread] = []

    def status() -> endpoint.Status:
        answering.append(threading.current_thread())
        asked.set()
        assert gone.wait(60)
        return endpoint.Status()

    server = endpoint.MetricsEndpoint("g", 0, status, lambda: True)
    server.start()
    try:
        with socket.create_connection(("127.0.0.1", server.port), 60) as client:
            client.sendall(b"GET /status HTTP/1.0\r\n\r\n")
            assert asked.wait(60)
            # Close with a reset, as a prober does that has no more time.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    finally:
        gone.set()
        server.stop()
    answering[0].join(60)
    assert not answering[0].is_alive()
    assert capfd.readouterr() == ("", "")


def test_peers_that_ask_for_nothing_take_no_threads_and_hold_up_no_probe(
    served: tuple[list[endpoint.Status], str],
) -> None:
    _, url = served
    port = urllib.parse.urlsplit(url).port
    threads = threading.active_count()
    with contextlib.ExitStack() as peers:
        for _ in range(200):
            peers.enter_context(socket.create_connection(("127.0.0.1", port), 60))
        assert get(f"{url}/healthz") == "ok\n"
        assert json.loads(get(f"{url}/status"))["state"] == endpoint.STARTING
        assert threading.active_count() <= threads + http_server.POOL_THREADS


def test_lag_has_the_names_that_dashboards_know(
    served: tuple[list[endpoint.Status], str],
) -> None:
    statuses, url = served
    measured = measure({T0: 5}, {T0: 8, T1: 4}, oldest_ms={T0: NOW_MS - 1000})
    statuses.append(endpoint.Status(endpoint.RUNNING, 7, 1.5, 3, measured))
    text = get(f"{url}/metrics")
    for line in (
        'kafka_consumergroup_lag{consumergroup="g",partition="0",topic="t"} 3.0',
        'kafka_consumergroup_current_offset{consumergroup="g",partition="0",topic="t"} 5.0',
        'kafka_topic_partition_current_offset{partition="0",topic="t"} 8.0',
        'kafka_topic_partition_current_offset{partition="1",topic="t"} 4.0',
        'kafka_consumergroup_lag_seconds{consumergroup="g",partition="0",topic="t"} 1.0',
        'odradek_consumergroup_no_commit{consumergroup="g",partition="0",topic="t"} 0.0',
        'odradek_consumergroup_no_commit{consumergroup="g",partition="1",topic="t"} 1.0',
        'kafka_consumergroup_members{consumergroup="g"} 1.0',
        'odradek_job_last_batch_id{consumergroup="g"} 7.0',
        'odradek_job_batch_duration_seconds{consumergroup="g"} 1.5',
    ):
        assert line in text.splitlines()
    assert 'kafka_consumergroup_lag{consumergroup="g",partition="1"' not in text
    assert "kafka_consumergroup_lag_sum{" not in text

    measured = measure({T0: 5}, {T0: 8, T1: 0})
    statuses.append(endpoint.Status(measured=measured))
    text = get(f"{url}/metrics")
    assert 'kafka_consumergroup_lag{consumergroup="g",partition="1",topic="t"} 0.0' in text
    assert 'kafka_consumergroup_lag_sum{consumergroup="g",topic="t"} 3.0' in text


def test_partition_without_a_leader_has_neither_end_nor_lag(
    served: tuple[list[endpoint.Status], str],
) -> None:
    statuses, url = served
    measured = measure({T0: 5}, {T0: None})
    statuses.append(endpoint.Status(endpoint.RUNNING, measured=measured))
    text = get(f"{url}/metrics")
    assert 'kafka_consumergroup_current_offset{consumergroup="g",partition="0",topic="t"} 5' in text
    assert "kafka_topic_partition_current_offset{" not in text
    assert "kafka_consumergroup_lag{" not in text
    told = json.loads(get(f"{url}/status"))
    assert (told["totalLag"], told["maxLagSeconds"]) == (None, None)


@pytest.mark.parametrize(("age_ms", "known"), [(15_000, True), (15_001, False)])
def test_reading_older_than_three_intervals_is_no_longer_told(
    served: tuple[list[endpoint.Status], str], age_ms: int, known: bool
) -> None:
    statuses, url = served
    measured = lag.measure({T0: 5}, {T0: 5}, {}, {}, 2, NOW_MS - age_ms)
    statuses.append(endpoint.Status(endpoint.RUNNING, 7, 1.5, 3, measured))
    told = json.loads(get(f"{url}/status"))
    assert (told["totalLag"], told["maxLagSeconds"]) == ((0, 0) if known else (None, None))
    assert (told["lastBatchId"], told["members"]) == (7, 2)


def test_series_of_a_partition_that_is_gone_goes(
    served: tuple[list[endpoint.Status], str],
) -> None:
    statuses, url = served
    statuses.append(endpoint.Status(measured=measure({U0: 1}, {U0: 1})))
    assert 'topic="u"' in get(f"{url}/metrics")
    statuses.append(endpoint.Status(measured=measure({}, {})))
    assert 'topic="u"' not in get(f"{url}/metrics")


def test_operator_is_told_the_state_in_one_document(
    served: tuple[list[endpoint.Status], str],
) -> None:
    statuses, url = served
    assert json.loads(get(f"{url}/status"))["state"] == "Starting"
    assert json.loads(get(f"{url}/status"))["totalLag"] is None
    measured = measure({T0: 5, T1: 8}, {T0: 8, T1: 8}, oldest_ms={T0: NOW_MS - 61_400})
    statuses.append(
        endpoint.Status(
            endpoint.RUNNING,
            7,
            1.5,
            3,
            measured,
            9.6,
            4,
            8,
            1_700_000_000_400,
            12,
            keeps_state=True,
        )
    )
    assert json.loads(get(f"{url}/status")) == {
        "state": "Running",
        "waitsFor": None,
        "checkpointEpoch": 8,
        "keepsState": True,
        "lastBatchId": 7,
        "lastCommitTime": "2023-11-14T22:13:20Z",
        "tableRows": 12,
        "totalLag": 3,
        "maxLagSeconds": 61,
        "executors": 3,
        "executorsWanted": 4,
        "batchRunningSeconds": 10,
        "members": 1,
        "worstPartitions": [{"topic": "t", "partition": 0, "lag": 3, "lagSeconds": 61.4}],
    }


def test_driver_that_waits_says_for_what(served: tuple[list[endpoint.Status], str]) -> None:
    statuses, url = served
    statuses.append(endpoint.Status(waits_for="topic t does not exist"))
    told = json.loads(get(f"{url}/status"))
    assert (told["state"], told["waitsFor"]) == ("Starting", "topic t does not exist")


def test_failed_query_is_not_healthy(served: tuple[list[endpoint.Status], str]) -> None:
    statuses, url = served
    assert get(f"{url}/healthz") == "ok\n"
    statuses.append(endpoint.Status(endpoint.FAILED))
    with pytest.raises(urllib.error.HTTPError) as answer:
        get(f"{url}/healthz")
    assert answer.value.code == 503
    answer.value.close()


class PartlyLed:
    """An admin client of a cluster in which only some partitions have a leader."""

    def __init__(self, offsets: dict[int, int]) -> None:
        self._offsets = offsets

    def list_offsets(
        self, asked: dict[ClientPartition, OffsetSpec], **_: object
    ) -> dict[ClientPartition, Future[ListOffsetsResultInfo]]:
        futures = {}
        for one in asked:
            futures[one] = future = Future[ListOffsetsResultInfo]()
            if one.partition in self._offsets:
                future.set_result(ListOffsetsResultInfo(self._offsets[one.partition], -1, 0))
            else:
                code = KafkaError.LEADER_NOT_AVAILABLE
                future.set_exception(KafkaException(KafkaError(code)))
        return futures


def test_partition_without_a_leader_is_read_as_one_without_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brokers = DriverClient(BrokerAccess("127.0.0.1:1"), "test")
    monkeypatch.setattr(brokers, "_admin", PartlyLed({0: 8}))
    assert brokers.end_offsets([T0, T1]) == {T0: 8, T1: None}
    assert brokers.start_offsets([T0]) == {T0: 8}
    brokers.close()


class Listed:
    """An admin client of a cluster with these topics of one partition."""

    def __init__(self, *names: str) -> None:
        one = SimpleNamespace(error=None, partitions=[0])
        self._topics = dict.fromkeys(names, one)

    def list_topics(self, **_: object) -> SimpleNamespace:
        return SimpleNamespace(topics=self._topics)


def test_pattern_leaves_internal_topics_out(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = DriverClient(BrokerAccess("127.0.0.1:1"), "test")
    monkeypatch.setattr(brokers, "_admin", Listed("__consumer_offsets", "t", "u"))
    assert brokers.partitions((), ".*") == [T0, U0]
    assert brokers.partitions((), "t|x") == brokers.partitions(("t", "x"), None) == [T0]
    brokers.close()


class Record(NamedTuple):
    """A record of topic `t` as the client returns it."""

    number: int
    kind: int
    stamp: int

    def error(self) -> None:
        return None

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return self.number

    def timestamp(self) -> tuple[int, int]:
        return self.kind, self.stamp


class Records:
    """A consumer that returns these records once."""

    def __init__(self, *records: Record) -> None:
        self._records = list(records)

    def consume(self, *_: object, **__: object) -> list[Record]:
        found, self._records = self._records, []
        return found

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_: None


def test_record_without_a_time_stamp_tells_no_age(monkeypatch: pytest.MonkeyPatch) -> None:
    records = Records(
        Record(0, TIMESTAMP_CREATE_TIME, NOW_MS),
        Record(1, TIMESTAMP_CREATE_TIME, -1),
        Record(2, TIMESTAMP_NOT_AVAILABLE, 0),
    )
    brokers = DriverClient(BrokerAccess("127.0.0.1:1"), "test")
    consumer = brokers._consumer
    monkeypatch.setattr(brokers, "_consumer", records)
    positions = {TopicPartition("t", number): 5 for number in range(3)}
    assert brokers.timestamps(positions) == {T0: NOW_MS}
    # They are not read again.
    monkeypatch.setattr(brokers, "_consumer", None)
    assert brokers.timestamps(positions) == {T0: NOW_MS}
    consumer.close()


def test_no_partition_is_no_question() -> None:
    brokers = DriverClient(BrokerAccess("127.0.0.1:1"), "test")
    assert brokers.end_offsets([]) == {}
    brokers.close()
