"""Znode payloads against the bytes that Apache Kafka writes."""

import json
import re
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.values import BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from odradek.zk import consumers, producer_ids, znodes
from odradek.zk.payload import ZnodeError

BROKER = (
    b'{"version":4,"host":"h","port":9092,"jmx_port":-1,"timestamp":"1700000000000",'
    b'"endpoints":["PLAINTEXT://h:9092"],'
    b'"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"rack":"r"}'
)
STATE = b'{"controller_epoch":5,"leader":1,"version":1,"leader_epoch":0,"isr":[1,2]}'


def test_broker_registration_has_version_4_bytes() -> None:
    registration = znodes.BrokerRegistration(
        broker_id=BrokerId(1),
        endpoints=(znodes.BrokerEndpoint("PLAINTEXT", "h", 9092),),
        rack="r",
        timestamp_ms=1700000000000,
    )
    assert znodes.encode_broker(registration) == BROKER
    assert znodes.decode_broker("/brokers/ids/1", BROKER) == registration


def test_broker_without_plaintext_listener_writes_null_host_and_reads_it_back() -> None:
    registration = znodes.BrokerRegistration(
        BrokerId(3), (znodes.BrokerEndpoint("INTERNAL", "::1", 9093, "SSL"),)
    )
    data = znodes.encode_broker(registration)
    assert b'"host":null,"port":-1' in data
    assert b'"INTERNAL://[::1]:9093"' in data
    assert znodes.decode_broker("/brokers/ids/3", data) == registration


@pytest.mark.parametrize(
    ("data", "listener"),
    [
        (b'{"version":1,"host":"old","port":9092,"jmx_port":9999}', "PLAINTEXT"),
        (b'{"version":2,"host":"old","port":9092,"jmx_port":1,"timestamp":"1"}', "PLAINTEXT"),
        (
            b'{"jmx_port":-1,"timestamp":"1","endpoints":["PLAINTEXT://old:9092"],"host":"old",'
            b'"version":3,"port":9092}',
            "PLAINTEXT",
        ),
        (
            b'{"features":{},"listener_security_protocol_map":{"IN":"PLAINTEXT"},'
            b'"endpoints":["IN://old:9092"],"jmx_port":-1,"port":9092,"host":"old","version":5,'
            b'"timestamp":"1"}',
            "IN",
        ),
    ],
)
def test_registrations_of_every_version_are_read(data: bytes, listener: str) -> None:
    read = znodes.decode_broker("/brokers/ids/7", data)
    assert read.broker_id == 7
    assert read.endpoint(listener) == znodes.BrokerEndpoint(listener, "old", 9092)


def test_topic_is_written_in_version_1_and_read_in_all() -> None:
    assignment = znodes.TopicAssignment({1: (BrokerId(2),), 0: (BrokerId(1), BrokerId(2))})
    assert znodes.encode_topic(assignment) == b'{"version":1,"partitions":{"0":[1,2],"1":[2]}}'
    v2 = (
        b'{"version":2,"partitions":{"0":[1,2]},"adding_replicas":{"0":[2]},"removing_replicas":{}}'
    )
    read = znodes.decode_topic("/brokers/topics/t", v2)
    assert read.adding == {0: (2,)}
    assert znodes.encode_topic(read) == v2
    v3 = (
        b'{"version":3,"topic_id":"abc","partitions":{"0":[1,2]},'
        b'"adding_replicas":{},"removing_replicas":{}}'
    )
    assert znodes.encode_topic(znodes.decode_topic("/brokers/topics/t", v3)) == v3


def test_state_has_kafka_bytes() -> None:
    state = znodes.PartitionState(
        BrokerId(1), LeaderEpoch(0), (BrokerId(1), BrokerId(2)), ControllerEpoch(5)
    )
    assert znodes.encode_state(state) == STATE
    assert znodes.decode_state("/s", STATE) == state


