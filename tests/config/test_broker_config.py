"""server.properties: Kafka's keys and defaults, and one clear line for what cannot be."""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek import config, config_loading, properties, topic_config

REQUIRED = {"broker.id": "0", "zookeeper.connect": "localhost:2181"}


def broker(**values: str) -> config.BrokerConfig:
    named = {name.replace("_", "."): value for name, value in values.items()}
    return config_loading.from_values({**REQUIRED, **named})[0]


def test_defaults_are_kafkas() -> None:
    settings = broker()
    assert settings.num_partitions == 1
    assert settings.log_segment_bytes == 1 << 30
    assert settings.log_retention_ms == 168 * 3_600_000
    assert settings.message_max_bytes == 1_048_588
    assert settings.socket_request_max_bytes == 100 << 20
    assert settings.zookeeper_session_timeout_ms == 18_000


def test_settings_of_transactions_have_kafkas_defaults_and_bounds() -> None:
    defaults = {
        "transaction.max.timeout.ms": 900_000,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 10_000,
        "transaction.remove.expired.transaction.cleanup.interval.ms": 3_600_000,
        "transaction.state.log.num.partitions": 50,
        "transaction.state.log.replication.factor": 3,
        "transaction.state.log.min.isr": 2,
        "transaction.state.log.segment.bytes": 104_857_600,
        "transaction.state.log.load.buffer.size": 5_242_880,
    }
    fields = {declared.name: name for name, declared in properties.keys_of(config.BrokerConfig)}
    assert {key: getattr(broker(), fields[key]) for key in defaults} == defaults
    for key in defaults:
        with pytest.raises(properties.ConfigError, match=key):
            config_loading.from_values({**REQUIRED, key: "0"})


def test_finer_unit_wins_over_coarser_one() -> None:
    assert broker(log_retention_hours="1").log_retention_ms == 3_600_000
    assert broker(log_retention_hours="1", log_retention_minutes="2").log_retention_ms == 120_000
    assert broker(log_retention_minutes="2", log_retention_ms="5").log_retention_ms == 5
    assert broker(log_retention_hours="-1").log_retention_ms == -1


def test_logs_are_flushed_as_often_as_they_are_looked_at_unless_told_otherwise() -> None:
    assert broker(log_flush_scheduler_interval_ms="7").log_flush_interval_ms == 7
    both = broker(log_flush_scheduler_interval_ms="7", log_flush_interval_ms="9")
    assert both.log_flush_interval_ms == 9


def test_advertised_listeners_default_to_listeners() -> None:
    settings = broker(listeners="PLAINTEXT://10.0.0.1:9092")
    assert [str(endpoint) for endpoint in settings.advertised_listeners] == [
        "PLAINTEXT://10.0.0.1:9092"
    ]


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("broker.id", "-2", "at least 0"),
        ("broker.id", "one", "Not a number"),
        ("listeners", "localhost:9092", "NAME://host:port"),
        ("listeners", "PLAINTEXT://:70000", "NAME://host:port"),
        ("listeners", "X://:9093", "no security protocol"),
        (
            "listeners",
            "PLAINTEXT://:9092,SSL://:9092",
            "PLAINTEXT://:9092 and SSL://:9092 have the",
        ),
        ("listeners", "SSL://:9093", "inter.broker.listener.name PLAINTEXT is not advertised"),
        ("listener.security.protocol.map", "X:QUIC", "no security protocol QUIC"),
        ("advertised.listeners", "PLAINTEXT://0.0.0.0:9092", "nonroutable"),
        ("advertised.listeners", "", "non-empty"),
        ("log.dirs", " , ", "At least one log directory"),
        ("auto.create.topics.enable", "yes", "true or false"),
        ("log.cleanup.policy", "shred", "must be one of"),
        ("replica.selector.class", "org.example.Mine", "one of: org.apache.*RackAwareReplicaSel"),
        ("replica.selector.class", "", "one of: org.apache.*RackAwareReplicaSelector"),
        ("log.cleaner.min.cleanable.ratio", "2", "between"),
        ("log.message.format.version", "0.7", "`0.7` is not a valid version"),
        ("zookeeper.connect", "", "non-empty"),
        ("zookeeper.connect", "localhost:abc", "Port"),
        ("zookeeper.connect", "a:2181,localhost:99999", "Port"),
        ("zookeeper.connect", "a..b:2181", "a..b is not a host name"),
        ("inter.broker.listener.name", "INTERNAL", "not advertised"),
        ("log.segment.bytes", "1_000_000", "Not a number"),
        ("listeners", f"PLAINTEXT://:{'9' * 5000}", "NAME://host:port"),
        ("zookeeper.connect", "localhost:1/a/../b", "is not the path of a znode"),
        ("zookeeper.connect", "localhost:1/\udcff", "is not the path of a znode"),
        ("log.retention.ms", "0", "unlimited"),
        ("log.retention.hours", "0", "unlimited"),
    ],
)
def test_bad_value_is_refused_with_key_and_reason(key: str, value: str, reason: str) -> None:
    with pytest.raises(properties.ConfigError, match=reason) as refused:
        config_loading.from_values({**REQUIRED, key: value})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("unit", ["ms", "minutes", "hours"])
