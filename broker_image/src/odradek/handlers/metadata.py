"""Metadata: the brokers, topics, partitions and leaders of the cluster.

Every broker answers from its metadata cache. Encoded answers are cached until it changes, so the
usual request costs one lookup. A topic that does not exist is created if broker and client both
allow it; the client then retries (error 5). A client that goes away has no further topics created.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import NamedTuple

from odradek import slices
from odradek.handlers import operations, topics
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
from odradek.replica.metadata import MetadataView, PartitionInfo
from odradek.values import INTERNAL_TOPICS, NO_LEADER

FIRST_WITH_LISTENER_ERRORS = 6
# Topics that one request creates: each takes a transaction in ZooKeeper, and its partitions a log
# on every replica.
MOST_CREATED = 100


async def metadata(broker: Broker, request: MetadataRequest, context: RequestContext) -> bytes:
    """Return the encoded answer for the listener of the request."""
    names = await _names(request, context.version)
    question = _Question(
        context.version,
        context.listener,
        names,
        request.include_cluster_authorized_operations,
        request.include_topic_authorized_operations,
    )
    cache = broker.metadata
    kept = cache.cached_answer(question)
    if kept is not None:
        return kept
    missing = [] if names is None else [name for name in names if name not in cache.topics]
    if not missing:
        return await cache.encoded_answer(
            question, lambda view: _encoded(broker, question, view, {})
        )
    errors = await _create_missing(broker, missing, request.allow_auto_topic_creation, context)
    return await _encoded(broker, question, cache.view, errors)


class _Question(NamedTuple):
    """What an answer depends on, besides the cluster. No `names` stand for every topic."""

    version: int
    listener: str
    names: tuple[str, ...] | None
    of_cluster: bool
    of_topics: bool


async def _names(request: MetadataRequest, version: int) -> tuple[str, ...] | None:
    """Return the requested topics, None for all: null, or before version 1 an empty list."""
    if request.topics is None or (version == 0 and not request.topics):
        return None
    names: dict[str, None] = {}
    for number, part in enumerate(slices.cut(request.topics)):
        if number:
            await slices.pause()
        names |= dict.fromkeys(topic.name for topic in part)
    return tuple(names)


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
        if not topics.is_legal_name(name):
            errors[name] = ErrorCode.INVALID_TOPIC_EXCEPTION
        elif not may_create:
            errors[name] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif attempts == MOST_CREATED or not context.is_connected():
            errors[name] = ErrorCode.LEADER_NOT_AVAILABLE
        else:
            attempts += 1
            errors[name] = await topics.create_automatically(broker, name)
        if number % slices.STEPS_PER_SLICE == 0:
            await slices.pause()
    return errors


async def _encoded(
    broker: Broker, question: _Question, view: MetadataView, errors: Mapping[str, ErrorCode]
) -> bytes:
    """Return the answer of one view; the topics with errors come first."""
    answer = MetadataResponse(
        brokers=_brokers(view, question.listener),
        cluster_id=broker.cluster_id,
        controller_id=view.controller_id if view.controller_id in view.brokers else -1,
        topics=await slices.run(_topics(view, question, errors)),
    )
    if question.of_cluster:
        answer.cluster_authorized_operations = operations.ON_CLUSTER
    if question.of_topics:
        for topic in answer.topics:
            topic.topic_authorized_operations = operations.ON_TOPIC
    return await slices.run(codec.encode_in_slices(answer, question.version))


def _topics(
    view: MetadataView, question: _Question, errors: Mapping[str, ErrorCode]
) -> Generator[None, None, list[MetadataResponseTopic]]:
    """Return the topics of an answer, in slices."""
    found = [_without_partitions(name, error) for name, error in errors.items()]
    steps = 0
    for name in view.topics if question.names is None else question.names:
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
    found: list[MetadataResponseBroker] = []
    for broker in view.brokers.values():
        endpoint = broker.endpoints.get(listener)
        if endpoint is not None:
            found.append(
                MetadataResponseBroker(
                    node_id=broker.broker_id, host=endpoint[0], port=endpoint[1], rack=broker.rack
                )
            )
    return found


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
