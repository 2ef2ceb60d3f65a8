"""Broker settings that change while it runs (KIP-226): the defaults of topic settings, throttles.

A setting is looked up in `/config/brokers/N`, then in `/config/brokers/<default>` (every broker),
then in the broker's own file. Keys that give a topic setting its default can change: topics take
them from here at every change; not the message format, as in Kafka; and whether an unclean election
is allowed is decided by the controller from its file. Limits of replication can change too: they
are looked up here whenever something is copied.
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
# By Kafka's name: the field of BrokerConfig, and how its text is read.
DYNAMIC_KEYS: Mapping[str, tuple[str, ConfigKey]] = {
    declared.name: (field, declared)
    for field, declared in properties.keys_of(BrokerConfig)
    if field in _INHERITED | _LIMITS
}


@dataclasses.dataclass(frozen=True, slots=True)
class LayeredConfig:
    """A broker's settings with the layers they come from; `effective` is the outcome."""

    static: BrokerConfig
    effective: BrokerConfig
    cluster: Mapping[str, str] = dataclasses.field(default_factory=dict)
    own: Mapping[str, str] = dataclasses.field(default_factory=dict)


def layer(
    static: BrokerConfig, cluster: Mapping[str, str], own: Mapping[str, str]
) -> LayeredConfig:
    """Put entries for every broker and entries of this one, both checked, over the file's."""
    fields = {
        DYNAMIC_KEYS[name][0]: properties.parse_value(DYNAMIC_KEYS[name][1], name, text)
        for name, text in {**cluster, **own}.items()
    }
    return LayeredConfig(static, dataclasses.replace(static, **fields), cluster, own)


def check(entries: Mapping[str, str]) -> None:
    """Raise ConfigError for entries that cannot change at run time or make no sense."""
    fixed = sorted(entries.keys() - DYNAMIC_KEYS.keys())
    if fixed:
        raise ConfigError(f"Cannot update these configs dynamically: Set({', '.join(fixed)})")
    for name, text in entries.items():
        properties.parse_value(DYNAMIC_KEYS[name][1], name, text)
