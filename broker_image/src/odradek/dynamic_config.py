"""Dynamic broker configs (KIP-226): the defaults of topic configs, and replication quotas.

A config is looked up in `/config/brokers/N`, then in `/config/brokers/<default>` (every broker),
then in the broker's file. Defaults of topic configs are dynamic: topics get them from here after
each change. Two are not: the message format, as in Kafka, and unclean leader election, which the
controller reads from its file. Replication quotas are dynamic too: each copy looks them up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from odradek import properties
from odradek.config import BrokerConfig, TopicConfig
from odradek.properties import ConfigError, ConfigKey

CLUSTER_DEFAULT = "<default>"

_INHERITED = {declared.inherits for _, declared in properties.keys_of(TopicConfig)} - {
    "log_message_format_version",
    "unclean_leader_election_enable",
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
    if field in _INHERITED | _LIMITS
}


@dataclasses.dataclass(frozen=True, slots=True)
class LayeredConfig:
    """The configs of a broker by layer; `effective` is the result."""

    static: BrokerConfig
    effective: BrokerConfig
    cluster: Mapping[str, str] = dataclasses.field(default_factory=dict)
    own: Mapping[str, str] = dataclasses.field(default_factory=dict)


def layer(
    static: BrokerConfig, cluster: Mapping[str, str], own: Mapping[str, str]
) -> LayeredConfig:
    """Layer the checked entries of all brokers and of this broker over its file."""
    fields = {
        DYNAMIC_KEYS[name][0]: properties.parse_value(DYNAMIC_KEYS[name][1], name, text)
        for name, text in {**cluster, **own}.items()
    }
    return LayeredConfig(static, dataclasses.replace(static, **fields), cluster, own)


def check(entries: Mapping[str, str]) -> None:
    """Raise ConfigError for entries that are not dynamic or invalid."""
    fixed = sorted(entries.keys() - DYNAMIC_KEYS.keys())
    if fixed:
        raise ConfigError(f"Cannot update these configs dynamically: Set({', '.join(fixed)})")
    for name, text in entries.items():
        properties.parse_value(DYNAMIC_KEYS[name][1], name, text)
