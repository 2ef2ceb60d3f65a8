"""CreateTopics, CreatePartitions, DeleteTopics, and topics created on first use.

The controller serves these requests (other brokers answer 41). It writes to ZooKeeper through
`odradek.zk.admin` and answers once its own metadata shows the outcome, or with error 7 on timeout.
Each topic has its own error code and message.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import TypeVar

from kazoo.exceptions import KazooException

from odradek import assignment
from odradek import config as configuration
from odradek.group.partitioning import OFFSETS_TOPIC
from odradek.handlers import configs
from odradek.handlers.context import Broker, RequestContext
from odradek.properties import ConfigError
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from odradek.values import BrokerId
from odradek.zk import admin
from odradek.zk.operations import TransactionFailedError
from odradek.zk.znodes import TopicAssignment, ZnodeError

USE_DEFAULT = -1
FIRST_WITH_DELETION_DISABLED = 3
# New partitions per request, as in Kafka since 3.6: a typing error must not keep the controller and
# ZooKeeper busy for hours.
MOST_NEW_PARTITIONS = 10_000
# Topics of one request that are processed at once; other requests run in between.
CHANGES_AT_ONCE = 50
# Automatic creation answers at once; this is the limit of the writes.
AUTOMATIC_TIMEOUT_S = 5.0

Replicas = Mapping[int, tuple[BrokerId, ...]]
Topic = TypeVar("Topic")
Result = TypeVar("Result")

logger = logging.getLogger(__name__)


def is_legal_name(topic: str) -> bool:
    """Return whether a topic may have this name."""
    try:
        admin.check_topic_name(topic)
    except KafkaError:
        return False
    return True


def _racks(broker: Broker) -> dict[BrokerId, str | None]:
    return {BrokerId(one.broker_id): one.rack for one in broker.metadata.brokers.values()}


async def _guarded(work: Callable[[], Awaitable[Result]], what: str) -> Result:
    """Run a change; turn a ZooKeeper failure into a KafkaError, retriable where that helps."""
    try:
        return await work()
    except KazooException as failure:
        logger.warning("%s failed: ZooKeeper: %r", what, failure)
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper: {failure!r}") from failure
    except (TransactionFailedError, ZnodeError) as failure:
        logger.error("%s failed: %s", what, failure)
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(failure)) from failure


async def _few_at_once(
    change: Callable[[Topic], Awaitable[Result]], topics: Iterable[Topic]
) -> list[Result]:
    """Apply a change to each topic; return the outcomes in order."""
    wanted, outcomes = list(topics), list[Result]()
    for start in range(0, len(wanted), CHANGES_AT_ONCE):
        few = wanted[start : start + CHANGES_AT_ONCE]
        outcomes.extend(await asyncio.gather(*map(change, few)))
    return outcomes


# --- create -------------------------------------------------------------------------------------


async def create_topics(
    broker: Broker, request: CreateTopicsRequest, context: RequestContext
) -> CreateTopicsResponse:
    """Create each topic; topics fail independently, except for names that collide."""
    deadline = monotonic() + request.timeout_ms / 1000
    counts = Counter(topic.name for topic in request.topics)
    new_partitions = sum(_new_partitions(broker, topic) for topic in request.topics)
    written: set[str] = set()

    async def create(topic: CreatableTopic) -> CreatableTopicResult:
        try:
            if not broker.controller.active:
                raise KafkaError(ErrorCode.NOT_CONTROLLER, "This is not the controller.")
            if counts[topic.name] > 1:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"The request names topic '{topic.name}' more than once.",
                )
            _check_number(new_partitions)
            return await _guarded(
                lambda: _create(broker, topic, request.validate_only, written),
                f"creating topic {topic.name}",
            )
        except KafkaError as refusal:
            return CreatableTopicResult(
                name=topic.name, error_code=refusal.code, error_message=refusal.message, configs=[]
            )

    async def wait(made: CreatableTopicResult) -> None:
        left_ms = (deadline - monotonic()) * 1000
        if not await broker.metadata.wait_for_leaders(made.name, made.num_partitions, left_ms):
            made.error_code = ErrorCode.REQUEST_TIMED_OUT
            made.error_message = "The topic is created, but not all partitions have a leader yet."
            made.num_partitions = made.replication_factor = -1
            made.configs = []

    unique = {topic.name: topic for topic in request.topics}
    results = await _few_at_once(create, unique.values())
    if not request.validate_only:
        await asyncio.gather(*(wait(one) for one in results if not one.error_code))
    return CreateTopicsResponse(topics=results)


def _new_partitions(broker: Broker, topic: CreatableTopic) -> int:
    """Return the number of partitions of a new topic, at least one: a topic has a cost too."""
    if topic.assignments:
        return len(topic.assignments)
    if topic.num_partitions == USE_DEFAULT:
        return broker.config.num_partitions
    return max(topic.num_partitions, 1)


def _check_number(new_partitions: int) -> None:
    if new_partitions > MOST_NEW_PARTITIONS:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{new_partitions} new partitions in one request; the limit is {MOST_NEW_PARTITIONS}.",
        )


async def _create(
    broker: Broker, topic: CreatableTopic, validate_only: bool, written: set[str]
) -> CreatableTopicResult:
    """Validate a topic and, unless `validate_only`, create it.

    `written` are the topics of this request, which the metadata may not contain yet.
    """
    admin.check_topic_name(topic.name)
    if topic.name in broker.metadata.topics:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
    admin.check_collision(topic.name, broker.metadata.topics.keys() | written)
    entries = _config_entries(topic)
    replicas = _replicas_for(broker, topic)
    admin.check_topic_size(TopicAssignment(replicas))
    admin.check_config_size(entries)
    if not validate_only:
        written.add(topic.name)
        await admin.apply_create_topic(
            broker.session, topic.name, TopicAssignment(replicas), entries
        )
        logger.info("created topic %s with %d partitions", topic.name, len(replicas))
    return CreatableTopicResult(
        name=topic.name,
        num_partitions=len(replicas),
        replication_factor=len(replicas[0]),
        configs=configs.creatable_topic_configs(broker.replicas.settings, entries),
    )


def _config_entries(topic: CreatableTopic) -> dict[str, str]:
    entries: dict[str, str] = {}
    for entry in topic.configs:
        if entry.value is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Null value not supported for topic config {entry.name}"
            )
        entries[entry.name] = entry.value
    try:
        configuration.check_topic_entries(entries)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
    return entries


def _replicas_for(broker: Broker, topic: CreatableTopic) -> Replicas:
    brokers = _racks(broker)
    if topic.assignments:
        if topic.num_partitions != USE_DEFAULT or topic.replication_factor != USE_DEFAULT:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "Both partitions or replication factor and replica assignments are given; "
                "they cannot be used together.",
            )
        return _checked_assignments(brokers, topic.assignments)
    config = broker.config
    partitions, factor = topic.num_partitions, topic.replication_factor
    return assignment.assign_replicas(
        brokers,
        config.num_partitions if partitions == USE_DEFAULT else partitions,
        config.default_replication_factor if factor == USE_DEFAULT else factor,
        assignment.Start.draw(broker.random, len(brokers)),
    )


def _checked_assignments(
    brokers: Mapping[BrokerId, str | None], given: Sequence[CreatableReplicaAssignment]
) -> Replicas:
    replicas = {
        one.partition_index: tuple(BrokerId(broker) for broker in one.broker_ids) for one in given
    }
    if len(replicas) != len(given) or sorted(replicas) != list(range(len(given))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        )
    check_replica_lists(brokers, replicas)
    return replicas


def check_replica_lists(brokers: Mapping[BrokerId, str | None], replicas: Replicas) -> None:
    """Raise INVALID_REPLICA_ASSIGNMENT for an invalid assignment.

    All lists must have the same length and name different live brokers.
    """
    sizes = {len(members) for members in replicas.values()}
    reason = ""
    if len(sizes) > 1:
        reason = "All partitions should have the same number of replicas."
    for partition, members in replicas.items():
        if not members:
            reason = f"Partition {partition} has an empty replica list."
        elif len(set(members)) != len(members):
            reason = f"Partition {partition} names a broker twice: {list(members)}."
        elif not brokers.keys() >= set(members):
            unknown = sorted(set(members) - brokers.keys())
            reason = f"Partition {partition} names unknown brokers {unknown}."
    if reason:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)


async def create_automatically(broker: Broker, topic: str) -> ErrorCode:
    """Create a topic on first use; return the error code for the client, mostly retriable."""
    try:
        admin.check_collision(topic, broker.metadata.topics)
        brokers = assignment.forget_partial_racks(_racks(broker))
        partitions, factor, entries = _automatic_shape(broker.config, topic)
        replicas = assignment.assign_replicas(
            brokers, partitions, factor, assignment.Start.draw(broker.random, len(brokers))
        )
        admin.check_topic_size(TopicAssignment(replicas))
        async with asyncio.timeout(AUTOMATIC_TIMEOUT_S):
            await admin.apply_create_topic(
                broker.session, topic, TopicAssignment(replicas), entries
            )
        logger.info("created topic %s on first use, with %d partitions", topic, len(replicas))
    except KafkaError as refusal:
        if refusal.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            return refusal.code
    except (KazooException, TimeoutError) as failure:
        logger.warning("failed to create topic %s: %r", topic, failure)
    except TransactionFailedError as failure:
        logger.error("failed to create topic %s: %s", topic, failure)
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return ErrorCode.LEADER_NOT_AVAILABLE


def _automatic_shape(
    config: configuration.BrokerConfig, topic: str
) -> tuple[int, int, dict[str, str]]:
    """Return partitions, replication factor and configs of a topic created on first use."""
    if topic == OFFSETS_TOPIC:
        entries = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        }
        return config.offsets_topic_num_partitions, config.offsets_topic_replication_factor, entries
    return config.num_partitions, config.default_replication_factor, {}


# --- grow ---------------------------------------------------------------------------------------


async def create_partitions(
    broker: Broker, request: CreatePartitionsRequest, context: RequestContext
) -> CreatePartitionsResponse:
    """Add partitions to topics; present partitions stay unchanged."""
    deadline = monotonic() + request.timeout_ms / 1000
    counts = Counter(topic.name for topic in request.topics)
    unique = {topic.name: topic for topic in request.topics}
    known = broker.metadata.topics
    new_partitions = sum(
        max(topic.count - len(known[name]), 0) for name, topic in unique.items() if name in known
    )

    async def grow(topic: CreatePartitionsTopic) -> CreatePartitionsTopicResult:
        try:
            if counts[topic.name] > 1:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "The request names the topic more than once."
                )
            await _guarded(
                lambda: _grow(broker, topic, request.validate_only, new_partitions),
                f"adding partitions to topic {topic.name}",
            )
        except KafkaError as refusal:
            return CreatePartitionsTopicResult(
                name=topic.name, error_code=refusal.code, error_message=refusal.message
            )
        return CreatePartitionsTopicResult(name=topic.name)

    async def wait(grown: CreatePartitionsTopicResult) -> None:
        count, left_ms = unique[grown.name].count, (deadline - monotonic()) * 1000
        if not await broker.metadata.wait_for_leaders(grown.name, count, left_ms):
            grown.error_code = ErrorCode.REQUEST_TIMED_OUT
            grown.error_message = "The partitions are added, but not all have a leader yet."

    results = await _few_at_once(grow, unique.values())
    if not request.validate_only:
        await asyncio.gather(*(wait(one) for one in results if not one.error_code))
    return CreatePartitionsResponse(results=results)


async def _grow(
    broker: Broker, topic: CreatePartitionsTopic, validate_only: bool, new_partitions: int
) -> None:
    if not broker.controller.active:
        raise KafkaError(ErrorCode.NOT_CONTROLLER, "This is not the controller.")
    present = broker.metadata.topics.get(topic.name)
    if present is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{topic.name}' does not exist."
        )
    extra = topic.count - len(present)
    if extra <= 0:
        # Scripts look for Kafka's words.
        reason = (
            f"Topic already has {len(present)} partitions."
            if extra == 0
            else f"Topic currently has {len(present)} partitions, "
            f"which is higher than the requested {topic.count}."
        )
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, reason)
    _check_number(new_partitions)
    added = _added_replicas(broker, topic, len(present), extra)
    if validate_only:
        return
    await admin.apply_grow_topic(broker.session, topic.name, added)
    logger.info(
        "increased topic %s from %d to %d partitions", topic.name, len(present), topic.count
    )


def _added_replicas(
    broker: Broker, topic: CreatePartitionsTopic, first: int, extra: int
) -> dict[int, tuple[BrokerId, ...]]:
    brokers = _racks(broker)
    zero = broker.metadata.topics[topic.name][0].replicas
    if topic.assignments is not None:
        added = {
            first + index: tuple(map(BrokerId, one.broker_ids))
            for index, one in enumerate(topic.assignments)
        }
        if len(added) != extra:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{extra} partitions are added, {len(added)} assignments given.",
            )
        check_replica_lists(brokers, added)
        if any(len(members) != len(zero) for members in added.values()):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The topic's partitions have {len(zero)} replicas.",
            )
        return added
    places = sorted(brokers)
    start = places.index(BrokerId(zero[0])) if zero[0] in brokers else 0
    return dict(
        assignment.assign_replicas(
            brokers, extra, len(zero), assignment.Start.fixed(start), first_partition=first
        )
    )


# --- delete -------------------------------------------------------------------------------------


async def delete_topics(
    broker: Broker, request: DeleteTopicsRequest, context: RequestContext
) -> DeleteTopicsResponse:
    """Request deletions, and wait until the metadata of this broker lacks the topics."""
    deadline = monotonic() + request.timeout_ms / 1000

    async def delete(name: str) -> DeletableTopicResult:
        try:
            await _guarded(lambda: _delete(broker, name, context.version), f"deleting topic {name}")
        except KafkaError as refusal:
            return DeletableTopicResult(
                name=name, error_code=refusal.code, error_message=refusal.message
            )
        return DeletableTopicResult(name=name)

    async def wait(going: DeletableTopicResult) -> None:
        left_ms = (deadline - monotonic()) * 1000
        if not await broker.metadata.wait_until_gone(going.name, left_ms):
            going.error_code = ErrorCode.REQUEST_TIMED_OUT
            going.error_message = f"Topic '{going.name}' is still being deleted."

    results = await _few_at_once(delete, dict.fromkeys(request.topic_names))
    await asyncio.gather(*(wait(one) for one in results if not one.error_code))
    return DeleteTopicsResponse(responses=results)


async def _delete(broker: Broker, name: str, version: int) -> None:
    if not broker.controller.active:
        raise KafkaError(ErrorCode.NOT_CONTROLLER, "This is not the controller.")
    if not broker.config.delete_topic_enable:
        raise KafkaError(
            ErrorCode.TOPIC_DELETION_DISABLED
            if version >= FIRST_WITH_DELETION_DISABLED
            else ErrorCode.INVALID_REQUEST,
            "Topic deletion is disabled.",
        )
    # The controller knows new topics first; a topic without any leader is known to it alone.
    if name not in broker.metadata.topics and not broker.controller.knows(name):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {name!r} does not exist.")
    await admin.apply_request_deletion(broker.session, name)
    logger.info("requested the deletion of topic %s", name)
