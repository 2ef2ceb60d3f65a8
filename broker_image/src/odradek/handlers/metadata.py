"""Metadata: the brokers, topics, partitions and leaders of the cluster.

Every broker answers from its metadata cache. Encoded answers are cached until it changes, so the
usual request costs one lookup. A topic that does not exist is created if broker and client both
allow it; the client then retries (error 5).
"""

from __future__ import annotations

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
from odradek.replica.metadata import MetadataCache, PartitionInfo
from odradek.values import INTERNAL_TOPICS, NO_LEADER

FIRST_WITH_LISTENER_ERRORS = 6


async def metadata(broker: Broker, request: MetadataRequest, context: RequestContext) -> bytes:
    """Return the encoded answer for the listener of the request."""
    names = _names(request, context.version)
    of_cluster = request.include_cluster_authorized_operations
    of_topics = request.include_topic_authorized_operations
    question = (context.version, context.listener, names, of_cluster, of_topics)
    kept = broker.metadata.cached_answer(question)
    if kept is not None:
        return kept
    cache = broker.metadata
    missing: list[MetadataResponseTopic] = []
    if names is not None:
        for name in names:
            if name not in cache.topics:
                missing.append(
                    await _missing_topic(broker, name, request.allow_auto_topic_creation)
                )
    answer = MetadataResponse(
        brokers=_brokers(cache, context.listener),
        cluster_id=broker.cluster_id,
        controller_id=cache.controller_id if cache.controller_id in cache.brokers else -1,
        topics=[
            *missing,
            *(
                _topic(cache, name, context)
                for name in (cache.topics if names is None else names)
                if name in cache.topics
            ),
        ],
    )
    if of_cluster:
        answer.cluster_authorized_operations = operations.ON_CLUSTER
    if of_topics:
        for topic in answer.topics:
            topic.topic_authorized_operations = operations.ON_TOPIC
    encoded = codec.encode(answer, context.version)
    if not missing:
        cache.cache_answer(question, encoded)
    return encoded


def _names(request: MetadataRequest, version: int) -> tuple[str, ...] | None:
    """Return the requested topics, None for all: null, or before version 1 an empty list."""
    if request.topics is None or (version == 0 and not request.topics):
        return None
    return tuple(dict.fromkeys(topic.name for topic in request.topics))


async def _missing_topic(broker: Broker, name: str, client_allows: bool) -> MetadataResponseTopic:
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not topics.is_legal_name(name):
        error = ErrorCode.INVALID_TOPIC_EXCEPTION
    elif client_allows and broker.config.auto_create_topics_enable:
        error = await topics.create_automatically(broker, name)
    return MetadataResponseTopic(
        error_code=error, name=name, is_internal=name in INTERNAL_TOPICS, partitions=[]
    )


def _brokers(cache: MetadataCache, listener: str) -> list[MetadataResponseBroker]:
    found: list[MetadataResponseBroker] = []
    for broker in cache.brokers.values():
        endpoint = broker.endpoints.get(listener)
        if endpoint is not None:
            found.append(
                MetadataResponseBroker(
                    node_id=broker.broker_id, host=endpoint[0], port=endpoint[1], rack=broker.rack
                )
            )
    return found


def _topic(cache: MetadataCache, name: str, context: RequestContext) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        partitions=[
            _partition(cache, index, info, context)
            for index, info in sorted(cache.topics[name].items())
        ],
    )


def _partition(
    cache: MetadataCache, index: int, info: PartitionInfo, context: RequestContext
) -> MetadataResponsePartition:
    error = ErrorCode.NONE
    leader = info.leader
    if leader not in cache.brokers:
        error, leader = ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER
    elif cache.endpoint(leader, context.listener) is None:
        leader = NO_LEADER
        error = (
            ErrorCode.LISTENER_NOT_FOUND
            if context.version >= FIRST_WITH_LISTENER_ERRORS
            else ErrorCode.LEADER_NOT_AVAILABLE
        )
    replicas, isr = list(info.replicas), list(info.isr)
    if context.version == 0:
        # The oldest clients look every replica up among the brokers, so dead ones are left out
        # (KAFKA-1609).
        replicas = [one for one in replicas if one in cache.brokers]
        isr = [one for one in isr if one in cache.brokers]
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
            one for one in info.replicas if one in info.offline_replicas or one not in cache.brokers
        ],
    )
