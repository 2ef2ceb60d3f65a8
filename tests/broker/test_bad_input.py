"""What is not the protocol closes its own connection and nothing else (reliability, bad input)."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any, cast

import pytest

from odradek.log.records import batch as batches
from odradek.log.records import compression, legacy, records
from odradek.log.records.records import Record
from odradek.protocol import codec, headers
from odradek.protocol.api import APIS, ApiKey
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from odradek.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from odradek.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from odradek.protocol.messages.producers import InitProducerIdRequest
from odradek.protocol.messages.topics import (
    CreatableTopic,
    CreateableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from odradek.protocol.schema import Request, ResponseT
from tests.support.broker import STEADY, Cluster, FreshBroker, wait_until
from tests.support.clients import create_topic, produce_all
from tests.support.memory_use import resident_bytes

TOPIC = "input"
COMPACTED, NARROW, STRICT, EMPTY = "compacted", "narrow", "strict", "empty"
MEBIBYTE = 1024 * 1024


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("bad-input")
    with Cluster(directory, settings=STEADY, kind=FreshBroker) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def topic(cluster: Cluster) -> None:
    create_topic(cluster.bootstrap, TOPIC, config={"max.message.bytes": "20000"})
    create_topic(cluster.bootstrap, COMPACTED, config={"cleanup.policy": "compact"})
    create_topic(cluster.bootstrap, NARROW, config={"segment.bytes": "5000"})
    limits = {"message.timestamp.difference.max.ms": "1000", "compression.type": "lz4"}
    create_topic(cluster.bootstrap, STRICT, config=limits)
    create_topic(cluster.bootstrap, EMPTY)


@pytest.fixture(autouse=True)
def broker_still_serves_a_good_client(cluster: Cluster) -> Iterator[None]:
    before = resident_bytes(cluster.brokers[1].pid)
    yield
    assert ask(cluster, ApiVersionsRequest(), 0).error_code == ErrorCode.NONE
    wait_until(
        lambda: resident_bytes(cluster.brokers[1].pid) < before + 64 * MEBIBYTE,
        "the broker holds no more than before",
    )


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def request_bytes(request: object, version: int, key: int | None = None) -> bytes:
    api = next(one for one in APIS.values() if one.request is type(request))
    header = headers.RequestHeader(api.key, version, 7, "test")
    return frame(headers.encode_request_header(header) + codec.encode(request, version))


def answer(connection: socket.socket) -> bytes | None:
    """One answer's frame, None when the broker closes instead."""
    size = read(connection, 4)
    return None if size is None else read(connection, struct.unpack(">i", size)[0])


def read(connection: socket.socket, count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        try:
            part = connection.recv(count - len(data))
        except ConnectionResetError:
            return None
        if not part:
            return None
        data += part
    return data


def send(cluster: Cluster, data: bytes) -> bytes | None:
    with cluster.brokers[1].connect() as connection:
        connection.sendall(data)
        return answer(connection)


def ask(cluster: Cluster, request: Request[ResponseT], version: int) -> ResponseT:
    """Send a request and decode what comes back; it must come."""
    data = send(cluster, request_bytes(request, version))
    assert data is not None, "closed instead of answered"
    api = next(one for one in APIS.values() if one.request is type(request))
    _, position = headers.decode_response_header(api, version, data)
    return cast("ResponseT", codec.decode(api.response, version, data, position)[0])


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 200 * 1024 * 1024),
        frame(b""),
        frame(b"\0"),
        frame(struct.pack(">hhih", 999, 0, 1, -1)),
        frame(struct.pack(">hhih", -1, 0, 1, -1)),
        frame(struct.pack(">hhih", ApiKey.PRODUCE, 99, 1, -1)),
        frame(struct.pack(">hhih", ApiKey.FETCH, -1, 1, -1)),
        frame(struct.pack(">hhih", ApiKey.METADATA, 1, 1, -1) + struct.pack(">i", 0x7FFFFFFF)),
        frame(struct.pack(">hhih", ApiKey.METADATA, 1, 1, -1) + b"\0\0\0\5\0\3ab"),
        frame(struct.pack(">hhih", ApiKey.PRODUCE, 3, 1, 500) + b"short"),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 50,
    ],
    ids=[
        "negative size",
        "size above the limit",
        "empty frame",
        "one byte",
        "unknown key",
        "negative key",
        "version too new",
        "negative version",
        "array longer than the frame",
        "string cut off",
        "client id longer than the frame",
        "HTTP",
        "TLS hello",
    ],
)
def test_frame_that_is_not_the_protocol_closes_its_connection(
    cluster: Cluster, data: bytes
) -> None:
    with cluster.brokers[1].connect() as other, cluster.brokers[1].connect() as bad:
        bad.sendall(data)
        assert answer(bad) is None
        other.sendall(request_bytes(ApiVersionsRequest(), 0))
        assert answer(other) is not None