def test_cluster_id_is_22_characters_and_its_version_a_string() -> None:
    cluster_id = znodes.new_cluster_id(uuid.UUID(int=2**128 - 1))
    assert len(cluster_id) == 22
    data = znodes.encode_cluster_id(cluster_id)
    assert data == b'{"version":"1","id":"' + cluster_id.encode() + b'"}'
    assert znodes.decode_cluster_id("/cluster/id", data) == cluster_id


def test_controller_claim_and_epoch() -> None:
    claim = znodes.ControllerClaim(BrokerId(1), 1700000000000)
    data = b'{"version":1,"brokerid":1,"timestamp":"1700000000000"}'
    assert znodes.encode_controller(claim) == data
    assert znodes.decode_controller("/controller", data) == claim
    assert znodes.encode_controller_epoch(5) == b"5"
    assert znodes.decode_controller_epoch("/controller_epoch", b"5") == 5


def test_config_and_both_versions_of_its_notice() -> None:
    data = b'{"version":1,"config":{"retention.ms":"1000"}}'
    assert znodes.encode_config({"retention.ms": "1000"}) == data
    assert znodes.decode_config("/config/topics/t", data) == {"retention.ms": "1000"}
    assert znodes.decode_config("/config/topics/t", b"") == {}
    change = znodes.ConfigChange("topics/t")
    assert znodes.encode_config_change(change) == b'{"version":2,"entity_path":"topics/t"}'
    old = b'{"version":1,"entity_type":"topics","entity_name":"t"}'
    assert znodes.decode_config_change("/c", old) == change
    users = znodes.ConfigChange("users/u/clients/c")
    assert (users.entity_type, users.entity_name) == ("users", "u/clients/c")
    assert znodes.parse_sequence("config_change_0000000012", znodes.CONFIG_CHANGE_PREFIX) == 12


@pytest.mark.parametrize("entity", ["topics/../x", "topics/", "topics", "/t", "./t", "topics//t"])
def test_a_notice_that_names_no_entity_is_refused(entity: str) -> None:
    notice = znodes.encode_config_change(znodes.ConfigChange(entity))
    with pytest.raises(znodes.ZnodeError):
        znodes.decode_config_change("/c", notice)


def test_delete_topics_payload_of_the_articles_and_empty_node_of_kafka() -> None:
    assert znodes.decode_delete_topics("/d", b'{\n"version": 1,\n"topics": ["foo", "bar"]\n}') == (
        "foo",
        "bar",
    )
    assert znodes.decode_delete_topics("/d", b"") == ()
    assert znodes.decode_delete_topics("/d", None) == ()
    assert znodes.encode_delete_topics(["foo"]) == b'{"version":1,"topics":["foo"]}'


def test_reassignment_and_preferred_election() -> None:
    data = b'{"version":1,"partitions":[{"topic":"T","partition":0,"replicas":[2,3]}]}'
    wanted = {TopicPartition("T", 0): (2, 3)}
    assert znodes.encode_reassignment(wanted) == data
    assert znodes.decode_reassignment("/r", data) == wanted
    data = b'{"version":1,"partitions":[{"topic":"T","partition":0}]}'
    assert znodes.encode_preferred_election([TopicPartition("T", 0)]) == data
    assert znodes.decode_preferred_election("/p", data) == (TopicPartition("T", 0),)


def test_notices_and_producer_ids() -> None:
    assert znodes.encode_log_dir_event(1) == b'{"version":1,"broker":1,"event":1}'
    assert znodes.decode_log_dir_event("/l", b'{"version":1,"broker":1,"event":1}') == 1
    block = producer_ids.ProducerIdBlock(BrokerId(1), 0, 999)
    data = b'{"version":1,"broker":1,"block_start":"0","block_end":"999"}'
    assert producer_ids.encode_producer_id_block(block) == data
    assert producer_ids.decode_producer_id_block("/latest_producer_id_block", data) == block
    assert producer_ids.decode_producer_id_block("/latest_producer_id_block", b"") is None


