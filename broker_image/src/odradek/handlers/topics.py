"""CreateTopics, CreatePartitions, DeleteTopics, and topics created on first use.

The controller serves these requests (other brokers answer 41). It writes to ZooKeeper through
`odradek.zk.admin` and answers once its own metadata shows the outcome, or with error 7 on timeout.
Each topic has its own error code and message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from time import monotonic
from typing import Protocol, TypeVar

from kazoo.exceptions import KazooException

from odradek import assignment, slices
from odradek import config as configuration
from odradek.handlers import configs
from odradek.handlers.context import Broker, RequestContext
from odradek.net.rare_log import RareLog
from odradek.properties import ConfigError
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.topics import (
    CreatableReplicaAssignment,
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
from odradek.values import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, BrokerId
from odradek.zk import admin
from odradek.zk.operations import TransactionFailedError
from odradek.zk.znodes import TopicAssignment, ZnodeError

USE_DEFAULT = -1
FIRST_WITH_DELETION_DISABLED = 3
# The versions of CreateTopics, CreatePartitions and DeleteTopics from which a request beyond
# `controller_mutation_rate` is refused; clients of older ones are only throttled (KIP-599).
FIRST_STRICT_CREATION = 6
FIRST_STRICT_GROWTH = 3
FIRST_STRICT_DELETION = 5
# New partitions per request, as in Kafka since 3.6: a typing error must not keep the controller and
# ZooKeeper busy for hours.
MOST_NEW_PARTITIONS = 10_000
# Topics of one request that are processed at once; other requests run in between.
CHANGES_AT_ONCE = 50
# Entries that are looked into without a thread.
MOST_ENTRIES = 1000
# Automatic creation answers at once; this is the limit of the writes.
AUTOMATIC_TIMEOUT_S = 5.0

Replicas = Mapping[int, tuple[BrokerId, ...]]
Topic = TypeVar("Topic")
Result = TypeVar("Result")
Answer = TypeVar("Answer", bound="_Outcome")
Named = TypeVar("Named", CreatableTopic, CreatePartitionsTopic)

logger = logging.getLogger(__name__)
_rare_log = RareLog(logger)
_FACTORS = {
    OFFSETS_TOPIC: "offsets.topic.replication.factor",
    TRANSACTIONS_TOPIC: (
        "transaction.state.log.replication.factor and transaction.state.log.min.isr"
    ),
}

# Kafka lets an admin delete these, and tools do.
_LOST_WITH_TOPIC = {
    OFFSETS_TOPIC: "all groups lose their committed offsets",
    TRANSACTIONS_TOPIC: (
        "all transactional ids are forgotten, and transactions that are open are never ended: "
        "readers of committed records wait at them until they are aborted by hand"
    ),
}


def is_legal_name(topic: str) -> bool:
    """Return whether a topic may have this name."""
    try:
        admin.check_topic_name(topic)
    except KafkaError:
        return False
    return True


def _racks(broker: Broker) -> dict[BrokerId, str | None]:
    return {BrokerId(one.broker_id): one.rack for one in broker.metadata.brokers.values()}


def nodes(broker: Broker) -> assignment.Nodes:
    """Return the node of each broker, if a partition may have one replica per node only."""
    if not broker.config.one_replica_per_node:
        return {}
    name = broker.config.inter_broker_listener_name
    return {
        one.broker_id: endpoint[0]
        for one in broker.metadata.brokers.values()
        if (endpoint := one.endpoints.get(name)) is not None
    }


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
    refuse: Callable[[Topic], Result | None],
    change: Callable[[Topic], Awaitable[Result]],
    topics: Iterable[Topic],
) -> list[Result]:
    """Refuse each topic at once, or apply a change to it; return the outcomes in order."""
    outcomes: list[Result] = []
    with slices.collector_paused():
        for few in slices.cut(topics, CHANGES_AT_ONCE):
            refused = [refuse(topic) for topic in few]
            changing = [
                change(topic) for topic, one in zip(few, refused, strict=True) if one is None
            ]
            changed = iter(await asyncio.gather(*changing)) if changing else iter(())
            outcomes += [next(changed) if one is None else one for one in refused]
            if not changing:
                await slices.pause()
    return outcomes


class _Outcome(Protocol):
    error_code: int


async def _wait_for_each(wait: Callable[[Answer], Awaitable[None]], results: list[Answer]) -> None:
    """Wait for the outcome of each change that was made."""
    made: list[Answer] = []
    for few in slices.cut(results, slices.KEYS_AT_ONCE):
        made += [one for one in few if not one.error_code]
        if len(few) == slices.KEYS_AT_ONCE:
            await slices.pause()
    await asyncio.gather(*map(wait, made))


async def _by_name(named: Iterable[Named]) -> tuple[set[str], dict[str, Named]]:
    """Return the topics that are named more than once, and what was said last of each."""
    repeated: set[str] = set()
    last: dict[str, Named] = {}
    for few in slices.cut(named, slices.KEYS_AT_ONCE):
        for one in few:
            if one.name in last:
                repeated.add(one.name)
            last[one.name] = one
        if len(few) == slices.KEYS_AT_ONCE:
            await slices.pause()
    return repeated, last


# --- create -------------------------------------------------------------------------------------


async def create_topics(
    broker: Broker, request: CreateTopicsRequest, context: RequestContext
) -> CreateTopicsResponse:
    """Create each topic; topics fail independently, except for names that collide."""
    deadline = monotonic() + request.timeout_ms / 1000
    repeated, unique = await _by_name(request.topics)
    new_partitions = 0
    for few in slices.cut(request.topics, slices.KEYS_AT_ONCE):
        new_partitions += sum(_new_partitions(broker, topic) for topic in few)
        if len(few) == slices.KEYS_AT_ONCE:
            await slices.pause()
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
        if new_partitions > MOST_NEW_PARTITIONS:
            return refused(topic, _too_many(new_partitions))
        return None

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

    results = await _few_at_once(refuse, create, unique.values())
    slices.discard(repeated, unique)
    if not request.validate_only:
        await _wait_for_each(wait, results)
    return CreateTopicsResponse(topics=results)


def _new_partitions(broker: Broker, topic: CreatableTopic) -> int:
    """Return the number of partitions of a new topic, at least one: a topic has a cost too."""
    if topic.assignments:
        return len(topic.assignments)
    if topic.num_partitions == USE_DEFAULT:
        return broker.config.num_partitions
    return max(topic.num_partitions, 1)


def _not_controller() -> KafkaError:
    return KafkaError(ErrorCode.NOT_CONTROLLER, "This is not the controller.")


def _too_many(new_partitions: int) -> KafkaError:
    return KafkaError(
        ErrorCode.POLICY_VIOLATION,
        f"{new_partitions} new partitions in one request; the limit is {MOST_NEW_PARTITIONS}.",
    )


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
    replicas = _replicas_for(broker, topic)
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
        return _checked_assignments(brokers, nodes(broker), topic.assignments)
    config = broker.config
    partitions, factor = topic.num_partitions, topic.replication_factor
    return assignment.assign_replicas(
        brokers,
        config.num_partitions if partitions == USE_DEFAULT else partitions,
        config.default_replication_factor if factor == USE_DEFAULT else factor,
        assignment.Start.draw(broker.random, len(brokers)),
        nodes=nodes(broker),
    )


def _checked_assignments(
    brokers: Mapping[BrokerId, str | None],
    on_nodes: assignment.Nodes,
    given: Sequence[CreatableReplicaAssignment],
) -> Replicas:
    replicas = {one.partition_index: _replicas(brokers, one.broker_ids) for one in given}
    if len(replicas) != len(given) or sorted(replicas) != list(range(len(given))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        )
    check_replica_lists(brokers, replicas, on_nodes)
    return replicas


def _replicas(brokers: Collection[BrokerId], given: Sequence[int]) -> tuple[BrokerId, ...]:
    """Return a replica list. Raise INVALID_REPLICA_ASSIGNMENT for one of more brokers than live."""
    if len(given) > len(brokers):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"A replica list names {len(given)} brokers; {len(brokers)} are alive.",
        )
    return tuple(map(BrokerId, given))


def check_replica_lists(
    brokers: Mapping[BrokerId, str | None], replicas: Replicas, on_nodes: assignment.Nodes
) -> None:
    """Raise INVALID_REPLICA_ASSIGNMENT for an invalid assignment.

    All lists must have the same length and name different live brokers, which share none of the
    nodes `on_nodes`.
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
        else:
            reason = assignment.same_node(partition, members, on_nodes) or reason
    if reason:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)


