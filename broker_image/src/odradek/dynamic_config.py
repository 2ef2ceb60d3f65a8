"""Dynamic broker configs (KIP-226): the settings that a broker takes while it runs.

A config is looked up in `/config/brokers/N`, then in `/config/brokers/<default>` (every broker),
then in the broker's file. Dynamic are, as in Kafka, the defaults of topic configs except for the
message format, the sizes of thread pools, the log cleaner, the limits of connections, whether
transactions are verified, and replication quotas. Kafka's dynamic listeners and security settings
are refused.

Who uses a setting looks it up, or is told of the change (`TopicConfigs.on_broker_change`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping

from odradek import config, properties
from odradek.config import BrokerConfig, within_descriptors
from odradek.properties import INT_MAX, ConfigError, ConfigKey
from odradek.topic_config import TopicConfig

CLUSTER_DEFAULT = "<default>"
MAX_CONNECTIONS = "max.connections"
PER_IP_OVERRIDES = "max.connections.per.ip.overrides"

_INHERITED = {declared.inherits for _, declared in properties.keys_of(TopicConfig)} - {
    "log_message_format_version"
}
# Kafka's DynamicThreadPool, LogCleaner and SocketServer.
_THREAD_POOLS = (
    "num.io.threads",
    "num.network.threads",
    "num.replica.fetchers",
    "num.recovery.threads.per.data.dir",
    "background.threads",
)
_CLEANER_THREADS = "log.cleaner.threads"
_RECONFIGURABLE = {
    *_THREAD_POOLS,
    _CLEANER_THREADS,
    "log.cleaner.dedupe.buffer.size",
    "log.cleaner.io.buffer.load.factor",
    "log.cleaner.io.buffer.size",
    "log.cleaner.io.max.bytes.per.second",
    "log.cleaner.backoff.ms",
    MAX_CONNECTIONS,
    "max.connections.per.ip",
    PER_IP_OVERRIDES,
    "max.connection.creation.rate",
    # Kafka 3.6's DynamicProducerStateManagerConfig.
    "transaction.partition.verification.enable",
}
# Kafka takes 0 from a file only.
_AT_LEAST_1 = {
    MAX_CONNECTIONS: "Invalid max.connections 0",
    _CLEANER_THREADS: "Log cleaner threads should be at least 1",
}
_LIMITS = {
    "leader_replication_throttled_rate",
    "follower_replication_throttled_rate",
    "replica_alter_log_dirs_io_max_bytes_per_second",
}
# By Kafka's name: the field of BrokerConfig and its declaration.
DYNAMIC_KEYS: Mapping[str, tuple[str, ConfigKey]] = {
    declared.name: (field, declared)
    for field, declared in properties.keys_of(BrokerConfig)
    if field in _INHERITED | _LIMITS or declared.name in _RECONFIGURABLE
}


@dataclasses.dataclass(frozen=True, slots=True)
class LayeredConfig:
    """The configs of a broker by layer; `effective` is the result.

    `most_connections` are allowed by the file descriptors (see `config.within_descriptors`).
    """

    static: BrokerConfig
    effective: BrokerConfig
    cluster: Mapping[str, str] = dataclasses.field(default_factory=dict)
    own: Mapping[str, str] = dataclasses.field(default_factory=dict)
    most_connections: int = INT_MAX


def layer(
    static: BrokerConfig,
    cluster: Mapping[str, str],
    own: Mapping[str, str],
    most_connections: int = INT_MAX,
) -> LayeredConfig:
    """Layer the checked entries of all brokers and of this broker over its file."""
    fields = {
        DYNAMIC_KEYS[name][0]: properties.parse_value(DYNAMIC_KEYS[name][1], name, text)
        for name, text in {**cluster, **own}.items()
    }
    effective = within_descriptors(dataclasses.replace(static, **fields), most_connections)
    return LayeredConfig(static, effective, cluster, own, most_connections)


def check(entries: Mapping[str, str], most_connections: int = INT_MAX) -> None:
    """Raise ConfigError for entries that are not dynamic or invalid.

    Kafka's default of max.connections is never too many: it stands for as many as there can be.
    """
    fixed = sorted(entries.keys() - DYNAMIC_KEYS.keys())
    if fixed:
        raise ConfigError(f"Cannot update these configs dynamically: Set({', '.join(fixed)})")
    for name, text in entries.items():
        value = properties.parse_value(DYNAMIC_KEYS[name][1], name, text)
        if name in _AT_LEAST_1 and value == 0:
            raise ConfigError(_AT_LEAST_1[name])
        if name == MAX_CONNECTIONS and most_connections < value < INT_MAX:
            raise ConfigError(
                f"Invalid value {text} for configuration {name}: Value must be no more than "
                f"{most_connections}, half of the file descriptors"
            )


def check_change(layers: LayeredConfig, wanted: Mapping[str, str], *, cluster: bool) -> None:
    """Raise ConfigError if this broker may not go from its settings to those with `wanted`.

    They replace the entries of this broker, or of all brokers if `cluster`. As in Kafka, thread
    pools at most double and at least halve.
    """
    known = {name: text for name, text in wanted.items() if _is_sound(name, text)}
    own, shared = (layers.own, known) if cluster else (known, layers.cluster)
    before = layers.effective
    after = layer(layers.static, shared, own, layers.most_connections).effective
    for name in _THREAD_POOLS:
        _check_threads(
            getattr(before, DYNAMIC_KEYS[name][0]),
            getattr(after, DYNAMIC_KEYS[name][0]),
            f"Dynamic thread count update validation failed for {name}",
        )
    _check_cleaner(before, after)
    for names, reason in conflicts(after):
        fields = [DYNAMIC_KEYS[name][0] for name in names]
        if any(getattr(before, field) != getattr(after, field) for field in fields):
            raise ConfigError(reason)


def conflicts(effective: BrokerConfig) -> Iterator[tuple[Collection[str], str]]:
    """Yield the names of dynamic settings that contradict each other, and how."""
    for names, reason in config.conflicts(effective):
        if DYNAMIC_KEYS.keys() >= set(names):
            yield names, reason


def _is_sound(name: str, text: str) -> bool:
    """Return whether an entry has effect; another broker may have left others."""
    try:
        check({name: text})
    except ConfigError:
        return False
    return True


def _check_threads(before: int, after: int, failed: str) -> None:
    if after < before // 2:
        raise ConfigError(
            f"{failed}={after}, value should be at least half the current value {before}"
        )
    if after > before * 2:
        raise ConfigError(
            f"{failed}={after}, value should not be greater than double the current value {before}"
        )


def _check_cleaner(before: BrokerConfig, after: BrokerConfig) -> None:
    threads, present = after.log_cleaner_threads, before.log_cleaner_threads
    if threads < present // 2:
        raise ConfigError(
            f"Log cleaner threads cannot be reduced to less than half the current value {present}"
        )
    if threads > present * 2:
        raise ConfigError(
            "Log cleaner threads cannot be increased to more than double the current value "
            f"{present}"
        )