def test_api_versions_too_new_is_answered_in_version_0_with_what_is_served(
    cluster: Cluster,
) -> None:
    data = send(cluster, frame(struct.pack(">hhih", ApiKey.API_VERSIONS, 99, 5, -1) + b"\0junk"))
    assert data is not None
    assert struct.unpack_from(">i", data)[0] == 5
    found, end = codec.decode(ApiVersionsResponse, 0, data, 4)
    assert end == len(data)
    assert found.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert (18, 0, 4) in [(k.api_key, k.min_version, k.max_version) for k in found.api_keys]


def test_advertised_versions_keep_produce_0_and_have_transactions(cluster: Cluster) -> None:
    found = ask(
        cluster, ApiVersionsRequest(client_software_name="t", client_software_version="1"), 3
    )
    ranges = {key.api_key: (key.min_version, key.max_version) for key in found.api_keys}
    assert ranges[ApiKey.PRODUCE] == (0, 9)
    assert ranges[ApiKey.FETCH] == (0, 12)
    assert [ranges[key] for key in (24, 25, 26, 27)] == [(0, 4), (0, 3), (0, 3), (0, 1)]


def produced(
    cluster: Cluster, data: bytes | None, version: int = 8, acks: int = 1, topic: str = TOPIC
) -> int:
    """The error code for one partition's worth of records."""
    found = ask(cluster, produce_request(data, acks, topic), version)
    return int(found.responses[0].partition_responses[0].error_code)


def produce_request(
    data: bytes | None, acks: int, topic: str = TOPIC, index: int = 0
) -> ProduceRequest:
    return ProduceRequest(
        acks=acks,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(
                name=topic, partition_data=[PartitionProduceData(index=index, records=data)]
            )
        ],
    )


def batch(value: bytes = b"v", **options: Any) -> bytes:
    return records.make([(b"k", value)], 1_700_000_000_000, records.BatchOptions(**options))


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_impossible_acks_are_refused(cluster: Cluster, acks: int) -> None:
    assert produced(cluster, batch(), acks=acks) == ErrorCode.INVALID_REQUIRED_ACKS


def test_wrong_checksum_is_corrupt(cluster: Cluster) -> None:
    data = bytearray(batch())
    data[-1] ^= 1
    assert produced(cluster, bytes(data)) == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("version", [3, 7])
def test_two_batches_are_corrupt_for_clients_that_know_no_better_code(
    cluster: Cluster, version: int
) -> None:
    assert produced(cluster, batch() * 2, version) == ErrorCode.CORRUPT_MESSAGE


def test_two_batches_are_an_invalid_record(cluster: Cluster) -> None:
    assert produced(cluster, batch() * 2, 8) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_format_is_an_invalid_record_since_version_3(
    cluster: Cluster, magic: int
) -> None:
    data = legacy.encode([Record(0, 1_700_000_000_000, b"k", b"v")], magic, 0)
    assert produced(cluster, data, 8) == ErrorCode.INVALID_RECORD
    assert produced(cluster, data, 3) == ErrorCode.CORRUPT_MESSAGE


def test_zstd_is_refused_below_version_7(cluster: Cluster) -> None:
    data = batch(codec=4)
    assert produced(cluster, data, 6) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert produced(cluster, data, 7) == ErrorCode.NONE


def test_batch_above_max_message_bytes_is_too_large(cluster: Cluster) -> None:
    assert produced(cluster, batch(b"x" * 30_000)) == ErrorCode.MESSAGE_TOO_LARGE


def sealed(data: bytes, payload: bytes | None = None, **fields: int) -> bytes:
    """A batch with other header fields or another payload, and the checksum that goes with them."""
    header = batches.parse(data)._replace(**fields)
    return batches.seal(header, data[batches.HEADER_SIZE :] if payload is None else payload)


@pytest.mark.parametrize(
    ("version", "code"),
    [(8, ErrorCode.INVALID_RECORD), (7, ErrorCode.CORRUPT_MESSAGE)],
)
@pytest.mark.parametrize(
    "data",
    [
        sealed(batch(), record_count=2),
        sealed(batch(), last_offset_delta=5),
        sealed(batch(), record_count=0),
        sealed(batch(), base_offset=7),
        batch(control=True),
        None,
        b"",
        batch()[:10],
        batch()[:40],
        batch()[:-1],
    ],
    ids=[
        "wrong count",
        "wrong offsets",
        "no records",
        "offsets that do not begin at 0",
        "control batch",
        "null",
        "nothing",
        "cut off before the magic",
        "cut off in the header",
        "cut off in the records",
    ],
)
def test_what_no_client_may_write_is_an_invalid_record(
    cluster: Cluster, data: bytes | None, version: int, code: ErrorCode
) -> None:
    assert produced(cluster, data, version) == code