async def create_automatically(broker: Broker, topic: str, context: RequestContext) -> ErrorCode:
    """Create a topic on first use; return the error code for the client, mostly retriable."""
    try:
        admin.check_collision(topic, broker.metadata.topics)
        brokers = assignment.forget_partial_racks(_racks(broker))
        partitions, factor, entries = _automatic_shape(broker.config, topic)
        replicas = assignment.assign_replicas(
            brokers,
            partitions,
            factor,
            assignment.Start.draw(broker.random, len(brokers)),
            nodes=nodes(broker),
        )
        admin.check_topic_size(TopicAssignment(replicas))
        context.count_mutations(len(replicas))
        async with asyncio.timeout(AUTOMATIC_TIMEOUT_S):
            await admin.apply_create_topic(
                broker.session, topic, TopicAssignment(replicas), entries
            )
        logger.info("created topic %s on first use, with %d partitions", topic, len(replicas))
    except KafkaError as refusal:
        if refusal.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            _warn_of_too_few_brokers(topic, refusal)
            return refusal.code
    except (KazooException, TimeoutError) as failure:
        logger.warning("failed to create topic %s: %r", topic, failure)
    except TransactionFailedError as failure:
        logger.error("failed to create topic %s: %s", topic, failure)
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return ErrorCode.LEADER_NOT_AVAILABLE


