"""Client quotas: set, shown, and kept to by real clients."""

import asyncio
import socket
import struct
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from odradek.protocol import api, codec, headers
from odradek.protocol.api import ApiKey
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.api_versions import ApiVersionsRequest
from odradek.protocol.messages.client_quotas import (
    MATCH_ANY,
    MATCH_DEFAULT,
    MATCH_EXACT,
    DescribeClientQuotasRequest,
    QuotaFilterComponent,
)
from odradek.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.protocol.messages.metadata import MetadataRequest
from odradek.protocol.messages.sasl import SaslHandshakeRequest
from odradek.protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from odradek.protocol.messages.transactions import AddPartitionsToTxnRequest
from odradek.quotas.client_quotas import ClientQuotas
from odradek.quotas.store import QuotaStore
from odradek.zk.session import Session
from tests.support.broker import STEADY, Broker, Cluster, wait_until
from tests.support.clients import create_topic
from tests.support.ports import free_port
from tests.support.quotas import Parts, alter, ask, data, produce

METRICS_PORT = free_port()
TOPIC = "limited"
RATE = 10_000
BATCH = 2000
# A rate is taken over a second and the one in progress; a bucket holds a second's worth.
SETTINGS = {
    **STEADY,
    "odradek.metrics.port": str(METRICS_PORT),
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "quota.window.num": "2",
    "controller.quota.window.num": "1",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), settings=SETTINGS) as running:
        create_topic(running.bootstrap, TOPIC)
        yield running


@pytest.fixture
def broker(cluster: Cluster) -> Iterator[Broker]:
    """The broker, which has no quotas before and after a test."""
    one = cluster.brokers[1]
    yield one
    for entry in describe(one):
        assert alter(one, entry[0], dict.fromkeys(entry[1])).entries[0].error_code == 0
    wait_until(lambda: throttle_of(one, "anybody") == 0, "no quota is left")


def describe(
    broker: Broker, *components: tuple[str, int, str | None], strict: bool = False
) -> list[tuple[Parts, dict[str, float]]]:
    answer = ask(broker, described_by(*components, strict=strict), 1)
    assert (answer.error_code, answer.error_message) == (0, None)
    found = [
        (
            [(part.entity_type, part.entity_name) for part in entry.entity],
            {value.key: value.value for value in entry.values},
        )
        for entry in answer.entries or []
    ]
    return sorted(found, key=str)


def described_by(
    *components: tuple[str, int, str | None], strict: bool = False
) -> DescribeClientQuotasRequest:
    filters = [
        QuotaFilterComponent(entity_type=kind, match_type=how, match=name)
        for kind, how, name in components
    ]
    return DescribeClientQuotasRequest(components=filters, strict=strict)


def throttle_of(broker: Broker, client_id: str) -> int:
    return ask(broker, MetadataRequest(topics=[]), 5, client_id).throttle_time_ms


def limit(broker: Broker, entity: Parts, **changes: float | None) -> None:
    [answer] = alter(broker, entity, changes).entries
    assert (answer.error_code, answer.error_message) == (0, None)


def shown(name: str, quota: str = "") -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{METRICS_PORT}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    start = f'{name}{{quota="{quota}"}} ' if quota else f"{name} "
    [line] = [one for one in lines if one.startswith(start)]
    return float(line.rpartition(" ")[2])


def throttled(quota: str) -> float:
    return shown("odradek_throttled_requests_total", quota)


# --- keys 48 and 49 -----------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_are_set_found_by_filters_and_removed(broker: Broker, version: int) -> None:
    both: Parts = [("user", "CN=a/b"), ("client-id", "c")]
    default: Parts = [("user", None)]
    client: Parts = [("client-id", "c")]
    for entity, key in (
        (both, "consumer_byte_rate"),
        (default, "request_percentage"),
        (client, "producer_byte_rate"),
    ):
        answer = alter(broker, entity, {key: 1e9}, version=version)
        assert [(one.error_code, one.entity) for one in answer.entries] == [(0, data(entity))]
    shown_both = (both, {"consumer_byte_rate": 1e9})
    shown_default = (default, {"request_percentage": 1e9})
    shown_client = (client, {"producer_byte_rate": 1e9})
    assert describe(broker) == [shown_client, shown_both, shown_default]
    assert describe(broker, strict=True) == []
    assert describe(broker, ("user", MATCH_ANY, None)) == [shown_both, shown_default]
    assert describe(broker, ("user", MATCH_DEFAULT, None)) == [shown_default]
    assert describe(broker, ("user", MATCH_EXACT, "CN=a/b")) == [shown_both]
    assert describe(broker, ("user", MATCH_EXACT, "CN=a/b"), strict=True) == []
    assert describe(broker, ("client-id", MATCH_EXACT, "c")) == [shown_client, shown_both]
    assert describe(broker, ("client-id", MATCH_EXACT, "c"), strict=True) == [shown_client]
    assert describe(broker, ("user", MATCH_ANY, None), ("client-id", MATCH_ANY, None)) == [
        shown_both
    ]
    assert alter(broker, client, {"producer_byte_rate": None}).entries[0].error_code == 0
    assert describe(broker) == [shown_both, shown_default]