@pytest.mark.parametrize(
    ("subscription", "pattern", "expected"),
    [
        ({"gone": 1}, "static", {"gone": 1}),
        ({"logs-.*": 2}, "white_list", {"logs-a": 2, "logs-b": 2}),
        ({"logs-a, t": 1}, "white_list", {"logs-a": 1, "t": 1}),
        ({'"t"': 1}, "white_list", {"t": 1}),
        ({"logs": 1}, "white_list", {}),
        ({"logs-.*": 1}, "black_list", {"t": 1}),
        ({".*": 1}, "white_list", {"logs-a": 1, "logs-b": 1, "t": 1}),
    ],
)
def test_topics_of_a_subscription(
    subscription: dict[str, int], pattern: str, expected: dict[str, int]
) -> None:
    registration = consumers.ConsumerRegistration(subscription, pattern)
    existing = ["logs-a", "logs-b", "t", "__consumer_offsets"]
    assert consumers.topics_read("/c", registration, existing) == expected


def test_pattern_means_no_internal_topic() -> None:
    existing = ["__consumer_offsets", "__mine", "t", "tt"]
    assert consumers.topics_matched(re.compile(".*"), existing) == ["__mine", "t", "tt"]
    assert consumers.topics_matched(re.compile("t"), existing) == ["t"]


@pytest.mark.parametrize(
    "text",
    ["(", "a{9999999999}", "a{" + "9" * 5000 + "}", "(" * 5000 + ")" * 5000],
    ids=["open", "repeated", "digits", "nested"],
)
def test_subscription_that_is_no_pattern_is_refused(text: str) -> None:
    registration = consumers.ConsumerRegistration({text: 1}, "white_list")
    with pytest.raises(ZnodeError, match="is not a pattern"):
        consumers.topics_read("/c", registration, ["t"])


def test_a_member_with_more_threads_than_memory_holds_is_refused() -> None:
    many = consumers.ConsumerRegistration({"t": consumers.MOST_THREADS})
    assert consumers.decode_consumer("/c", consumers.encode_consumer(many)) == many
    more = consumers.ConsumerRegistration({"t": consumers.MOST_THREADS + 1})
    with pytest.raises(ZnodeError, match="100001 threads for one topic"):
        consumers.decode_consumer("/c", consumers.encode_consumer(more))


def test_consumer_znodes() -> None:
    registration = consumers.ConsumerRegistration({"T": 1}, "static", 1700000000000)
    data = b'{"version":1,"subscription":{"T":1},"pattern":"static","timestamp":"1700000000000"}'
    assert consumers.encode_consumer(registration) == data
    assert consumers.decode_consumer("/c", data) == registration
    consumer_id = consumers.new_consumer_id("g", "host", 5, uuid.UUID(int=1 << 127))
    assert consumer_id == "g_host-5-80000000"
    assert consumers.encode_owner(consumer_id, 2) == b"g_host-5-80000000-2"
    assert consumers.decode_owner("/o", b"g_host-5-80000000-2") == (consumer_id, 2)
    assert consumers.decode_offset("/o", consumers.encode_offset(42)) == 42
    assert consumers.offset_path("g", "t", 3) == "/consumers/g/offsets/t/3"
    assert consumers.owner_path("g", "t", 3) == "/consumers/g/owners/t/3"
    assert consumers.consumer_id_path("g", "x") == "/consumers/g/ids/x"