def test_negative_retention_is_unlimited(unit: str) -> None:
    assert (
        config_loading.from_values({**REQUIRED, f"log.retention.{unit}": "-5"})[0].log_retention_ms
        == -1
    )


@pytest.mark.parametrize("missing", sorted(REQUIRED))
def test_required_key_is_missed_by_name(missing: str) -> None:
    values = {key: value for key, value in REQUIRED.items() if key != missing}
    with pytest.raises(properties.ConfigError, match=missing):
        config_loading.from_values(values)


def test_memory_for_requests_has_room_for_one() -> None:
    with pytest.raises(properties.ConfigError, match=r"queued\.max\.request\.bytes"):
        broker(queued_max_request_bytes="1000", socket_request_max_bytes="1001")
    broker(queued_max_request_bytes="0")


@pytest.mark.parametrize(
    ("name", "refused", "taken", "reason"),
    [
        ("log_cleaner_threads", "2147483647", "127", "at least 1MB per cleaner thread"),
        ("log_cleaner_dedupe_buffer_size", "1048576", "1048577", "at least 1MB per cleaner thread"),
        ("replica_lag_time_max_ms", "499", "500", r"replica\.fetch\.wait\.max\.ms should"),
        ("replica_socket_timeout_ms", "499", "500", r"replica\.fetch\.wait\.max\.ms should"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    name: str, refused: str, taken: str, reason: str
) -> None:
    with pytest.raises(properties.ConfigError, match=reason):
        broker(**{name: refused})
    broker(**{name: taken})


def test_kafkas_own_map_of_security_protocols_is_taken() -> None:
    default = "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL"
    assert broker(listener_security_protocol_map=default) == broker()


def test_unknown_keys_are_named_and_kafkas_other_keys_are_not() -> None:
    values = {
        **REQUIRED,
        "num.io.threads": "8",
        "delegation.token.max.lifetime.ms": "1000",
        "bogus.key": "1",
    }
    assert config_loading.from_values(values)[1] == ["bogus.key"]


@pytest.mark.parametrize("name", sorted(config_loading.UNSUPPORTED))
def test_kafkas_settings_that_are_missing_are_named_unless_they_have_kafkas_default(
    name: str,
) -> None:
    """As any full server.properties made for Kafka has them."""
    for text in ("", config_loading.UNSUPPORTED[name]):
        assert config_loading.from_values({**REQUIRED, name: text})[1] == []
    assert config_loading.from_values({**REQUIRED, name: "17"})[1] == [name]
    assert config_loading.is_unsupported(name)


def test_limits_of_one_listener_are_not_supported() -> None:
    name = "listener.name.plaintext.max.connections"
    assert config_loading.from_values({**REQUIRED, name: "17"})[1] == [name]
    assert config_loading.is_unsupported(name)
    assert not config_loading.is_unsupported("bogus.key")


def test_no_setting_is_both_read_and_ignored() -> None:
    read = properties.known_names(config.BrokerConfig)
    assert not read & config_loading.INERT_KEYS.union(config_loading.UNSUPPORTED)


def test_topic_inherits_from_broker_and_overrides_it() -> None:
    settings = broker(log_retention_ms="10", min_insync_replicas="2")
    topic = topic_config.resolve_topic(settings, {"retention.ms": "20"})
    assert (topic.retention_ms, topic.min_insync_replicas) == (20, 2)
    assert topic.flush_ms == properties.LONG_MAX


def test_topic_has_the_brokers_message_format_unless_it_names_its_own() -> None:
    settings = broker(log_message_format_version="0.10.2")
    assert topic_config.resolve_topic(settings, {}).message_magic == 1
    assert (
        topic_config.resolve_topic(settings, {"message.format.version": "0.9.0"}).message_magic == 0
    )
    assert topic_config.resolve_topic(broker(), {}).message_magic == 2


@pytest.mark.parametrize(
    "entries",
    [
        {"retention.ms": "soon"},
        {"retention": "1"},
        {"message.format.version": "4.0"},
        {"message.format.version": "2.1-IV\u0661"},
        {"retention.ms": "1_000"},
        {"retention.ms": "\u0661\u0662"},
        {"retention.ms": "\u00a012"},
        {"retention.ms": "9" * 5000},
        {"min.cleanable.dirty.ratio": "0.1_5"},
        {"min.cleanable.dirty.ratio": "0.\u0665"},
        {"cleanup.policy": "delete,"},
        {"cleanup.policy": "delete,,compact"},
        {"cleanup.policy": "delete,\u00a0compact"},
    ],
)
def test_impossible_topic_entry_is_refused(entries: dict[str, str]) -> None:
    with pytest.raises(properties.ConfigError):
        topic_config.check_topic_entries(entries)
    with pytest.raises(properties.ConfigError):
        topic_config.resolve_topic(broker(), entries)


def test_numbers_and_lists_are_read_as_kafka_reads_them() -> None:
    entries = {
        "retention.ms": " +12\t",
        "min.cleanable.dirty.ratio": "5e-1",
        "cleanup.policy": "compact , delete",
        "leader.replication.throttled.replicas": "0:1,,1:2,",
    }
    topic_config.check_topic_entries(entries)
    topic = topic_config.resolve_topic(broker(), entries)
    assert (topic.retention_ms, topic.min_cleanable_dirty_ratio) == (12, 0.5)
    assert topic.cleanup_policy == ("compact", "delete")
    assert topic.leader_replication_throttled_replicas == ("0:1", "1:2")
    assert topic_config.resolve_topic(broker(), {"cleanup.policy": ""}).cleanup_policy == ()


def test_sizes_below_zero_that_kafka_takes_are_no_limit() -> None:
    entries = {"retention.bytes": "-2", "flush.messages": "0"}
    topic_config.check_topic_entries(entries)
    topic = topic_config.resolve_topic(broker(log_retention_bytes="1000"), entries)
    assert (topic.retention_bytes, topic.flush_messages) == (-2, 0)
    assert broker(log_retention_bytes=str(-(2**63))).log_retention_bytes == -(2**63)


def test_records_may_be_compacted_before_they_must_be() -> None:
    lags = {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"}
    with pytest.raises(properties.ConflictError, match=r"min\.compaction\.lag\.ms=10 is larger"):
        topic_config.check_topic_entries(lags)
    topic_config.check_topic_entries({**lags, "max.compaction.lag.ms": "10"})
    for name, value in lags.items():
        topic_config.check_topic_entries({name: value})
    with pytest.raises(properties.ConflictError, match=r"log\.cleaner\.min"):
        config_loading.from_values(
            {**REQUIRED, **{f"log.cleaner.{name}": value for name, value in lags.items()}}
        )


def test_properties_text_is_read_as_java_reads_it() -> None:
    text = "# no\n! no\n a = 1\nb:2\nc 3\nd=x\\\n   y\ne=\\u0041\\t\\\\\nf\n\n  g=h=i\n"
    assert properties.load_properties(text) == {
        "a": "1",
        "b": "2",
        "c": "3",
        "d": "xy",
        "e": "A\t\\",
        "f": "",
        "g": "h=i",
    }


@given(st.text() | st.text(alphabet="\\u0=: \n#fz"))
def test_no_properties_text_raises_anything_but_a_config_error(text: str) -> None:
    with contextlib.suppress(properties.ConfigError):
        config_loading.from_values({**REQUIRED, **properties.load_properties(text)})


@pytest.mark.parametrize("text", ["log.dirs=/a\0b\n", "log.dirs=/a\\u0000b\n"])
def test_character_nul_is_refused_with_the_setting(text: str) -> None:
    with pytest.raises(properties.ConfigError, match=r"^'log\.dirs' has the character NUL$"):
        properties.load_properties(text)


def test_bad_file_is_one_line_and_exit_status_2(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("broker.id=zero\nzookeeper.connect=localhost:1\n")
    with_nul = tmp_path / "nul.properties"
    with_nul.write_text("broker.id=0\nzookeeper.connect=localhost:1\nlog.dirs=/a\0b\n")
    for arguments in (
        [str(path)],
        [str(with_nul)],
        [str(tmp_path / "absent")],
        [str(path), "--override", "x"],
        [str(path), "--override", "broker.rack=\udcff"],
    ):
        ended = subprocess.run(
            [sys.executable, "-m", "odradek", "broker", *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 2
        assert len(ended.stderr.splitlines()) == 1, ended.stderr


@pytest.mark.parametrize(
    ("settings", "most", "per_ip"),
    [
        ({}, 500, 250),
        ({"max_connections": "100"}, 100, 50),
        ({"max_connections": "501"}, 500, 250),
        ({"max_connections": "1"}, 1, 1),
        ({"max_connections": "0"}, 0, 1),
        ({"max_connections_per_ip": "3"}, 500, 3),
        ({"max_connections_per_ip": "2147483646"}, 500, 2147483646),
    ],
)
def test_connections_leave_descriptors_and_an_address_leaves_connections(
    settings: dict[str, str], most: int, per_ip: int
) -> None:
    bounded = config.within_descriptors(broker(**settings), 500)
    assert (bounded.max_connections, bounded.max_connections_per_ip) == (most, per_ip)


def test_no_connection_per_address_needs_addresses_that_may() -> None:
    with pytest.raises(properties.ConfigError, match=r"max\.connections\.per\.ip can be set to"):
        broker(max_connections_per_ip="0")
    broker(max_connections_per_ip="0", max_connections_per_ip_overrides="127.0.0.1:5")
