"""AlterConfigs and IncrementalAlterConfigs (KIP-339): configs of topics and brokers.

Both replace all entries of a resource in its znode under `/config`, and create a notification in
the same transaction, upon which every broker applies the change (row Z11). Only entries that the
request sets are checked: unknown entries that a Kafka broker left there stay. The write is
conditional on the version that was read. If the znode changed meanwhile, the request is applied
again to the new entries.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError

from odradek import dynamic_config, slices, topic_config
from odradek.config import BrokerConfig
from odradek.dynamic_config import CLUSTER_DEFAULT, PER_IP_OVERRIDES
from odradek.handlers.configs import BROKER, TOPIC, check_broker_id
from odradek.handlers.context import Broker, RequestContext
from odradek.net import addresses
from odradek.properties import ConfigError, ConflictError, numbers_by_host
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)
from odradek.topic_config import TopicConfig
from odradek.zk import admin, znodes
from odradek.zk.failures import meaning
from odradek.zk.operations import TransactionFailedError

logger = logging.getLogger(__name__)

Entries = Mapping[str, str]
Resource = TypeVar("Resource", AlterConfigsResource, IncrementalAlterConfigsResource)
Answer = TypeVar("Answer")

# Entries of a resource that are looked into without a thread.
ENTRIES_AT_ONCE = 1000
# Unknown entries that are refused by name: sorting a million takes a second.
UNKNOWN_NAMED = 20

# These two topic configs must agree: they are checked together.
_COMPACTION_LAGS = frozenset({topic_config.MIN_COMPACTION_LAG, topic_config.MAX_COMPACTION_LAG})


def _defaults(settings: type[BrokerConfig] | type[TopicConfig]) -> dict[str, Any]:
    return {
        one.metadata["key"].name: one.default
        for one in dataclasses.fields(settings)
        if "key" in one.metadata
    }


_TOPIC_DEFAULTS = _defaults(TopicConfig)
_BROKER_DEFAULTS = _defaults(BrokerConfig)
# Kafka has these as text: nothing is appended to them.
_NO_LISTS = frozenset({PER_IP_OVERRIDES})


class ConfigOperation(IntEnum):
    """The operation of an incremental change on a config."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class _Entity:
    """The altered entity: its path under /config, the defaults of its configs, its checks.

    `check` is for the entries that a request sets, `check_result` for all that it leaves there.
    """

    kind: str
    name: str
    defaults: Mapping[str, Any]
    check: Callable[[Entries], None]
    check_result: Callable[[Entries], None]


async def alter_configs(
    broker: Broker, request: AlterConfigsRequest, context: RequestContext
) -> AlterConfigsResponse:
    """Replace all entries of each resource."""

    async def alter(resource: AlterConfigsResource) -> AlterConfigsResourceResponse:
        error = await _outcome(
            broker,
            resource,
            lambda entity, present: _complete({one.name: one.value for one in resource.configs}),
            request.validate_only,
        )
        return AlterConfigsResourceResponse(
            error_code=ErrorCode.NONE if error is None else error.code,
            error_message=None if error is None else error.message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )

    return AlterConfigsResponse(responses=await _each(request.resources, alter))


async def incremental_alter_configs(
    broker: Broker, request: IncrementalAlterConfigsRequest, context: RequestContext
) -> IncrementalAlterConfigsResponse:
    """Change single entries of each resource."""

    async def alter(
        resource: IncrementalAlterConfigsResource,
    ) -> IncrementalAlterConfigsResourceResponse:
        error = await _outcome(
            broker,
            resource,
            lambda entity, present: _changed(entity.defaults, present, resource.configs),
            request.validate_only,
        )
        return IncrementalAlterConfigsResourceResponse(
            error_code=ErrorCode.NONE if error is None else error.code,
            error_message=None if error is None else error.message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )

    return IncrementalAlterConfigsResponse(responses=await _each(request.resources, alter))