@pytest.mark.parametrize(
    ("name", "partition"),
    [
        *(("0", 0), ("12", 12), ("2147483647", 2**31 - 1)),
        *(("2147483648", None), ("9" * 5000, None), ("007", None), ("-1", None), ("", None)),
        *(("\u00b2", None), ("\u0663", None), ("incarnation", None)),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_only_plain_numbers_are_partitions_of_a_group(name: str, partition: int | None) -> None:
    """Python takes other digits, too, some of which make no number."""
    assert consumers.partition_of(name) == partition


@pytest.mark.parametrize(
    "thread", ["9" * 5000, "\u00b2", "-", ""], ids=lambda value: ascii(value)[:9]
)
def test_an_owner_ends_with_the_number_of_a_thread(thread: str) -> None:
    with pytest.raises(ZnodeError, match="is not CONSUMER-THREAD"):
        consumers.decode_owner("/o", f"g_host-{thread}".encode())


DECODERS = [
    znodes.decode_broker,
    znodes.decode_topic,
    znodes.decode_state,
    znodes.decode_cluster_id,
    znodes.decode_controller,
    znodes.decode_controller_epoch,
    znodes.decode_config,
    znodes.decode_config_change,
    znodes.decode_delete_topics,
    znodes.decode_reassignment,
    znodes.decode_partitions,
    znodes.decode_log_dir_event,
    producer_ids.decode_producer_id_block,
    consumers.decode_consumer,
    consumers.decode_owner,
    consumers.decode_offset,
]

FIELD_NAMES = st.sampled_from(
    [
        "version",
        "partitions",
        "endpoints",
        "host",
        "port",
        "leader",
        "isr",
        "leader_epoch",
        "controller_epoch",
        "brokerid",
        "config",
        "entity_path",
        "topics",
        "topic",
        "partition",
        "replicas",
        "id",
        "subscription",
        "pattern",
        "timestamp",
        "broker",
        "event",
        "0",
        "x",
        "listener_security_protocol_map",
        "block_start",
        "block_end",
    ]
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 5)
    | st.text(max_size=3)
    | st.just("PLAINTEXT://h:1"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELD_NAMES, inner, max_size=6),
    max_leaves=12,
)


@pytest.mark.parametrize("decode", DECODERS, ids=lambda decode: decode.__name__)
@settings(deadline=None)
@given(value=JSON, version=st.integers(0, 6))
def test_json_garbage_is_refused_by_name_only(
    decode: Callable[[str, bytes], object], value: Any, version: int
) -> None:
    if isinstance(value, dict):
        value = value | {"version": version}
    try:
        decode("/brokers/ids/1", json.dumps(value).encode())
    except znodes.ZnodeError as error:
        assert error.path.startswith("/brokers/ids/1")  # noqa: PT017 - acceptance is also right


@pytest.mark.parametrize("decode", DECODERS, ids=lambda decode: decode.__name__)
@pytest.mark.parametrize(
    "data", [b"\xff\xfe", b"{", b"[]", b"[" * 100000, b'"x', b"1-1-", "²".encode()]
)
def test_bytes_that_are_not_the_payload_are_refused(
    decode: Callable[[str, bytes], object], data: bytes
) -> None:
    with pytest.raises(znodes.ZnodeError, match="/some/path"):
        decode("/some/path", data)


BEYOND_INT = b"2147483648"


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        (znodes.decode_broker, b'{"version":1,"host":"h","port":2147483648,"jmx_port":1}'),
        (znodes.decode_broker, BROKER.replace(b"//h:9092", b"//h:2147483648")),
        (znodes.decode_broker, BROKER.replace(b"//h:9092", b"//h:" + b"9" * 20)),
        (znodes.decode_topic, b'{"version":1,"partitions":{"0":[1,2147483648]}}'),
        (znodes.decode_topic, b'{"version":1,"partitions":{"2147483648":[1]}}'),
        (znodes.decode_state, STATE.replace(b'"leader":1', b'"leader":2147483648')),
        (znodes.decode_state, STATE.replace(b'"leader_epoch":0', b'"leader_epoch":2147483648')),
        (znodes.decode_state, STATE.replace(b"[1,2]", b"[1,-2147483649]")),
        (znodes.decode_controller, b'{"version":1,"brokerid":2147483648,"timestamp":"1"}'),
        (znodes.decode_controller_epoch, BEYOND_INT),
        (
            znodes.decode_isr_change,
            b'{"version":1,"partitions":[{"topic":"t","partition":2147483648}]}',
        ),
        (znodes.decode_log_dir_event, b'{"version":1,"broker":2147483648,"event":1}'),
        (consumers.decode_offset, b"9223372036854775808"),
    ],
)
def test_numbers_that_no_answer_can_hold_are_refused(
    decode: Callable[[str, bytes], object], data: bytes
) -> None:
    """One of a single znode would end every answer that has to tell it."""
    with pytest.raises(ZnodeError, match="/brokers/ids/1"):
        decode("/brokers/ids/1", data)


