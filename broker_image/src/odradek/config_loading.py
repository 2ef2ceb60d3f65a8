"""Loading of broker configs, from a server.properties file or a mapping, with all checks."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from odradek import (
    listener_settings,
    listeners,
    properties,
    security_settings,
    zookeeper_settings,
)
from odradek.config import CREATION_RATE, BrokerConfig, conflicts
from odradek.properties import INT_MAX, LONG_MAX, ConfigError, integer
from odradek.topic_config import check_compaction_lags

_OF_LISTENER = re.compile(rf"listener\.name\.[^.]+\.{re.escape(CREATION_RATE)}")

# Kafka's keys without an equivalent here (thread pools, metric windows and such):
# accepted silently, because a server.properties made for Kafka contains them.
INERT_KEYS = frozenset(
    {
        "zookeeper.sync.time.ms",
        "zookeeper.max.in.flight.requests",
        "queued.max.requests",
        "fetch.purgatory.purge.interval.requests",
        "producer.purgatory.purge.interval.requests",
        "delete.records.purgatory.purge.interval.requests",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "kafka.metrics.reporters",
        "kafka.metrics.polling.interval.secs",
        "broker.id.generation.enable",
        "reserved.broker.max.id",
        # Of delegation tokens, without a secret for which there are none.
        "delegation.token.expiry.check.interval.ms",
        "delegation.token.expiry.time.ms",
        "delegation.token.max.lifetime.ms",
        # Of passwords among the settings in ZooKeeper, where there are none.
        "password.encoder.cipher.algorithm",
        "password.encoder.iterations",
        "password.encoder.key.length",
        "password.encoder.keyfactory.algorithm",
        "password.encoder.old.secret",
        "password.encoder.secret",
        # Of connections to other brokers.
        "replica.socket.receive.buffer.bytes",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
        # Of clusters without ZooKeeper: no effect in Kafka, either, without `process.roles`.
        "broker.heartbeat.interval.ms",
        "broker.session.timeout.ms",
        "controller.listener.names",
        "controller.quorum.append.linger.ms",
        "controller.quorum.election.backoff.max.ms",
        "controller.quorum.election.timeout.ms",
        "controller.quorum.fetch.timeout.ms",
        "controller.quorum.request.timeout.ms",
        "controller.quorum.retry.backoff.ms",
        "controller.quorum.voters",
        "initial.broker.registration.timeout.ms",
        "metadata.log.dir",
        "node.id",
    }
)
# The others that Kafka 2.8 has and this broker has not, with Kafka's default, which asks for
# nothing. Another value is ignored with a warning.
UNSUPPORTED: Mapping[str, str] = MappingProxyType(
    {
        "advertised.host.name": "",
        "advertised.port": "",
        "control.plane.listener.name": "",
        "host.name": "",
        "port": "9092",
        "process.roles": "",
        # Windows of the throttles of replicas, and of moves between log directories.
        "alter.log.dirs.replication.quota.window.num": "11",
        "alter.log.dirs.replication.quota.window.size.seconds": "1",
        "replication.quota.window.num": "11",
        "replication.quota.window.size.seconds": "1",
        # Quotas of clients that are in no znode.
        "client.quota.callback.class": "",
        "quota.consumer.default": str(LONG_MAX),
        "quota.producer.default": str(LONG_MAX),
        # Commits of groups.
        "offsets.commit.required.acks": "-1",
        "offsets.commit.timeout.ms": "5000",
        "offsets.topic.compression.codec": "0",
    }
)
_UNSUPPORTED_OF_LISTENER = re.compile(r"listener\.name\.[^.]+\.max\.connections")


def load(
    path: str | Path, overrides: Mapping[str, str] | None = None
) -> tuple[BrokerConfig, list[str]]:
    """Read a server.properties file, apply overrides, and check everything.

    Return the settings and the names of ignored ones. Raises ConfigError with a one-line reason.
    """
    values = {**properties.read_file(path), **(overrides or {})}
    return from_values(values, os.environ)


def from_values(
    values: Mapping[str, str], environment: Mapping[str, str] = MappingProxyType({})
) -> tuple[BrokerConfig, list[str]]:
    """Read and check settings as `load` does, from a mapping of Kafka's keys to text.

    `environment` has KAFKA_OPTS, which leads to the login to ZooKeeper.
    """
    if refused := security_settings.unsupported(values):
        raise ConfigError(
            f"these security settings are not supported; remove {', '.join(refused)}, "
            "and let only trusted networks reach the broker"
        )
    fields = properties.read_fields(BrokerConfig, values)
    for required, name in (("broker_id", "broker.id"), ("zookeeper_connect", "zookeeper.connect")):
        if required not in fields:
            raise ConfigError(f'Missing required configuration "{name}" which has no default value')
    if {"inter_broker_listener_name", "security_inter_broker_protocol"} <= fields.keys():
        raise ConfigError(
            "Only one of inter.broker.listener.name and security.inter.broker.protocol "
            "should be set."
        )
    if "security_inter_broker_protocol" in fields:
        fields["inter_broker_listener_name"] = fields["security_inter_broker_protocol"]
    config = dataclasses.replace(
        _with_endpoints(BrokerConfig(**fields), values),
        zookeeper_security=zookeeper_settings.read(values, environment),
    )
    if not config.log_dirs:
        raise ConfigError("At least one log directory must be defined via log.dirs or log.dir")
    for _, reason in conflicts(config):
        raise ConfigError(reason)
    check_compaction_lags(
        "log.cleaner.",
        config.log_cleaner_min_compaction_lag_ms,
        config.log_cleaner_max_compaction_lag_ms,
    )
    return config, ignored_keys(values)


def ignored_keys(values: Mapping[str, str]) -> list[str]:
    """Return the names, sorted, of settings that ask for something and have no effect: those that
    are not supported, and those that neither Kafka 2.8 nor this broker has.
    """
    known = properties.known_names(BrokerConfig) | INERT_KEYS
    return sorted(
        name
        for name in values.keys() - known
        if not security_settings.is_security_setting(name)
        and not _OF_LISTENER.fullmatch(name)
        and not (name in UNSUPPORTED and values[name].strip() in ("", UNSUPPORTED[name]))
    )


def is_unsupported(name: str) -> bool:
    """Return whether Kafka 2.8 has a setting that this broker has not."""
    return name in UNSUPPORTED or _UNSUPPORTED_OF_LISTENER.fullmatch(name) is not None


def _with_endpoints(config: BrokerConfig, values: Mapping[str, str]) -> BrokerConfig:
    found, advertised = listeners.endpoints(
        config.listeners_text,
        config.advertised_listeners_text,
        config.listener_protocols,
        config.inter_broker_listener_name,
    )
    security = listener_settings.read(values, found, config.inter_broker_listener_name)
    rates = {
        one.name: properties.parsed(values, name, "", integer(0, INT_MAX))
        for one in found
        if (name := f"listener.name.{one.name.lower()}.{CREATION_RATE}") in values
    }
    return dataclasses.replace(
        config,
        listeners=found,
        advertised_listeners=advertised,
        listener_creation_rates=rates,
        security=security,
    )
