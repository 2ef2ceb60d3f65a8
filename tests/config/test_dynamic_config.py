"""What of a broker's settings may change while it runs, and how far (KIP-226)."""

from __future__ import annotations

import pytest

from odradek import config as configuration
from odradek import config_loading, dynamic_config, properties
from odradek.dynamic_config import LayeredConfig
from odradek.properties import ConfigError

# AllDynamicConfigs of Kafka 2.8, and the quotas of DynamicConfig.Broker; without listeners,
# security settings and metric.reporters. The last one came with Kafka 3.6.
KAFKAS = """
    log.cleaner.threads log.cleaner.dedupe.buffer.size log.cleaner.io.buffer.load.factor
    log.cleaner.io.buffer.size message.max.bytes log.cleaner.io.max.bytes.per.second
    log.cleaner.backoff.ms
    log.segment.bytes log.roll.ms log.roll.jitter.ms log.index.size.max.bytes
    log.flush.interval.messages log.flush.interval.ms log.retention.bytes log.retention.ms
    log.index.interval.bytes log.cleaner.delete.retention.ms log.cleaner.min.compaction.lag.ms
    log.cleaner.max.compaction.lag.ms log.segment.delete.delay.ms log.cleaner.min.cleanable.ratio
    log.cleanup.policy unclean.leader.election.enable min.insync.replicas compression.type
    log.preallocate log.message.timestamp.type log.message.timestamp.difference.max.ms
    log.message.downconversion.enable
    num.io.threads num.network.threads num.replica.fetchers num.recovery.threads.per.data.dir
    background.threads
    max.connections max.connections.per.ip max.connections.per.ip.overrides
    max.connection.creation.rate
    leader.replication.throttled.rate follower.replication.throttled.rate
    replica.alter.log.dirs.io.max.bytes.per.second
    transaction.partition.verification.enable
"""


def layers(**settings: str) -> LayeredConfig:
    static, _ = config_loading.from_values(
        {
            "broker.id": "1",
            "zookeeper.connect": "unused",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )
    return LayeredConfig(static, static)


def alter(before: LayeredConfig, wanted: dict[str, str], *, cluster: bool) -> None:
    dynamic_config.check(wanted)
    dynamic_config.check_change(before, wanted, cluster=cluster)


def test_the_same_settings_are_dynamic_as_in_kafka() -> None:
    known = {one.name for _, one in properties.keys_of(configuration.BrokerConfig)}
    assert set(dynamic_config.DYNAMIC_KEYS) == set(KAFKAS.split()) & known
    assert set(KAFKAS.split()) - known <= {"max.connection.creation.rate"}


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("num.io.threads", "17", "should not be greater than double the current value 8"),
        ("num.io.threads", "3", "should be at least half the current value 8"),
        ("background.threads", "21", "failed for background.threads=21, value should not be"),
        ("log.cleaner.threads", "0", "Log cleaner threads should be at least 1"),
        ("log.cleaner.threads", "5", "cannot be increased to more than double the current value 2"),
        ("log.cleaner.dedupe.buffer.size", "2000000", "must be at least 1MB per cleaner thread"),
        ("max.connections", "0", "Invalid max.connections 0"),
        ("max.connections.per.ip", "0", "can be set to zero only if"),
    ],
)
@pytest.mark.parametrize("cluster", [True, False])
def test_a_broker_goes_only_so_far_at_once(
    name: str, text: str, reason: str, cluster: bool
) -> None:
    with pytest.raises(ConfigError, match=reason):
        alter(layers(log_cleaner_threads="2"), {name: text}, cluster=cluster)


def test_connections_leave_descriptors_to_others_and_kafkas_default_takes_the_most() -> None:
    for text in ("1", "500", "2147483647"):
        dynamic_config.check({"max.connections": text}, 500)
    with pytest.raises(ConfigError, match="Value must be no more than 500, half"):
        dynamic_config.check({"max.connections": "501"}, 500)


@pytest.mark.parametrize("text", ["h:2147483648", "h:-1", "h:\u0663", "h:", ":5", "h"])
def test_overrides_that_are_no_number_of_a_host_are_invalid(text: str) -> None:
    with pytest.raises(ConfigError, match=f"{text} is not host:number"):
        dynamic_config.check({"max.connections.per.ip.overrides": text})


@pytest.mark.parametrize(
    "wanted",
    [
        {"num.io.threads": "16", "num.network.threads": "1", "log.cleaner.threads": "2"},
        {"num.io.threads": "4"},
        {"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "127.0.0.1:5"},
        {"left.by.another.broker": "x", "log.retention.ms": "5"},
        {},
    ],
)
def test_reasonable_changes_are_taken(wanted: dict[str, str]) -> None:
    dynamic_config.check_change(layers(), wanted, cluster=False)


def test_contradiction_that_was_there_before_is_no_obstacle_to_other_changes() -> None:
    # The hosts of the overrides could not be looked up.
    shut = dynamic_config.layer(layers().static, {"max.connections.per.ip": "0"}, {})
    dynamic_config.check_change(shut, {"log.retention.ms": "5"}, cluster=False)
    with pytest.raises(ConfigError, match="can be set to zero only if"):
        dynamic_config.check_change(layers(), {"max.connections.per.ip": "0"}, cluster=False)


def test_the_default_of_all_does_not_reach_a_broker_with_its_own() -> None:
    static = layers().static
    own = dynamic_config.layer(static, {}, {"num.io.threads": "16"})
    dynamic_config.check_change(own, {"num.io.threads": "1000"}, cluster=True)
    dynamic_config.check_change(own, {}, cluster=False)  # back to the 8 of the file
    with pytest.raises(ConfigError):
        dynamic_config.check_change(own, {"num.io.threads": "7"}, cluster=False)
