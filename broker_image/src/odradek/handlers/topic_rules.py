"""The rules of the APIs that name topics: what is not allowed is refused per partition.

The handler gets a copy of the request without the topics that are refused; their answers are added
to its own. They are made first: an answer with regions of files must not wait for anything. The
request itself keeps all its topics, for the dispatcher to free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from odradek import slices
from odradek.handlers import authorization
from odradek.handlers.authorization import allowed
from odradek.handlers.context import Broker, RequestContext
from odradek.handlers.rules import Handle, Rule, each_refused
from odradek.log.records import batch
from odradek.net.frame import ProtocolViolation
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages import fetch as fetch_messages
from odradek.protocol.messages import group_offsets, offsets, topics, transactions
from odradek.protocol.messages import produce as produce_messages
from odradek.replica.fetch_sessions import FINAL_EPOCH, is_full
from odradek.security.acls import AclOperation, ResourceType

TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
DENIED = "Topic authorization failed."
VERSION_WITH_GROUP_ERROR = 2
"""The first version of OffsetFetch with an error for the whole group."""


async def _split(
    broker: Broker,
    context: RequestContext,
    operation: AclOperation,
    named: Iterable[Any],
    name_of: Callable[[Any], str] = lambda topic: str(topic.name),
) -> tuple[list[Any], list[Any]]:
    return await authorization.split(broker, context, operation, ResourceType.TOPIC, named, name_of)


# --- the data path --------------------------------------------------------------------------------


async def produce(
    broker: Broker,
    request: produce_messages.ProduceRequest,
    context: RequestContext,
    handle: Handle,
) -> object:
    """Need Write on each topic, and for transactional batches on the transactional id."""
    denied = TOPIC_DENIED
    passed: list[Any] = []
    refused: list[Any] = request.topic_data
    if (
        request.transactional_id is not None
        and await _has_transactional_batch(request)
        and not allowed(
            broker,
            context,
            AclOperation.WRITE,
            ResourceType.TRANSACTIONAL_ID,
            request.transactional_id,
        )
    ):
        denied = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    else:
        passed, refused = await _split(broker, context, AclOperation.WRITE, request.topic_data)
    if refused and request.transactional_id is None and await _has_transactional_batch(request):
        # As a whole, as in Kafka. If no topic is refused, the handler refuses such batches.
        denied = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        passed, refused = [], request.topic_data
    if not refused:
        return await handle(broker, request, context)
    denials = await slices.run(
        each_refused(
            refused,
            lambda topic: topic.partition_data,
            lambda topic, found: produce_messages.TopicProduceResponse(
                name=topic.name, partition_responses=found
            ),
            lambda part: produce_messages.PartitionProduceResponse(
                index=part.index, error_code=denied, base_offset=-1
            ),
        )
    )
    answer = produce_messages.ProduceResponse(responses=[])
    if passed:
        at_once = context._replace(takes_later=False)
        answer = await handle(broker, replace(request, topic_data=passed), at_once) or answer
    if request.acks == 0:
        # As in Kafka: the producer expects no answer, so nothing else can report it.
        raise ProtocolViolation(f"acks=0 to {refused[0].name[:249]}: {denied.name}")
    answer.responses += denials
    return answer


async def _has_transactional_batch(request: produce_messages.ProduceRequest) -> bool:
    for number, few in enumerate(
        slices.cut_members(request.topic_data, lambda topic: topic.partition_data)
    ):
        if number:
            await slices.pause()
        if any(batch.begins_transactional(part.records or b"") for _, part in few):
            return True
    return False


async def fetch(
    broker: Broker,
    request: fetch_messages.FetchRequest,
    context: RequestContext,
    handle: Handle,
) -> object:
    """Need Read on each topic; followers need ClusterAction.

    Where something is refused no session begins: the next fetch names its partitions again.
    """
    if request.replica_id < 0 and not is_full(request.session_epoch):
        return await handle(broker, request, context)  # which looks at all topics of the session
    if request.replica_id < 0:
        passed, refused = await _split(
            broker, context, AclOperation.READ, request.topics, lambda topic: str(topic.topic)
        )
    elif allowed(broker, context, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER):
        return await handle(broker, request, context)
    else:
        if not is_full(request.session_epoch):
            # A full fetch follows, which is told what is refused.
            return fetch_messages.FetchResponse(
                error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, responses=[]
            )
        passed, refused = [], request.topics
    if not refused:
        return await handle(broker, request, context)
    denials = await slices.run(
        each_refused(
            refused,
            lambda topic: topic.partitions,
            lambda topic, found: fetch_messages.FetchableTopicResponse(
                topic=topic.topic, partition_responses=found
            ),
            lambda part: fetch_messages.FetchablePartitionResponse(
                partition=part.partition,
                error_code=TOPIC_DENIED,
                high_watermark=-1,
                record_set=b"",
            ),
        )
    )
    answer = fetch_messages.FetchResponse(responses=[])
    if passed:
        without_session = replace(request, topics=passed, session_epoch=FINAL_EPOCH)
        answer = await handle(broker, without_session, context)
    answer.responses += denials
    return answer


# --- positions ------------------------------------------------------------------------------------


def by_topic(
    operation: AclOperation,
    topic_answer: Callable[..., Any],
    partition_answer: Callable[..., Any],
) -> Rule:
    """Need a right on each of the request's `topics`, which have `partitions`.

    `topic_answer` makes the answer of a topic from `name` and `partitions`, `partition_answer` that
    of a partition from `partition_index` and `error_code`.
    """

    async def rule(broker: Broker, request: Any, context: RequestContext, handle: Handle) -> object:
        passed, refused = await _split(broker, context, operation, request.topics)
        denials = await slices.run(
            _each_denied(refused, topic_answer, partition_answer, TOPIC_DENIED)
        )
        answer: Any = await handle(broker, replace(request, topics=passed), context)
        answer.topics += denials
        return answer

    return rule


def _each_denied(
    refused: Iterable[Any],
    topic_answer: Callable[..., Any],
    partition_answer: Callable[..., Any],
    code: ErrorCode,
) -> Any:
    return each_refused(
        refused,
        lambda topic: topic.partitions,
        lambda topic, found: topic_answer(name=topic.name, partitions=found),
        lambda part: partition_answer(partition_index=part.partition_index, error_code=code),
    )


list_offsets = by_topic(
    AclOperation.DESCRIBE, offsets.ListOffsetsTopicResponse, offsets.ListOffsetsPartitionResponse
)


def _records_kept(partition_index: int, error_code: ErrorCode) -> object:
    return offsets.DeleteRecordsPartitionResult(
        partition_index=partition_index, low_watermark=-1, error_code=error_code
    )


delete_records = by_topic(AclOperation.DELETE, offsets.DeleteRecordsTopicResult, _records_kept)


async def offset_for_leader_epoch(
    broker: Broker,
    request: offsets.OffsetForLeaderEpochRequest,
    context: RequestContext,
    handle: Handle,
) -> object:
    """Need ClusterAction, or Describe on each topic (KIP-320)."""
    if allowed(broker, context, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, log=False):
        return await handle(broker, request, context)
    passed, refused = await _split(
        broker, context, AclOperation.DESCRIBE, request.topics, lambda topic: str(topic.topic)
    )
    answer: offsets.OffsetForLeaderEpochResponse = await handle(
        broker, replace(request, topics=passed), context
    )
    answer.topics += await slices.run(
        each_refused(
            refused,
            lambda topic: topic.partitions,
            lambda topic, found: offsets.OffsetForLeaderTopicResult(
                topic=topic.topic, partitions=found
            ),
            lambda part: offsets.OffsetForLeaderEpochEndOffset(
                partition=part.partition, error_code=TOPIC_DENIED
            ),
        )
    )
    return answer


# --- offsets of groups ----------------------------------------------------------------------------


def _committing(
    needs: Callable[[Any], Iterable[tuple[AclOperation, ResourceType, str, ErrorCode]]],
    answer_of: Callable[..., Any],
    topic_answer: Callable[..., Any],
    partition_answer: Callable[..., Any],
) -> Rule:
    """Need Read on each topic, and what `needs` returns of a request, with its error codes."""

    async def rule(broker: Broker, request: Any, context: RequestContext, handle: Handle) -> object:
        code = TOPIC_DENIED
        passed: list[Any] = []
        refused: list[Any] = request.topics
        for operation, kind, name, denied in needs(request):
            if not allowed(broker, context, operation, kind, name):
                code = denied
                break
        else:
            passed, refused = await _split(broker, context, AclOperation.READ, request.topics)
        denials = await slices.run(_each_denied(refused, topic_answer, partition_answer, code))
        answer = answer_of(topics=[])
        if passed:
            answer = await handle(broker, replace(request, topics=passed), context)
        answer.topics += denials
        return answer

    return rule


def _group_read(request: Any) -> tuple[AclOperation, ResourceType, str, ErrorCode]:
    code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    return AclOperation.READ, ResourceType.GROUP, request.group_id, code


def _transaction_written(request: Any) -> tuple[AclOperation, ResourceType, str, ErrorCode]:
    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id, code


offset_commit = _committing(
    lambda request: (_group_read(request),),
    group_offsets.OffsetCommitResponse,
    group_offsets.OffsetCommitResponseTopic,
    group_offsets.OffsetCommitResponsePartition,
)
txn_offset_commit = _committing(
    lambda request: (_transaction_written(request), _group_read(request)),
    transactions.TxnOffsetCommitResponse,
    transactions.TxnOffsetCommitResponseTopic,
    transactions.TxnOffsetCommitResponsePartition,
)


async def offset_fetch(
    broker: Broker,
    request: group_offsets.OffsetFetchRequest,
    context: RequestContext,
    handle: Handle,
) -> object:
    """Need Describe on the group and on each topic; of all topics, only those are shown."""
    code = TOPIC_DENIED
    passed: list[Any] = []
    refused: list[Any] = []
    if not allowed(broker, context, AclOperation.DESCRIBE, ResourceType.GROUP, request.group_id):
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        if context.version >= VERSION_WITH_GROUP_ERROR:
            return group_offsets.OffsetFetchResponse(error_code=code, topics=[])
        refused = request.topics or []
    elif request.topics is None:
        answer: group_offsets.OffsetFetchResponse = await handle(broker, request, context)
        answer.topics, _ = await authorization.split(
            broker,
            context,
            AclOperation.DESCRIBE,
            ResourceType.TOPIC,
            answer.topics,
            lambda topic: topic.name,
            log=False,
        )
        return answer
    else:
        passed, refused = await _split(broker, context, AclOperation.DESCRIBE, request.topics)
    denials = await slices.run(
        each_refused(
            refused,
            lambda topic: topic.partition_indexes,
            lambda topic, found: group_offsets.OffsetFetchResponseTopic(
                name=topic.name, partitions=found
            ),
            lambda index: group_offsets.OffsetFetchResponsePartition(
                partition_index=index, committed_offset=-1, metadata="", error_code=code
            ),
        )
    )
    answer = group_offsets.OffsetFetchResponse(topics=[])
    if passed or not refused:
        answer = await handle(broker, replace(request, topics=passed), context)
    answer.topics += denials
    return answer


async def offset_delete(
    broker: Broker,
    request: group_offsets.OffsetDeleteRequest,
    context: RequestContext,
    handle: Handle,
) -> object:
    """Need Delete on the group, and Read on each topic."""
    if not allowed(broker, context, AclOperation.DELETE, ResourceType.GROUP, request.group_id):
        return group_offsets.OffsetDeleteResponse(
            error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED, topics=[]
        )
    passed, refused = await _split(broker, context, AclOperation.READ, request.topics)
    answer: group_offsets.OffsetDeleteResponse = await handle(
        broker, replace(request, topics=passed), context
    )
    if answer.error_code == ErrorCode.NONE:
        answer.topics += await slices.run(
            _each_denied(
                refused,
                group_offsets.OffsetDeleteResponseTopic,
                group_offsets.OffsetDeleteResponsePartition,
                TOPIC_DENIED,
            )
        )
    return answer


# --- topics ---------------------------------------------------------------------------------------


def _denial(broker: Broker) -> tuple[ErrorCode, str]:
    """Return what a topic is answered with that the sender may not change.

    As in Kafka, only the controller says who may do what. All brokers ask the authorizer: one may
    become the controller while it works on a request.
    """
    if broker.controller.active:
        return TOPIC_DENIED, DENIED
    return ErrorCode.NOT_CONTROLLER, "This is not the controller."


async def create_topics(
    broker: Broker,
    request: topics.CreateTopicsRequest,
    context: RequestContext,
    handle: Handle,
) -> object:
    """Need Create on the cluster or on each topic; configs are shown with DescribeConfigs."""
    refused: list[topics.CreatableTopic] = []
    if not allowed(broker, context, AclOperation.CREATE, ResourceType.CLUSTER, log=False):
        passed, refused = await _split(broker, context, AclOperation.CREATE, request.topics)
        request = replace(request, topics=passed)
    code, message = _denial(broker)
    answer: topics.CreateTopicsResponse = await handle(broker, request, context)
    answer.topics += await authorization.answers(
        await slices.unique(topic.name for topic in refused),
        lambda name: topics.CreatableTopicResult(
            name=name, error_code=code, error_message=message, configs=[]
        ),
    )
    for few in slices.cut(answer.topics):
        for made in few:
            operation = AclOperation.DESCRIBE_CONFIGS
            if made.error_code in (ErrorCode.NONE, TOPIC_DENIED) and not allowed(
                broker, context, operation, ResourceType.TOPIC, made.name, log=False
            ):
                made.topic_config_error_code = TOPIC_DENIED
                made.num_partitions = made.replication_factor = -1
                made.configs = []
        if len(few) == slices.STEPS_PER_SLICE:
            await slices.pause()
    return answer


async def delete_topics(
    broker: Broker,
    request: topics.DeleteTopicsRequest,
    context: RequestContext,
    handle: Handle,
) -> object:
    """Need Delete on each topic."""
    refused: list[str] = []
    if broker.config.delete_topic_enable:
        passed, refused = await _split(
            broker, context, AclOperation.DELETE, request.topic_names, str
        )
        request = replace(request, topic_names=passed)
    code, message = _denial(broker)
    answer: topics.DeleteTopicsResponse = await handle(broker, request, context)
    answer.responses += await authorization.answers(
        await slices.unique(refused),
        lambda name: topics.DeletableTopicResult(name=name, error_code=code, error_message=message),
    )
    return answer


async def create_partitions(
    broker: Broker,
    request: topics.CreatePartitionsRequest,
    context: RequestContext,
    handle: Handle,
) -> object:
    """Need Alter on each topic."""
    passed, refused = await _split(broker, context, AclOperation.ALTER, request.topics)
    request = replace(request, topics=passed)
    code, message = _denial(broker)
    answer: topics.CreatePartitionsResponse = await handle(broker, request, context)
    answer.results += await authorization.answers(
        await slices.unique(topic.name for topic in refused),
        lambda name: topics.CreatePartitionsTopicResult(
            name=name, error_code=code, error_message=message
        ),
    )
    return answer