async def _each(
    resources: Iterable[Resource], alter: Callable[[Resource], Awaitable[Answer]]
) -> list[Answer]:
    """Return the answer for each resource; of one that is named repeatedly, the last counts.

    Refusals wait for nobody, so others run in between.
    """
    last: dict[tuple[int, str], Resource] = {}
    for some in slices.cut(resources, slices.KEYS_AT_ONCE):
        last.update({(one.resource_type, one.resource_name): one for one in some})
        if len(some) == slices.KEYS_AT_ONCE:
            await slices.pause()
    answers: list[Answer] = []
    for few in slices.cut(last.values()):
        answers += [await alter(one) for one in few]
        if len(few) == slices.STEPS_PER_SLICE:
            await slices.pause()
    slices.discard(last)
    return answers


async def _outcome(
    broker: Broker,
    resource: AlterConfigsResource | IncrementalAlterConfigsResource,
    change: Callable[[_Entity, Entries], Entries],
    validate_only: bool,
) -> KafkaError | None:
    try:
        entity = _entity(broker, resource.resource_type, resource.resource_name)
        await _apply(broker, entity, resource, change, validate_only)
    except KafkaError as refusal:
        return refusal
    except znodes.ZnodeError as error:
        return KafkaError(ErrorCode.INVALID_REQUEST, str(error))
    except KazooException as failure:
        logger.warning("failed to change the configs of %s: %r", resource.resource_name, failure)
        return KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper: {meaning(failure)}")
    return None


def _entity(broker: Broker, resource_type: int, name: str) -> _Entity:
    if resource_type == TOPIC:
        admin.check_topic_name(name)
        if name not in broker.metadata.topics:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
            )
        check = topic_config.check_topic_entries
        return _Entity("topics", name, _TOPIC_DEFAULTS, check, lambda entries: None)
    if resource_type == BROKER:
        if name:
            check_broker_id(broker, name)
        return _Entity(
            "brokers",
            name or CLUSTER_DEFAULT,
            _BROKER_DEFAULTS,
            lambda entries: dynamic_config.check(
                entries, broker.replicas.settings.most_connections
            ),
            lambda entries: dynamic_config.check_change(
                broker.replicas.settings, entries, cluster=not name
            ),
        )
    raise KafkaError(
        ErrorCode.INVALID_REQUEST,
        "AlterConfigs is only supported for topics and brokers, "
        f"but resource type is {resource_type}",
    )


async def _apply(
    broker: Broker,
    entity: _Entity,
    resource: AlterConfigsResource | IncrementalAlterConfigsResource,
    change: Callable[[_Entity, Entries], Entries],
    validate_only: bool,
) -> None:
    path = znodes.config_path(entity.kind, entity.name)
    while True:
        found = (await broker.session.get_all([path])).get(path)
        present = {} if found is None else znodes.decode_config(path, found[0])
        if len(resource.configs) <= ENTRIES_AT_ONCE:
            wanted = _checked(entity, resource, change, present)
        else:
            wanted = await slices.run_in_thread(_checked, entity, resource, change, present)
        overrides = wanted.get(PER_IP_OVERRIDES, "")
        if entity.kind == "brokers" and overrides != present.get(PER_IP_OVERRIDES, ""):
            await _check_hosts(entity, overrides)
        if validate_only:
            return
        version = None if found is None else found[1].version
        try:
            await broker.session.multi(
                admin.change_config(entity.kind, entity.name, wanted, version)
            )
        except TransactionFailedError as failure:
            overtaken = isinstance(failure.error, BadVersionError | NodeExistsError)
            removed = isinstance(failure.error, NoNodeError) and version is not None
            if failure.index == 0 and (overtaken or removed):
                continue
            raise failure.error from failure
        logger.info("configs of %s/%s are now %s", entity.kind, entity.name, wanted)
        return


def _checked(
    entity: _Entity,
    resource: AlterConfigsResource | IncrementalAlterConfigsResource,
    change: Callable[[_Entity, Entries], Entries],
    present: Entries,
) -> Entries:
    """Return the entries after the change. Raises KafkaError for invalid ones."""
    wanted = change(entity, present)
    named = frozenset(one.name for one in resource.configs)
    looked_at = named | _COMPACTION_LAGS if named & _COMPACTION_LAGS else named
    entries = {name: wanted[name] for name in looked_at & wanted.keys()}
    unknown = [name for name in entries if name not in entity.defaults]
    if len(unknown) > UNKNOWN_NAMED:
        entries = {name: entries[name] for name in unknown[:UNKNOWN_NAMED]}
    _check(entity, entries, wanted)
    admin.check_config_size(wanted)
    return wanted