def _warn_of_too_few_brokers(topic: str, refusal: KafkaError) -> None:
    """Say what to do where a coordinator's topic cannot be made: clients only wait."""
    setting = _FACTORS.get(topic)
    if setting is not None and refusal.code is ErrorCode.INVALID_REPLICATION_FACTOR:
        _rare_log.log(
            logging.WARNING,
            f"failed to create topic {topic}: {refusal}: start more brokers, or lower {setting}",
        )


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
    if topic == TRANSACTIONS_TOPIC:
        entries = {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(config.transaction_state_log_min_isr),
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
            "unclean.leader.election.enable": "false",
        }
        count = config.transaction_state_log_num_partitions
        return count, config.transaction_state_log_replication_factor, entries
    return config.num_partitions, config.default_replication_factor, {}


# --- grow ---------------------------------------------------------------------------------------


async def create_partitions(
    broker: Broker, request: CreatePartitionsRequest, context: RequestContext
) -> CreatePartitionsResponse:
    """Add partitions to topics; present partitions stay unchanged."""
    deadline = monotonic() + request.timeout_ms / 1000
    repeated, unique = await _by_name(request.topics)
    known = broker.metadata.topics
    new_partitions = 0
    for few in slices.cut(unique.values(), slices.KEYS_AT_ONCE):
        new_partitions += sum(
            max(topic.count - len(known[topic.name]), 0) for topic in few if topic.name in known
        )
        if len(few) == slices.KEYS_AT_ONCE:
            await slices.pause()

    def refused(topic: CreatePartitionsTopic, refusal: KafkaError) -> CreatePartitionsTopicResult:
        return CreatePartitionsTopicResult(
            name=topic.name, error_code=refusal.code, error_message=refusal.message
        )

    def refuse(topic: CreatePartitionsTopic) -> CreatePartitionsTopicResult | None:
        if topic.name in repeated:
            reason = "The request names the topic more than once."
            return refused(topic, KafkaError(ErrorCode.INVALID_REQUEST, reason))
        refusal = _growth_refusal(broker, topic, new_partitions)
        return None if refusal is None else refused(topic, refusal)

    async def grow(topic: CreatePartitionsTopic) -> CreatePartitionsTopicResult:
        try:
            await _guarded(
                lambda: _grow(broker, topic, request.validate_only, new_partitions, context),
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

    results = await _few_at_once(refuse, grow, unique.values())
    if not request.validate_only:
        await _wait_for_each(wait, results)
    slices.discard(repeated, unique)
    return CreatePartitionsResponse(results=results)


def _growth_refusal(
    broker: Broker, topic: CreatePartitionsTopic, new_partitions: int
) -> KafkaError | None:
    if not broker.controller.active:
        return _not_controller()
    present = broker.metadata.topics.get(topic.name)
    if present is None:
        reason = f"Topic '{topic.name}' does not exist."
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, reason)
    extra = topic.count - len(present)
    if extra <= 0:
        # Scripts look for Kafka's words.
        reason = (
            f"Topic already has {len(present)} partitions."
            if extra == 0
            else f"Topic currently has {len(present)} partitions, "
            f"which is higher than the requested {topic.count}."
        )
        return KafkaError(ErrorCode.INVALID_PARTITIONS, reason)
    return _too_many(new_partitions) if new_partitions > MOST_NEW_PARTITIONS else None


async def _grow(
    broker: Broker,
    topic: CreatePartitionsTopic,
    validate_only: bool,
    new_partitions: int,
    context: RequestContext,
) -> None:
    refusal = _growth_refusal(broker, topic, new_partitions)  # it may have grown meanwhile
    if refusal is not None:
        raise refusal
    present = broker.metadata.topics[topic.name]
    added = _added_replicas(broker, topic, len(present), topic.count - len(present))
    if validate_only:
        return
    context.count_mutations(len(added), FIRST_STRICT_GROWTH)
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
        if len(topic.assignments) != extra:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{extra} partitions are added, {len(topic.assignments)} assignments given.",
            )
        added = {
            first + index: _replicas(brokers, one.broker_ids)
            for index, one in enumerate(topic.assignments)
        }
        check_replica_lists(brokers, added, nodes(broker))
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
            brokers,
            extra,
            len(zero),
            assignment.Start.fixed(start),
            first_partition=first,
            nodes=nodes(broker),
        )
    )


# --- delete -------------------------------------------------------------------------------------


async def delete_topics(
    broker: Broker, request: DeleteTopicsRequest, context: RequestContext
) -> DeleteTopicsResponse:
    """Request deletions, and wait until the metadata of this broker lacks the topics."""
    deadline = monotonic() + request.timeout_ms / 1000

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
        left_ms = (deadline - monotonic()) * 1000
        if not await broker.metadata.wait_until_gone(going.name, left_ms):
            going.error_code = ErrorCode.REQUEST_TIMED_OUT
            going.error_message = f"Topic '{going.name}' is still being deleted."

    names = await slices.unique(request.topic_names)
    results = await _few_at_once(refuse, delete, names)
    slices.discard(names)
    await _wait_for_each(wait, results)
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
