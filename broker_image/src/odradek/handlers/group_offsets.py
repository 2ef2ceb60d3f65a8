"""OffsetCommit, OffsetFetch and OffsetDelete: the committed offsets of consumer groups.

OffsetCommit and OffsetFetch of version 0 keep offsets in ZooKeeper (Z8), later versions in
`__consumer_offsets`, as in Kafka.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Generator, Iterable, Mapping
from typing import Any, TypeVar

from kazoo.exceptions import KazooException

from odradek import slices
from odradek.clock import wall_ms
from odradek.group.offsets import CommittedOffset
from odradek.handlers.context import Broker, RequestContext
from odradek.properties import LONG_MAX
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages import group_offsets as messages
from odradek.values import TopicPartition
from odradek.zk import consumers
from odradek.zk.payload import ZnodeError
from odradek.zk.session import NoNodeError

TopicAnswer = TypeVar("TopicAnswer")

logger = logging.getLogger(__name__)


async def offset_commit(
    broker: Broker, request: messages.OffsetCommitRequest, context: RequestContext
) -> messages.OffsetCommitResponse:
    """Store the offsets that a group commits; refuse each unknown partition by itself."""
    now_ms, retention_ms = wall_ms(), request.retention_time_ms

    def commit(partition: messages.OffsetCommitRequestPartition) -> CommittedOffset:
        given_ms = partition.commit_timestamp
        committed_ms = given_ms if given_ms >= 0 else now_ms
        return CommittedOffset(
            partition.committed_offset,
            partition.committed_metadata or "",
            committed_ms,
            partition.committed_leader_epoch,
            min(committed_ms + retention_ms, LONG_MAX) if retention_ms >= 0 else -1,
        )

    commits, errors = await slices.run(commits_in_slices(broker, request.topics, commit))
    if context.version == 0:
        errors.update(await _commit_to_zookeeper(broker, request.group_id, commits))
    elif commits:
        member = (request.member_id, request.group_instance_id, request.generation_id)
        errors.update(await broker.groups.commits.commit(request.group_id, member, commits))
    answers = await slices.run(
        error_per_partition(
            request.topics,
            errors,
            messages.OffsetCommitResponseTopic,
            messages.OffsetCommitResponsePartition,
        )
    )
    slices.discard(commits, errors)
    return messages.OffsetCommitResponse(topics=answers)


def commits_in_slices(
    broker: Broker, topics: Iterable[Any], commit: Callable[[Any], CommittedOffset]
) -> Generator[
    None, None, tuple[dict[TopicPartition, CommittedOffset], dict[TopicPartition, ErrorCode]]
]:
    """Return the commits to known partitions, and the errors of the others. `topics` are those of
    a request, and `commit` is called with each of their partitions.
    """
    commits: dict[TopicPartition, CommittedOffset] = {}
    errors: dict[TopicPartition, ErrorCode] = {}
    steps = 0
    for topic in topics:
        steps += 1
        if steps % slices.STEPS_PER_SLICE == 0:
            yield
        for partition in topic.partitions:
            steps += 1
            if steps % slices.STEPS_PER_SLICE == 0:
                yield
            key = TopicPartition(topic.name, partition.partition_index)
            if broker.metadata.partition(*key) is None:
                errors[key] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                commits[key] = commit(partition)
    return commits, errors


async def _commit_to_zookeeper(
    broker: Broker, group_id: str, commits: dict[TopicPartition, CommittedOffset]
) -> dict[TopicPartition, ErrorCode]:
    if not consumers.is_path(group_id):
        return dict.fromkeys(commits, ErrorCode.UNKNOWN_SERVER_ERROR)
    errors: dict[TopicPartition, ErrorCode] = {}
    # Each waits for ZooKeeper.
    for key, commit in commits.items():
        path = consumers.offset_path(group_id, key.topic, key.partition)
        data = consumers.encode_offset(commit.offset)
        try:
            try:
                await broker.session.set(path, data)
            except NoNodeError:
                await broker.session.ensure(path.rpartition("/")[0])
                await broker.session.create(path, data)
            errors[key] = ErrorCode.NONE
        except KazooException as failure:
            logger.warning("group %s: failed to write %s: %r", group_id, path, failure)
            errors[key] = ErrorCode.UNKNOWN_SERVER_ERROR
    return errors


async def offset_fetch(
    broker: Broker, request: messages.OffsetFetchRequest, context: RequestContext
) -> messages.OffsetFetchResponse:
    """Return the committed offsets of a group, -1 where there is none, once per partition."""
    if context.version == 0:
        return await _fetch_from_zookeeper(broker, request)
    error, present = await broker.groups.commits.committed(request.group_id)
    unstable = broker.groups.commits.unstable(request.group_id) if request.require_stable else set()
    # The answer is of one moment, though it may be made in slices.
    committed = present
    copied: dict[TopicPartition, CommittedOffset] = {}
    if request.topics is None or _is_large(request.topics):
        committed = copied = dict(present)
    asked = await slices.run(
        _asked_once(request.topics) if request.topics is not None else _by_topic(committed)
    )
    answer = messages.OffsetFetchResponse(
        # Version 1 has no top-level error: each partition carries it.
        error_code=error,
        topics=await slices.run(_committed_in_slices(asked, committed, unstable, error)),
    )
    slices.discard(asked, copied, unstable)
    return answer


def _is_large(topics: list[messages.OffsetFetchRequestTopic]) -> bool:
    """Return whether the answer is made in slices."""
    return len(topics) >= slices.STEPS_PER_SLICE or (
        sum(len(topic.partition_indexes) + 1 for topic in topics) >= slices.STEPS_PER_SLICE
    )


def _committed_in_slices(
    asked: Mapping[str, Iterable[int]],
    committed: Mapping[TopicPartition, CommittedOffset],
    unstable: Container[TopicPartition],
    error: ErrorCode,
) -> Generator[None, None, list[messages.OffsetFetchResponseTopic]]:
    none = CommittedOffset(-1, "", -1)
    topics: list[messages.OffsetFetchResponseTopic] = []
    steps = 0
    for topic, indexes in asked.items():
        partitions: list[messages.OffsetFetchResponsePartition] = []
        topics.append(messages.OffsetFetchResponseTopic(name=topic, partitions=partitions))
        steps += 1
        if steps % slices.STEPS_PER_SLICE == 0:
            yield
        for index in indexes:
            key = TopicPartition(topic, index)
            is_unstable = key in unstable
            found = none if is_unstable else committed.get(key, none)
            partitions.append(
                messages.OffsetFetchResponsePartition(
                    partition_index=index,
                    committed_offset=found.offset,
                    committed_leader_epoch=found.leader_epoch,
                    metadata=found.metadata,
                    error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT if is_unstable else error,
                )
            )
            steps += 1
            if steps % slices.STEPS_PER_SLICE == 0:
                yield
    return topics


def _asked_once(
    topics: Iterable[messages.OffsetFetchRequestTopic],
) -> Generator[None, None, dict[str, dict[int, None]]]:
    """Return the partitions by topic; a committed offset may have much metadata to answer with."""
    asked: dict[str, dict[int, None]] = {}
    for number, topic in enumerate(topics, 1):
        wanted = asked.setdefault(topic.name, {})
        for few in slices.cut(topic.partition_indexes, slices.KEYS_AT_ONCE):
            wanted.update(dict.fromkeys(few))
            if len(few) == slices.KEYS_AT_ONCE:
                yield
        if number % slices.STEPS_PER_SLICE == 0:
            yield
    return asked


def _by_topic(keys: Iterable[TopicPartition]) -> Generator[None, None, dict[str, dict[int, None]]]:
    asked: dict[str, dict[int, None]] = {}
    for number, (topic, index) in enumerate(keys, 1):
        asked.setdefault(topic, {})[index] = None
        if number % slices.KEYS_AT_ONCE == 0:
            yield
    return asked


async def _fetch_from_zookeeper(
    broker: Broker, request: messages.OffsetFetchRequest
) -> messages.OffsetFetchResponse:
    async def one(topic: str, index: int) -> messages.OffsetFetchResponsePartition:
        path = consumers.offset_path(request.group_id, topic, index)
        offset, error = -1, ErrorCode.NONE
        if broker.metadata.partition(topic, index) is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif not consumers.is_path(request.group_id):
            error = ErrorCode.UNKNOWN_SERVER_ERROR
        else:
            try:
                data, _ = await broker.session.get(path)
                offset = consumers.decode_offset(path, data)
            except NoNodeError:
                # The clients of that time take this code for "no offset yet".
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            except (KazooException, ZnodeError) as failure:
                logger.warning("group %s: failed to read %s: %r", request.group_id, path, failure)
                error = ErrorCode.UNKNOWN_SERVER_ERROR
        return messages.OffsetFetchResponsePartition(
            partition_index=index, committed_offset=offset, metadata="", error_code=error
        )

    answer = messages.OffsetFetchResponse(topics=[])
    steps = 0
    for topic, indexes in (await slices.run(_asked_once(request.topics or []))).items():
        partitions: list[messages.OffsetFetchResponsePartition] = []
        answer.topics.append(messages.OffsetFetchResponseTopic(name=topic, partitions=partitions))
        for index in indexes:
            partitions.append(await one(topic, index))
            steps += 1
            if steps % slices.STEPS_PER_SLICE == 0:
                await slices.pause()
    return answer


async def offset_delete(
    broker: Broker, request: messages.OffsetDeleteRequest, context: RequestContext
) -> messages.OffsetDeleteResponse:
    """Delete the offsets of topics that the group does not read; refuse unknown partitions."""
    keys: dict[TopicPartition, None] = {}
    unknown: dict[TopicPartition, ErrorCode] = {}
    for number, few in enumerate(
        slices.cut_members(request.topics, lambda topic: topic.partitions, slices.KEYS_AT_ONCE)
    ):
        if number:
            await slices.pause()
        for topic, partition in few:
            key = TopicPartition(topic.name, partition.partition_index)
            if broker.metadata.partition(*key) is None:
                unknown[key] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                keys[key] = None
    error, errors = await broker.groups.deletion.delete_offsets(request.group_id, keys)
    slices.discard(keys)
    if error is not ErrorCode.NONE:
        slices.discard(unknown)
        return messages.OffsetDeleteResponse(error_code=error, topics=[])
    errors.update(unknown)
    answers = await slices.run(
        error_per_partition(
            request.topics,
            errors,
            messages.OffsetDeleteResponseTopic,
            messages.OffsetDeleteResponsePartition,
        )
    )
    slices.discard(errors, unknown)
    return messages.OffsetDeleteResponse(topics=answers)


def error_per_partition(
    asked: Iterable[Any],
    errors: Mapping[TopicPartition, ErrorCode],
    topic_answer: Callable[..., TopicAnswer],
    partition_answer: Callable[..., object],
) -> Generator[None, None, list[TopicAnswer]]:
    """Return the answer for each topic of a request, in slices: one error code per partition."""
    answers: list[TopicAnswer] = []
    steps = 0
    for topic in asked:
        partitions: list[object] = []
        answers.append(topic_answer(name=topic.name, partitions=partitions))
        steps += 1
        if steps % slices.STEPS_PER_SLICE == 0:
            yield
        for partition in topic.partitions:
            index = partition.partition_index
            error = errors[TopicPartition(topic.name, index)]
            partitions.append(partition_answer(partition_index=index, error_code=error))
            steps += 1
            if steps % slices.STEPS_PER_SLICE == 0:
                yield
    return answers