def _check(entity: _Entity, entries: Entries, wanted: Entries) -> None:
    """Check the entries that are set, and `wanted` as a whole; raise INVALID_CONFIG or
    INVALID_REQUEST.

    Unknown topic configs and contradictions get INVALID_CONFIG, other errors INVALID_REQUEST.
    """
    try:
        entity.check(entries)
        entity.check_result(wanted)
    except ConflictError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
    except ConfigError as error:
        is_unknown = entity.kind == "topics" and not entries.keys() <= entity.defaults.keys()
        if is_unknown:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
        raise _invalid(entity, str(error)) from error


def _invalid(entity: _Entity, reason: str) -> KafkaError:
    text = f"Invalid config value for resource {_resource(entity)}: {reason}"
    return KafkaError(ErrorCode.INVALID_REQUEST, text)


async def _check_hosts(entity: _Entity, overrides: str) -> None:
    """Raise INVALID_REQUEST for limits of hosts that cannot be looked up."""
    try:
        await addresses.numbers_by_address(numbers_by_host(overrides))
    except OSError as error:
        raise _invalid(
            entity, f"Invalid value {overrides} for configuration {PER_IP_OVERRIDES}: {error}"
        ) from error


def _resource(entity: _Entity) -> str:
    """Return how Kafka's messages name the resource."""
    name = "" if entity.name == CLUSTER_DEFAULT else entity.name
    return f"ConfigResource(type={entity.kind.upper().removesuffix('S')}, name='{name}')"


def _complete(wanted: Mapping[str, str | None]) -> Entries:
    _refuse_nulls([name for name, text in wanted.items() if text is None])
    return {name: text for name, text in wanted.items() if text is not None}


def _refuse_nulls(names: Sequence[str]) -> None:
    if names:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Null value not supported for : {','.join(names)}"
        )


def _changed(
    defaults: Mapping[str, Any], present: Entries, changes: Sequence[IncrementalAlterableConfig]
) -> Entries:
    """Return the entries after the changes. Raises KafkaError for invalid changes."""
    repeated = [name for name, count in Counter(one.name for one in changes).items() if count > 1]
    if repeated:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Error due to duplicate config keys : {','.join(repeated)}",
        )
    _refuse_nulls(
        [
            f"{_operation_name(one.config_operation)}:{one.name}"
            for one in changes
            if one.value is None and one.config_operation != ConfigOperation.DELETE
        ]
    )
    entries = dict(present)
    for one in changes:
        if one.config_operation == ConfigOperation.SET:
            entries[one.name] = one.value or ""
        elif one.config_operation == ConfigOperation.DELETE:
            entries.pop(one.name, None)
        else:
            entries[one.name] = _edited_list(defaults, entries, one)
    return entries


def _operation_name(number: int) -> str:
    return ConfigOperation(number).name if number in list(ConfigOperation) else "UNKNOWN"


def _edited_list(
    defaults: Mapping[str, Any], entries: Entries, change: IncrementalAlterableConfig
) -> str:
    """Return a list config with words appended or removed."""
    name = change.name
    if name not in defaults:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
    if change.config_operation not in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Unknown operation {change.config_operation} for {name}"
        )
    operation = ConfigOperation(change.config_operation).name.lower()
    if not isinstance(defaults[name], tuple) or name in _NO_LISTS:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Config value {operation} is not allowed for config key: {name}",
        )
    text = entries.get(name, ",".join(defaults[name]))
    present = [word for word in text.split(",") if word]
    given = (change.value or "").split(",")
    if change.config_operation == ConfigOperation.APPEND:
        return ",".join(dict.fromkeys([*present, *given]))
    taken = frozenset(given)
    return ",".join(word for word in present if word not in taken)