def test_a_change_that_is_only_checked_changes_nothing(broker: Broker) -> None:
    answer = alter(broker, [("user", "u")], {"producer_byte_rate": 1}, validate_only=True)
    assert answer.entries[0].error_code == 0
    assert describe(broker) == []


def test_a_name_that_no_answer_can_hold_is_left_out(broker: Broker, cluster: Cluster) -> None:
    limit(broker, [("client-id", "c")], producer_byte_rate=1e9)
    path = f"/config/clients/{'n' * 32768}"
    with cluster.zookeeper.client() as client:
        client.create(path, b'{"version":1,"config":{"producer_byte_rate":"7"}}')
        try:
            assert describe(broker) == [([("client-id", "c")], {"producer_byte_rate": 1e9})]
        finally:
            client.delete(path)


@pytest.mark.parametrize(
    ("entity", "changes", "reason"),
    [
        ([], {"producer_byte_rate": 1.0}, "Invalid empty client quota entity"),
        ([("host", "127.0.0.1")], {"connection_creation_rate": 1.0}, "entity type: host"),
        ([("ip", "localhost")], {"connection_creation_rate": 1.0}, "localhost is not a valid IP"),
        ([("ip", "127.0.0.1")], {"producer_byte_rate": 1.0}, "Invalid configuration key"),
        ([("ip", "127.0.0.1")], {"connection_creation_rate": 0.5}, "must be a LONG value"),
        ([("ip", "127.0.0.1")], {"connection_creation_rate": 0.0}, "must be greater than 0"),
        (
            [("ip", "127.0.0.1"), ("user", "u")],
            {"connection_creation_rate": 1.0},
            "ip is with nothing else",
        ),
        ([("", "x")], {"producer_byte_rate": 1.0}, "entity type: "),
        ([("user", "")], {"producer_byte_rate": 1.0}, "Empty user not supported"),
        ([("client-id", "..")], {"producer_byte_rate": 1.0}, "no name of a znode"),
        ([("user", "u")], {"rate": 1.0}, "Invalid configuration key rate"),
        ([("user", "u")], {"SCRAM-SHA-256": None}, "Invalid configuration key SCRAM-SHA-256"),
        ([("user", "u")], {"producer_byte_rate": 1.5}, "must be a LONG value"),
        ([("user", "u")], {"consumer_byte_rate": 2.0**63}, "must be a LONG value"),
        ([("user", "u")], {"producer_byte_rate": 1e-9}, "must be a LONG value"),
        ([("user", "u")], {"request_percentage": 0.0}, "must be greater than 0"),
        ([("user", "u")], {"request_percentage": -1.0}, "must be greater than 0"),
        ([("user", "u")], {"request_percentage": float("nan")}, "must be greater than 0"),
        ([("user", "u")], {"request_percentage": float("inf")}, "must be greater than 0"),
    ],
)
def test_a_bad_change_is_refused(
    broker: Broker, entity: Parts, changes: dict[str, float | None], reason: str
) -> None:
    for validate_only in (True, False):
        [answer] = alter(broker, entity, changes, validate_only=validate_only).entries
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert reason in str(answer.error_message)
    assert describe(broker) == []


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("", MATCH_ANY, None)], ErrorCode.INVALID_REQUEST),
        ([("user", MATCH_ANY, None)] * 2, ErrorCode.INVALID_REQUEST),
        ([("user", 7, None)], ErrorCode.INVALID_REQUEST),
        ([("user", MATCH_EXACT, None)], ErrorCode.INVALID_REQUEST),
        ([("host", MATCH_ANY, None)], ErrorCode.UNSUPPORTED_VERSION),
        ([("ip", MATCH_ANY, None), ("user", MATCH_ANY, None)], ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_bad_filter_is_refused(
    broker: Broker, components: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    answer = ask(broker, described_by(*components), 1)
    assert (answer.error_code, answer.entries) == (code, None)
    assert answer.error_message


async def test_a_change_while_all_quotas_are_read_is_not_lost(
    broker: Broker, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    client: Parts = [("client-id", "c")]
    await asyncio.to_thread(limit, broker, client, producer_byte_rate=1000)
    session = Session(cluster.zookeeper.connect, 30_000)
    await session.start()
    quotas = ClientQuotas()
    reading = QuotaStore(session, quotas, lambda _: None)
    read = session.get_all
    changing: list[asyncio.Task[None]] = []

    async def read_before_the_change(paths: Iterable[str]) -> Any:
        found = await read(paths)
        if not changing:
            await asyncio.to_thread(limit, broker, client, producer_byte_rate=2000)
            changing.append(asyncio.create_task(reading.changed("clients", "c")))
            for _ in range(3):
                await session.exists("/")  # what the change reads comes before
        return found

    monkeypatch.setattr(session, "get_all", read_before_the_change)
    try:
        await reading.load()
        await changing[0]
    finally:
        await session.close()
    sensor = quotas.sensors("u", "c").produce
    assert sensor is not None
    assert sensor.limit == 2000


# --- real clients -------------------------------------------------------------------------------


def test_a_producer_keeps_to_its_rate(broker: Broker) -> None:
    limit(broker, [("client-id", "slow")], producer_byte_rate=RATE)
    count, before = 20, throttled("producer_byte_rate")
    told: list[Any] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "client.id": "slow",
            "batch.num.messages": 1,
            "throttle_cb": told.append,
        }
    )
    wait_until(lambda: produced_throttle(broker, "slow") > 0, "the quota is in force")
    began = time.monotonic()
    for _ in range(count):
        producer.produce(TOPIC, b"v" * BATCH)
    assert producer.flush(120) == 0
    seconds = time.monotonic() - began
    # A slower machine only makes it slower. One more batch is in before the first throttle.
    assert count * BATCH < RATE * (seconds + 2) + BATCH
    assert throttled("producer_byte_rate") > before + 1
    assert shown("odradek_throttle_seconds_total", "producer_byte_rate") > 0
    assert max(event.throttle_time for event in told) > 0


def produced_throttle(broker: Broker, client_id: str, size: int = RATE + BATCH) -> int:
    return ask(broker, produce(TOPIC, size), 8, client_id).throttle_time_ms


def fetched_throttle(broker: Broker, topic: str, client_id: str) -> int:
    part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10 * RATE)
    topics = [FetchTopic(topic=topic, partitions=[part])]
    request = FetchRequest(replica_id=-1, max_wait_ms=0, min_bytes=1, topics=topics)
    return ask(broker, request, 11, client_id).throttle_time_ms


