"""Topic configs: Kafka's keys, defaults and bounds, and the broker's defaults of them.

A `TopicConfig` is resolved from the broker's defaults and the topic's entries in
`/config/topics/T`. Field names are Kafka's keys with underscores for dots.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from odradek import message_format, properties
from odradek.config import CODECS, HOUR_MS, BrokerConfig
from odradek.properties import (
    INT_MAX,
    LONG_MAX,
    ConfigError,
    ConflictError,
    boolean,
    decimal,
    integer,
    key,
    one_of,
    throttled_replicas,
    words,
)

MIN_COMPACTION_LAG, MAX_COMPACTION_LAG = "min.compaction.lag.ms", "max.compaction.lag.ms"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The settings of a topic: the broker's defaults overridden by the topic's entries (Z11).

    `inherits` names the BrokerConfig field that is the default of the topic's key.
    """

    cleanup_policy: tuple[str, ...] = key(
        "cleanup.policy", ("delete",), words(("delete", "compact")), inherits="log_cleanup_policy"
    )
    compression_type: str = key(
        "compression.type", "producer", one_of(*CODECS), inherits="compression_type"
    )
    delete_retention_ms: int = key(
        "delete.retention.ms", 24 * HOUR_MS, integer(0), inherits="log_cleaner_delete_retention_ms"
    )
    file_delete_delay_ms: int = key(
        "file.delete.delay.ms", 60_000, integer(0), inherits="log_segment_delete_delay_ms"
    )
    flush_messages: int = key(
        "flush.messages", LONG_MAX, integer(0), inherits="log_flush_interval_messages"
    )
    flush_ms: int = key("flush.ms", LONG_MAX, integer(0), inherits="log_flush_interval_ms")
    follower_replication_throttled_replicas: tuple[str, ...] = key(
        "follower.replication.throttled.replicas", (), throttled_replicas
    )
    index_interval_bytes: int = key(
        "index.interval.bytes", 4096, integer(0, INT_MAX), inherits="log_index_interval_bytes"
    )
    leader_replication_throttled_replicas: tuple[str, ...] = key(
        "leader.replication.throttled.replicas", (), throttled_replicas
    )
    max_compaction_lag_ms: int = key(
        MAX_COMPACTION_LAG, LONG_MAX, integer(1), inherits="log_cleaner_max_compaction_lag_ms"
    )
    max_message_bytes: int = key(
        "max.message.bytes", 1_048_588, integer(0, INT_MAX), inherits="message_max_bytes"
    )
    message_downconversion_enable: bool = key(
        "message.downconversion.enable", True, boolean, inherits="log_message_downconversion_enable"
    )
    message_format_version: str = key(
        "message.format.version",
        "2.1",
        message_format.version,
        inherits="log_message_format_version",
    )
    message_timestamp_difference_max_ms: int = key(
        "message.timestamp.difference.max.ms",
        LONG_MAX,
        integer(0),
        inherits="log_message_timestamp_difference_max_ms",
    )
    message_timestamp_type: str = key(
        "message.timestamp.type",
        "CreateTime",
        one_of("CreateTime", "LogAppendTime"),
        inherits="log_message_timestamp_type",
    )
    min_cleanable_dirty_ratio: float = key(
        "min.cleanable.dirty.ratio", 0.5, decimal(0, 1), inherits="log_cleaner_min_cleanable_ratio"
    )
    min_compaction_lag_ms: int = key(
        MIN_COMPACTION_LAG, 0, integer(0), inherits="log_cleaner_min_compaction_lag_ms"
    )
    min_insync_replicas: int = key(
        "min.insync.replicas", 1, integer(1, INT_MAX), inherits="min_insync_replicas"
    )
    preallocate: bool = key("preallocate", False, boolean, inherits="log_preallocate")
    retention_bytes: int = key("retention.bytes", -1, integer(), inherits="log_retention_bytes")
    retention_ms: int = key("retention.ms", 168 * HOUR_MS, integer(-1), inherits="log_retention_ms")
    segment_bytes: int = key(
        "segment.bytes", 1_073_741_824, integer(14, INT_MAX), inherits="log_segment_bytes"
    )
    segment_index_bytes: int = key(
        "segment.index.bytes", 10_485_760, integer(4, INT_MAX), inherits="log_index_size_max_bytes"
    )
    segment_jitter_ms: int = key("segment.jitter.ms", 0, integer(0), inherits="log_roll_jitter_ms")
    segment_ms: int = key("segment.ms", 168 * HOUR_MS, integer(1), inherits="log_roll_ms")
    unclean_leader_election_enable: bool = key(
        "unclean.leader.election.enable", False, boolean, inherits="unclean_leader_election_enable"
    )

    # The magic of message.format.version: every append needs it.
    message_magic: int = dataclasses.field(init=False, repr=False, compare=False)
    # The largest age of the active segment: it is not compacted, so max.compaction.lag.ms counts.
    longest_segment_ms: int = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        magic = message_format.magic_of(self.message_format_version)
        object.__setattr__(self, "message_magic", magic)
        longest_ms = self.segment_ms
        if "compact" in self.cleanup_policy:
            longest_ms = min(longest_ms, self.max_compaction_lag_ms)
        object.__setattr__(self, "longest_segment_ms", longest_ms)


TOPIC_KEYS: Mapping[str, properties.ConfigKey] = {
    declared.name: declared for _, declared in properties.keys_of(TopicConfig)
}


def resolve_topic(broker: BrokerConfig, overrides: Mapping[str, str]) -> TopicConfig:
    """Return the settings of a topic with these entries on this broker.

    Raises ConfigError for an unknown key or an invalid value.
    """
    for name in overrides:
        if name not in TOPIC_KEYS:
            raise ConfigError(f"Unknown topic config name: {name}")
    fields: dict[str, Any] = {}
    for field, declared in properties.keys_of(TopicConfig):
        inherited = getattr(broker, declared.inherits) if declared.inherits else None
        if inherited is not None:
            fields[field] = inherited
    fields.update(properties.read_fields(TopicConfig, overrides))
    return TopicConfig(**fields)


def check_topic_entries(entries: Mapping[str, str]) -> None:
    """Raise ConfigError for the first unknown name or invalid value.

    Raises ConflictError if entries contradict each other; the broker's defaults do not count.
    """
    values: dict[str, Any] = {}
    for name, text in entries.items():
        if name not in TOPIC_KEYS:
            raise ConfigError(f"Unknown topic config name: {name}")
        values[name] = properties.parse_value(TOPIC_KEYS[name], name, text)
    check_compaction_lags(
        "", values.get(MIN_COMPACTION_LAG, 0), values.get(MAX_COMPACTION_LAG, LONG_MAX)
    )


def check_compaction_lags(prefix: str, least_ms: int, most_ms: int) -> None:
    """Raise ConflictError unless the lags, of keys with this prefix, are in order."""
    if least_ms > most_ms:
        raise ConflictError(
            f"{prefix}{MIN_COMPACTION_LAG}={least_ms} is larger than "
            f"{prefix}{MAX_COMPACTION_LAG}={most_ms}"
        )
