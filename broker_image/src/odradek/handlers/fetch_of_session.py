"""Fetches of sessions (KIP-227, see `fetch_sessions`): changes, which are answered by changes.

The rules are Kafka's (`kafka.server.FetchManager`): a session takes what a fetch names and forgets
even if nothing of it is served then, one that becomes empty ends, and a fetch that another one
overtook gets error 71. A consumer must still be allowed to read each topic of its session.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from odradek import slices
from odradek.handlers import authorization, fetch_answers
from odradek.handlers.context import Broker, RequestContext
from odradek.net.unasked import Unasked
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import (
    FetchablePartitionResponse,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
)
from odradek.protocol.regions import Records, part_length
from odradek.replica import reads
from odradek.replica.fetch_sessions import (
    NO_SESSION,
    FetchSession,
    FetchSessions,
    SessionPartition,
    next_epoch,
)
from odradek.replica.fetch_specs import FetchResult, FetchSpec
from odradek.security.acls import AclOperation, ResourceType
from odradek.values import TopicPartition


async def begin(
    broker: Broker,
    request: FetchRequest,
    context: RequestContext,
    specs: Sequence[FetchSpec],
    results: Sequence[FetchResult],
) -> int:
    """Return the id of a new session of these partitions, 0 if there is none.

    What happened since they were read is not lost: the first fetch of the session looks at all of
    them.
    """
    sessions = broker.replicas.fetch_sessions
    privileged = request.replica_id >= 0
    if request.replica_id == reads.DEBUGGING_CONSUMER or not sessions.has_room(
        len(specs), privileged=privileged
    ):
        return NO_SESSION
    session = FetchSession(request.replica_id, context.principal)
    try:
        for few in slices.cut(zip(specs, results, strict=True)):
            for spec, result in few:
                sessions.add(session, spec).note_answered(result)
            if len(few) == slices.STEPS_PER_SLICE:
                await slices.pause()
    except BaseException:
        sessions.close(session)
        raise
    if sessions.insert(session):
        return session.session_id
    sessions.close(session)
    return NO_SESSION


def end(broker: Broker, request: FetchRequest, context: RequestContext) -> None:
    """End the session that a full fetch names, if it is the sender's."""
    sessions = broker.replicas.fetch_sessions
    session = sessions.of_sender(request.session_id, request.replica_id, context.principal)
    if session is not None:
        sessions.close(session)


async def fetch(broker: Broker, request: FetchRequest, context: RequestContext) -> FetchResponse:
    """Read from the partitions of a session that may have news."""
    sessions = broker.replicas.fetch_sessions
    session = sessions.of_sender(request.session_id, request.replica_id, context.principal)
    if session is None:
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, responses=[])
    if session.epoch != request.session_epoch:
        return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, responses=[])
    session.begin_fetch()
    await _update(sessions, session, request)
    if not session.partitions:
        sessions.close(session)
        return FetchResponse(responses=[])
    if not sessions.touch(session):
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, responses=[])
    refused = (
        {}
        if broker.authorizer is None or session.is_privileged
        else await _refused(broker, session, context)
    )
    max_wait_ms = request.max_wait_ms
    unasked = fetch_answers.unasked_of(request, context)
    if unasked is not None:
        max_wait_ms = unasked.wait_beside_ms(session.partitions, max_wait_ms)
    looked, results = await broker.replicas.fetch_session(
        session,
        fetch_answers.limits_of(broker, request, context, max_wait_ms),
        refused,
        context.connection_id,
        context.next_request,
    )
    try:
        answer = await slices.run(
            _answer(broker, request, context, session, unasked, looked, results)
        )
    except BaseException:
        reads.release(results)
        session.mark_each(looked)
        raise
    if answer is None:
        reads.release(results)
        session.mark_each(looked)
        return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, responses=[])
    return answer


async def _update(sessions: FetchSessions, session: FetchSession, request: FetchRequest) -> None:
    """Take what the request names, then forget what it forgets."""
    for few in slices.cut_members(request.topics, lambda topic: topic.partitions):
        for topic, part in few:
            sessions.add(session, fetch_answers.spec_of(topic.topic, part))
        if len(few) == slices.STEPS_PER_SLICE:
            await slices.pause()
    if request.forgotten_topics_data:
        for some in slices.cut_members(
            request.forgotten_topics_data, lambda topic: topic.partitions
        ):
            for forgotten, index in some:
                sessions.forget(session, TopicPartition(forgotten.topic, index))
            if len(some) == slices.STEPS_PER_SLICE:
                await slices.pause()


async def _refused(
    broker: Broker, session: FetchSession, context: RequestContext
) -> dict[TopicPartition, ErrorCode]:
    """Mark and return the partitions that a consumer may not read, or not any more."""
    _, denied = await authorization.split(
        broker, context, AclOperation.READ, ResourceType.TOPIC, list(session.topics), str
    )
    refused: dict[TopicPartition, ErrorCode] = {}
    if denied:
        topics = set(denied)
        for few in slices.cut(list(session.partitions.values())):
            of_topics = [one for one in few if one.spec.key.topic in topics]
            session.mark_each(of_topics)
            for one in of_topics:
                refused[one.spec.key] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if len(few) == slices.STEPS_PER_SLICE:
                await slices.pause()
    return refused


def _answer(
    broker: Broker,
    request: FetchRequest,
    context: RequestContext,
    session: FetchSession,
    unasked: Unasked | None,
    looked: Sequence[SessionPartition],
    results: Sequence[FetchResult],
) -> Generator[None, None, FetchResponse | None]:
    """Return the news, and settle the partitions; None if another fetch overtook this one."""
    if context.version < fetch_answers.FIRST_WITH_ZSTD:
        fetch_answers.refuse_zstd(broker, results)
    answer = FetchResponse(session_id=session.session_id, responses=[])
    news: list[tuple[SessionPartition, FetchResult]] = []
    records: list[Records] = []
    topics: dict[str, list[FetchablePartitionResponse]] = {}
    for number, (one, result) in enumerate(zip(looked, results, strict=True), 1):
        if one.is_news(result):
            found: Records = b"" if result.region is None else result.region
            key = result.key
            answers = topics.get(key.topic)
            if answers is None:
                answers = topics[key.topic] = []
                answer.responses.append(
                    FetchableTopicResponse(topic=key.topic, partition_responses=answers)
                )
            answers.append(fetch_answers.partition_response(result, found, request.isolation_level))
            news.append((one, result))
            records.append(found)
        if number % slices.STEPS_PER_SLICE == 0:
            yield
    quota = context.quota
    if quota is not None:
        size = yield from fetch_answers.size_of(context.version, list(topics), records)
        if session.epoch == next_epoch(request.session_epoch) and quota.refuses_fetch(size):
            # As in Kafka: the client asks again once it may, and is told the same then.
            reads.release(results)
            session.mark_each(looked)
            return FetchResponse(session_id=session.session_id, responses=[])
    # From here on at once: what the session says is what the client gets.
    if session.epoch != next_epoch(request.session_epoch):
        return None
    bytes_out = fetch_answers.bytes_out_of(broker, request)
    for (_, result), found in zip(news, records, strict=True):
        length = part_length(found)
        if length:
            bytes_out(result.key.topic, length)
    broker.replicas.settle_fetch(looked, results)
    if unasked is not None:
        unasked.answer([result.key for result in results if result.region is not None])
    return answer