def test_a_consumer_keeps_to_its_rate_and_misses_nothing(broker: Broker, cluster: Cluster) -> None:
    create_topic(cluster.bootstrap, "read")
    producer = Producer({"bootstrap.servers": broker.address, "batch.num.messages": 1})
    values = [bytes([number]) * BATCH for number in range(20)]
    for value in values:
        producer.produce("read", value)
    assert producer.flush(120) == 0
    limit(broker, [("user", None), ("client-id", "slow")], consumer_byte_rate=RATE)
    wait_until(lambda: fetched_throttle(broker, "read", "slow") > 0, "the quota is in force")
    before = throttled("consumer_byte_rate")
    consumer = Consumer({"bootstrap.servers": broker.address, "client.id": "slow", "group.id": "g"})
    consumer.assign([TopicPartition("read", 0, 0)])
    began = time.monotonic()
    found: list[bytes | None] = []
    while len(found) < len(values):
        assert time.monotonic() < began + 120
        message = consumer.poll(1)
        if message is not None:
            assert message.error() is None
            found.append(message.value())
    seconds = time.monotonic() - began
    consumer.close()
    assert found == values
    assert len(values) * BATCH < RATE * (seconds + 2) + BATCH
    assert throttled("consumer_byte_rate") > before


# --- single requests ----------------------------------------------------------------------------


def test_a_change_counts_while_the_broker_runs_and_so_does_its_removal(broker: Broker) -> None:
    client: Parts = [("client-id", "c")]
    assert produced_throttle(broker, "c") == 0
    limit(broker, client, producer_byte_rate=1000)
    wait_until(lambda: produced_throttle(broker, "c") > 5000, "the quota is in force")
    assert produced_throttle(broker, "other") == 0
    limit(broker, [("user", "ANONYMOUS")], producer_byte_rate=1_000_000_000)
    wait_until(lambda: produced_throttle(broker, "c") == 0, "the user's goes before the client's")
    limit(broker, [("user", "ANONYMOUS")], producer_byte_rate=None)
    wait_until(lambda: produced_throttle(broker, "c") > 5000, "the client's counts again")
    limit(broker, client, producer_byte_rate=None)
    wait_until(lambda: produced_throttle(broker, "c") == 0, "the quota is gone")


