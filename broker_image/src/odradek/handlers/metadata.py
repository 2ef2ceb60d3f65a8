"""Metadata: the brokers, topics, partitions and leaders of the cluster.

Every broker answers from its metadata cache. Encoded answers are cached until it changes, so the
usual request costs one lookup. A topic that does not exist is created if broker and client both
allow it; the client then retries (error 5). A client that goes away has no further topics created.
With an authorizer, a client sees the topics that it may describe. Of the others, those that it
named get error 29, whether they exist or not. Topics have no ids here, and cannot be asked for by
their ids: as in Kafka 2.8 where brokers speak an older protocol among themselves.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import NamedTuple

from odradek import slices
from odradek.handlers import authorization, automatic_topics
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol import codec
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from odradek.protocol.primitives import LENGTH32, NO_UUID
from odradek.replica.metadata import MetadataView, PartitionInfo
from odradek.security.acls import AclOperation, ResourceType
from odradek.values import INTERNAL_TOPICS, NO_LEADER
from odradek.zk import admin

FIRST_WITH_THROTTLE_TIME = 3
FIRST_WITH_LISTENER_ERRORS = 6
FIRST_WITH_TOPIC_IDS = 10
# Topics that one request creates: each takes a transaction in ZooKeeper, and its partitions a log
# on every replica.
MOST_CREATED = 100
# Names in a request whose answer is cached: it takes long to compare more, and memory to keep them.
MOST_NAMES_CACHED = 10_000


def with_throttle_time(encoded: bytes, version: int, throttle_ms: int) -> bytes:
    """Return an encoded answer with a throttle time, with which it begins."""
    if version < FIRST_WITH_THROTTLE_TIME:
        return encoded
    return LENGTH32.pack(throttle_ms) + encoded[LENGTH32.size :]


async def metadata(broker: Broker, request: MetadataRequest, context: RequestContext) -> bytes:
    """Return the encoded answer for the listener of the request."""
    if context.version >= FIRST_WITH_TOPIC_IDS and await _asks_for_ids(request):
        refusal = MetadataResponse(brokers=[], topics=await slices.run(_all_invalid(request)))
        return await slices.run(codec.encode_in_slices(refusal, context.version))
    names = await _names(request, context.version)
    # What is gone since all topics were listed is not wanted.
    creates = request.allow_auto_topic_creation and names is not None
    refused: dict[str, ErrorCode] = {}
    if broker.authorizer is not None:
        names, refused = await _describable(broker, names, context)
    question = _Question(
        context.version,
        context.listener,
        names,
        request.include_cluster_authorized_operations,
        request.include_topic_authorized_operations,
    )
    cache = broker.metadata
    # What senders may do differs from one to the next.
    is_own = bool(refused) or (
        broker.authorizer is not None and (question.of_cluster or question.of_topics)
    )
    if is_own or (names is not None and len(names) > MOST_NAMES_CACHED):
        missing = []
        for few in slices.cut(names or (), slices.KEYS_AT_ONCE):
            missing += [name for name in few if name not in cache.topics]
            await slices.pause()
        errors = await _create_missing(broker, missing, creates, context)
        errors |= refused
        encoded = await _encoded(broker, question, cache.view, errors, context)
        slices.discard(missing, errors)
        return encoded
    kept = cache.cached_answer(question)
    if kept is not None:
        return kept
    missing = [] if names is None else [name for name in names if name not in cache.topics]
    if not missing:
        return await cache.encoded_answer(
            question, lambda view: _encoded(broker, question, view, {}, context)
        )
    errors = await _create_missing(broker, missing, creates, context)
    return await _encoded(broker, question, cache.view, errors, context)


async def _describable(
    broker: Broker, names: tuple[str, ...] | None, context: RequestContext
) -> tuple[tuple[str, ...], dict[str, ErrorCode]]:
    """Return the topics that the sender may describe, and the refusals of others that it named."""
    passed, refused = await authorization.split(
        broker,
        context,
        AclOperation.DESCRIBE,
        ResourceType.TOPIC,
        list(broker.metadata.topics) if names is None else names,
        str,
        log=names is not None,
    )
    if names is None:
        # Some may be deleted meanwhile.
        return tuple(name for name in passed if name in broker.metadata.topics), {}
    return tuple(passed), dict.fromkeys(refused, ErrorCode.TOPIC_AUTHORIZATION_FAILED)


class _Question(NamedTuple):
    """What an answer depends on, besides the cluster. No `names` stand for every topic."""

    version: int
    listener: str
    names: tuple[str, ...] | None
    of_cluster: bool
    of_topics: bool


async def _asks_for_ids(request: MetadataRequest) -> bool:
    """Return whether a topic is asked for by its id, or has no name."""
    for number, part in enumerate(slices.cut(request.topics or (), slices.KEYS_AT_ONCE)):
        if number:
            await slices.pause()
        if any(one.name is None or one.topic_id != NO_UUID for one in part):
            return True
    return False


def _all_invalid(request: MetadataRequest) -> Generator[None, None, list[MetadataResponseTopic]]:
    """Return what Kafka answers to a request that asks for ids before version 12, in slices."""
    found: list[MetadataResponseTopic] = []
    for part in slices.cut(request.topics or ()):
        found += [
            MetadataResponseTopic(
                error_code=ErrorCode.INVALID_REQUEST,
                name=one.name or "",
                topic_id=one.topic_id,
                partitions=[],
            )
            for one in part
        ]
        yield
    return found


async def _names(request: MetadataRequest, version: int) -> tuple[str, ...] | None:
    """Return the requested topics, None for all: null, or before version 1 an empty list."""
    if request.topics is None or (version == 0 and not request.topics):
        return None
    names: dict[str, None] = {}
    for number, part in enumerate(slices.cut(request.topics)):
        if number:
            await slices.pause()
        names |= dict.fromkeys(topic.name for topic in part if topic.name is not None)
    found = tuple(names)
    slices.discard(names)
    return found


async def _create_missing(
    broker: Broker, missing: list[str], client_allows: bool, context: RequestContext
) -> dict[str, ErrorCode]:
    """Create the topics if broker and client allow it, until the client goes; return the errors.

    Beyond MOST_CREATED the client is told to ask again, upon which further ones are created.
    """
    may_create = client_allows and broker.config.auto_create_topics_enable
    attempts = 0
    errors: dict[str, ErrorCode] = {}
    for number, name in enumerate(missing, 1):
        if not admin.is_legal_topic_name(name):
            errors[name] = ErrorCode.INVALID_TOPIC_EXCEPTION
        elif not may_create:
            errors[name] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif not _may_create(broker, context, name):
            errors[name] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif attempts == MOST_CREATED or not context.is_connected():
            errors[name] = ErrorCode.LEADER_NOT_AVAILABLE
        else:
            attempts += 1
            errors[name] = await automatic_topics.create(broker, name, context)
        if number % slices.STEPS_PER_SLICE == 0:
            await slices.pause()
    return errors


def _may_create(broker: Broker, context: RequestContext, name: str) -> bool:
    create = AclOperation.CREATE
    return authorization.allowed(
        broker, context, create, ResourceType.CLUSTER, log=False
    ) or authorization.allowed(broker, context, create, ResourceType.TOPIC, name)


async def _encoded(
    broker: Broker,
    question: _Question,
    view: MetadataView,
    errors: Mapping[str, ErrorCode],
    context: RequestContext,
) -> bytes:
    """Return the answer of one view; the topics with errors come first."""
    answer = MetadataResponse(
        brokers=_brokers(view, question.listener),
        cluster_id=broker.cluster_id,
        controller_id=view.live_controller_id,
        topics=await slices.run(_topics(view, question, errors)),
    )
    if question.of_cluster:
        answer.cluster_authorized_operations = authorization.operations_on_cluster(broker, context)
    if question.of_topics:
        for few in slices.cut(answer.topics):
            for topic in few:
                if topic.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                    topic.topic_authorized_operations = authorization.operations_on(
                        broker, context, ResourceType.TOPIC, topic.name
                    )
            if len(few) == slices.STEPS_PER_SLICE:
                await slices.pause()
    encoded = await slices.run(codec.encode_in_slices(answer, question.version))
    if len(answer.topics) > slices.STEPS_PER_SLICE:
        slices.run_in_background(codec.free_in_slices(answer))
    return encoded


def _topics(
    view: MetadataView, question: _Question, errors: Mapping[str, ErrorCode]
) -> Generator[None, None, list[MetadataResponseTopic]]:
    """Return the topics of an answer, in slices."""
    found: list[MetadataResponseTopic] = []
    for few in slices.cut(errors.items()):
        found += [_without_partitions(name, error) for name, error in few]
        if len(few) == slices.STEPS_PER_SLICE:
            yield
    steps = 0
    for name in view.topics if question.names is None else question.names:
        steps += 1
        if steps % slices.STEPS_PER_SLICE == 0:
            yield
        if name in errors:
            continue
        known = view.topics.get(name)
        if known is None:
            found.append(_without_partitions(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            continue
        topic = MetadataResponseTopic(name=name, is_internal=name in INTERNAL_TOPICS, partitions=[])
        found.append(topic)
        for index, info in sorted(known.items()):
            topic.partitions.append(_partition(view, index, info, question))
            steps += 1
            if steps % slices.STEPS_PER_SLICE == 0:
                yield
    return found


def _without_partitions(name: str, error: ErrorCode) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=error, name=name, is_internal=name in INTERNAL_TOPICS, partitions=[]
    )


def _brokers(view: MetadataView, listener: str) -> list[MetadataResponseBroker]:
    return [
        MetadataResponseBroker(node_id=one.broker_id, host=host, port=port, rack=one.rack)
        for one, host, port in view.on_listener(listener)
    ]


def _partition(
    view: MetadataView, index: int, info: PartitionInfo, question: _Question
) -> MetadataResponsePartition:
    error = ErrorCode.NONE
    leader = info.leader
    if leader not in view.brokers:
        error, leader = ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER
    elif question.listener not in view.brokers[leader].endpoints:
        leader = NO_LEADER
        error = (
            ErrorCode.LISTENER_NOT_FOUND
            if question.version >= FIRST_WITH_LISTENER_ERRORS
            else ErrorCode.LEADER_NOT_AVAILABLE
        )
    replicas, isr = list(info.replicas), list(info.isr)
    if question.version == 0:
        # The oldest clients look every replica up among the brokers, so dead ones are left out
        # (KAFKA-1609).
        replicas = [one for one in replicas if one in view.brokers]
        isr = [one for one in isr if one in view.brokers]
        if error is ErrorCode.NONE and len(replicas) < len(info.replicas):
            error = ErrorCode.REPLICA_NOT_AVAILABLE
    return MetadataResponsePartition(
        error_code=error,
        partition_index=index,
        leader_id=leader,
        leader_epoch=info.leader_epoch,
        replica_nodes=replicas,
        isr_nodes=isr,
        offline_replicas=[
            one for one in info.replicas if one in info.offline_replicas or one not in view.brokers
        ],
    )