def test_rules_of_the_topic_have_their_codes(cluster: Cluster) -> None:
    keyless = records.make([(None, b"v")], 1_700_000_000_000)
    assert produced(cluster, keyless, topic=COMPACTED) == ErrorCode.INVALID_RECORD
    assert produced(cluster, batch(), topic=COMPACTED) == ErrorCode.NONE
    assert produced(cluster, batch(b"x" * 9000), topic=NARROW) == ErrorCode.RECORD_LIST_TOO_LARGE
    assert produced(cluster, batch(), topic=STRICT) == ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize("codec_number", range(1, 5))
def test_what_cannot_be_unpacked_where_it_has_to_be_is_corrupt(
    cluster: Cluster, codec_number: int
) -> None:
    data = sealed(batch(codec=codec_number), payload=b"\xff" * 50)
    assert produced(cluster, data, topic=COMPACTED) == ErrorCode.CORRUPT_MESSAGE


def test_bomb_is_too_large_where_it_has_to_be_unpacked(cluster: Cluster) -> None:
    for number in (compression.GZIP, compression.ZSTD):
        bomb = sealed(batch(codec=number), compression.compress(number, bytes(140 * MEBIBYTE)))
        assert len(bomb) < MEBIBYTE
        assert produced(cluster, bomb, topic=COMPACTED) == ErrorCode.MESSAGE_TOO_LARGE