def test_an_address_keeps_to_its_connection_rate_and_others_are_served(broker: Broker) -> None:
    default: Parts = [("ip", None)]
    own: Parts = [("ip", "127.0.0.3")]
    other: Parts = [("ip", "::1")]
    limit(broker, default, connection_creation_rate=1)
    limit(broker, own, connection_creation_rate=1000)
    limit(broker, other, connection_creation_rate=7)
    assert describe(broker, ("ip", MATCH_EXACT, "127.0.0.3")) == [
        (own, {"connection_creation_rate": 1000.0})
    ]
    assert len(describe(broker, ("ip", MATCH_ANY, None))) == 3
    assert len(describe(broker, ("ip", MATCH_DEFAULT, None))) == 1

    def is_served(host: str) -> bool:
        with (
            suppress(ConnectionError),
            socket.create_connection(
                ("127.0.0.1", broker.port), 60, source_address=(host, 0)
            ) as sock,
        ):
            request = struct.pack(">ihhih", 10, ApiKey.API_VERSIONS, 0, 7, -1)
            sock.sendall(request)
            return sock.recv(4) != b""
        return False

    refused = 'odradek_connections_refused_total{reason="address-rate"}'
    wait_until(lambda: not is_served("127.0.0.2"), "the default is exceeded")
    before = shown(refused)
    assert before
    assert all(is_served("127.0.0.3") for _ in range(5))
    assert shown(refused) == before
    # Who is refused does not use up what the next second allows.
    wait_until(lambda: is_served("127.0.0.2"), "it is served again")
    limit(broker, default, connection_creation_rate=None)
    wait_until(lambda: all(is_served("127.0.0.2") for _ in range(3)), "there is no limit any more")


def test_time_is_limited_by_percentage_and_at_most_a_second_is_told(broker: Broker) -> None:
    limit(broker, [("client-id", "busy")], request_percentage=0.0001)
    wait_until(lambda: throttle_of(broker, "busy") > 0, "the quota is in force")
    assert 0 < throttle_of(broker, "busy") <= 1000
    assert 0 < ask(broker, ApiVersionsRequest(), 2, "busy").throttle_time_ms <= 1000
    assert throttle_of(broker, "other") == 0
    for version, is_throttled in ((3, True), (4, False)):  # version 4 is for brokers
        answer = ask(broker, AddPartitionsToTxnRequest(topics=[]), version, "busy")
        assert (answer.throttle_time_ms > 0) is is_throttled
    assert ask(broker, MetadataRequest(topics=[]), 2, "busy").throttle_time_ms == 0, "no field"
    # Answers of SASL have none in any version.
    handshake = SaslHandshakeRequest(mechanism="PLAIN")
    assert ask(broker, handshake, 1, "busy").error_code == ErrorCode.ILLEGAL_SASL_STATE


def test_changes_of_topics_beyond_the_rate_are_refused_to_new_clients(broker: Broker) -> None:
    limit(broker, [("client-id", "admin")], controller_mutation_rate=0.01)

    def create(name: str, version: int, partitions: int = 1) -> Any:
        topic = CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=60_000)
        return ask(broker, request, version)

    wait_until(
        lambda: (
            create(f"m{time.monotonic_ns()}", 6).topics[0].error_code
            == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        ),
        "the quota is in force",
    )
    refused = create("no", 6)
    assert refused.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert refused.throttle_time_ms > 1000
    made = create("old", 5, 2)
    assert made.topics[0].error_code == 0
    assert made.throttle_time_ms > refused.throttle_time_ms
    growth = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name="old", count=3)], timeout_ms=60_000, validate_only=False
    )
    assert ask(broker, growth, 3).results[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    deletion = DeleteTopicsRequest(topic_names=["old"], timeout_ms=60_000)
    assert ask(broker, deletion, 5).responses[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert ask(broker, deletion, 4).responses[0].error_code == 0
    assert throttled("controller_mutation_rate") > 4


def test_records_without_an_answer_are_throttled_and_a_client_that_goes_is_noticed(
    broker: Broker,
) -> None:
    limit(broker, [("client-id", "mute")], producer_byte_rate=100)
    wait_until(lambda: produced_throttle(broker, "mute") > 0, "the quota is in force")
    entry = api.of_request(type(produce(TOPIC, 1)))
    header = headers.encode_request_header(headers.RequestHeader(ApiKey.PRODUCE, 8, 1, "mute"))
    frame = header + codec.encode(produce(TOPIC, 10_000, acks=0), 8)
    assert entry.key == ApiKey.PRODUCE
    with broker.connect() as sock:
        sock.sendall(struct.pack(">i", len(frame)) + frame)
        wait_until(lambda: shown("odradek_connections_throttled") == 1, "it is muted")
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: shown("odradek_connections_throttled") == 0, "it is let go")
