"""DescribeConfigs: the settings of topics and of this broker, and where each value comes from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kazoo.exceptions import KazooException

from odradek import config as configuration
from odradek import properties
from odradek.config import BrokerConfig, TopicConfig
from odradek.handlers.context import Broker, Call
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from odradek.protocol.messages.topics import CreatableTopicConfigs
from odradek.zk import znodes

TOPIC = 2
BROKER = 4
DYNAMIC_TOPIC = 1
STATIC_BROKER = 4
DEFAULT = 5
# Config types of version 3 (KIP-569); every whole number is answered as LONG.
_TYPES: Mapping[type, int] = {bool: 1, str: 2, int: 5, float: 6, tuple: 7}


@dataclass(frozen=True, slots=True)
class _Setting:
    name: str
    text: str | None
    source: int
    type: int


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value)


def _topic_settings(
    config: BrokerConfig, settings: TopicConfig, entries: Mapping[str, str]
) -> Iterator[_Setting]:
    defaults = TopicConfig()
    for field, declared in properties.keys_of(TopicConfig):
        value = getattr(settings, field)
        if declared.name in entries:
            source = DYNAMIC_TOPIC
        else:
            source = DEFAULT if value == getattr(defaults, field) else STATIC_BROKER
        yield _Setting(declared.name, _text(value), source, _TYPES.get(type(value), 2))


def _broker_settings(config: BrokerConfig) -> Iterator[_Setting]:
    defaults = {field.name: field.default for field in dataclasses.fields(BrokerConfig)}
    for field, declared in properties.keys_of(BrokerConfig):
        value = getattr(config, field)
        source = DEFAULT if value == defaults[field] else STATIC_BROKER
        yield _Setting(declared.name, _text(value), source, _TYPES.get(type(value), 2))


def creatable_topic_configs(
    config: BrokerConfig, settings: TopicConfig, entries: Mapping[str, str]
) -> list[CreatableTopicConfigs]:
    """The settings of a new topic, as CreateTopics tells them."""
    return [
        CreatableTopicConfigs(name=one.name, value=one.text, config_source=one.source)
        for one in _topic_settings(config, settings, entries)
    ]


async def describe_configs(
    broker: Broker, request: DescribeConfigsRequest, call: Call
) -> DescribeConfigsResponse:
    """Settings of each resource asked for."""
    return DescribeConfigsResponse(
        results=[await _describe(broker, resource) for resource in request.resources]
    )


async def _describe(broker: Broker, resource: DescribeConfigsResource) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name, configs=[]
    )
    try:
        settings = await _settings_of(broker, resource)
    except KafkaError as refusal:
        result.error_code, result.error_message = refusal.code, refusal.message
        return result
    wanted = resource.configuration_keys
    result.configs = [
        DescribeConfigsResourceResult(
            name=one.name,
            value=one.text,
            # A broker's settings are read from its file only; a topic's can be altered.
            read_only=resource.resource_type == BROKER,
            is_default=one.source == DEFAULT,
            config_source=one.source,
            is_sensitive=False,
            config_type=one.type,
        )
        for one in settings
        if not wanted or one.name in wanted
    ]
    return result


async def _settings_of(broker: Broker, resource: DescribeConfigsResource) -> list[_Setting]:
    name = resource.resource_name
    if resource.resource_type == TOPIC:
        if name not in broker.metadata.topics:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' does not exist."
            )
        path = znodes.topic_config_path(name)
        try:
            found = await broker.session.get_all([path])
        except KazooException as failure:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper: {failure!r}") from failure
        entries = znodes.decode_config(path, found[path][0]) if path in found else {}
        known = {key: text for key, text in entries.items() if key in configuration.TOPIC_KEYS}
        settings = configuration.resolve_topic(broker.config, known)
        return list(_topic_settings(broker.config, settings, known))
    if resource.resource_type == BROKER:
        if name != str(broker.config.broker_id):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {broker.config.broker_id}, but received {name}",
            )
        return list(_broker_settings(broker.config))
    raise KafkaError(
        ErrorCode.INVALID_REQUEST, f"Unsupported resource type {resource.resource_type}"
    )
