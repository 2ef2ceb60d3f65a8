"""Fetches of sessions (KIP-227, see `fetch_sessions`): changes, which are answered by changes.

The rules are Kafka's (`kafka.server.FetchManager`): a session takes what a fetch names and forgets
even if nothing of it is served then, one that becomes empty ends, and a fetch that another one
overtook gets error 71. A consumer must still be allowed to read each topic of its session.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence

from odradek import slices
from odradek.handlers import authorization, fetch_answers
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import (
    FetchablePartitionResponse,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from odradek.protocol.regions import Records
from odradek.replica import reads
from odradek.replica.fetch_sessions import (
    NO_SESSION,
    USED_AGAIN_MS,
    FetchSession,
    FetchSessions,
    SessionPartition,
)
from odradek.replica.fetch_specs import FetchResult, FetchSpec
from odradek.security.acls import AclOperation, ResourceType
from odradek.values import TopicPartition
from odradek.zk.admin import LONGEST_TOPIC_NAME


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
            if _any_too_long(spec.key.topic for spec, _ in few):
                sessions.close(session)
                return NO_SESSION
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
    epoch = session.begin_fetch()
    topics = request.topics
    if topics:
        if len(topics) == 1 and len(topics[0].partitions) <= slices.STEPS_PER_SLICE:
            _name(sessions, session, topics[0])
        else:
            await _name_in_slices(sessions, session, topics)
    if request.forgotten_topics_data:
        await _forget(sessions, session, request.forgotten_topics_data)
    if not sessions.touch(session):
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, responses=[])
    if not session.partitions:
        sessions.close(session)
        return FetchResponse(responses=[])
    refused = None
    if broker.authorizer is not None and not session.is_privileged:
        refused = await _refused(broker, session, context)
    if session.epoch != epoch:
        return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, responses=[])
    max_wait_ms = request.max_wait_ms
    unasked = fetch_answers.unasked_of(request, context)
    if unasked is not None:
        max_wait_ms = unasked.wait_beside_ms(session.partitions, max_wait_ms)
    limits = fetch_answers.limits_of(broker, request, context, max_wait_ms)
    looked, results = await broker.replicas.fetch_session(
        session, limits, refused, context.connection_id, context.next_request
    )
    if max_wait_ms >= USED_AGAIN_MS:
        sessions.touch(session)  # it was in use while it waited
    answer = FetchResponse(session_id=session.session_id, responses=[])
    is_refused = False
    try:
        if context.version < fetch_answers.FIRST_WITH_ZSTD:
            fetch_answers.refuse_zstd(broker, results)
        if len(looked) <= slices.STEPS_PER_SLICE:
            _add_news(answer, looked, results, request.isolation_level, {})
        else:
            await slices.run(_news_in_slices(answer, looked, results, request.isolation_level))
        quota = context.quota
        if quota is not None and session.epoch == epoch:
            is_refused = quota.refuses_fetch(await _size(context.version, answer))
    except BaseException:
        reads.release(results)
        session.mark_each(looked)
        raise
    # From here on at once: what the session says is what the client gets.
    if is_refused or session.epoch != epoch:
        reads.release(results)
        session.mark_each(looked)
        if is_refused:
            # As in Kafka: the client asks again once it may, and is told the same then.
            return FetchResponse(session_id=session.session_id, responses=[])
        return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, responses=[])
    bytes_out = fetch_answers.bytes_out_of(broker, request)
    given: list[TopicPartition] = []
    for result in results:
        region = result.region
        if region is not None:
            bytes_out(result.key.topic, region.length)
            given.append(result.key)
    broker.replicas.settle_fetch(looked, results)
    if unasked is not None:
        unasked.answer(given)
    return answer


def _name(sessions: FetchSessions, session: FetchSession, topic: FetchTopic) -> None:
    """Have partitions in the session, or read them elsewhere."""
    if len(topic.topic) > LONGEST_TOPIC_NAME:
        sessions.close(session)
        return
    for part in topic.partitions:
        sessions.add(session, fetch_answers.spec_of(topic.topic, part))


async def _name_in_slices(
    sessions: FetchSessions, session: FetchSession, topics: Sequence[FetchTopic]
) -> None:
    """As `_name`, for many partitions."""
    for few in slices.cut_members(topics, lambda topic: topic.partitions):
        if not session.is_open:
            return  # somebody ended it meanwhile, and nobody would forget what is added now
        if _any_too_long(topic.topic for topic, _ in few):
            sessions.close(session)
            return
        for topic, part in few:
            sessions.add(session, fetch_answers.spec_of(topic.topic, part))
        if len(few) == slices.STEPS_PER_SLICE:
            await slices.pause()


def _any_too_long(topics: Iterable[str]) -> bool:
    """Return whether no topic can have one of these names, which a session would keep in memory."""
    return any(len(topic) > LONGEST_TOPIC_NAME for topic in topics)


async def _forget(
    sessions: FetchSessions, session: FetchSession, topics: Sequence[ForgottenTopic]
) -> None:
    for few in slices.cut_members(topics, lambda topic: topic.partitions):
        for topic, index in few:
            sessions.forget(session, TopicPartition(topic.topic, index))
        if len(few) == slices.STEPS_PER_SLICE:
            await slices.pause()


async def _refused(
    broker: Broker, session: FetchSession, context: RequestContext
) -> dict[TopicPartition, ErrorCode] | None:
    """Mark and return the partitions that a consumer may not read, or not any more."""
    _, denied = await authorization.split(
        broker, context, AclOperation.READ, ResourceType.TOPIC, list(session.topics), str
    )
    if not denied:
        return None
    topics = set(denied)
    refused: dict[TopicPartition, ErrorCode] = {}
    for few in slices.cut(list(session.partitions.values())):
        of_topics = [one for one in few if one.spec.key.topic in topics]
        session.mark_each(of_topics)
        for one in of_topics:
            refused[one.spec.key] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if len(few) == slices.STEPS_PER_SLICE:
            await slices.pause()
    return refused


def _add_news(
    answer: FetchResponse,
    looked: Sequence[SessionPartition],
    results: Sequence[FetchResult],
    isolation_level: int,
    topics: dict[str, list[FetchablePartitionResponse]],
) -> None:
    """Add to an answer what is news; `topics` has what it says of each topic so far."""
    for one, result in zip(looked, results, strict=True):
        region = result.region
        if region is None and not one.is_news(result):
            continue
        found: Records = b"" if region is None else region
        part = fetch_answers.partition_response(result, found, isolation_level)
        topic = result.key.topic
        parts = topics.get(topic)
        if parts is None:
            parts = topics[topic] = [part]
            answer.responses.append(FetchableTopicResponse(topic=topic, partition_responses=parts))
        else:
            parts.append(part)


def _news_in_slices(
    answer: FetchResponse,
    looked: Sequence[SessionPartition],
    results: Sequence[FetchResult],
    isolation_level: int,
) -> Generator[None, None, None]:
    """As `_add_news`."""
    topics: dict[str, list[FetchablePartitionResponse]] = {}
    step = slices.STEPS_PER_SLICE
    for start in range(0, len(looked), step):
        end = start + step
        _add_news(answer, looked[start:end], results[start:end], isolation_level, topics)
        yield


async def _size(version: int, answer: FetchResponse) -> int:
    topics = [topic.topic for topic in answer.responses]
    records = [
        part.record_set or b"" for topic in answer.responses for part in topic.partition_responses
    ]
    aborted = sum(
        len(part.aborted_transactions or ())
        for topic in answer.responses
        for part in topic.partition_responses
    )
    return await slices.run(fetch_answers.size_of(version, topics, records, aborted))
