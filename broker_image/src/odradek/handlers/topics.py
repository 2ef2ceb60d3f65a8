"""CreateTopics, CreatePartitions, DeleteTopics.

The controller serves these requests (other brokers answer 41). It writes to ZooKeeper through
`odradek.zk.admin` and answers once its own metadata shows the outcome, or with error 7 on timeout.
Each topic has its own error code and message.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from time import monotonic
from typing import TypeVar

from kazoo.exceptions import KazooException

from odradek import slices, topic_config
from odradek.controller.replica_assignment import MOST_REPLICAS
from odradek.handlers import configs, replica_lists, topic_batches
from odradek.handlers.context import Broker, RequestContext
from odradek.properties import ConfigError
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateableTopicConfig,
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
from odradek.values import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from odradek.zk import admin
from odradek.zk.failures import meaning
from odradek.zk.operations import TransactionFailedError
from odradek.zk.znodes import TopicAssignment, ZnodeError

FIRST_WITH_DELETION_DISABLED = 3
# The versions of CreateTopics, CreatePartitions and DeleteTopics from which a request beyond
# `controller_mutation_rate` is refused; clients of older ones are only throttled (KIP-599).
FIRST_STRICT_CREATION = 6
FIRST_STRICT_GROWTH = 3
FIRST_STRICT_DELETION = 5
# New partitions per request, as in Kafka since 3.6: a typing error must not keep the controller and
# ZooKeeper busy for hours.
MOST_NEW_PARTITIONS = 10_000
# Their replicas: as many as fit into the znode of one topic, in which one takes about three bytes.
# They are counted before any is copied or chosen.
MOST_NEW_REPLICAS = 100_000
# Entries that are looked into without a thread.
MOST_ENTRIES = 1000

Result = TypeVar("Result")
Topic = TypeVar("Topic")

logger = logging.getLogger(__name__)

# Kafka lets an admin delete these, and tools do.
_LOST_WITH_TOPIC = {
    OFFSETS_TOPIC: "all groups lose their committed offsets",
    TRANSACTIONS_TOPIC: (
        "all transactional ids are forgotten, and transactions that are open are never ended: "
        "readers of committed records wait at them until they are aborted by hand"
    ),
}


async def _guarded(work: Callable[[], Awaitable[Result]], what: str) -> Result:
    """Run a change; turn a ZooKeeper failure into a KafkaError, retriable where that helps."""
    try:
        return await work()
    except KazooException as failure:
        logger.warning("%s failed: ZooKeeper: %r", what, failure)
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper: {meaning(failure)}") from failure
    except (TransactionFailedError, ZnodeError) as failure:
        logger.error("%s failed: %s", what, failure)
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(failure)) from failure


# --- create -------------------------------------------------------------------------------------


async def create_topics(
    broker: Broker, request: CreateTopicsRequest, context: RequestContext
) -> CreateTopicsResponse:
    """Create each topic; topics fail independently, except for names that collide."""
    deadline = monotonic() + request.timeout_ms / 1000
    repeated, unique = await topic_batches.by_name(request.topics)
    too_many = await _why_too_many(
        request.topics, partial(_new_partitions, broker), partial(_new_replicas, broker)
    )
    written: set[str] = set()

    def refused(topic: CreatableTopic, refusal: KafkaError) -> CreatableTopicResult:
        return CreatableTopicResult(
            name=topic.name, error_code=refusal.code, error_message=refusal.message, configs=[]
        )

    def refuse(topic: CreatableTopic) -> CreatableTopicResult | None:
        if not broker.controller.active:
            return refused(topic, _not_controller())
        if topic.name in repeated:
            reason = f"The request names topic '{topic.name}' more than once."
            return refused(topic, KafkaError(ErrorCode.INVALID_REQUEST, reason))
        return None if too_many is None else refused(topic, too_many)

    async def create(topic: CreatableTopic) -> CreatableTopicResult:
        try:
            return await _guarded(
                lambda: _create(broker, topic, request.validate_only, written, context),
                f"creating topic {topic.name}",
            )
        except KafkaError as refusal:
            return refused(topic, refusal)

    async def wait(made: CreatableTopicResult) -> None:
        left_ms = (deadline - monotonic()) * 1000
        if not await broker.metadata.wait_for_leaders(made.name, made.num_partitions, left_ms):
            made.error_code = ErrorCode.REQUEST_TIMED_OUT
            made.error_message = "The topic is created, but not all partitions have a leader yet."
            made.num_partitions = made.replication_factor = -1
            made.configs = []

    results = await topic_batches.change_few_at_once(refuse, create, unique.values())
    slices.discard(repeated, unique)
    if not request.validate_only:
        await topic_batches.wait_for_changes(wait, results)
    return CreateTopicsResponse(topics=results)


def _new_partitions(broker: Broker, topic: CreatableTopic) -> int:
    """Return the number of partitions of a new topic, at least one: a topic has a cost too."""
    if topic.assignments:
        return len(topic.assignments)
    if topic.num_partitions == replica_lists.USE_DEFAULT:
        return broker.config.num_partitions
    return max(topic.num_partitions, 1)


def _new_replicas(broker: Broker, topic: CreatableTopic) -> int:
    """Return the number of replicas of a new topic, without those for which it is refused: of a
    list that is too long, and of more replicas than there are brokers.
    """
    if topic.assignments:
        return sum(min(len(one.broker_ids), MOST_REPLICAS) for one in topic.assignments)
    factor = topic.replication_factor
    if factor == replica_lists.USE_DEFAULT:
        factor = broker.config.default_replication_factor
    return _new_partitions(broker, topic) * min(max(factor, 0), len(broker.metadata.brokers))


def _not_controller() -> KafkaError:
    return KafkaError(ErrorCode.NOT_CONTROLLER, "This is not the controller.")


async def _why_too_many(
    asked: Collection[Topic],
    new_partitions: Callable[[Topic], int],
    new_replicas: Callable[[Topic], int],
) -> KafkaError | None:
    """Return why a request asks for too much, None if it does not. The replicas are counted only
    if the partitions, which may each have a list of them, are not too many.
    """
    for what, count, most in (
        ("partitions", new_partitions, MOST_NEW_PARTITIONS),
        ("replicas", new_replicas, MOST_NEW_REPLICAS),
    ):
        found = await topic_batches.total(count, asked)
        if found > most:
            reason = f"{found} new {what} in one request; the limit is {most}."
            return KafkaError(ErrorCode.POLICY_VIOLATION, reason)
    return None


async def _create(
    broker: Broker,
    topic: CreatableTopic,
    validate_only: bool,
    written: set[str],
    context: RequestContext,
) -> CreatableTopicResult:
    """Validate a topic and, unless `validate_only`, create it.

    `written` are the topics of this request, which the metadata may not contain yet.
    """
    admin.check_topic_name(topic.name)
    if topic.name in broker.metadata.topics:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
    admin.check_collision(topic.name, broker.metadata.topics, written)
    if len(topic.configs) <= MOST_ENTRIES:
        entries = _config_entries(topic.configs)
    else:
        entries = await slices.run_in_thread(_config_entries, topic.configs)
    replicas = replica_lists.of_new_topic(broker, topic)
    admin.check_topic_size(TopicAssignment(replicas))
    admin.check_config_size(entries)
    if not validate_only:
        context.count_mutations(len(replicas), FIRST_STRICT_CREATION)
        written.add(topic.name)
        await admin.apply_create_topic(
            broker.session, topic.name, TopicAssignment(replicas), entries
        )
        broker.controller.topic_created(topic.name)
        logger.info("created topic %s with %d partitions", topic.name, len(replicas))
    return CreatableTopicResult(
        name=topic.name,
        num_partitions=len(replicas),
        replication_factor=len(replicas[0]),
        configs=configs.creatable_topic_configs(broker.replicas.settings, entries),
    )


def _config_entries(given: Iterable[CreateableTopicConfig]) -> dict[str, str]:
    entries: dict[str, str] = {}
    for entry in given:
        if entry.value is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Null value not supported for topic config {entry.name}"
            )
        entries[entry.name] = entry.value
    try:
        topic_config.check_topic_entries(entries)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
    return entries


# --- grow ---------------------------------------------------------------------------------------


async def create_partitions(
    broker: Broker, request: CreatePartitionsRequest, context: RequestContext
) -> CreatePartitionsResponse:
    """Add partitions to topics; present partitions stay unchanged."""
    deadline = monotonic() + request.timeout_ms / 1000
    repeated, unique = await topic_batches.by_name(request.topics)
    too_many = await _why_too_many(
        unique.values(), partial(_added_partitions, broker), partial(_added_replicas, broker)
    )

    def refused(topic: CreatePartitionsTopic, refusal: KafkaError) -> CreatePartitionsTopicResult:
        return CreatePartitionsTopicResult(
            name=topic.name, error_code=refusal.code, error_message=refusal.message
        )

    def refuse(topic: CreatePartitionsTopic) -> CreatePartitionsTopicResult | None:
        if topic.name in repeated:
            reason = "The request names the topic more than once."
            return refused(topic, KafkaError(ErrorCode.INVALID_REQUEST, reason))
        refusal = _growth_refusal(broker, topic) or too_many
        return None if refusal is None else refused(topic, refusal)

    async def grow(topic: CreatePartitionsTopic) -> CreatePartitionsTopicResult:
        try:
            await _guarded(
                lambda: _grow(broker, topic, request.validate_only, context),
                f"adding partitions to topic {topic.name}",
            )
        except KafkaError as refusal:
            return refused(topic, refusal)
        return CreatePartitionsTopicResult(name=topic.name)

    async def wait(grown: CreatePartitionsTopicResult) -> None:
        count, left_ms = unique[grown.name].count, (deadline - monotonic()) * 1000
        if not await broker.metadata.wait_for_leaders(grown.name, count, left_ms):
            grown.error_code = ErrorCode.REQUEST_TIMED_OUT
            grown.error_message = "The partitions are added, but not all have a leader yet."

    results = await topic_batches.change_few_at_once(refuse, grow, unique.values())
    if not request.validate_only:
        await topic_batches.wait_for_changes(wait, results)
    slices.discard(repeated, unique)
    return CreatePartitionsResponse(results=results)


def _added_partitions(broker: Broker, topic: CreatePartitionsTopic) -> int:
    """Return how many partitions a topic lacks, 0 if it does not exist."""
    present = broker.metadata.topics.get(topic.name)
    return 0 if present is None else max(topic.count - len(present), 0)


def _added_replicas(broker: Broker, topic: CreatePartitionsTopic) -> int:
    """Return how many replicas the partitions that a topic lacks will have."""
    added = _added_partitions(broker, topic)
    zero = broker.metadata.partition(topic.name, 0) if added else None
    return 0 if zero is None else added * len(zero.replicas)


def _growth_refusal(broker: Broker, topic: CreatePartitionsTopic) -> KafkaError | None:
    if not broker.controller.active:
        return _not_controller()
    present = broker.metadata.topics.get(topic.name)
    if present is None:
        reason = f"Topic '{topic.name}' does not exist."
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, reason)
    return _count_refusal(len(present), topic.count)


def _count_refusal(present: int, wanted: int) -> KafkaError | None:
    """Return why a topic with `present` partitions cannot grow to `wanted`, None if it can."""
    if present < wanted:
        return None
    # Scripts look for Kafka's words.
    reason = (
        f"Topic already has {present} partitions."
        if present == wanted
        else f"Topic currently has {present} partitions, "
        f"which is higher than the requested {wanted}."
    )
    return KafkaError(ErrorCode.INVALID_PARTITIONS, reason)


async def _grow(
    broker: Broker,
    topic: CreatePartitionsTopic,
    validate_only: bool,
    context: RequestContext,
) -> None:
    # The topic may have grown meanwhile, or been made: so far nothing was counted for it.
    refusal = _growth_refusal(broker, topic) or await _why_too_many(
        [topic], partial(_added_partitions, broker), partial(_added_replicas, broker)
    )
    if refusal is not None:
        raise refusal
    # The metadata lacks partitions that another request has just added.
    present = await admin.partition_count(broker.session, topic.name)
    refusal = _count_refusal(present, topic.count)
    if refusal is not None:
        raise refusal
    added = replica_lists.of_new_partitions(broker, topic, present, topic.count - present)
    if validate_only:
        return
    context.count_mutations(len(added), FIRST_STRICT_GROWTH)
    await admin.apply_grow_topic(broker.session, topic.name, added)
    logger.info("increased topic %s from %d to %d partitions", topic.name, present, topic.count)


# --- delete -------------------------------------------------------------------------------------


async def delete_topics(
    broker: Broker, request: DeleteTopicsRequest, context: RequestContext
) -> DeleteTopicsResponse:
    """Request deletions, and wait until the names of the topics are free.

    Kafka answers once its metadata lacks them. So does this broker, the controller, if a deletion
    has to wait for another broker. Else the znodes go next, and the same client may create a topic
    of that name at once.
    """
    deadline = monotonic() + request.timeout_ms / 1000

    def left_ms() -> float:
        return (deadline - monotonic()) * 1000

    def refused(name: str, refusal: KafkaError) -> DeletableTopicResult:
        return DeletableTopicResult(
            name=name, error_code=refusal.code, error_message=refusal.message
        )

    def refuse(name: str) -> DeletableTopicResult | None:
        refusal = _deletion_refusal(broker, name, context.version)
        return None if refusal is None else refused(name, refusal)

    async def delete(name: str) -> DeletableTopicResult:
        try:
            partitions = len(broker.metadata.topics.get(name, ()))
            context.count_mutations(partitions, FIRST_STRICT_DELETION)
            await _guarded(
                lambda: admin.apply_request_deletion(broker.session, name), f"deleting topic {name}"
            )
        except KafkaError as refusal:
            return refused(name, refusal)
        logger.info("requested the deletion of topic %s", name)
        if name in _LOST_WITH_TOPIC:
            logger.warning("topic %s is deleted: %s", name, _LOST_WITH_TOPIC[name])
        return DeletableTopicResult(name=name)

    async def wait(going: DeletableTopicResult) -> None:
        gone = await broker.metadata.wait_until_gone(going.name, left_ms())
        if not gone or not await broker.controller.wait_until_deleted(going.name, left_ms()):
            going.error_code = ErrorCode.REQUEST_TIMED_OUT
            going.error_message = f"Topic '{going.name}' is still being deleted."

    names = await slices.unique(request.topic_names)
    results = await topic_batches.change_few_at_once(refuse, delete, names)
    slices.discard(names)
    await topic_batches.wait_for_changes(wait, results)
    return DeleteTopicsResponse(responses=results)


def _deletion_refusal(broker: Broker, name: str, version: int) -> KafkaError | None:
    if not broker.controller.active:
        return _not_controller()
    if not broker.config.delete_topic_enable:
        return KafkaError(
            ErrorCode.TOPIC_DELETION_DISABLED
            if version >= FIRST_WITH_DELETION_DISABLED
            else ErrorCode.INVALID_REQUEST,
            "Topic deletion is disabled.",
        )
    # The controller knows new topics first; a topic without any leader is known to it alone.
    if name not in broker.metadata.topics and not broker.controller.knows(name):
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {name!r} does not exist.")
    return None