def test_offset_outside_the_log_is_told(cluster: Cluster) -> None:
    for offset in (-1, 1 << 40):
        found = fetched(cluster, 11, offset=offset).responses[0].partition_responses[0]
        assert found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_topic_named_twice_is_refused(cluster: Cluster) -> None:
    topic = CreatableTopic(
        name="twin", num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    created = ask(cluster, CreateTopicsRequest(topics=[topic, topic], timeout_ms=1000), 4)
    assert {one.error_code for one in created.topics} == {ErrorCode.INVALID_REQUEST}


@pytest.mark.parametrize(
    "config",
    [
        {"retention.ms": "1_000"},
        {"retention.ms": "\u0661\u0662"},
        {"cleanup.policy": "delete,"},
        {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"},
    ],
    ids=["underscore", "foreign digits", "nothing behind a comma", "contradiction"],
)
def test_settings_that_kafka_could_not_read_are_refused(
    cluster: Cluster, config: dict[str, str]
) -> None:
    topic = CreatableTopic(
        name="unreadable",
        num_partitions=1,
        replication_factor=1,
        assignments=[],
        configs=[CreateableTopicConfig(name=name, value=text) for name, text in config.items()],
    )
    created = ask(cluster, CreateTopicsRequest(topics=[topic], timeout_ms=1000), 4)
    assert created.topics[0].error_code == ErrorCode.INVALID_CONFIG


def test_unknown_partition_is_told(cluster: Cluster) -> None:
    found = ask(cluster, produce_request(batch(), 1, index=9), 8)
    code = found.responses[0].partition_responses[0].error_code
    assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("acks", [0, -1])
def test_error_without_an_answer_closes_the_connection(cluster: Cluster, acks: int) -> None:
    with cluster.brokers[1].connect() as connection:
        connection.sendall(request_bytes(produce_request(batch() * 2, acks), 8))
        assert (answer(connection) is None) is (acks == 0)


def test_text_of_a_client_stays_on_its_line_of_the_log(cluster: Cluster) -> None:
    request = produce_request(batch(), 0, topic="a\nforged")

    def is_refused_and_logged() -> bool:
        # Few such lines are logged per period, and there were others.
        assert send(cluster, request_bytes(request, 8)) is None
        return "forged" in cluster.brokers[1].log_text()

    wait_until(is_refused_and_logged, "the refusal is logged")
    lines = [one for one in cluster.brokers[1].log_text().splitlines() if "forged" in one]
    assert all("WARNING" in line and "a\\x0aforged" in line for line in lines)


def test_absurd_numbers_of_partitions_are_refused_at_once(cluster: Cluster) -> None:
    topic = CreatableTopic(
        name="giant", num_partitions=2**31 - 1, replication_factor=1, assignments=[], configs=[]
    )
    created = ask(cluster, CreateTopicsRequest(topics=[topic], timeout_ms=1000), 4)
    assert created.topics[0].error_code == ErrorCode.POLICY_VIOLATION
    more = CreatePartitionsTopic(name=TOPIC, count=20_000, assignments=None)
    request = CreatePartitionsRequest(topics=[more], timeout_ms=1000, validate_only=False)
    assert ask(cluster, request, 1).results[0].error_code == ErrorCode.POLICY_VIOLATION


@pytest.mark.parametrize("name", ["", "no-such", "a/b", "../x", "a\0b"])
def test_deletion_of_what_cannot_be_a_topic_is_an_unknown_topic(
    cluster: Cluster, name: str
) -> None:
    found = ask(cluster, DeleteTopicsRequest(topic_names=[name], timeout_ms=1000), 3)
    assert found.responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_acks_0_has_no_answer_and_later_requests_have(cluster: Cluster) -> None:
    with cluster.brokers[1].connect() as connection:
        connection.sendall(request_bytes(produce_request(batch(), 0), 8))
        connection.sendall(request_bytes(ApiVersionsRequest(), 0))
        data = answer(connection)
    assert data is not None
    assert codec.decode(ApiVersionsResponse, 0, data, 4)[0].error_code == ErrorCode.NONE


def test_sequence_gap_old_epoch_and_repeat_have_their_codes(cluster: Cluster) -> None:
    producer = ask(cluster, InitProducerIdRequest(transaction_timeout_ms=1000), 1).producer_id

    def send_as(sequence: int, epoch: int = 1) -> tuple[int, int]:
        data = batch(producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
        found = ask(cluster, produce_request(data, -1), 8)
        one = found.responses[0].partition_responses[0]
        return one.error_code, one.base_offset

    first = send_as(0)
    assert first[0] == ErrorCode.NONE
    assert send_as(1)[0] == ErrorCode.NONE
    assert send_as(0) == first
    assert send_as(5)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send_as(2, epoch=0)[0] == ErrorCode.INVALID_PRODUCER_EPOCH


def fetched(cluster: Cluster, version: int, offset: int = 0, **session: Any) -> FetchResponse:
    return ask(
        cluster,
        FetchRequest(
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=1,
            topics=[
                FetchTopic(
                    topic=TOPIC,
                    partitions=[
                        FetchPartition(
                            partition=0, fetch_offset=offset, partition_max_bytes=1 << 20
                        )
                    ],
                )
            ],
            **session,
        ),
        version,
    )


def test_unknown_fetch_session_is_told(cluster: Cluster) -> None:
    for session_id in (0, 1234):
        found = fetched(cluster, 11, session_id=session_id, session_epoch=3)
        assert found.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("session_epoch", [0, -1])
def test_fetch_that_ends_a_session_is_answered_in_full(
    cluster: Cluster, session_epoch: int
) -> None:
    found = fetched(cluster, 11, session_id=1234, session_epoch=session_epoch)
    assert found.error_code == ErrorCode.NONE
    assert len(found.responses) == 1
    assert (found.session_id > 0) == (session_epoch == 0), "one that begins is another"


@pytest.mark.parametrize("behind", [b"", b"\0\0\0\x10\0\x02"], ids=["request", "cut request"])
def test_a_fetch_that_may_wait_for_an_hour_holds_up_no_request_behind_it(
    cluster: Cluster, behind: bytes
) -> None:
    """So do Spark's executors ask; and what is cut off must not keep the fetch waiting either."""
    asked = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
    topics = [FetchTopic(topic=EMPTY, partitions=[asked])]
    fetch = FetchRequest(replica_id=-1, max_wait_ms=3_600_000, min_bytes=1000, topics=topics)
    with cluster.brokers[1].connect() as connection:
        connection.sendall(request_bytes(fetch, 11))
        connection.sendall(behind or request_bytes(ApiVersionsRequest(), 0))
        found = answer(connection)
        assert found is not None
        told, _ = codec.decode(FetchResponse, 11, found, 4)
        [part] = told.responses[0].partition_responses
        assert (part.error_code, part.record_set) == (ErrorCode.NONE, b"")
        if not behind:
            assert answer(connection) is not None


@pytest.mark.parametrize("version", [4, 7, 11, 12])
def test_fetch_returns_whole_batches_with_their_checksums(cluster: Cluster, version: int) -> None:
    produce_all(cluster.bootstrap, TOPIC, [b"x"])
    one = fetched(cluster, version).responses[0].partition_responses[0]
    assert one.error_code == ErrorCode.NONE
    assert one.high_watermark == one.last_stable_offset > 0
    assert list(records.decode(bytes(cast("bytes", one.record_set)), 0))