@pytest.mark.parametrize("number", [b"-1", b"-9223372036854775808"])
def test_a_number_below_0_is_no_committed_offset(number: bytes) -> None:
    """Brokers hand it on as it is; everybody else takes it for none."""
    with pytest.raises(ZnodeError, match="is no committed offset"):
        consumers.decode_commit("/o", number)
    assert consumers.decode_commit("/o", b"0") == 0
    assert consumers.decode_offset("/o", number) == int(number)


def test_the_largest_numbers_are_read() -> None:
    assert consumers.decode_offset("/o", b"9223372036854775807") == 2**63 - 1
    state = b'{"controller_epoch":%d,"leader":-1,"version":1,"leader_epoch":%d,"isr":[%d]}'
    largest = 2**31 - 1
    found = znodes.decode_state("/s", state % (largest, largest, largest))
    assert found == znodes.PartitionState(
        BrokerId(-1), LeaderEpoch(largest), (BrokerId(largest),), ControllerEpoch(largest)
    )
    data = b'{"version":2,"host":"h","port":-1,"jmx_port":-1,"timestamp":"9223372036854775807"}'
    assert znodes.decode_broker("/brokers/ids/2147483647", data).timestamp_ms == 2**63 - 1
    with pytest.raises(ZnodeError, match="2147483648 is not an integer of 32 bits"):
        znodes.decode_broker("/brokers/ids/2147483648", BROKER)


@pytest.mark.parametrize("text", [b'"rack":"r"', b"//h:"])
def test_a_text_of_a_broker_that_no_answer_can_hold_is_refused(text: bytes) -> None:
    longer = text[:-1] + b"x" * 2**15 + text[-1:]
    data = BROKER.replace(text, longer)
    assert data != BROKER
    with pytest.raises(ZnodeError, match="has more than 32767 bytes"):
        znodes.decode_broker("/brokers/ids/1", data)


def test_text_that_no_answer_can_hold_is_refused() -> None:
    """JSON may name half of a pair of surrogates."""
    data = b'{"version":1,"config":{"a":"%s"}}'
    pair = data % b"\\ud83d\\ude00"
    assert znodes.decode_config("/c", pair) == {"a": "\U0001f600"}
    with pytest.raises(ZnodeError, match="surrogates not allowed"):
        znodes.decode_config("/c", data % b"\\ud83d")


@pytest.mark.parametrize("topic", ["", ".", "..", "/", "a/b"])
def test_what_names_no_znode_is_refused_where_its_znode_is_read(topic: str) -> None:
    partitions = [TopicPartition("t", 0), TopicPartition(topic, 0)]
    with pytest.raises(ZnodeError, match=r"/c: .* is no name of a znode"):
        znodes.decode_isr_change("/c", znodes.encode_isr_change(partitions))
    named = znodes.encode_preferred_election(partitions)
    assert znodes.decode_preferred_election("/p", named) == tuple(partitions)
    moved = znodes.encode_reassignment(dict.fromkeys(partitions, (1,)))
    assert [*znodes.decode_reassignment("/r", moved)] == partitions
    assert znodes.decode_delete_topics("/d", znodes.encode_delete_topics(["t", topic])) == (
        "t",
        topic,
    )


def test_only_plain_numbers_are_ids_of_brokers() -> None:
    names = ["0", "12", "2147483647", "2147483648", "²", "\u0663", "07", "-1", "a", "", "9" * 5000]
    assert znodes.broker_ids(names) == [0, 12, 2**31 - 1]


def test_parents_come_before_children_in_persistent_paths_when_created_recursively() -> None:
    assert len(set(znodes.PERSISTENT_PATHS)) == 13
    assert "/latest_producer_id_block" in znodes.PERSISTENT_PATHS
