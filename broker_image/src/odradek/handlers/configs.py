"""DescribeConfigs: the configs of topics and of this broker, with the source of each value.

A broker resource without a name stands for all brokers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kazoo.exceptions import KazooException

from odradek import properties, slices, topic_config
from odradek.config import BrokerConfig
from odradek.dynamic_config import DYNAMIC_KEYS, LayeredConfig
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from odradek.protocol.messages.topics import CreatableTopicConfigs
from odradek.replica.topic_configs import sound_entries
from odradek.topic_config import TopicConfig
from odradek.zk import admin, znodes
from odradek.zk.failures import meaning

TOPIC = 2
BROKER = 4
# Where a value comes from (KIP-226).
DYNAMIC_TOPIC = 1
DYNAMIC_BROKER = 2
DYNAMIC_CLUSTER = 3
STATIC_BROKER = 4
DEFAULT = 5
STRING = 2
# Names of configs that may make two requests for one resource different.
KEYS_COMPARED = 100
# Config types of version 3 (KIP-569); every whole number is answered as LONG.
_TYPES: Mapping[type, int] = {bool: 1, str: STRING, int: 5, float: 6, tuple: 7}


@dataclass(frozen=True, slots=True)
class _Origin:
    """One of the sources of a value."""

    name: str
    text: str
    source: int


@dataclass(frozen=True, slots=True)
class _Setting:
    """A config and its value; `origins` are its sources, the effective one first."""

    name: str
    text: str | None
    type: int
    origins: tuple[_Origin, ...]
    read_only: bool = False

    @property
    def source(self) -> int:
        return self.origins[0].source if self.origins else DEFAULT


_Made = dict[_Setting, DescribeConfigsResourceResult]


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value)


_BROKER_FIELDS = {field.name: field for field in dataclasses.fields(BrokerConfig)}


def _broker_origins(settings: LayeredConfig, field: str) -> tuple[_Origin, ...]:
    declared = _BROKER_FIELDS[field]
    name = declared.metadata["key"].name
    found = [
        _Origin(name, entries[name], source)
        for entries, source in ((settings.own, DYNAMIC_BROKER), (settings.cluster, DYNAMIC_CLUSTER))
        if name in entries
    ]
    static = _text(getattr(settings.static, field))
    if static is not None and static != _text(declared.default):
        found.append(_Origin(name, static, STATIC_BROKER))
    if declared.default is not None:
        found.append(_Origin(name, _text(declared.default) or "", DEFAULT))
    return tuple(found)


def _topic_settings(settings: LayeredConfig, entries: Mapping[str, str]) -> Iterator[_Setting]:
    resolved, defaults = topic_config.resolve_topic(settings.effective, entries), TopicConfig()
    for field, declared in properties.keys_of(TopicConfig):
        value, name = getattr(resolved, field), declared.name
        if declared.inherits:
            origins = _broker_origins(settings, declared.inherits)
        else:
            origins = (_Origin(name, _text(getattr(defaults, field)) or "", DEFAULT),)
        if name in entries:
            origins = (_Origin(name, entries[name], DYNAMIC_TOPIC), *origins)
        yield _Setting(name, _text(value), _TYPES.get(type(value), STRING), origins)


def _broker_settings(settings: LayeredConfig) -> Iterator[_Setting]:
    for field, declared in properties.keys_of(BrokerConfig):
        value = getattr(settings.effective, field)
        yield _Setting(
            declared.name,
            _text(value),
            _TYPES.get(type(value), STRING),
            _broker_origins(settings, field),
            read_only=declared.name not in DYNAMIC_KEYS,
        )


def _cluster_settings(settings: LayeredConfig) -> Iterator[_Setting]:
    """Yield the dynamic configs of all brokers."""
    for name, text in settings.cluster.items():
        value = getattr(settings.effective, DYNAMIC_KEYS[name][0])
        origin = _Origin(name, text, DYNAMIC_CLUSTER)
        yield _Setting(name, text, _TYPES.get(type(value), STRING), (origin,))


def creatable_topic_configs(
    settings: LayeredConfig, entries: Mapping[str, str]
) -> list[CreatableTopicConfigs]:
    """Return the configs of a new topic, for the answer of CreateTopics."""
    return [
        CreatableTopicConfigs(name=one.name, value=one.text, config_source=one.source)
        for one in _topic_settings(settings, entries)
    ]


async def describe_configs(
    broker: Broker, request: DescribeConfigsRequest, context: RequestContext
) -> DescribeConfigsResponse:
    """Return the configs of each resource; a resource named twice is answered once."""
    results = []
    made: _Made = {}
    with slices.collector_paused():
        for resource in await _without_repeats(request.resources):
            results.append(await _describe(broker, resource, request.include_synonyms, made))
            await slices.pause()  # a request for thousands must not delay others
    return DescribeConfigsResponse(results=results)


async def _without_repeats(
    resources: Iterable[DescribeConfigsResource],
) -> list[DescribeConfigsResource]:
    unique: dict[object, DescribeConfigsResource] = {}
    for few in slices.cut(resources, slices.KEYS_AT_ONCE // 10):
        for one in few:
            keys = one.configuration_keys or ()
            # Long lists are not compared: a request cannot have many.
            same = tuple(keys) if len(keys) <= KEYS_COMPARED else id(one)
            unique[one.resource_type, one.resource_name, same] = one
        if len(few) == slices.KEYS_AT_ONCE // 10:
            await slices.pause()
    found = list(unique.values())
    slices.discard(unique)
    return found


async def _describe(
    broker: Broker, resource: DescribeConfigsResource, with_synonyms: bool, made: _Made
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name, configs=[]
    )
    try:
        settings = await _settings_of(broker, resource)
    except KafkaError as refusal:
        result.error_code, result.error_message = refusal.code, refusal.message
        return result
    wanted: set[str] = set()
    for number, few in enumerate(
        slices.cut(resource.configuration_keys or (), slices.KEYS_AT_ONCE), 1
    ):
        wanted.update(few)
        if number > 1:
            await slices.pause()
    result.configs = [
        _config(one, with_synonyms, made) for one in settings if not wanted or one.name in wanted
    ]
    slices.discard(wanted)
    return result


def _config(setting: _Setting, with_synonyms: bool, made: _Made) -> DescribeConfigsResourceResult:
    """Return the answer for a setting, the same object for the same setting of many topics."""
    config = made.get(setting)
    if config is None:
        config = made[setting] = DescribeConfigsResourceResult(
            name=setting.name,
            value=setting.text,
            read_only=setting.read_only,
            is_default=setting.source == DEFAULT,
            config_source=setting.source,
            is_sensitive=False,
            synonyms=[
                DescribeConfigsSynonym(name=origin.name, value=origin.text, source=origin.source)
                for origin in setting.origins
                if with_synonyms
            ],
            config_type=setting.type,
        )
    return config


async def _settings_of(broker: Broker, resource: DescribeConfigsResource) -> list[_Setting]:
    name = resource.resource_name
    if resource.resource_type == TOPIC:
        admin.check_topic_name(name)
        if name not in broker.metadata.topics:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' does not exist."
            )
        path = znodes.topic_config_path(name)
        try:
            found = await broker.session.get_all([path])
        except KazooException as failure:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper: {meaning(failure)}"
            ) from failure
        entries = sound_entries(
            path, found[path][0] if path in found else None, topic_config.check_topic_entries
        )
        return list(_topic_settings(broker.replicas.settings, entries))
    if resource.resource_type == BROKER:
        if not name:
            return list(_cluster_settings(broker.replicas.settings))
        check_broker_id(broker, name)
        return list(_broker_settings(broker.replicas.settings))
    raise KafkaError(
        ErrorCode.INVALID_REQUEST, f"Unsupported resource type {resource.resource_type}"
    )


def check_broker_id(broker: Broker, name: str) -> None:
    """Raise INVALID_REQUEST unless the resource is this broker."""
    own = str(broker.config.broker_id)
    if not name.isdecimal():
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}"
        )
    if name != own:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {own}, but received {name}"
        )
